"""3x3 convolutions of few channels, as image torsos begin with: on a GPU each is a kernel that goes through memory once.

Such a convolution has little to compute for what it reads, and the library's kernels are made for many channels. All layers
of IMPALA's network on 2,880 frames, each alone, forwards for two networks and backwards for one, take 71 ms by the library's
and 15 by these in bfloat16, 46 and 31 in float32 (one H200). The derivative by the input is a convolution as well; that by
the weights a sum over all places, in parts.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from disco_torch.kernels.gpu import allows_tf32, has_triton, triton
from disco_torch.kernels.private import is_wrapped

FEW = 32
"""Channels that a convolution may read for the kernels to be faster."""
PLACES, OUTPUTS, PARTS = 128, 64, 264
"""Places of an image and channels that a program computes at once, and programs that the sum over all places is divided
between."""

if triton is not None:
    import triton.language as tl

    @triton.jit
    def _shifted(  # type: ignore[no-untyped-def]
        x, place, channel, M, dy, dx, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr
    ):
        """Channels of x [M, C], M places of images of H x W, `dy` rows below and `dx` columns beside each place."""
        row, column = (place // W) % H + dy, place % W + dx
        inside = (place < M) & (row >= 0) & (row < H) & (column >= 0) & (column < W)
        at = (place + dy * W + dx).to(tl.int64)[:, None] * C + channel[None, :]
        return tl.load(x + at, inside[:, None] & (channel < C)[None, :], 0.0)

    @triton.jit
    def _convolution(  # type: ignore[no-untyped-def]
        x, weight, bias, y, M, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, K: tl.constexpr,
        PLACES: tl.constexpr, CS: tl.constexpr, KS: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
        c, k = tl.arange(0, CS)[:, None], tl.program_id(1) * KS + tl.arange(0, KS)[None, :]
        total = tl.zeros((PLACES, KS), tl.float32) + tl.load(bias + k, k < K, 0.0).to(tl.float32)
        for tap in tl.static_range(9):
            seen = _shifted(x, place, tl.arange(0, CS), M, tap // 3 - 1, tap % 3 - 1, H, W, C)
            factors = tl.load(weight + (tap * C + c) * K + k, (c < C) & (k < K), 0.0)
            total = tl.dot(seen, factors, total, input_precision=PRECISION)
        at = place.to(tl.int64)[:, None] * K + k
        tl.store(y + at, total.to(y.dtype.element_ty), (place < M)[:, None] & (k < K))

    @triton.jit
    def _weights(  # type: ignore[no-untyped-def]
        x, slopes, sums, M, blocks, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, K: tl.constexpr,
        PLACES: tl.constexpr, CS: tl.constexpr, KS: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        dy, part = tl.program_id(0) - 1, tl.program_id(1)  # three programs in a row read the same part of memory
        channel, out = tl.arange(0, CS), tl.program_id(2) * KS + tl.arange(0, KS)
        left = tl.zeros((CS, KS), tl.float32)
        middle = tl.zeros((CS, KS), tl.float32)
        right = tl.zeros((CS, KS), tl.float32)
        for block in range(part * blocks, (part + 1) * blocks):
            place = block * PLACES + tl.arange(0, PLACES)
            slope = _shifted(slopes, place, out, M, 0, 0, H, W, K)
            seen = _shifted(x, place, channel, M, dy, -1, H, W, C)
            left = tl.dot(tl.trans(seen), slope, left, input_precision=PRECISION)
            seen = _shifted(x, place, channel, M, dy, 0, H, W, C)
            middle = tl.dot(tl.trans(seen), slope, middle, input_precision=PRECISION)
            seen = _shifted(x, place, channel, M, dy, 1, H, W, C)
            right = tl.dot(tl.trans(seen), slope, right, input_precision=PRECISION)
        c, k = channel[:, None], out[None, :]
        at = sums + ((part * 9 + 3 * (dy + 1)) * C + c) * K + k
        tl.store(at, left, (c < C) & (k < K))
        tl.store(at + C * K, middle, (c < C) & (k < K))
        tl.store(at + 2 * C * K, right, (c < C) & (k < K))


def convolve(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """A convolutional layer, [N, C, H, W] -> [N, K, H', W']. Gradients flow to its parameters and the input, once.

    The plain twin is the last return.
    """
    weight, bias = layer.weight, layer.bias
    assert bias is not None
    if _is_small(layer) and has_triton(x.device) and not is_wrapped(x, weight, bias):
        if torch.is_autocast_enabled("cuda"):
            x, weight, bias = (part.to(torch.get_autocast_dtype("cuda")) for part in (x, weight, bias))
        if x.dtype in (torch.float32, torch.bfloat16):
            rows: Tensor = _SmallConvolution.apply(x.movedim(1, -1), weight.permute(2, 3, 1, 0), bias)
            return rows.movedim(-1, 1)
    return nn.functional.conv2d(x, weight, bias, layer.stride, layer.padding)


def _is_small(layer: nn.Conv2d) -> bool:
    shape = (layer.kernel_size, layer.stride, layer.padding) == ((3, 3), (1, 1), (1, 1))
    return shape and layer.in_channels <= FEW


class _SmallConvolution(torch.autograd.Function):
    """With channels last: [N, H, W, C], weights [3, 3, C, K] and biases [K] -> [N, H, W, K]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        y: Tensor = torch.ops.disco_torch.convolution(x, weight, bias)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        x_bar = weight_bar = bias_bar = None
        if ctx.needs_input_grad[0]:
            back = weight.flip(0, 1).transpose(2, 3)  # from outputs to inputs, each tap to where it came from
            few, none = slopes.shape[-1] <= FEW, weight.new_zeros(weight.shape[2])
            x_bar = torch.ops.disco_torch.convolution(slopes, back, none) if few else _plain(slopes, back, none)
        if ctx.needs_input_grad[1]:
            weight_bar = torch.ops.disco_torch.convolution_weights(x, slopes)
        if ctx.needs_input_grad[2]:
            bias_bar = slopes.sum((0, 1, 2), dtype=torch.float32).to(slopes.dtype)
        return x_bar, weight_bar, bias_bar


def _plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`_SmallConvolution` by the library's kernel."""
    return nn.functional.conv2d(x.movedim(-1, 1), weight.permute(3, 2, 0, 1), bias, padding=1).movedim(1, -1)


torch.library.define("disco_torch::convolution", "(Tensor x, Tensor weight, Tensor bias) -> Tensor")
torch.library.define("disco_torch::convolution_weights", "(Tensor x, Tensor slopes) -> Tensor")


def _sizes(C: int, K: int, dtype: torch.dtype) -> tuple[int, int, str]:
    """Channels that a program reads and computes, as many as a matmul of the GPU takes, and how it rounds."""
    up = [max(16, triton.next_power_of_2(channels)) for channels in (C, K)]
    return up[0], min(OUTPUTS, up[1]), "tf32" if dtype == torch.bfloat16 or allows_tf32() else "ieee"


@torch.library.impl("disco_torch::convolution", "default")
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    N, H, W, C = x.shape
    K, M = weight.shape[-1], N * H * W
    y = x.new_empty(N, H, W, K)
    parts = x.contiguous(), weight.contiguous(), bias.contiguous()
    sizes = _sizes(C, K, x.dtype)
    _convolution[triton.cdiv(M, PLACES), triton.cdiv(K, sizes[1])](*parts, y, M, H, W, C, K, PLACES, *sizes)
    return y


@torch.library.impl("disco_torch::convolution_weights", "default")
def _(x: Tensor, slopes: Tensor) -> Tensor:
    N, H, W, C = x.shape
    K, M = slopes.shape[-1], N * H * W
    blocks = triton.cdiv(triton.cdiv(M, PLACES), PARTS)
    parts = triton.cdiv(M, PLACES * blocks)
    sums = x.new_empty(parts, 3, 3, C, K, dtype=torch.float32)
    sizes = _sizes(C, K, x.dtype)
    grid = 3, parts, triton.cdiv(K, sizes[1])
    _weights[grid](x.contiguous(), slopes.contiguous(), sums, M, blocks, H, W, C, K, PLACES, *sizes)
    return sums.sum(0).to(x.dtype)


@torch.library.register_fake("disco_torch::convolution")
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[-1])


@torch.library.register_fake("disco_torch::convolution_weights")
def _(x: Tensor, slopes: Tensor) -> Tensor:
    return x.new_empty(3, 3, x.shape[-1], slopes.shape[-1])
