"""Layers: the initial scale, the LSTM's gates, resets while unrolling, and the unrolled LSTM's derivative by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from disco_torch import layers
from disco_torch.layers import (
    LSTM,
    MLP,
    Affine,
    Linear,
    LSTMState,
    UnrolledLSTM,
    init_params,
    linear_each,
    lstm_gates,
    mlp_each,
)

TRUNCATED_STD = 0.8796256610342398  # standard deviation of a standard normal cut at +-2


@pytest.mark.parametrize("stddev", [None, 0.3])
def test_initial_weights_are_truncated_normal(stddev: float | None) -> None:
    layer = Linear(400, 300, stddev=stddev)
    scale = 1.0 / math.sqrt(400) if stddev is None else stddev
    layer.reset_parameters(torch.Generator().manual_seed(0))
    assert layer.weight.abs().max() <= 2.0 * scale
    assert layer.weight.abs().max() >= 1.99 * scale
    assert float(layer.weight.detach().std()) == pytest.approx(TRUNCATED_STD * scale, rel=0.01)
    assert abs(float(layer.weight.detach().mean())) < 0.01 * scale
    assert (layer.bias == 0).all()


def test_mlp_has_relu_between_its_layers_and_none_after_the_last() -> None:
    torch.manual_seed(0)
    mlp = MLP(5, (4, 3))
    x = torch.randn(50, 5, generator=torch.Generator().manual_seed(0))
    first, last = mlp.linears()
    torch.testing.assert_close(mlp(x), last(torch.relu(first(x))))
    assert mlp.out_features == 3 and (mlp(x) < 0).any()


def test_mlp_with_tanh_has_it_after_every_layer() -> None:
    net = MLP(3, (5, 4), activation="tanh")
    x = torch.randn(7, 3)
    first, second = net[0], net[2]
    torch.testing.assert_close(net(x), torch.tanh(second(torch.tanh(first(x)))))
    assert net.out_features == 4


@pytest.fixture(params=["apart", "joined"])
def joined(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Wide products as on a CPU, and as on a GPU."""
    monkeypatch.setattr(layers, "JOINED_ON", ("cpu",) if request.param == "joined" else ())
    return request.param == "joined"


class Heads(nn.Module):
    """Layers of given widths on five numbers, by `linear_each` or one by one; biases are not zero."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.linears = nn.ModuleList([Linear(5, width) for width in widths]).double()
        for i, param in enumerate(self.parameters()):
            param.data = torch.randn(param.shape, generator=torch.Generator().manual_seed(i), dtype=torch.float64)

    def forward(self, x: Tensor, *, each: bool = True, relu: bool = False) -> list[Tensor]:
        linears: Any = list(self.linears)
        if each:
            return linear_each(linears, x, relu=relu)
        outs = [x @ linear.weight.t() + linear.bias for linear in linears]
        return [out.clamp_min(0.0) for out in outs] if relu else outs


def products(fn: Any, *args: Any) -> list[list[int]]:
    """Shapes of the matrix products of a function."""
    names = ("mm", "addmm", "bmm", "baddbmm")
    nodes = [node for node in make_fx(fn)(*args).graph.nodes if node.op == "call_function"]
    return [list(node.meta["val"].shape) for node in nodes if getattr(node.target, "_opname", "") in names]


@pytest.mark.parametrize("widths", [(3, 16), (3, 70, 8), (64,), (65,), (61, 3)], ids=str)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("shape", [(7, 5), (2, 3, 5)], ids=str)
def test_layers_together_are_layers_one_by_one(
    joined: bool, widths: tuple[int, ...], relu: bool, shape: tuple[int, ...]
) -> None:
    heads, x = Heads(*widths), draw(*shape)
    got, want = heads(x, relu=relu), heads(x, each=False, relu=relu)
    assert len(got) == len(widths)
    torch.testing.assert_close(got, want, rtol=1e-13, atol=1e-13)


def test_products_of_the_same_input_are_one_where_that_pays(joined: bool) -> None:
    x = draw(7, 5)
    assert products(Heads(3, 16), x) == [[7, 19]]
    assert products(Heads(3, 70, 8), x) == ([[7, 88]] if joined else [[7, 3], [7, 70], [7, 8]])
    assert products(Heads(65), x) == [[7, 72 if joined else 65]] and products(Heads(72), x) == [[7, 72]]
    mlps, wide = [MLP(5, (40, 3)).double(), MLP(5, (40, 2)).double()], 80 if joined else 40
    assert products(lambda x: list(mlp_each(mlps, x)), x)[0] == [7, wide]


def test_layers_together_start_at_multiples_of_eight_where_they_can(joined: bool) -> None:
    starts = [out.storage_offset() for out in Heads(3, 72, 8, 5)(draw(7, 5))]
    assert starts == ([80, 0, 72, 83] if joined else [0, 0, 0, 0])


def test_layers_together_under_transforms(joined: bool) -> None:
    heads, x = Heads(3, 70, 8), draw(7, 5)
    params = {name: param.detach() for name, param in heads.named_parameters()}
    stacked = {name: torch.stack([param, param.sin(), -param]) for name, param in params.items()}

    def outputs(params: Any, x: Tensor, each: bool) -> tuple[Tensor, ...]:
        return tuple(functional_call(heads, params, (x,), {"each": each}))

    def loss(params: Any, x: Tensor, each: bool) -> Tensor:
        first, *rest = outputs(params, x, each)
        return (first * weights(first)).sum().sin() + sum((out**3).sum() for out in rest[:1])  # one is not read

    def checks(each: bool) -> Any:
        gradient = grad(loss, argnums=(0, 1))
        forward = jvp(lambda p: gradient(p, x, each), (params,), ({name: param.cos() for name, param in params.items()},))
        by_agent = [vmap(lambda p, x: fn(p, x, each), in_dims=(0, None))(stacked, x) for fn in (outputs, gradient)]  # noqa: B023
        xs = torch.stack([x, x.sin(), -x])
        by_input = [vmap(lambda x: fn(params, x, each))(xs) for fn in (outputs, gradient)]  # noqa: B023
        both = vmap(lambda p, x: gradient(p, x, each))(stacked, xs)
        return forward, by_agent, by_input, both

    torch.testing.assert_close(checks(True), checks(False), rtol=1e-11, atol=1e-11)


def test_layers_together_in_16_bits(joined: bool) -> None:
    heads, x = Heads(3, 70, 8).float(), draw(7, 5).float()
    with torch.autocast("cpu", torch.bfloat16):
        got = heads(x)
    assert all(out.dtype == torch.bfloat16 for out in got)
    torch.testing.assert_close([out.float() for out in got], heads(x, each=False), rtol=0.02, atol=0.05)


def test_weights_that_are_no_layer_may_take_part(joined: bool) -> None:
    (layer,), x = Heads(70).linears, draw(7, 5)
    assert isinstance(layer, Linear)
    first, second = linear_each([Affine(2.0 * layer.weight[:4], layer.bias[:4]), layer], x)
    torch.testing.assert_close(second[:, :4] - layer.bias[:4], (first - layer.bias[:4]) / 2.0)


@pytest.mark.parametrize("sizes", [((4, 3), (6, 2)), ((40, 3), (40, 2)), ((4,), (6, 2)), ((70,), (6,))], ids=str)
def test_mlps_together_are_mlps_one_by_one(joined: bool, sizes: tuple[tuple[int, ...], ...]) -> None:
    torch.manual_seed(0)
    mlps = [MLP(5, size).double() for size in sizes]
    for shape in ((7, 5), (2, 3, 4, 5)):
        x = draw(*shape)
        for got, mlp in zip(mlp_each(mlps, x), mlps, strict=True):
            torch.testing.assert_close(got, mlp(x), rtol=1e-13, atol=1e-13)


def naive_lstm(layer: LSTM, x: Tensor, state: LSTMState) -> LSTMState:
    """One step written out gate by gate."""
    joined = torch.cat([x, state.hidden], -1)
    H = layer.hidden_size
    blocks = [layer.linear.weight[k * H : (k + 1) * H] for k in range(4)]
    biases = [layer.linear.bias[k * H : (k + 1) * H] for k in range(4)]
    i, g, f, o = (joined @ w.t() + b for w, b in zip(blocks, biases, strict=True))
    cell = torch.sigmoid(f + 1.0) * state.cell + torch.sigmoid(i) * torch.tanh(g)
    return LSTMState(torch.sigmoid(o) * torch.tanh(cell), cell)


@pytest.fixture
def lstm() -> LSTM:
    layer = LSTM(3, 4).double()
    with torch.no_grad():
        for i, param in enumerate(layer.parameters()):
            param.copy_(torch.randn(param.shape, generator=torch.Generator().manual_seed(i), dtype=torch.float64))
    return layer


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)


def test_lstm_step_by_hand(lstm: LSTM) -> None:
    x, state = draw(2, 3), LSTMState(draw(2, 4), draw(2, 4))
    got, want = lstm(x, state), naive_lstm(lstm, x, state)
    torch.testing.assert_close(got.hidden, want.hidden)
    torch.testing.assert_close(got.cell, want.cell)


def test_lstm_agrees_with_pytorchs_under_its_order_of_gates(lstm: LSTM) -> None:
    # PyTorch orders i, f, g, o and has no constant in the forget gate.
    cell = nn.LSTMCell(3, 4).double()
    i, g, f, o = torch.cat([lstm.linear.weight, lstm.linear.bias.unsqueeze(-1)], -1).chunk(4)
    f = torch.cat([f[:, :-1], f[:, -1:] + 1.0], -1)
    weight = torch.cat([i, f, g, o]).detach()
    with torch.no_grad():
        cell.weight_ih.copy_(weight[:, :3])
        cell.weight_hh.copy_(weight[:, 3:7])
        cell.bias_ih.copy_(weight[:, 7])
        cell.bias_hh.zero_()
    x, state = draw(2, 3), LSTMState(draw(2, 4), draw(2, 4))
    hidden, memory = cell(x, (state.hidden, state.cell))
    torch.testing.assert_close(lstm(x, state).hidden, hidden)
    torch.testing.assert_close(lstm(x, state).cell, memory)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("with_resets", [False, True])
def test_unroll_is_a_loop_of_steps(lstm: LSTM, reverse: bool, with_resets: bool) -> None:
    T, B = 5, 2
    x, state = draw(T, B, 3), LSTMState(draw(B, 4), draw(B, 4))
    resets = torch.zeros(T, B, dtype=torch.bool)
    if with_resets:
        resets[2, 0] = resets[0, 1] = resets[4, 1] = True
    hiddens, last = lstm.unroll(x, resets, state, reverse=reverse)
    want: dict[int, Tensor] = {}
    for t in reversed(range(T)) if reverse else range(T):
        keep = (~resets[t]).double().unsqueeze(-1)
        state = naive_lstm(lstm, x[t], LSTMState(state.hidden * keep, state.cell * keep))
        want[t] = state.hidden
    torch.testing.assert_close(hiddens, torch.stack([want[t] for t in range(T)]))
    torch.testing.assert_close(last.cell, state.cell)


def plain_unroll(gates: Tensor, weight: Tensor, keeps: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """What `UnrolledLSTM` computes, as a loop that autograd differentiates."""
    hiddens, state = [], LSTMState(hidden, cell)
    for gate, keep in zip(gates, keeps, strict=True):
        state = lstm_gates(gate + (state.hidden * keep) @ weight, state.cell * keep)
        hiddens.append(state.hidden)
    return torch.stack(hiddens), state.cell


def unrolled(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    hiddens, cell, *_ = UnrolledLSTM.apply(*inputs)  # type: ignore[no-untyped-call]
    return hiddens, cell


def lstm_inputs(T: int = 4, B: int = 3, H: int = 2, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gates, weight, keeps (about every third step is reset), and the state before."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    keeps = (torch.rand(T, B, 1, generator=generator) > 0.3).double()
    return normal(T, B, 4 * H), normal(H, 4 * H), keeps, normal(B, H), normal(B, H)


def weights(x: Tensor) -> Tensor:
    """Numbers that are all different, in the shape of `x`."""
    return torch.arange(1.0, x.numel() + 1, dtype=torch.float64).sin().reshape(x.shape)


def derivatives(fn: Any, inputs: tuple[Tensor, ...]) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, ...]]:
    """Outputs, and the gradients of a weighted sum of them with respect to all inputs but `keeps`."""
    gates, weight, keeps, hidden, cell = inputs
    out, pull_back = vjp(lambda g, w, h, c: fn(g, w, keeps, h, c), gates, weight, hidden, cell)
    return out, pull_back(tuple(weights(x) for x in out))


@pytest.mark.parametrize("T", [1, 2, 7])
def test_the_unrolled_lstm_is_a_loop_over_its_gates(T: int) -> None:
    inputs = lstm_inputs(T)
    assert T == 1 or 0 < float(inputs[2].mean()) < 1
    got, want = derivatives(unrolled, inputs), derivatives(plain_unroll, inputs)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)
    by_autograd = [x.clone().requires_grad_() for x in inputs]
    hiddens, cell = unrolled(*by_autograd[:2], inputs[2], *by_autograd[3:])
    loss = sum((x * weights(x)).sum() for x in (hiddens, cell))
    leaves = [x for i, x in enumerate(by_autograd) if i != 2]
    torch.testing.assert_close(torch.autograd.grad(loss, leaves), want[1], rtol=1e-12, atol=1e-13)


def test_the_unrolled_lstms_derivative_is_that_of_finite_differences() -> None:
    gates, weight, keeps, hidden, cell = lstm_inputs(T=3, B=2)
    leaves = tuple(x.requires_grad_() for x in (gates, weight, hidden, cell))
    assert torch.autograd.gradcheck(lambda g, w, h, c: unrolled(g, w, keeps, h, c), leaves)


@pytest.mark.parametrize("one_output", [0, 1], ids=["hiddens", "cell"])
def test_one_output_alone_can_be_differentiated(one_output: int) -> None:
    inputs = lstm_inputs()
    got, want = (derivatives(lambda *x, fn=fn: (fn(*x)[one_output],), inputs) for fn in (unrolled, plain_unroll))
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)


def test_the_unrolled_lstm_can_be_batched() -> None:
    batch = [lstm_inputs(seed=seed) for seed in range(3)]
    stacked = tuple(torch.stack(parts) for parts in zip(*batch, strict=True))
    got = vmap(lambda *inputs: derivatives(unrolled, inputs))(*stacked)
    wants = [derivatives(plain_unroll, inputs) for inputs in batch]
    for i, parts in enumerate(got):
        for j, part in enumerate(parts):
            torch.testing.assert_close(part, torch.stack([want[i][j] for want in wants]), rtol=1e-12, atol=1e-13)
    # One weight for all, as a rule has it.
    shared = vmap(lambda g, k, h, c: derivatives(unrolled, (g, batch[0][1], k, h, c)))(
        stacked[0], stacked[2], stacked[3], stacked[4]
    )
    want = derivatives(plain_unroll, (batch[1][0], batch[0][1], *batch[1][2:]))
    torch.testing.assert_close([x[1] for x in shared[1]], list(want[1]), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_through_unroll_are_those_of_a_loop_of_steps(lstm: LSTM, reverse: bool) -> None:
    T, B = 5, 2
    x, state = draw(T, B, 3).requires_grad_(), LSTMState(draw(B, 4).requires_grad_(), draw(B, 4) + 1)
    state.cell.requires_grad_()
    resets = torch.zeros(T, B, dtype=torch.bool)
    resets[2, 0] = resets[4, 1] = True
    leaves = [x, state.hidden, state.cell, *lstm.parameters()]
    hiddens, last = lstm.unroll(x, resets, state, reverse=reverse)
    got = torch.autograd.grad((hiddens * draw(T, B, 4)).sum() + last.cell.sum(), leaves)
    loss, here = x.new_zeros(()), state
    for t in reversed(range(T)) if reverse else range(T):
        keep = (~resets[t]).double().unsqueeze(-1)
        here = naive_lstm(lstm, x[t], LSTMState(here.hidden * keep, here.cell * keep))
        loss = loss + (here.hidden * draw(T, B, 4)[t]).sum()
    torch.testing.assert_close(got, torch.autograd.grad(loss + here.cell.sum(), leaves), rtol=1e-12, atol=1e-13)


def test_shares_of_the_gates_add_up(lstm: LSTM) -> None:
    x, state = draw(2, 3), LSTMState(draw(2, 4), draw(2, 4))
    gates = lstm.input_gates(x) + state.hidden @ lstm.hidden_weight().t()
    torch.testing.assert_close(lstm_gates(gates, state.cell).hidden, lstm(x, state).hidden)


def test_initial_state_is_zero_in_the_dtype_of_the_weights(lstm: LSTM) -> None:
    state = lstm.initial_state(3)
    assert state.hidden.shape == state.cell.shape == (3, 4)
    assert state.hidden.dtype == torch.float64 and (state.hidden == 0).all()
    assert lstm.initial_state().cell.shape == (4,)


def test_init_params_are_reproducible_and_leave_the_module_alone() -> None:
    mlp = MLP(5, (4, 3))
    before = {name: param.clone() for name, param in mlp.named_parameters()}
    first = init_params(mlp, torch.Generator().manual_seed(3))
    again = init_params(mlp, torch.Generator().manual_seed(3))
    other = init_params(mlp, torch.Generator().manual_seed(4))
    for name, param in mlp.named_parameters():
        assert torch.equal(param, before[name])
        assert torch.equal(first[name], again[name]) and not first[name].requires_grad
    assert not torch.equal(first["0.weight"], other["0.weight"])
    assert not torch.equal(first["0.weight"], before["0.weight"])


def test_mlps_of_one_row_and_no_mlps(joined: bool) -> None:
    mlps, x = [MLP(5, (70, 3)).double(), MLP(5, (40, 2)).double()], torch.randn(5, dtype=torch.float64)
    for got, mlp in zip(mlp_each(mlps, x), mlps, strict=True):
        torch.testing.assert_close(got, mlp[2](torch.relu(x @ mlp[0].weight.t() + mlp[0].bias)))  # type: ignore[operator]
    assert list(mlp_each([], x)) == []
