"""A one-step model of actions: what the agent predicts for each action it could take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from disco_torch.layers import LSTM, MLP, Linear, lstm_gates
from disco_torch.types import AgentOutput


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

    def forward(self, torso: Tensor, actions: Tensor | None = None) -> AgentOutput:
        """Outputs of all actions, [..., F] -> [..., A, size] for each head; or of the given `actions` [...], [..., size]."""
        return self.outputs(*self.root_state(torso), actions)

    def root_state(self, torso: Tensor) -> tuple[Tensor, Tensor]:
        """What all actions of a state share, [..., F] -> [..., H] and [..., 4H]: its cell state and recurrent product."""
        cell = self.root(torso)
        return cell, nn.functional.linear(torch.tanh(cell), self.core.hidden_weight(), self.core.linear.bias)

    def outputs(self, cell: Tensor, recurrent: Tensor, actions: Tensor | None = None) -> AgentOutput:
        """The same from a root state."""
        rows = self.core.linear.weight[:, : self.core.input_size].t()  # [A, 4H], what each action adds
        if actions is None:
            hidden = lstm_gates(recurrent.unsqueeze(-2) + rows, cell.unsqueeze(-2)).hidden  # [..., A, H]
        else:
            hidden = lstm_gates(recurrent + nn.functional.embedding(actions, rows), cell).hidden  # [..., H]
        # Broadcasting may have left another order of memory, which would make each head a batch of small products.
        hidden = hidden.contiguous()
        return {name: head(hidden) for name, head in self.heads.items()}
