"""The LSTM that reads backwards as one GPU kernel, and one more for its derivative, instead of some operations a step.

A step needs all hidden units of the step before. Each program owns a few units of some rows, keeps its columns of the
weights, and waits after every step until the programs of the same rows have written theirs.

Why this cannot wait forever: a program waits only for programs of its own launch, so it is enough that all programs of a
launch are resident on the GPU at the same time. The launch is cooperative (`launch_cooperative_grid`): the driver computes
from the compiled kernel's registers and shared memory how many programs fit, starts the grid only when all of them can run,
whatever else the GPU is doing, and refuses a grid that could never fit with an error. `tiling` chooses launches that fit.

`layers.LSTM.unroll` is the plain twin.
"""

from typing import Any

import torch
from torch import Tensor

from disco_torch.kernels.gpu import allows_tf32, has_triton, triton
from disco_torch.layers import OnceDifferentiable

UNITS = 16
"""Hidden units of a program."""
ROWS = 16, 32
"""Rows of a program, at least and at most: more do not fit into registers."""


def is_supported(x: Tensor, hidden_size: int) -> bool:
    """Whether the kernels can be used: float32 on a GPU, with a size that they are written for."""
    fits = x.dtype == torch.float32 and hidden_size in (16, 32, 64, 128, 256)
    return fits and has_triton(x.device) and tiles_that_fit(ROWS[0], hidden_size, x.device) > 0


if triton is not None:
    import triton.language as tl

    from disco_torch.kernels.gpu import tanh

    @triton.jit
    def _arrive(counter):  # type: ignore[no-untyped-def]
        """Counts this program as one that has written what the others wait for."""
        tl.debug_barrier()
        tl.atomic_add(counter, 1, sem="release")

    @triton.jit
    def _wait(counter, goal):  # type: ignore[no-untyped-def]
        """Until the counter has reached `goal`."""
        while tl.atomic_add(counter, 0, sem="acquire") < goal:
            pass
        tl.debug_barrier()

    @triton.jit
    def _forward_kernel(  # type: ignore[no-untyped-def]
        gates, weight, keeps, hiddens, acts, cells, counters, T, B, first, w_in, w_out,
        H: tl.constexpr, UNITS: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        rows = first + tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        units = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
        every = tl.arange(0, H)
        inside = (rows < B)[:, None]
        columns = weight + every[:, None] * w_in + units[None, :] * w_out  # [H, UNITS]
        w_i, w_g = tl.load(columns), tl.load(columns + H * w_out)
        w_f, w_o = tl.load(columns + 2 * H * w_out), tl.load(columns + 3 * H * w_out)
        cell = tl.zeros((ROWS, UNITS), tl.float32)
        at = ((T - 1) * B + rows)[:, None] * (4 * H) + units[None, :]
        x_i, x_g = tl.load(gates + at, inside, 0.0), tl.load(gates + at + H, inside, 0.0)
        x_f, x_o = tl.load(gates + at + 2 * H, inside, 0.0), tl.load(gates + at + 3 * H, inside, 0.0)
        keep = tl.load(keeps + (T - 1) * B + rows, rows < B, 0.0)[:, None]
        for step in range(T):
            t = T - 1 - step
            # The first step starts from zeros. Read from the second level cache: other programs wrote it.
            before = hiddens + ((t + 1) * B + rows)[:, None] * H + every[None, :]
            hidden = tl.load(before, inside & (step > 0), 0.0, cache_modifier=".cg") * keep
            i = tl.sigmoid(x_i + tl.dot(hidden, w_i, input_precision=PRECISION))
            g = tanh(x_g + tl.dot(hidden, w_g, input_precision=PRECISION), False)
            f = tl.sigmoid(x_f + tl.dot(hidden, w_f, input_precision=PRECISION) + 1.0)
            o = tl.sigmoid(x_o + tl.dot(hidden, w_o, input_precision=PRECISION))
            cell = f * cell * keep + i * g
            own = (t * B + rows)[:, None] * H + units[None, :]
            tl.store(hiddens + own, o * tanh(cell, False), inside)
            _arrive(counters + tl.program_id(1))
            # What nobody waits for is stored, and the next step's input is loaded, before waiting.
            at = (t * B + rows)[:, None] * (4 * H) + units[None, :]
            tl.store(cells + own, cell, inside)
            tl.store(acts + at, i, inside)
            tl.store(acts + at + H, g, inside)
            tl.store(acts + at + 2 * H, f, inside)
            tl.store(acts + at + 3 * H, o, inside)
            more = inside & (t > 0)
            at -= B * (4 * H)
            x_i, x_g = tl.load(gates + at, more, 0.0), tl.load(gates + at + H, more, 0.0)
            x_f, x_o = tl.load(gates + at + 2 * H, more, 0.0), tl.load(gates + at + 3 * H, more, 0.0)
            keep = tl.load(keeps + (t - 1) * B + rows, (rows < B) & (t > 0), 0.0)[:, None]
            _wait(counters + tl.program_id(1), (step + 1) * (H // UNITS))

    @triton.jit
    def _backward_kernel(  # type: ignore[no-untyped-def]
        hiddens_bar, weight, keeps, acts, cells, gates_bar, counters, T, B, first, w_in, w_out,
        H: tl.constexpr, UNITS: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        rows = first + tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        units = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
        every = tl.arange(0, H)
        inside = (rows < B)[:, None]
        columns = weight + units[None, :] * w_in + every[:, None] * w_out  # [H, UNITS], of one gate
        w_i, w_g = tl.load(columns), tl.load(columns + H * w_out)
        w_f, w_o = tl.load(columns + 2 * H * w_out), tl.load(columns + 3 * H * w_out)
        hidden_bar = tl.zeros((ROWS, UNITS), tl.float32)
        cell_bar = tl.zeros((ROWS, UNITS), tl.float32)
        for t in range(T):
            keep = tl.load(keeps + t * B + rows, rows < B, 0.0)[:, None]
            here = (t * B + rows)[:, None]
            at, own = here * (4 * H) + units[None, :], here * H + units[None, :]
            i, g = tl.load(acts + at, inside, 0.0), tl.load(acts + at + H, inside, 0.0)
            f, o = tl.load(acts + at + 2 * H, inside, 0.0), tl.load(acts + at + 3 * H, inside, 0.0)
            squashed = tanh(tl.load(cells + own, inside, 0.0), False)
            found = tl.load(cells + own + B * H, inside & (t < T - 1), 0.0) * keep
            hidden_bar += tl.load(hiddens_bar + own, inside, 0.0)
            cell_bar += hidden_bar * o * (1.0 - squashed * squashed)
            tl.store(gates_bar + at, cell_bar * g * i * (1.0 - i), inside)
            tl.store(gates_bar + at + H, cell_bar * i * (1.0 - g * g), inside)
            tl.store(gates_bar + at + 2 * H, cell_bar * found * f * (1.0 - f), inside)
            tl.store(gates_bar + at + 3 * H, hidden_bar * squashed * o * (1.0 - o), inside)
            cell_bar = cell_bar * f * keep
            _arrive(counters + tl.program_id(1))
            _wait(counters + tl.program_id(1), (t + 1) * (H // UNITS))
            all_units = gates_bar + here * (4 * H) + every[None, :]
            total = tl.dot(tl.load(all_units, inside, 0.0, cache_modifier=".cg"), w_i, input_precision=PRECISION)
            total += tl.dot(tl.load(all_units + H, inside, 0.0, cache_modifier=".cg"), w_g, input_precision=PRECISION)
            total += tl.dot(tl.load(all_units + 2 * H, inside, 0.0, cache_modifier=".cg"), w_f, input_precision=PRECISION)
            total += tl.dot(tl.load(all_units + 3 * H, inside, 0.0, cache_modifier=".cg"), w_o, input_precision=PRECISION)
            hidden_bar = total * keep


def _launch(kernel: Any, tensors: tuple[Tensor, ...], weight: Tensor, T: int, B: int) -> None:
    """Runs a kernel over all rows, so many at a time that its programs fit on the GPU together."""
    H, precision = weight.shape[0], "tf32" if allows_tf32() else "tf32x3"  # the latter is as good as float32
    tiles, rows = tiling(B, H, weight.device)
    for first in range(0, B, rows * tiles):
        grid = (H // UNITS, min(tiles, -(-(B - first) // rows)))
        counters = torch.zeros(tiles, dtype=torch.int32, device=weight.device)
        sizes = (T, B, first, weight.stride(0), weight.stride(1), H, UNITS, rows, precision)
        kernel[grid](*tensors, counters, *sizes, num_warps=4, num_stages=1, launch_cooperative_grid=True)


def tiling(B: int, H: int, device: torch.device) -> tuple[int, int]:
    """How many tiles of rows to launch together, and the rows of each: few rows where that is enough for the batch."""
    fitting = [(tiles, rows) for rows in ROWS if (tiles := tiles_that_fit(rows, H, device))]
    return next(((tiles, rows) for tiles, rows in fitting if tiles * rows >= B), fitting[-1])


def tiles_that_fit(rows: int, H: int, device: torch.device) -> int:
    """How many tiles of so many rows, with a program for each `UNITS` of H units, fit on the GPU together."""
    gpu = torch.cuda.get_device_properties(device)
    memory = 4 * (4 * UNITS * H + rows * (H + 16)) * (1 if allows_tf32() else 2) + 1024  # as compiled for Hopper, at most
    # Registers suffice for two programs on a processor.
    return gpu.multi_processor_count * min(2, gpu.shared_memory_per_multiprocessor // memory) // (H // UNITS)


# Defined without a derivative of their own, which `FusedLSTM` has: so they can be used under all transforms.
torch.library.define("disco_torch::reversed_lstm", "(Tensor gates, Tensor weight, Tensor keeps) -> (Tensor, Tensor, Tensor)")
torch.library.define(
    "disco_torch::reversed_lstm_backward",
    "(Tensor hiddens_bar, Tensor weight, Tensor keeps, Tensor acts, Tensor cells) -> Tensor",
)


@torch.library.impl("disco_torch::reversed_lstm", "default")
def _(gates: Tensor, weight: Tensor, keeps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states [T, B, H], activated gates [T, B, 4H] and cell states [T, B, H], from the last step to the first.

    `gates` [T, B, 4H] are the input's share of the pre-activations, ordered i, g, f, o; `weight` is [H, 4H]; `keeps`
    [T, B] is 0 where a step starts from zeros.
    """
    T, B, size = gates.shape
    hiddens, cells = gates.new_empty(T, B, size // 4), gates.new_empty(T, B, size // 4)
    acts = gates.new_empty(gates.shape)  # contiguous, whatever the gates are
    _launch(_forward_kernel, (gates.contiguous(), weight, keeps.contiguous(), hiddens, acts, cells), weight, T, B)
    return hiddens, acts, cells


@torch.library.impl("disco_torch::reversed_lstm_backward", "default")
def _(hiddens_bar: Tensor, weight: Tensor, keeps: Tensor, acts: Tensor, cells: Tensor) -> Tensor:
    """The cotangent of the gates, [T, B, 4H], from that of the hidden states."""
    gates_bar = acts.new_empty(acts.shape)
    tensors = (hiddens_bar.contiguous(), weight, keeps.contiguous(), acts.contiguous(), cells.contiguous(), gates_bar)
    _launch(_backward_kernel, tensors, weight, acts.shape[0], acts.shape[1])
    return gates_bar


@torch.library.register_fake("disco_torch::reversed_lstm")
def _(gates: Tensor, weight: Tensor, keeps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    state = gates.new_empty(*gates.shape[:2], gates.shape[2] // 4)
    return state, gates.new_empty(gates.shape), state.new_empty(state.shape)


@torch.library.register_fake("disco_torch::reversed_lstm_backward")
def _(hiddens_bar: Tensor, weight: Tensor, keeps: Tensor, acts: Tensor, cells: Tensor) -> Tensor:
    return acts.new_empty(acts.shape)


def _joined(info: Any, tensor: Tensor, dim: int | None) -> Tensor:
    """[T, B, ...] with a batch of agents at `dim`, as [T, agents * B, ...]."""
    tensor = (
        tensor.unsqueeze(1).expand(-1, info.batch_size, *[-1] * (tensor.ndim - 1)) if dim is None else tensor.movedim(dim, 1)
    )
    return tensor.flatten(1, 2)


def _one_by_one(op: Any, info: Any, in_dims: Any, *tensors: Tensor) -> Any:
    """For rules of different weights: each of the batch on its own, stacked along a new first dimension."""
    pairs = list(zip(tensors, in_dims, strict=True))
    outputs = [op(*(x if dim is None else x.select(dim, i) for x, dim in pairs)) for i in range(info.batch_size)]
    return torch.stack(outputs) if isinstance(outputs[0], Tensor) else tuple(map(torch.stack, zip(*outputs, strict=True)))


@torch.library.register_vmap("disco_torch::reversed_lstm")
def _(info: Any, in_dims: Any, gates: Tensor, weight: Tensor, keeps: Tensor) -> Any:
    """The rows of agents that share the rule's weights are one batch."""
    if in_dims[1] is not None:
        return _one_by_one(torch.ops.disco_torch.reversed_lstm, info, in_dims, gates, weight, keeps), (0, 0, 0)
    outputs = torch.ops.disco_torch.reversed_lstm(_joined(info, gates, in_dims[0]), weight, _joined(info, keeps, in_dims[2]))
    return tuple(output.unflatten(1, (info.batch_size, -1)) for output in outputs), (1, 1, 1)


@torch.library.register_vmap("disco_torch::reversed_lstm_backward")
def _(info: Any, in_dims: Any, hiddens_bar: Tensor, weight: Tensor, *others: Tensor) -> Any:
    if in_dims[1] is not None:
        return _one_by_one(torch.ops.disco_torch.reversed_lstm_backward, info, in_dims, hiddens_bar, weight, *others), 0
    rest = [_joined(info, tensor, dim) for tensor, dim in zip(others, in_dims[2:], strict=True)]
    gates_bar = torch.ops.disco_torch.reversed_lstm_backward(_joined(info, hiddens_bar, in_dims[0]), weight, *rest)
    return gates_bar.unflatten(1, (info.batch_size, -1)), 1


class FusedLSTM(torch.autograd.Function):
    """`reversed_lstm` with its derivative; differentiable once, as `layers.UnrolledLSTM`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gates: Tensor, weight: Tensor, keeps: Tensor) -> tuple[Tensor, ...]:
        return torch.ops.disco_torch.reversed_lstm(gates, weight, keeps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs[1:], *output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weight, keeps, hiddens, acts, cells = ctx.saved_tensors
        gates_bar = torch.ops.disco_torch.reversed_lstm_backward(grads[0], weight, keeps, acts, cells)
        before = hiddens[1:] * keeps[:-1].unsqueeze(-1)  # the hidden state that each step but the last one reads
        weight_bar = before.flatten(0, 1).t() @ gates_bar[:-1].flatten(0, 1)
        once: Any = OnceDifferentiable.apply(gates_bar, weight_bar)
        return once[0], once[1], None
