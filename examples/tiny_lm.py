"""A tiny language model learns to count upwards from reward alone.

    python examples/tiny_lm.py --device cuda

A causal transformer of one layer (about 141,000 parameters) emits digits one at a time. Each digit that is larger than the
one before it earns 1, any other costs 1. Of the 100 million sequences of 8 digits only 45 are strictly increasing, and a
large digit that pays now spoils what comes later. There is no data: Disco103 turns the rewards into targets for the
transformer, which acts with 20% random digits so that it does not settle too early.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from disco_torch import DiscoTrainer, OutputSpec, UpdateRule, collect_rollout, load_rule

DIGITS, LONGEST, EMPTY = 10, 8, 10
RANDOM = 0.2
"""Share of digits that are random while it learns."""


class TinyLM(nn.Module):
    """One block of causal attention over the digits so far; outputs at the position that comes next."""

    def __init__(self, outputs: OutputSpec, width: int = 60, heads: int = 4) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.tokens = nn.Embedding(DIGITS + 1, width)
        self.positions = nn.Embedding(LONGEST + 1, width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3)])
        self.actions = nn.Embedding(DIGITS, width)
        self.flat = nn.ModuleDict({name: nn.Linear(width, size) for name, size in outputs.flat.items()})
        self.per_action = nn.ModuleDict({name: nn.Linear(width, size) for name, size in outputs.per_action.items()})
        with torch.no_grad():  # begin with an even policy and with values near 0
            for head in (self.flat["logits"], self.per_action["q"]):
                head.weight.mul_(0.1)
                head.bias.zero_()

    def embed(self, sequences: Tensor) -> Tensor:
        """Digits so far, [N, LONGEST] with EMPTY where none is yet -> what is known at the next position, [N, width]."""
        start = torch.full_like(sequences[:, :1], EMPTY)
        x = self.tokens(torch.cat([start, sequences], dim=1)) + self.positions.weight  # [N, LONGEST + 1, width]
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)  # [N, heads, LONGEST + 1, ...]
        x = x + self.mix(attended.transpose(1, 2).flatten(2))
        x = self.norms[2](x + self.mlp(self.norms[1](x)))
        position = (sequences != EMPTY).sum(dim=1)
        return x[torch.arange(len(x), device=x.device), position]

    def forward(self, observations: Tensor, should_reset: Tensor | None = None) -> dict[str, Tensor]:
        """[T, B, LONGEST] -> outputs; everything that is needed stands in the observation."""
        hidden = self.embed(observations.flatten(0, 1).long()).unflatten(0, observations.shape[:2])
        out = {name: head(hidden) for name, head in self.flat.items()}
        after = torch.tanh(hidden.unsqueeze(2) + self.actions.weight)  # [T, B, A, width]
        return out | {name: head(after) for name, head in self.per_action.items()}

    def policy(self, observations: Tensor) -> Tensor:
        """Logits of the next digit, [B, A]."""
        return self.flat["logits"](self.embed(observations.long()))

    def forward_step(self, observations: Tensor, lstm_state: Any) -> tuple[dict[str, Tensor], Any]:
        """What acts: the policy, mixed with random digits. The rule is told, so that its returns can correct for it."""
        probabilities = torch.softmax(self.policy(observations), dim=-1)
        return {"logits": torch.log((1 - RANDOM) * probabilities + RANDOM / DIGITS)}, lstm_state

    def init_lstm_state(self, batch_size: int, device: torch.device | str) -> tuple[()]:
        return ()


class Counting:
    """`num_envs` sequences that grow by a digit a step and start again at `length`."""

    def __init__(self, num_envs: int, length: int, device: torch.device | str) -> None:
        self.length = length
        self.digits = torch.full((num_envs, LONGEST), EMPTY, dtype=torch.uint8, device=device)
        self.position = 0
        self.finished: list[Tensor] = []

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        last = self.digits[:, self.position - 1].long() if self.position > 0 else torch.full_like(actions, -1)
        self.digits = self.digits.clone()
        self.digits[:, self.position] = actions.to(torch.uint8)
        self.position += 1
        rewards = torch.where(actions > last, 1.0, -1.0)
        done = self.position == self.length
        if done:
            sequences = self.digits[:, : self.length].long()
            self.finished.append((sequences[:, 1:] > sequences[:, :-1]).all(dim=1))
            self.digits, self.position = torch.full_like(self.digits, EMPTY), 0
        return self.digits, rewards, torch.full_like(rewards, done)


@torch.no_grad()
def increasing_share(agent: TinyLM, length: int, device: torch.device | str, num: int = 2000) -> float:
    """The share of sampled sequences that are strictly increasing."""
    env = Counting(num, length, device)
    observations = env.digits
    for _ in range(length):
        digits = torch.distributions.Categorical(logits=agent.policy(observations)).sample()
        observations, _, _ = env.step(digits)
    return env.finished[0].float().mean().item()


def learn(length: int, updates: int, lr: float, seed: int, device: str, rule: UpdateRule) -> float:
    """Trains a new model on sequences of one length; returns the share of its sequences that are increasing."""
    torch.manual_seed(seed)
    agent = TinyLM(rule.outputs(DIGITS)).to(device)
    trainer = DiscoTrainer(agent, device=device, lr=lr, batch_size=64, replay_capacity=512, rule=rule, seed=seed)
    env = Counting(64, length, device)
    observations, memory = env.digits, agent.init_lstm_state(64, device)
    started = time.time()
    for update in range(1, updates + 1):
        # 24 steps are whole sequences of every length.
        rollout, observations, memory = collect_rollout(agent, env.step, observations, memory, rollout_len=24, device=device)
        logs = trainer.step(rollout)
        if update % 250 == 0:
            share, seconds = increasing_share(agent, length, device), time.time() - started
            where = f"length {length}, update {update}, {seconds:.0f} s"
            print(f"{where}: {share:.1%} increasing, loss {logs['total_loss']:.3f}", flush=True)
            if share > 0.98:
                break
    return increasing_share(agent, length, device)


def main(
    lengths: Sequence[int] = (4, 6, 8),
    updates: int = 3000,
    lr: float = 3e-3,
    seed: int = 0,
    device: str = "cpu",
    rule: UpdateRule | None = None,
) -> dict[int, float]:
    """The share of increasing sequences that was learned at each length."""
    rule = load_rule("disco103") if rule is None else rule
    print(f"{sum(param.numel() for param in TinyLM(rule.outputs(DIGITS)).parameters()):,} parameters")
    return {length: learn(length, updates, lr, seed, device, rule) for length in lengths}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=(4, 6, 8))
    parser.add_argument("--updates", type=int, default=3000, help="at most, for each length")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    for length, share in main(**vars(parser.parse_args())).items():
        print(f"length {length}: {share:.1%} of sequences are strictly increasing")
