"""What goes over the largest tensors of an update, the outputs of all actions, as GPU kernels that go over them once.

Nothing here is differentiated: a rule reads all actions, but only the taken ones learn.
"""

import torch
from torch import Tensor

from disco_torch.kernels.gpu import has_triton, rough, triton

if triton is not None:
    import triton.language as tl


def serves(*tensors: Tensor) -> bool:
    """Whether the kernels can be used: on a GPU, where nothing is differentiated or batched by a transform."""
    if torch.is_grad_enabled():
        return False
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    dtypes = (torch.float32, torch.bfloat16)
    return all(x.dtype in dtypes and not wrapped(x) and has_triton(x.device) for x in tensors)


if triton is not None:

    @triton.jit
    def _tanh(x, ROUGH: tl.constexpr):  # type: ignore[no-untyped-def]
        """To 5e-4 where `ROUGH`, as fine as what the next product rounds it to, and a fifth of the work."""
        if ROUGH:
            return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
        else:
            return 2.0 * tl.sigmoid(2.0 * x) - 1.0

    @triton.jit
    def _sigmoid(x, ROUGH: tl.constexpr):  # type: ignore[no-untyped-def]
        if ROUGH:
            return 0.5 + 0.5 * _tanh(0.5 * x, ROUGH)
        else:
            return tl.sigmoid(x)

    @triton.jit
    def _action_kernel(  # type: ignore[no-untyped-def]
        cells, recurrent, rows, hiddens, N, A, H, stride, ROWS: tl.constexpr, UNITS: tl.constexpr, ROUGH: tl.constexpr
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
            new = _sigmoid(f + f_a + 1.0, ROUGH) * cell + _sigmoid(i + i_a, ROUGH) * _tanh(g + g_a, ROUGH)
            hidden = _sigmoid(o + o_a, ROUGH) * _tanh(new, ROUGH)
            tl.store(hiddens + (n.to(tl.int64) * A + a) * H + unit, hidden, inside)

    @triton.jit
    def _mean_kernel(logits, values, means, V, stride, BINS: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        bins = tl.arange(0, BINS)
        x = tl.load(logits + row * stride + bins, bins < V, float("-inf")).to(tl.float32)
        weights = tl.exp(x - tl.max(x, 0))
        weighted = tl.sum(weights * tl.load(values + bins, bins < V, 0.0), 0)
        tl.store(means + row, weighted / tl.sum(weights, 0))


torch.library.define("disco_torch::action_hiddens", "(Tensor cells, Tensor recurrent, Tensor rows) -> Tensor")
torch.library.define("disco_torch::softmax_mean", "(Tensor logits, Tensor values) -> Tensor")


def action_hiddens(cells: Tensor, recurrent: Tensor, rows: Tensor) -> Tensor:
    """One LSTM step of all actions from a shared root state, [N, H], [N, 4H] and [A, 4H] -> [N, A, H]."""
    (N, H), A = cells.shape, rows.shape[0]
    hiddens = cells.new_empty(N, A, H)
    block = (8, min(128, triton.next_power_of_2(H)))
    grid = (triton.cdiv(N, block[0]), triton.cdiv(H, block[1]))
    cells = with_whole_rows(cells)
    tensors = (cells, recurrent.contiguous(), rows.float().contiguous(), hiddens)
    quick = cells.dtype == torch.bfloat16 or rough()
    _action_kernel[grid](*tensors, N, A, H, cells.stride(0), *block, quick, num_warps=4)
    return hiddens


def softmax_mean(logits: Tensor, values: Tensor) -> Tensor:
    """sum_i softmax(logits)_i values_i, [N, V] and [V] -> [N]."""
    N, V = logits.shape
    means = values.new_empty(N)
    bins = triton.next_power_of_2(V)
    logits = with_whole_rows(logits)
    _mean_kernel[(N,)](logits, values.contiguous(), means, V, logits.stride(0), bins, num_warps=1)
    return means


def with_whole_rows(x: Tensor) -> Tensor:
    """As it is if its rows are, which may be parts of longer ones; else a copy."""
    return x if x.stride(1) == 1 else x.contiguous()


torch.library.impl("disco_torch::action_hiddens", "default", action_hiddens)
torch.library.impl("disco_torch::softmax_mean", "default", softmax_mean)


@torch.library.register_fake("disco_torch::action_hiddens")
def _(cells: Tensor, recurrent: Tensor, rows: Tensor) -> Tensor:
    return cells.new_empty(cells.shape[0], rows.shape[0], cells.shape[1])


@torch.library.register_fake("disco_torch::softmax_mean")
def _(logits: Tensor, values: Tensor) -> Tensor:
    return values.new_empty(logits.shape[0])
