"""Cores: what an agent remembers from row to row. A core reads the torso's features; the heads read the core's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from disco_torch.checks import check_shape
from disco_torch.layers import LSTM, LSTMState, lstm_gates


class NoMemory(nn.Module):
    """The core of an agent without memory: its features are the torso's."""

    def __init__(self, in_features: int) -> None:
        super().__init__()
        self.out_features = in_features

    def initial_state(self, batch_size: int) -> Any:
        """The memory before the first observation, a tree of [B, ...] tensors; None here."""
        return None

    def forward(self, features: Tensor, should_reset: Tensor | None, state: Any) -> tuple[Tensor, Any]:
        """Features of each row and the memory after the last one.

        Args:
          features: [T, B, F] of the torso.
          should_reset: [T, B] bool, rows that begin an episode, before which the memory is reset.
          state: the memory before the first row.

        Returns:
          [T, B, out_features], and the memory.
        """
        return features, state


class LSTMCore(nn.Module):
    """An LSTM over the torso's features x, whose hidden states the heads read; the memory is 0 before an episode begins.

        h_t, c_t = LSTM(x_t, (h_{t-1}, c_{t-1})),    features_t = h_t

    Gradients flow through all rows, back to the first one of a trajectory. They can be differentiated again, for
    meta-gradients: the steps are a plain loop, since `LSTM.unroll` is differentiable once.
    """

    def __init__(self, in_features: int, size: int) -> None:
        super().__init__()
        self.lstm = LSTM(in_features, size)
        self.out_features = size

    def initial_state(self, batch_size: int) -> LSTMState:
        """Zeros, [B, size] each."""
        return self.lstm.initial_state(batch_size)

    def forward(self, features: Tensor, should_reset: Tensor | None, state: LSTMState | None) -> tuple[Tensor, LSTMState]:
        """See `NoMemory`. Without a `state` the memory is empty; without `should_reset` no row begins an episode."""
        B = features.shape[1]
        state = self.initial_state(B) if state is None else state
        check_shape("state.hidden", state.hidden, (B, self.out_features), "begin with `agent.initial_state(batch_size)`")
        weight = self.lstm.hidden_weight().t()  # [H, 4H]
        hiddens = []
        for t, gates in enumerate(self.lstm.input_gates(features)):  # [T, B, 4H], one matmul for all rows
            if should_reset is not None:
                keeps = (~should_reset[t].bool()).to(gates.dtype).unsqueeze(-1)  # [B, 1]
                state = LSTMState(keeps * state.hidden, keeps * state.cell)
            state = lstm_gates(gates + state.hidden @ weight, state.cell)
            hiddens.append(state.hidden)
        return torch.stack(hiddens), state  # [T, B, H]
