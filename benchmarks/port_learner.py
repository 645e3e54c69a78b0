"""The learner update of disco-torch 0.4.0, for `learner.py`; runs in an environment with that package.

It is the gradient step of its trainer, on batches that are there already, with random weights of the rule. That package has
no agent to import, so one of the sizes asked for is given here: row by row and action by action, as in the one that its
project shows as an example, or `batched`, all rows and actions at once. It is the nearest to the same work: a step fetches
six numbers of its logs, and its returns are not those of the reference.
"""

import json
import sys

import torch
from serve import cpu_memory, cuda_memory, serve
from torch import Tensor, nn

from disco_torch import trainer as trainer_module

setting = json.loads(sys.argv[1])
device = setting["device"]
T, B, A, size = (setting[name] for name in ("T", "B", "A", "observation"))
on_gpu = device.startswith("cuda")


def mlp(*sizes: int) -> nn.Sequential:
    """Linear layers with rectifiers between them."""
    layers = [layer for i in range(len(sizes) - 1) for layer in (nn.Linear(sizes[i], sizes[i + 1]), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class Agent(nn.Module):
    """What the port's trainer asks of an agent."""

    def __init__(self) -> None:
        super().__init__()
        dense, lstm_size, hiddens = setting["dense"], setting["lstm_size"], setting["head_mlp_hiddens"]
        self.torso = nn.Sequential(mlp(size, *dense), nn.ReLU())
        self.flat = nn.ModuleDict({name: nn.Linear(dense[-1], n) for name, n in (("logits", A), ("y", 600))})
        self.root, self.lstm = nn.Linear(dense[-1], lstm_size), nn.LSTMCell(A, lstm_size)
        sizes = {"z": 600, "q": 601, "aux_pi": A}
        self.per_action = nn.ModuleDict({name: mlp(lstm_size, *hiddens, n) for name, n in sizes.items()})
        self.register_buffer("each_action", torch.eye(A))

    def forward(self, observations: Tensor, should_reset: Tensor) -> dict[str, Tensor]:
        if setting["batched"]:
            out = self.outputs(observations.flatten(0, 1))
            return {name: x.unflatten(0, observations.shape[:2]) for name, x in out.items()}
        rows = [self.outputs(row) for row in observations]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}  # [T, B, ...]

    def outputs(self, observations: Tensor) -> dict[str, Tensor]:
        """For observations of [N, F]."""
        torso = self.torso(observations)
        out = {name: head(torso) for name, head in self.flat.items()}
        cell = self.root(torso)
        if setting["batched"]:
            cell, actions = cell.repeat_interleave(A, dim=0), self.each_action.repeat(len(cell), 1)  # [N * A, ...]
            hidden, _ = self.lstm(actions, (cell.tanh(), cell))
            return out | {name: head(hidden).unflatten(0, (-1, A)) for name, head in self.per_action.items()}
        hiddens = [self.lstm(action.expand(len(cell), A), (cell.tanh(), cell))[0] for action in self.each_action]
        return out | {name: torch.stack([head(h) for h in hiddens], dim=1) for name, head in self.per_action.items()}

    def forward_step(self, observations: Tensor, state: None) -> tuple[dict[str, Tensor], None]:
        raise NotImplementedError("this agent only learns.")

    def init_lstm_state(self, batch: int, device: object = None) -> None:
        return None


def rollout() -> dict[str, object]:
    return {
        "observations": torch.rand(T + 1, B, size, device=device),
        "actions": torch.randint(A, (T + 1, B), device=device),
        "rewards": torch.randn(T, B, device=device),
        "discounts": 0.997 * (torch.rand(T, B, device=device) > 0.1),
        "agent_out": {"logits": torch.randn(T + 1, B, A, device=device)},
    }


torch.manual_seed(0)
torch.set_float32_matmul_precision("high")
trainer_module.load_disco103_weights = lambda rule, path: None  # an update takes as long with any weights
trainer = trainer_module.DiscoTrainer(Agent().to(device), device=device, lr=3e-4, weights_path="none")
rollouts = [rollout() for _ in range(3)]
serve(
    lambda i: trainer._gradient_step(rollouts[i % 3]),
    torch.cuda.synchronize if on_gpu else lambda: None,
    cuda_memory if on_gpu else cpu_memory,
)
