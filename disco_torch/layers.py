"""Layers with the arithmetic and the initialisation of the reference's network library (Haiku), as PyTorch modules.

Every map over channels is a `Linear`; convolutions of width 1 are one too. Weights are PyTorch's [out, in].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from disco_torch.types import Params, tree_dataclass


class Linear(nn.Linear):
    """y = W x + b, with W from a normal truncated at two standard deviations (1/sqrt(in) unless given) and b = 0."""

    def __init__(self, in_features: int, out_features: int, *, stddev: float | None = None) -> None:
        self.stddev = 1.0 / math.sqrt(in_features) if stddev is None else stddev
        super().__init__(in_features, out_features)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        device = self.weight.device if generator is None else generator.device
        with torch.no_grad():
            draw = torch.empty(self.weight.shape, dtype=self.weight.dtype, device=device)
            nn.init.trunc_normal_(draw, generator=generator)  # standard normal, cut at +-2
            self.weight.copy_(draw * self.stddev)
            self.bias.zero_()


class MLP(nn.Sequential):
    """Linear layers with ReLU between them and none after the last."""

    def __init__(self, in_features: int, sizes: Sequence[int], *, stddev: float | None = None) -> None:
        layers: list[nn.Module] = []
        for i, size in enumerate(sizes):
            layers += [nn.ReLU()] * (i > 0) + [Linear(in_features, size, stddev=stddev)]
            in_features = size
        super().__init__(*layers)
        self.out_features = in_features

    def linears(self) -> list[Linear]:
        return [layer for layer in self if isinstance(layer, Linear)]


@tree_dataclass
class LSTMState:
    hidden: Tensor
    cell: Tensor


def lstm_gates(gates: Tensor, cell: Tensor) -> LSTMState:
    """One LSTM step from its pre-activations, gates ordered i, g, f, o; the forget gate adds 1.

        c' = sigmoid(f + 1) c + sigmoid(i) tanh(g),    h' = sigmoid(o) tanh(c')

    Args:
      gates: [..., 4H].
      cell: [..., H].
    """
    i, g, f, o = gates.chunk(4, dim=-1)
    cell = torch.sigmoid(f + 1.0) * cell + torch.sigmoid(i) * torch.tanh(g)
    return LSTMState(hidden=torch.sigmoid(o) * torch.tanh(cell), cell=cell)


class LSTM(nn.Module):
    """An LSTM with one weight over [input, hidden], `linear`, of [4H, input + H]."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        self.linear = Linear(input_size + hidden_size, 4 * hidden_size)

    def initial_state(self, *batch: int) -> LSTMState:
        zeros = self.linear.weight.new_zeros(*batch, self.hidden_size)
        return LSTMState(zeros, zeros)

    def forward(self, x: Tensor, state: LSTMState) -> LSTMState:
        return lstm_gates(self.linear(torch.cat([x, state.hidden], dim=-1)), state.cell)

    def input_gates(self, x: Tensor) -> Tensor:
        """The input's share of the pre-activations, [..., 4H], bias included."""
        return nn.functional.linear(x, self.linear.weight[:, : self.input_size], self.linear.bias)

    def hidden_weight(self) -> Tensor:
        """[4H, H]."""
        return self.linear.weight[:, self.input_size :]

    def unroll(self, x: Tensor, resets: Tensor, state: LSTMState, *, reverse: bool = False) -> tuple[Tensor, LSTMState]:
        """Runs over time, starting anew from zeros BEFORE each step that is reset.

        Args:
          x: [T, B, input].
          resets: [T, B] bool.
          state: [B, H] before the first step.
          reverse: from the last step to the first.

        Returns:
          The hidden states, [T, B, H] in the order of `x`, and the state after the last step taken.
        """
        gates = self.input_gates(x)  # [T, B, 4H], one product for all steps
        weight = self.hidden_weight().t()
        keeps = (~resets.bool()).to(x.dtype).unsqueeze(-1)  # [T, B, 1]
        hiddens: list[Tensor] = []
        order = range(x.shape[0] - 1, -1, -1) if reverse else range(x.shape[0])
        for t in order:
            state = lstm_gates(gates[t] + (state.hidden * keeps[t]) @ weight, state.cell * keeps[t])
            hiddens.append(state.hidden)
        return torch.stack(hiddens[::-1] if reverse else hiddens), state


def init_params(module: nn.Module, generator: torch.Generator | None = None) -> Params:
    """Fresh parameters for `module`, drawn from `generator`; the module's own stay as they are."""
    own = {name: param.detach().clone() for name, param in module.named_parameters()}
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, Linear):
                layer.reset_parameters(generator)
        fresh = {name: param.detach().clone() for name, param in module.named_parameters()}
        for name, param in module.named_parameters():
            param.copy_(own[name])
    return fresh
