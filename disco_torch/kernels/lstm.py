"""The LSTM over time where nothing is differentiated backwards: as few operations a step as there can be.

`LSTM.unroll` is the plain twin, whose derivative is written by hand; here nothing is kept for one.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from disco_torch.layers import LSTM

NEVER = -1e30
"""A pre-activation whose sigmoid is exactly 0."""


def reversed_hiddens(lstm: LSTM, x: Tensor, resets: Tensor) -> Tensor:
    """Hidden states of an LSTM that reads from the last step to the first, from zeros, anew before each reset.

    Args:
      lstm: the layer.
      x: [T, B, input].
      resets: [T, B] bool.

    Returns:
      [T, B, H]. Gradients flow to the layer and to `x` as in `lstm.unroll`, which is used where they are asked for.
    """
    if torch.is_grad_enabled():
        return lstm.unroll(x, resets, lstm.initial_state(x.shape[1]), reverse=True)[0]
    resets = resets.bool().unsqueeze(-1)  # [T, B, 1]
    i, g, f, o = lstm.input_gates(x).chunk(4, dim=-1)  # [T, B, H] each, one product for all steps
    # A reset takes the cell state out of the sum: its gate never opens.
    f = (f + 1.0).masked_fill(resets, NEVER)
    weight_i, weight_g, weight_f, weight_o = lstm.hidden_weight().chunk(4)
    keeps = (~resets).to(x.dtype)
    zeros = lstm.initial_state(x.shape[1]).hidden
    if x.is_cuda and not any(map(is_functorch_wrapped_tensor, (x, resets, weight_i))):
        gates, weight = torch.cat([i, f, g, o], dim=-1), torch.cat([weight_i, weight_f, weight_g, weight_o])
        return _by_cell_kernel(gates, weight.t(), keeps, zeros)
    gates, weight = torch.cat([i, f, o, g], dim=-1), torch.cat([weight_i, weight_f, weight_o, weight_g])
    return _by_operations(gates, weight.t(), keeps, zeros)


def _by_operations(gates: Tensor, weight: Tensor, keeps: Tensor, zeros: Tensor) -> Tensor:
    """Gates ordered i, f, o, g, so that one sigmoid serves three of them: [T, B, 4H]; `weight` is [H, 4H]."""
    hidden, cell, size = zeros, zeros, zeros.shape[-1]
    hiddens = []
    for t in range(gates.shape[0] - 1, -1, -1):
        pre = torch.addcmul(gates[t], hidden @ weight, keeps[t])
        i, f, o = torch.sigmoid(pre[..., : 3 * size]).chunk(3, dim=-1)
        cell = torch.addcmul(f * cell, i, torch.tanh(pre[..., 3 * size :]))
        hidden = o * torch.tanh(cell)
        hiddens.append(hidden)
    return torch.stack(hiddens[::-1])


def _by_cell_kernel(gates: Tensor, weight: Tensor, keeps: Tensor, zeros: Tensor) -> Tensor:
    """The same with PyTorch's own CUDA kernel of a cell, which wants its gates ordered i, f, g, o."""
    hidden, cell = zeros, zeros
    hiddens = []
    # The gates have their bias already; the kernel's own are zeros, since the compiler cannot do without them.
    bias = gates.new_zeros(gates.shape[-1])
    for t in range(gates.shape[0] - 1, -1, -1):
        recurrent = (hidden * keeps[t]) @ weight
        hidden, cell, _ = torch.ops.aten._thnn_fused_lstm_cell(gates[t], recurrent, cell, bias, bias)
        hiddens.append(hidden)
    return torch.stack(hiddens[::-1])
