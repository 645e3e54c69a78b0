"""Your own network and your own environment, with `DiscoTrainer`.

    python examples/custom_agent.py

The agent is any module with three methods; the environment is a function that takes actions and returns observations,
rewards and ends. Here: a small network with a plain head for each action, on Catch written in a few lines of numpy.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from disco_torch import DiscoTrainer, OutputSpec, UpdateRule, collect_rollout, load_rule


class CatchAgent(nn.Module):
    """Two hidden layers; each output per action is one linear map to all actions at once."""

    def __init__(self, obs_dim: int, num_actions: int, outputs: OutputSpec) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.torso = nn.Sequential(nn.Linear(obs_dim, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        # For Disco103: logits and y (600) of a state; z (600), q (601) and aux_pi of each action.
        self.flat = nn.ModuleDict({name: nn.Linear(256, size) for name, size in outputs.flat.items()})
        sizes = {name: num_actions * size for name, size in outputs.per_action.items()}
        self.per_action = nn.ModuleDict({name: nn.Linear(256, size) for name, size in sizes.items()})

    def forward(self, observations: Tensor, should_reset: Tensor | None = None) -> dict[str, Tensor]:
        """Rows of observations, [T, B, obs], to outputs; a network without memory has nothing to reset."""
        hidden = self.torso(observations)
        out = {name: head(hidden) for name, head in self.flat.items()}
        for name, head in self.per_action.items():
            out[name] = head(hidden).unflatten(-1, (self.num_actions, -1))  # [T, B, A, size]
        return out

    def forward_step(self, observations: Tensor, lstm_state: Any) -> tuple[dict[str, Tensor], Any]:
        """One observation of each environment, [B, obs]."""
        return {"logits": self.flat["logits"](self.torso(observations))}, lstm_state

    def init_lstm_state(self, batch_size: int, device: torch.device | str) -> tuple[()]:
        return ()


class NumpyCatch:
    """`num_envs` games of Catch; after an end the next game is shown at once."""

    def __init__(self, num_envs: int, size: int = 8, seed: int = 0) -> None:
        self.num_envs, self.size = num_envs, size
        self.random = np.random.default_rng(seed)
        self.row = np.zeros(num_envs, dtype=int)
        self.ball = self.random.integers(size, size=num_envs)
        self.paddle = np.full(num_envs, size // 2)

    def obs(self) -> np.ndarray:
        boards = np.zeros((self.num_envs, self.size, self.size), dtype=np.float32)
        envs = np.arange(self.num_envs)
        boards[envs, self.row, self.ball] = 1.0
        boards[envs, -1, self.paddle] = 1.0
        return boards.reshape(self.num_envs, -1)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.paddle = np.clip(self.paddle + actions - 1, 0, self.size - 1)
        self.row += 1
        dones = self.row == self.size - 1
        rewards = np.where(dones, np.where(self.ball == self.paddle, 1.0, -1.0), 0.0).astype(np.float32)
        self.row[dones], self.paddle[dones] = 0, self.size // 2
        self.ball[dones] = self.random.integers(self.size, size=int(dones.sum()))
        return rewards, dones


def main(steps: int = 1000, seed: int = 0, device: str = "cpu", rule: UpdateRule | None = None) -> float:
    """Returns the share of balls caught in the last 100 rollouts."""
    torch.manual_seed(seed)
    env = NumpyCatch(num_envs=2, seed=seed)
    obs = env.obs()
    rule = load_rule("disco103") if rule is None else rule
    agent = CatchAgent(obs_dim=64, num_actions=3, outputs=rule.outputs(3)).to(device)
    trainer = DiscoTrainer(agent, device=device, rule=rule)
    lstm_state = agent.init_lstm_state(env.num_envs, device)
    rewards_seen: list[np.ndarray] = []

    def step_fn(actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rewards, dones = env.step(actions)
        rewards_seen.append(rewards[dones])
        return env.obs(), rewards, dones

    for step in range(steps):
        rollout, obs, lstm_state = collect_rollout(agent, step_fn, obs, lstm_state, rollout_len=29, device=device)
        logs = trainer.step(rollout)
        if (step + 1) % 100 == 0:
            share = (np.concatenate(rewards_seen[-2900:]) > 0).mean()
            print(f"step {step + 1}: {share:.0%} caught, loss {logs['total_loss']:.4f}", flush=True)
    return float((np.concatenate(rewards_seen[-2900:]) > 0).mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    main(**vars(parser.parse_args()))
