"""Updates of a batch that two processes share, and the same updates in one process."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from disco_torch import AdamConfig, AgentConfig, DiscoConfig, MetaNetConfig, MetaRNNConfig, ValueFunctionConfig
from disco_torch.agents import Agent
from disco_torch.data import InputConfig, InputNormalizer
from disco_torch.kernels import SPEEDS, Speed, recording
from disco_torch.layers import LSTMState
from disco_torch.rules import (
    PPO,
    ActorCritic,
    ActorCriticConfig,
    DiscoUpdateRule,
    DoublyRobust,
    DoublyRobustConfig,
    PolicyGradient,
)
from disco_torch.runs import World
from disco_torch.training import Learner, ValueFunction
from disco_torch.training.minibatches import StepTable, draw_orders
from disco_torch.training.recorded_update import Learning, RecordedUpdate
from disco_torch.types import Logs, Rollout, tree_map

SIZE, T, B, A, UPDATES = 2, 6, 4, 3, 3
"""Processes, and the sizes of the batch that they share."""
DISCO = DiscoConfig(
    net=MetaNetConfig(
        hidden_size=8,
        embedding_size=(4, 2),
        prediction_size=8,
        meta_rnn=MetaRNNConfig(policy_channels=(4,), embedding_size=(4,), pred_embedding_size=(4, 1), hidden_size=4),
        policy_channels=(4,),
        policy_target_channels=(4,),
    ),
    num_bins=11,
)
AGENT = AgentConfig(dense=(8,), lstm_size=4, head_mlp_hiddens=(4,), head_w_init_std=None)
MINIBATCHES = {"epochs": 2, "minibatches": 3, "max_gradient_norm": 0.1}
NORMALIZED = ActorCriticConfig(num_bins=11, normalize_adv=True)

CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "disco": (lambda: DiscoUpdateRule(DISCO), {}),
    "disco with memory": (lambda: DiscoUpdateRule(DISCO), {"core": "lstm", "burn_in": 2}),
    "disco in minibatches": (lambda: DiscoUpdateRule(DISCO), MINIBATCHES),
    "actor-critic": (lambda: ActorCritic(NORMALIZED), {}),
    "ppo in one step": (PPO, {}),
    "ppo": (PPO, MINIBATCHES),
    "ppo in epochs": (PPO, {"epochs": 2}),
    "ppo with memory": (PPO, {"core": "lstm", "burn_in": 1, "epochs": 2, "minibatches": 2}),
    "doubly-robust": (lambda: DoublyRobust(DoublyRobustConfig(num_bins=11)), {}),
    "policy-gradient": (PolicyGradient, {}),
}
TRIED = [(case, "plain") for case in CASES]
TRIED += [(case, speed) for case in ("disco", "ppo", "policy-gradient") for speed in ("traced", "cut")]
"""Cases and the speeds that they run at in two processes."""


CUT = Speed(trace=True, compile=True)
"""Recordings are cut at sums over processes; `compare_all` leaves the pieces as they are, to save the compiler's time."""


def make_batch(seed: int, memory: bool) -> Rollout:
    """Rows with ends and cuts, more of them in the first half of the batch: the halves count different numbers of steps."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> torch.Tensor:
        return 2.0 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1.0

    discounts, truncations = torch.ones(T + 1, B, dtype=torch.float64), torch.zeros(T + 1, B, dtype=torch.bool)
    for t, b in ((1, 0), (3, 0), (2, 1), (4, 3)):
        discounts[t, b] = 0.0
    truncations[3, 1] = truncations[5, 2] = True
    return Rollout(
        observations=3.0 * uniform(T + 1, B, 5) + 1.0,
        actions=torch.randint(A, (T + 1, B), generator=generator),
        rewards=uniform(T + 1, B),
        discounts=discounts,
        behaviour_logits=uniform(T + 1, B, A),
        truncations=truncations,
        first_state=LSTMState(uniform(B, 6), uniform(B, 6)) if memory else None,
    )


def part_of(rollout: Rollout, rank: int) -> Rollout:
    """The share of a process: a part of the batch."""
    mine = slice(rank * B // SIZE, (rank + 1) * B // SIZE)
    own = tree_map(lambda x: x[:, mine], dataclasses.replace(rollout, first_state=None))
    return dataclasses.replace(own, first_state=tree_map(lambda x: x[mine], rollout.first_state))


def make_update(case: str, speed: str, mean: Any) -> tuple[RecordedUpdate, Learning]:
    make_rule, settings = CASES[case]
    settings = dict(settings)
    torch.manual_seed(0)
    rule = make_rule().double()
    with torch.no_grad():
        for param in rule.parameters():
            param.copy_(0.3 * torch.randn(param.shape, dtype=param.dtype))
    config = dataclasses.replace(AGENT, core=settings.pop("core", "none"), core_size=6)
    agent = Agent(torch.zeros(5, dtype=torch.float64), A, rule.outputs(A), config).double()
    learner = Learner(agent, rule, AdamConfig(learning_rate=1e-2), **settings)
    generator = torch.Generator().manual_seed(0)
    state, values = Learning(learner.init(generator)), None
    if case == "policy-gradient":
        values = ValueFunction(torch.zeros(5, dtype=torch.float64), ValueFunctionConfig(dense=(8,), aligned=True))
        values.net.double()
        state = Learning(state.learner, values.init(generator))
    return RecordedUpdate(learner, values, None, SPEEDS.get(speed, CUT), mean), state


def split(case: str, speed: str, world: World) -> tuple[Learning, Logs]:
    """Updates in which this process has its part of each batch."""
    update, state = make_update(case, speed, world.mean_across_processes)
    generator, logs = torch.Generator().manual_seed(world.rank), {}
    rate = torch.full((), 1e-2, dtype=torch.float64)
    for seed in range(UPDATES):
        batch = part_of(make_batch(seed, "memory" in case), world.rank)
        state, logs = update(state, batch, rate, True, None, generator)
    return state, logs


def alone(case: str) -> tuple[Learning, Logs]:
    """The same updates on whole batches; minibatch k is the union of the processes' parts k."""
    update, state = make_update(case, "plain", None)
    rate, logs = torch.full((), 1e-2, dtype=torch.float64), {}
    generators = [torch.Generator().manual_seed(rank) for rank in range(SIZE)]
    for seed in range(UPDATES):
        batch = make_batch(seed, "memory" in case)
        if update.learner.in_one_step:
            state, logs = update(state, batch, rate, True, None, generators[0])
            continue
        state, table = update.prepare(state, batch, None)
        learner_state, steps = state.learner, []
        for part in parts_of(table, update.learner, generators):
            learner_state, logs = update.step(learner_state, part, rate, True)
            steps.append(logs)
        state = Learning(learner_state, state.value)
        logs = {name: torch.stack([each[name] for each in steps]).mean() for name in logs}
    return state, logs


def parts_of(table: StepTable, learner: Learner, generators: list[torch.Generator]) -> list[StepTable]:
    """All minibatches of all epochs, from the orders that the processes draw."""
    each = table.num_lines // SIZE
    orders = [draw_orders(learner.epochs, each, generator, "cpu") for generator in generators]
    own = torch.arange(table.num_lines)  # of each process: whole trajectories, or steps, those of the first time step first
    if table.memory is None:
        own = own.view(T, SIZE, B // SIZE).transpose(0, 1)
    own = own.reshape(SIZE, each)
    parts = []
    for epoch in range(learner.epochs):
        shares = [own[rank][orders[rank][epoch]].tensor_split(learner.minibatches) for rank in range(SIZE)]
        for k in range(learner.minibatches):
            lines = torch.cat([share[k] for share in shares])
            parts.append(tree_map(lambda x, lines=lines: x[lines], table))
    return parts


def make_normalizer() -> InputNormalizer:
    return InputNormalizer(InputConfig(observations="auto", rewards="normalized"), {"observation": "numbers"}, 0.9)


def compare_all(folder: Path) -> None:
    """Runs all cases in this process, one of two, and writes down what came of each."""
    results: dict[str, Any] = {}
    recording.compiled = lambda graph, tensors, carried: graph
    os.environ[recording.STRICT] = "1"  # a stage that fails raises
    with World.from_environment() as world:
        for case, speed in TRIED:
            results[f"{case}, {speed}"] = split(case, speed, world)
        normalizer = make_normalizer()
        stats = normalizer.init(torch.zeros(5, dtype=torch.float64), B // SIZE)
        for seed in range(UPDATES):
            own = part_of(make_batch(seed, False), world.rank)
            stats = normalizer.update(stats, own, sum_across_processes=world.sum)
        results["inputs"] = (dataclasses.replace(stats, returns=None, executed=None), {})
        torch.save(results, folder / f"{world.rank}.pt")
