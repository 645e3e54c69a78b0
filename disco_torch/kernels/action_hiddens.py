"""Hidden states of all actions: the largest tensors of an update, on a GPU by one kernel that writes them once."""

import torch
from torch import Tensor

from disco_torch.kernels.gpu import allows_tf32, is_supported, triton, with_whole_rows

if triton is not None:
    import triton.language as tl

    from disco_torch.kernels.gpu import tanh

    @triton.jit
    def _sigmoid(x, FAST: tl.constexpr):  # type: ignore[no-untyped-def]
        if FAST:
            return 0.5 + 0.5 * tanh(0.5 * x, FAST)
        else:
            return tl.sigmoid(x)

    @triton.jit
    def _kernel(  # type: ignore[no-untyped-def]
        cells, recurrent, rows, hiddens, N, A, H, stride, ROWS: tl.constexpr, UNITS: tl.constexpr, FAST: tl.constexpr
    ):
        n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
        unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)[None, :]
        inside = (n < N) & (unit < H)
        at = recurrent + n.to(tl.int64) * (4 * H) + unit
        i, g = tl.load(at, inside, 0.0).to(tl.float32), tl.load(at + H, inside, 0.0).to(tl.float32)
        f, o = tl.load(at + 2 * H, inside, 0.0).to(tl.float32), tl.load(at + 3 * H, inside, 0.0).to(tl.float32)
        cell = tl.load(cells + n.to(tl.int64) * stride + unit, inside, 0.0).to(tl.float32)
        for a in range(A):
            row = rows + a * (4 * H) + unit
            i_a, g_a = tl.load(row, unit < H, 0.0), tl.load(row + H, unit < H, 0.0)
            f_a, o_a = tl.load(row + 2 * H, unit < H, 0.0), tl.load(row + 3 * H, unit < H, 0.0)
            new = _sigmoid(f + f_a + 1.0, FAST) * cell + _sigmoid(i + i_a, FAST) * tanh(g + g_a, FAST)
            hidden = _sigmoid(o + o_a, FAST) * tanh(new, FAST)
            tl.store(hiddens + (n.to(tl.int64) * A + a) * H + unit, hidden, inside)


def action_hiddens(cell: Tensor, recurrent: Tensor, rows: Tensor) -> Tensor:
    """One LSTM step of all actions from a root state that they share. Gradients flow to all arguments.

    Args:
      cell: [..., H], the root's cell state.
      recurrent: [..., 4H], the root's share of the gates' pre-activations, ordered i, g, f, o.
      rows: [A, 4H], each action's share.

    Returns:
      [..., A, H]
    """
    if is_supported(cell, recurrent, rows):
        hiddens = torch.ops.disco_torch.action_hiddens(cell.flatten(0, -2), recurrent.flatten(0, -2), rows)
        return hiddens.unflatten(0, cell.shape[:-1])
    # Gate by gate: the sum of them all would be the largest tensor of the model.
    parts = zip(recurrent.unsqueeze(-2).chunk(4, dim=-1), rows.chunk(4, dim=-1), strict=True)
    i, g, f, o = (part + row for part, row in parts)  # [..., A, H] each
    cells = torch.sigmoid(f + 1.0) * cell.unsqueeze(-2) + torch.sigmoid(i) * torch.tanh(g)
    # Broadcasting may have left another layout of memory, which would make each head a batch of small matmuls.
    return (torch.sigmoid(o) * torch.tanh(cells)).contiguous()


torch.library.define("disco_torch::action_hiddens", "(Tensor cells, Tensor recurrent, Tensor rows) -> Tensor")


@torch.library.impl("disco_torch::action_hiddens", "default")
def _(cells: Tensor, recurrent: Tensor, rows: Tensor) -> Tensor:
    (N, H), A = cells.shape, rows.shape[0]
    hiddens = cells.new_empty(N, A, H)
    block = (8, min(128, triton.next_power_of_2(H)))
    grid = (triton.cdiv(N, block[0]), triton.cdiv(H, block[1]))
    cells = with_whole_rows(cells)
    tensors = (cells, recurrent.contiguous(), rows.float().contiguous(), hiddens)
    fast = cells.dtype == torch.bfloat16 or allows_tf32()
    _kernel[grid](*tensors, N, A, H, cells.stride(0), *block, fast, num_warps=4)
    return hiddens


@torch.library.register_fake("disco_torch::action_hiddens")
def _(cells: Tensor, recurrent: Tensor, rows: Tensor) -> Tensor:
    return cells.new_empty(cells.shape[0], rows.shape[0], cells.shape[1])
