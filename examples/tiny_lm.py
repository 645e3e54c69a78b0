"""A tiny language model learns to count upwards from reward alone.

    python examples/tiny_lm.py --device cuda

A causal transformer of one layer (about 141,000 parameters) emits digits one at a time. Each digit that is larger than the
one before it earns 1, any other costs 1. Lengths 4, 6 and 8 in turn; at length 8 only 45 of the 100 million sequences are
strictly increasing. There is no data: Disco103 turns the rewards into targets for the transformer.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import Tensor, nn

from disco_torch import DiscoTrainer, OutputSpec, UpdateRule, collect_rollout, load_rule

DIGITS, LONGEST, EMPTY = 10, 8, 10


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

    def forward_step(self, observations: Tensor, lstm_state: Any) -> tuple[dict[str, Tensor], Any]:
        return {"logits": self.flat["logits"](self.embed(observations.long()))}, lstm_state

    def init_lstm_state(self, batch_size: int, device: torch.device | str) -> tuple[()]:
        return ()


class Counting:
    """`num_envs` sequences that grow by a digit a step and begin anew at `length`."""

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
        logits = agent.forward_step(observations, ())[0]["logits"]
        observations, _, _ = env.step(torch.distributions.Categorical(logits=logits).sample())
    return env.finished[0].float().mean().item()


def main(updates: int = 1500, lr: float = 1e-3, seed: int = 0, device: str = "cpu", rule: UpdateRule | None = None) -> float:
    """Trains `updates` updates at each length; returns the share of increasing sequences of length 8."""
    torch.manual_seed(seed)
    rule = load_rule("disco103") if rule is None else rule
    agent = TinyLM(rule.outputs(DIGITS)).to(device)
    print(f"{sum(param.numel() for param in agent.parameters()):,} parameters")
    started = time.time()
    for length in (4, 6, 8):
        # Each length begins a new replay and a new life of the rule, with what the agent has learned.
        trainer = DiscoTrainer(agent, device=device, lr=lr, batch_size=64, replay_capacity=512, rule=rule)
        env = Counting(64, length, device)
        observations, memory = env.digits, agent.init_lstm_state(64, device)
        for update in range(updates):
            rollout, observations, memory = collect_rollout(
                agent, env.step, observations, memory, rollout_len=2 * length, device=device
            )
            logs = trainer.step(rollout)
            if (update + 1) % 250 == 0:
                share, seconds = increasing_share(agent, length, device), time.time() - started
                where = f"length {length}, update {update + 1}, {seconds:.0f} s"
                print(f"{where}: {share:.1%} increasing, loss {logs['total_loss']:.3f}", flush=True)
    return increasing_share(agent, 8, device)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=1500)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    print(f"{main(**vars(parser.parse_args())):.1%} of sequences of length 8 are strictly increasing")
