"""The LSTM that reads backwards in time: one kernel on a GPU; on a CPU few operations where nothing is differentiated.

`LSTM.unroll` is the plain twin.
"""

from __future__ import annotations

import torch
from torch import Tensor

from disco_torch.kernels.lstm_gpu import FusedLSTM, is_supported
from disco_torch.layers import LSTM


def reversed_hiddens(lstm: LSTM, x: Tensor, resets: Tensor) -> Tensor:
    """Hidden states of an LSTM that reads from the last step to the first, from zeros and again so before each reset.

    Args:
      lstm: the layer.
      x: [T, B, input].
      resets: [T, B] bool.

    Returns:
      [T, B, H]. Gradients flow to the layer and to `x`, once, as in `lstm.unroll`.
    """
    if is_supported(x, lstm.hidden_size):
        keeps = (~resets.bool()).to(x.dtype)
        hiddens: Tensor = FusedLSTM.apply(lstm.input_gates(x), lstm.hidden_weight().t(), keeps)[0]
        return hiddens
    if torch.is_grad_enabled():
        return lstm.unroll(x, resets, lstm.initial_state(x.shape[1]), reverse=True)[0]
    return _without_gradient(lstm, x, resets.bool().unsqueeze(-1))


def _without_gradient(lstm: LSTM, x: Tensor, resets: Tensor) -> Tensor:
    """Saves nothing. Gates are ordered i, f, o, g, so that one sigmoid covers three of them; `resets` are [T, B, 1]."""
    i, g, f, o = lstm.linear.weight.chunk(4)
    weight = torch.cat([i, f, o, g])  # [4H, input + H]
    i, g, f, o = lstm.linear.bias.chunk(4)
    bias = torch.cat([i, f + 1.0, o, g])
    gates = torch.nn.functional.linear(x, weight[:, : lstm.input_size], bias)  # [T, B, 4H], one matmul for all steps
    recurrent = weight[:, lstm.input_size :].t()
    keeps = (~resets).to(x.dtype)
    hidden = cell = lstm.initial_state(x.shape[1]).hidden
    hiddens = []
    for t in range(x.shape[0] - 1, -1, -1):
        pre = torch.addcmul(gates[t], hidden @ recurrent, keeps[t])
        i, f, o = torch.sigmoid(pre[..., : 3 * lstm.hidden_size]).chunk(3, dim=-1)
        cell = torch.addcmul(f * (cell * keeps[t]), i, torch.tanh(pre[..., 3 * lstm.hidden_size :]))
        hidden = o * torch.tanh(cell)
        hiddens.append(hidden)
    return torch.stack(hiddens[::-1])
