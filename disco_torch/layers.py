"""Layers with the arithmetic and the initialisation of the reference's network library (Haiku), as PyTorch modules.

Every map over channels is a `Linear`; convolutions of width 1 are one too, wider ones a `Conv2d`. Weights are
PyTorch's [out, in].
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from disco_torch.types import Params, tree_dataclass


def draw_weights(layer: Linear | Conv2d, generator: torch.Generator | None = None) -> None:
    """Fills a layer: weights from a normal of deviation `layer.stddev`, truncated at two of them, and biases of 0."""
    device = layer.weight.device if generator is None else generator.device
    assert layer.bias is not None
    with torch.no_grad():
        draw = torch.empty(layer.weight.shape, dtype=layer.weight.dtype, device=device)
        nn.init.trunc_normal_(draw, generator=generator)  # standard normal, cut at +-2
        layer.weight.copy_(draw * layer.stddev)
        layer.bias.zero_()


class Linear(nn.Linear):
    """y = W x + b, with W from a normal truncated at two standard deviations (1/sqrt(in) unless given) and b = 0."""

    def __init__(self, in_features: int, out_features: int, *, stddev: float | None = None) -> None:
        self.stddev = 1.0 / math.sqrt(in_features) if stddev is None else stddev
        super().__init__(in_features, out_features)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        draw_weights(self, generator)

    def forward(self, input: Tensor) -> Tensor:
        return linear_each([self], input)[0]


class Conv2d(nn.Conv2d):
    """A convolution of [N, C, H, W], with weights as `Linear` draws them: for `in` channels and a kernel of k x k, from a
    normal of deviation 1/sqrt(in k k), truncated at two of them; b = 0.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int = 0) -> None:
        self.stddev = 1.0 / math.sqrt(in_channels * kernel_size**2)
        super().__init__(in_channels, out_channels, kernel_size, stride, padding)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        draw_weights(self, generator)


class Affine(NamedTuple):
    """y = W x + b, for weights that do not belong to a layer: [out, in] and [out]."""

    weight: Tensor
    bias: Tensor


WIDE, ALIGNED = 64, 8
"""On a GPU the inputs and outputs of matmuls with more than 64 outputs are padded to a multiple of 8: unaligned rows make
matmul kernels much slower."""

JOINED_ON = ("cuda",)
"""Devices on which wide matmuls of the same input are joined into one: on a GPU a launch takes as long as a small matmul. On
a CPU nothing is gained, and a trace can drop outputs that are not read only if their matmuls are separate."""


def to_join(layers: Sequence[Linear | Affine], x: Tensor) -> bool:
    """Whether one matmul for all layers that read `x` pays; a narrow one reads the input once instead of several times."""
    return x.device.type in JOINED_ON or sum(layer.weight.shape[0] for layer in layers) <= WIDE


def linear_each(layers: Sequence[Linear | Affine], x: Tensor, *, relu: bool = False) -> list[Tensor]:
    """The outputs of layers that read the same input, from one matmul where that pays: [..., in] -> [..., out] each.

    Args:
      layers: with weights of [any, in].
      x: what they read.
      relu: whether their outputs go through a ReLU, which the matmul can then apply itself.
    """
    width, gpu = sum(layer.weight.shape[0] for layer in layers), x.device.type in JOINED_ON
    inner, outer = (-size % ALIGNED if width > WIDE and gpu else 0 for size in (x.shape[-1], width))
    x = nn.functional.pad(x, (0, inner)) if inner else x

    def matmul(weight: Tensor, bias: Tensor) -> Tensor:
        weight = nn.functional.pad(weight, (0, inner)) if inner else weight
        out = nn.functional.linear(x, weight.contiguous() if gpu else weight, bias)  # part of a matrix may not be aligned
        return torch.relu(out) if relu else out

    if not to_join(layers, x) or (len(layers) == 1 and not outer):
        return [matmul(layer.weight, layer.bias) for layer in layers]
    # Those that are a multiple of 8 wide come first: where each begins is then one, too.
    order = sorted(range(len(layers)), key=lambda i: layers[i].weight.shape[0] % ALIGNED > 0)
    weights, biases = [layers[i].weight for i in order], [layers[i].bias for i in order]
    if outer:
        weights.append(weights[0].new_zeros(outer, weights[0].shape[1]))
        biases.append(biases[0].new_zeros(outer))
    parts = matmul(torch.cat(weights), torch.cat(biases)).split([weight.shape[0] for weight in weights], dim=-1)
    return [parts[order.index(i)] for i in range(len(layers))]


Activation = Literal["relu", "tanh"]


class MLP(nn.Sequential):
    """Linear layers: with ReLU between them and none after the last, as the reference has it, or with tanh after each."""

    def __init__(
        self, in_features: int, sizes: Sequence[int], *, stddev: float | None = None, activation: Activation = "relu"
    ) -> None:
        layers: list[nn.Module] = []
        for i, size in enumerate(sizes):
            linear = Linear(in_features, size, stddev=stddev)
            layers += [linear, nn.Tanh()] if activation == "tanh" else [nn.ReLU()] * (i > 0) + [linear]
            in_features = size
        super().__init__(*layers)
        self.out_features = in_features

    def linears(self) -> list[Linear]:
        return [layer for layer in self if isinstance(layer, Linear)]


def mlp_each(mlps: Sequence[MLP], x: Tensor) -> Iterator[Tensor]:
    """The outputs of MLPs that read the same input, one after the other, their first layers by `linear_each`."""
    firsts, deep = [mlp.linears()[0] for mlp in mlps], all(len(mlp) > 1 for mlp in mlps)
    if not mlps or not to_join(firsts, x):
        yield from (mlp(x) for mlp in mlps)
        return
    # As rows: a part of a matrix's columns is still a matrix, and need not be copied for the next matmul.
    hiddens = linear_each(firsts, x.reshape(-1, x.shape[-1]), relu=deep)
    for mlp, hidden in zip(mlps, hiddens, strict=True):
        for layer in list(mlp)[2 if deep else 1 :]:
            hidden = layer(hidden)
        yield hidden.reshape(*x.shape[:-1], hidden.shape[-1])


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
        return linear_each([Affine(self.linear.weight[:, : self.input_size], self.linear.bias)], x)[0]

    def hidden_weight(self) -> Tensor:
        """[4H, H]."""
        return self.linear.weight[:, self.input_size :]

    def unroll(self, x: Tensor, resets: Tensor, state: LSTMState, *, reverse: bool = False) -> tuple[Tensor, LSTMState]:
        """Runs over time; the state is reset to zeros BEFORE each step that `resets` marks.

        Args:
          x: [T, B, input].
          resets: [T, B] bool.
          state: [B, H] before the first step.
          reverse: from the last step to the first.

        Returns:
          The hidden states, [T, B, H] in the order of `x`, and the state after the last step taken.
        """
        gates = self.input_gates(x)  # [T, B, 4H], one matmul for all steps
        keeps = (~resets.bool()).to(x.dtype).unsqueeze(-1)  # [T, B, 1]
        if reverse:
            gates, keeps = gates.flip(0), keeps.flip(0)
        outputs: Any = UnrolledLSTM.apply(gates, self.hidden_weight().t(), keeps, state.hidden, state.cell)
        hiddens, cell = outputs[:2]
        return (hiddens.flip(0) if reverse else hiddens), LSTMState(hiddens[-1], cell)


class UnrolledLSTM(torch.autograd.Function):
    """`lstm_gates` over time, with a hand-written derivative: six small operations a step instead of some forty.

    Differentiable once, which is all that a rule needs: its targets are constants of the inner gradient.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(gates: Tensor, weight: Tensor, keeps: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
        """Steps in the order of `gates` [T, B, 4H]; `weight` is [H, 4H], `keeps` [T, B, 1], the state before is [B, H].

        Returns:
          Hidden states [T, B, H] and the last cell state [B, H]; and what the backward pass needs, [T, B, ...] each: the
          activated gates, tanh of the cell states, and hidden and cell states as each step found them.
        """
        rows: list[tuple[Tensor, ...]] = []
        for t in range(gates.shape[0]):
            hidden, cell = hidden * keeps[t], cell * keeps[t]
            pre = gates[t] + hidden @ weight
            i, g, f, o = pre.chunk(4, dim=-1)
            i, g, f, o = torch.sigmoid(i), torch.tanh(g), torch.sigmoid(f + 1.0), torch.sigmoid(o)
            found = (hidden, cell)
            cell = torch.addcmul(f * cell, i, g)
            squashed = torch.tanh(cell)
            hidden = o * squashed
            rows.append((hidden, torch.cat([i, g, f, o], dim=-1), squashed, *found))
        hiddens, *saved = (torch.stack(parts) for parts in zip(*rows, strict=True))
        return hiddens, cell.clone(), *saved

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        _, weight, keeps, _, _ = inputs
        ctx.mark_non_differentiable(*output[2:])
        ctx.save_for_backward(weight, keeps, *output[2:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """With c' = f c + i g and h = o tanh(c'), bars for cotangents, from the last step to the first:

        c'_bar = c'_bar + h_bar o (1 - tanh(c')^2),    gates_bar = (c'_bar, c'_bar, c'_bar, h_bar) * slopes
        h_bar = gates_bar W^T keep + (what the step before shows),    c_bar = c'_bar f keep
        """
        hiddens_bar, cell_bar = grads[:2]
        weight, keeps, acts, squashed, hiddens, cells = ctx.saved_tensors
        i, g, f, o = acts.chunk(4, dim=-1)
        slopes = torch.cat([g * i * (1 - i), i * (1 - g * g), cells * f * (1 - f), squashed * o * (1 - o)], dim=-1)
        to_cell = o * (1 - squashed * squashed)
        forget = f * keeps
        hidden_bar = torch.zeros_like(cell_bar)
        gates_bar: list[Tensor] = []
        for t in range(acts.shape[0] - 1, -1, -1):
            hidden_bar = hiddens_bar[t] + hidden_bar
            cell_bar = torch.addcmul(cell_bar, hidden_bar, to_cell[t])
            gates_bar.append(torch.cat([cell_bar, cell_bar, cell_bar, hidden_bar], dim=-1) * slopes[t])
            hidden_bar = (gates_bar[-1] @ weight.t()) * keeps[t]
            cell_bar = cell_bar * forget[t]
        stacked = torch.stack(gates_bar[::-1])
        weight_bar = hiddens.flatten(0, 1).t() @ stacked.flatten(0, 1)  # one matmul for all steps
        once: Any = OnceDifferentiable.apply(stacked, weight_bar, hidden_bar, cell_bar)
        return once[0], once[1], None, once[2], once[3]


class OnceDifferentiable(torch.autograd.Function):
    """Passes tensors on and refuses to be differentiated: a second derivative would come out wrong, without an error."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.clone() for tensor in tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        raise RuntimeError("`LSTM.unroll` is differentiable once; for second derivatives write the loop over `lstm_gates`.")


def init_params(module: nn.Module, generator: torch.Generator | None = None) -> Params:
    """Fresh parameters for `module`, drawn from `generator`; the module's own stay as they are."""
    own = {name: param.detach().clone() for name, param in module.named_parameters()}
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, Linear | Conv2d):
                layer.reset_parameters(generator)
        fresh = {name: param.detach().clone() for name, param in module.named_parameters()}
        for name, param in module.named_parameters():
            param.copy_(own[name])
    return fresh
