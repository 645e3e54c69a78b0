"""A one-step model of actions: what the agent predicts for each action it could take."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from disco_torch.kernels import action_hiddens, is_wrapped
from disco_torch.layers import LSTM, MLP, Affine, Linear, linear_each, lstm_gates, mlp_each
from disco_torch.types import AgentOutput

ROWS = 2048
"""So many rows at a time, on a CPU: enough for a matrix product, and few enough for a cache."""

Reads = Mapping[str, Callable[[Tensor], AgentOutput]]
"""What is read of outputs, by head: a function of rows, [..., size] -> [..., any] for each name that it gives them."""


class ActionModel(nn.Module):
    """One LSTM step from a root state made of the torso's output, with the one-hot action as input, and an MLP a head.

        c = W s,    h = tanh(c),    h_a = LSTM(onehot(a), (h, c)),    out_a = MLP(h_a)

    After Muesli (Hessel et al., 2021). All actions of a state share the root, so the recurrent product is made once a
    state; an action only adds its own row of the input weights.
    """

    def __init__(
        self, in_features: int, num_actions: int, sizes: Mapping[str, int], lstm_size: int, head_hiddens: Sequence[int]
    ) -> None:
        super().__init__()
        self.root = Linear(in_features, lstm_size)
        self.core = LSTM(num_actions, lstm_size)
        self.heads = nn.ModuleDict({name: MLP(lstm_size, (*head_hiddens, size)) for name, size in sizes.items()})

    def forward(self, torso: Tensor, actions: Tensor | None = None, reads: Reads | None = None) -> AgentOutput:
        """Outputs of all actions, [..., F] -> [..., A, size] for each head; or of the given `actions` [...], [..., size].

        With `reads`, what they read of these instead: the outputs of all actions are large, and are not kept then.
        """
        cell = self.root(torso)
        return self.outputs(cell, self.recurrent_gates(cell), actions, reads)

    def recurrent_gates(self, cell: Tensor) -> Tensor:
        """What all actions of a state add to the pre-activations, from its root cell state: [..., H] -> [..., 4H]."""
        return linear_each([Affine(self.core.hidden_weight(), self.core.linear.bias)], torch.tanh(cell))[0]

    def outputs(
        self, cell: Tensor, recurrent: Tensor, actions: Tensor | None = None, reads: Reads | None = None
    ) -> AgentOutput:
        """The same from a root state: its cell state, [..., H], and `recurrent_gates` of it."""
        if actions is not None:
            return self._read(lstm_gates(recurrent + self._action_gates(actions), cell).hidden, None)  # [..., H]
        rows = self._action_gates()
        together = max(1, ROWS // rows.shape[0])
        states = math.prod(cell.shape[:-1])
        if torch.is_grad_enabled() or cell.device.type != "cpu" or is_wrapped(cell, rows) or states <= together:
            return self._read(action_hiddens(cell, recurrent, rows), reads)
        # A few states at a time: what lies between root and outputs is many times as large as both.
        pairs = zip(cell.flatten(0, -2).split(together), recurrent.flatten(0, -2).split(together), strict=True)
        parts = [self._read(action_hiddens(*pair, rows), reads) for pair in pairs]
        return {name: torch.cat([part[name] for part in parts]).unflatten(0, cell.shape[:-1]) for name in parts[0]}

    def _action_gates(self, actions: Tensor | None = None) -> Tensor:
        """What actions add to the pre-activations: all of them, [A, 4H], or the given ones, [...] -> [..., 4H]."""
        weight = self.core.linear.weight[:, : self.core.input_size]  # [4H, A]
        if weight.device.type == "cpu":
            # A product with one-hot actions: a compiler would walk the columns of a lookup number by number.
            every = torch.arange(self.core.input_size)
            taken = every if actions is None else actions
            return nn.functional.linear((taken.unsqueeze(-1) == every).to(weight.dtype), weight)
        # On a GPU no product, which might be rounded; contiguous, since all rows of a batch read it.
        rows = weight.t().contiguous()
        return rows if actions is None else nn.functional.embedding(actions, rows)

    def _read(self, hidden: Tensor, reads: Reads | None) -> AgentOutput:
        heads: Any = self.heads
        names = list(heads if reads is None else reads)
        out: AgentOutput = {}
        for name, rows in zip(names, mlp_each([heads[name] for name in names], hidden), strict=True):
            with torch.autocast(hidden.device.type, enabled=False):  # what is done to outputs is not part of the network
                out |= {name: rows} if reads is None else reads[name](rows)
        return out
