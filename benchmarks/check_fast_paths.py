"""Compares every fast path with the plain one on a device; exit status 1 where they differ too much.

    python benchmarks/check_fast_paths.py --device cuda

Relative differences of all numbers together: 1e-5 in float32, with float32 matmuls instead of TF32, and 1e-12 in float64. A
stage that fails (record, compile, capture) ends the run. Of ten updates the parameters after them are compared, of acting
all that was seen and done, of meta-updates by how much they have changed the rule. A gradient through updates by Adam
multiplies roundings, so there a thousand times as much is allowed, and Adam's epsilon is 1e-3: if the agents' parameters
are rounded otherwise before each of them, plain meta-updates differ by 1e-4 and 3e-13 then. With an epsilon of 1e-8 it
would be up to 0.4 and 1e-9.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import torch
from learner import Size, random_rollout
from measure import begin, parser, print_row
from meta_update import config_of

from disco_torch import ActorCritic, AdamConfig, Agent, AgentConfig, DiscoUpdateRule, Learner
from disco_torch.data import Collector, init_actor
from disco_torch.discovery import DiscoverySession
from disco_torch.envs import make_env
from disco_torch.kernels import SPEEDS, Recorded, Speed, reversed_hiddens
from disco_torch.layers import LSTM
from disco_torch.types import flatten_tree, tree_map

TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12}
EPSILON, LOOSER = 1e-3, 1000
"""Of the agents' Adam in meta-updates, and how many times as different these may be."""
OVERLAP = {
    "window": 3,
    "stride": 1,
    "replay_capacity": 16,
    "replayed_share": 0.5,
    "fresh_validation": True,
    "lifetimes": (3,),
}
WIDTHS = (34, 7, 8, 10, 7, 7)
SIZE = Size(T=12, B=16, observation=32, dense=(64, 64), lstm_size=32, head_mlp_hiddens=(32,))


def difference(tree: Any, plain: Any) -> float:
    a, b = (torch.cat([leaf.double().flatten() for leaf in flatten_tree(x)[0]]) for x in (tree, plain))
    return float((a - b).norm() / b.norm())


def learner_params(rule: Any, speed: Speed, device: str, dtype: torch.dtype) -> Any:
    """After ten updates of one life on ten batches, the learning rate another one each time."""
    torch.manual_seed(0)
    rule = rule().to(device, dtype)
    sizes = AgentConfig(SIZE.dense, SIZE.lstm_size, SIZE.head_mlp_hiddens)
    agent = Agent(torch.zeros(SIZE.observation), SIZE.A, rule.outputs(SIZE.A), sizes).to(device, dtype)
    learner = Learner(agent, rule, AdamConfig())
    state = learner.init(torch.Generator(device).manual_seed(1))

    def of_rate(state: Any, rollout: Any, rate: torch.Tensor) -> Any:
        return learner.update(state, rollout, learning_rate=rate)

    update = Recorded(of_rate, speed, "the update", carry=True, by_parameter=True)
    for i in range(10):
        rollout = tree_map(lambda x: x.to(dtype) if x.is_floating_point() else x, random_rollout(SIZE, device))
        state, _ = update(state, rollout, torch.full((), 1e-3 / (1 + i), dtype=dtype, device=device))
    return state.params


def collected(env_name: str, speed: Speed, device: str, dtype: torch.dtype) -> Any:
    """Three consecutive rollouts."""
    torch.manual_seed(0)
    env = make_env(env_name, 16, device=device)
    agent = Agent(env.observation_example, env.num_actions, ActorCritic().outputs(env.num_actions)).to(device, dtype)
    generator = torch.Generator(device).manual_seed(0)
    params, actor = agent.init(generator), init_actor(agent, env, generator)
    collect, rollouts = Collector(agent, env, speed), []
    for _ in range(3):
        rollout, actor, episodes = collect(params, actor, 12, generator)
        rollouts.append((rollout, episodes))
    return rollouts


def meta_updated(speed: str, device: str, dtype: torch.dtype, updates: int = 2, **changes: Any) -> Any:
    """By how much some meta-updates change the rule."""
    name, optimizer = str(dtype).removeprefix("torch."), AdamConfig(eps=EPSILON)
    config = dataclasses.replace(config_of(2, 2, device, speed), dtype=name, num_envs=8, batch_size=8, **changes)
    session = DiscoverySession(dataclasses.replace(config, agent_optimizer=optimizer))
    torch.set_float32_matmul_precision("highest")  # a session asks for TF32
    before = {name: param.clone() for name, param in session.rule_params.items()}
    for _ in range(updates):
        session.advance()
    return {name: param - before[name] for name, param in session.rule_params.items()}


def hiddens(fast: bool, device: str, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    lstm = LSTM(27, 256).to(device, dtype)
    x, resets = torch.randn(29, 64, 27, device=device, dtype=dtype), torch.rand(29, 64, device=device) < 0.1
    with torch.set_grad_enabled(not fast):
        return reversed_hiddens(lstm, x, resets).detach()


def comparisons(device: str, dtype: torch.dtype) -> dict[str, Callable[[str], Any]]:
    """By name, what a path computes; the path by its name."""
    return {
        "10 updates, disco": lambda name: learner_params(DiscoUpdateRule, SPEEDS[name], device, dtype),
        "10 updates, actor-critic": lambda name: learner_params(ActorCritic, SPEEDS[name], device, dtype),
        "acting, catch": lambda name: collected("catch", SPEEDS[name], device, dtype),
        "acting, grid": lambda name: collected("grid", SPEEDS[name], device, dtype),
        "the rule's LSTM": lambda name: hiddens(name != "plain", device, dtype),
        "2 meta-updates": lambda name: meta_updated(name, device, dtype),
        "5 meta-updates, replay and overlap": lambda name: meta_updated(name, device, dtype, 5, **OVERLAP),
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--only", default="", help="comparisons whose names contain this")
    args = options.parse_args()
    speeds, failures = begin(args), 0
    torch.set_float32_matmul_precision("highest")
    print_row(("work", "dtype", "path", "difference", "allowed", "verdict"), WIDTHS)
    for dtype, tolerance in TOLERANCES.items():
        for name, compute in comparisons(args.device, dtype).items():
            if args.only not in name:
                continue
            allowed = tolerance * (LOOSER if "meta-updates" in name else 1)
            plain = compute("plain")
            for speed in speeds[1:]:
                error = difference(compute(speed), plain)  # strict: a stage that fails raises
                passed = error <= allowed
                failures += not passed
                verdict = "ok" if passed else "FAILED"
                cells = [name, str(dtype).removeprefix("torch."), speed, f"{error:.1e}", f"{allowed:.0e}", verdict]
                print_row(cells, WIDTHS)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
