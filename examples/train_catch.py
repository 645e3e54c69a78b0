"""Train an agent on Catch with a discovered rule: the whole loop on one page.

    python examples/train_catch.py                 # Disco103, downloaded or from the cache
    python examples/train_catch.py --rule actor-critic

A ball falls from a random column of an 8x8 board; the paddle on the last row must be under it. Reward is +1 or -1 at the
end. The settings are those of the paper's released notebook: two parallel environments, rollouts of 29 rows, one
update a rollout on 64 trajectories from the last 1024.
"""

from __future__ import annotations

import argparse

import torch

from disco_torch import AdamConfig, Agent, Learner, load_rule
from disco_torch.data import Replay, collect, init_actor
from disco_torch.envs import Catch

ROWS, BATCH = 29, 64


def main(rule_name: str = "disco103", rollouts: int = 1000, seed: int = 0, device: str = "cpu") -> float:
    """Returns the share of balls caught in the last 100 rollouts."""
    generator = torch.Generator(device).manual_seed(seed)
    env = Catch(num_envs=2, device=device)
    rule = load_rule(rule_name).to(device)

    # The rule says what the agent must compute: a policy, predictions y and z, action values q, and more.
    outputs = rule.outputs(env.num_actions)
    agent = Agent(env.observation_example, env.num_actions, outputs).to(device)
    learner = Learner(agent, rule, AdamConfig(learning_rate=1e-2))
    replay = Replay(1024, ROWS, env.observation_example, env.num_actions, device)

    state = learner.init(generator)  # parameters, Adam's moments, and what the rule remembers of this agent
    actor = init_actor(agent, env, generator)  # where the environments stand
    caught: list[torch.Tensor] = []
    for i in range(rollouts):
        # Act: 29 rows in each copy, and the returns of the episodes that ended on the way.
        rollout, actor, episodes = collect(agent, state.params, env, actor, ROWS, generator)
        replay.add(rollout)
        caught.append(episodes.returns[episodes.ends] > 0)

        # Learn: the rule looks at a batch of trajectories and says what the agent should have predicted.
        if len(replay) >= BATCH:
            state, logs = learner.update(state, replay.sample(BATCH, generator))
        if (i + 1) % 100 == 0:
            share = torch.cat(caught[-100:]).float().mean().item()
            print(f"rollout {i + 1}: {share:.0%} caught, loss {logs['total_loss'].item():.4f}", flush=True)
    return torch.cat(caught[-100:]).float().mean().item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rule", default="disco103")
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    main(arguments.rule, arguments.rollouts, arguments.seed, arguments.device)
