"""A one-step model of actions: what the agent predicts for each action it could take."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from disco_torch.kernels import action_hiddens, is_wrapped
from disco_torch.layers import LSTM, MLP, Affine, Linear, linear_each, lstm_gates, mlp_each
from disco_torch.types import ActionSummary, AgentOutput, Summarizer, tree_map

ROWS = 2048
"""Rows computed at a time on a CPU: enough for an efficient matmul, and few enough for its cache."""


class Root(NamedTuple):
    """What all actions of a state share.

    Attributes:
      cell: [..., H], the LSTM's cell state.
      gates: [..., 4H], the pre-activations without the action's share.
    """

    cell: Tensor
    gates: Tensor


class ActionModel(nn.Module):
    """One LSTM step from a root state made of the torso's output, with the one-hot action as input, and an MLP a head.

        c = W s,    h = tanh(c),    h_a = LSTM(onehot(a), (h, c)),    out_a = MLP(h_a)

    After Muesli (Hessel et al., 2021). All actions of a state share the root, so that the recurrent matmul is computed once
    for each state; an action only adds its own row of the input weights.
    """

    def __init__(
        self, in_features: int, num_actions: int, sizes: Mapping[str, int], lstm_size: int, head_hiddens: Sequence[int]
    ) -> None:
        super().__init__()
        self.root = Linear(in_features, lstm_size)
        self.core = LSTM(num_actions, lstm_size)
        self.heads = nn.ModuleDict({name: MLP(lstm_size, (*head_hiddens, size)) for name, size in sizes.items()})

    def forward(self, features: Tensor) -> AgentOutput:
        """Outputs of all actions, [..., F] -> [..., A, size] for each head."""
        return self.of_all(self.roots(self.root(features)))

    def roots(self, cell: Tensor) -> Root:
        """The root state, from what `root` makes of the features, [..., H]."""
        recurrent = Affine(self.core.hidden_weight(), self.core.linear.bias)
        return Root(cell, linear_each([recurrent], torch.tanh(cell))[0])

    def of_taken(self, root: Root, actions: Tensor) -> AgentOutput:
        """Outputs of one action a state, [...] -> [..., size] for each head."""
        return self._heads(lstm_gates(root.gates + self._action_gates(actions), root.cell).hidden)

    def of_all(self, root: Root) -> AgentOutput:
        """Outputs of all actions, [..., A, size] for each head."""
        outputs: AgentOutput = self._in_chunks(root, self._heads)
        return outputs

    def summary_of_all(self, root: Root, summarizer: Summarizer) -> ActionSummary:
        """A summary of the outputs of all actions, which are never kept: they are large."""

        def summarize(hidden: Tensor) -> ActionSummary:
            outputs = self._heads(hidden, summarizer.reads)
            with torch.autocast(hidden.device.type, enabled=False):  # a summary is not part of the network
                return summarizer.compute(outputs)

        summary: ActionSummary = self._in_chunks(root, summarize)
        return summary

    def _in_chunks(self, root: Root, read: Callable[[Tensor], Any]) -> Any:
        """`read` of the hidden states of all actions, [..., A, H]; on a CPU, of a few states at a time.

        What lies between root and outputs is many times as large as both, and would not stay in a CPU's cache.
        """
        rows = self._action_gates()
        together = max(1, ROWS // rows.shape[0])
        states = math.prod(root.cell.shape[:-1])
        whole = torch.is_grad_enabled() or root.cell.device.type != "cpu" or is_wrapped(root.cell, rows)
        if whole or states <= together:
            return read(action_hiddens(*root, rows))
        chunks = zip(root.cell.flatten(0, -2).split(together), root.gates.flatten(0, -2).split(together), strict=True)
        parts = [read(action_hiddens(*chunk, rows)) for chunk in chunks]
        return tree_map(lambda *each: torch.cat(each).unflatten(0, root.cell.shape[:-1]), *parts)

    def _action_gates(self, actions: Tensor | None = None) -> Tensor:
        """What actions add to the pre-activations: all of them, [A, 4H], or the given ones, [...] -> [..., 4H]."""
        weight = self.core.linear.weight[:, : self.core.input_size]  # [4H, A]
        if weight.device.type == "cpu":
            # A matmul with one-hot actions: the compiler would read the columns of a lookup one number at a time.
            every = torch.arange(self.core.input_size)
            taken = every if actions is None else actions
            return nn.functional.linear((taken.unsqueeze(-1) == every).to(weight.dtype), weight)
        # On a GPU no matmul, which might be rounded to TF32; contiguous, since all rows of a batch read it.
        rows = weight.t().contiguous()
        return rows if actions is None else nn.functional.embedding(actions, rows)

    def _heads(self, hidden: Tensor, names: Sequence[str] | None = None) -> AgentOutput:
        heads: Any = self.heads
        names = list(heads) if names is None else names
        return dict(zip(names, mlp_each([heads[name] for name in names], hidden), strict=True))
