"""Kernels for a GPU are their plain twins; `benchmarks/check_fast_paths.py` compares all that is made of them."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad, vmap

from disco_torch.agents.convolutions import Convolution
from disco_torch.kernels import Recorded, SideStream, Speed, gpu, lstm_gpu, prefetched, reversed_hiddens, softmax_mean
from disco_torch.layers import LSTM, lstm_gates

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or gpu.triton is None, reason="needs a GPU and Triton; run it on a machine with them"
)


@pytest.fixture(autouse=True)
def _float32_matmuls() -> None:
    torch.set_float32_matmul_precision("highest")


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).cuda()


@pytest.mark.parametrize(("T", "B", "H"), [(29, 64, 256), (5, 7, 16), (3, 700, 128), (1, 1, 32), (4, 2100, 256)])
def test_the_lstm_and_its_derivative(T: int, B: int, H: int) -> None:
    lstm = LSTM(3, H).cuda()
    x, resets, u = draw(T, B, 3), draw(T, B) > 1.0, draw(T, B, H, seed=1)
    assert lstm_gpu.is_supported(x, H)
    plain = lstm.unroll(x, resets, lstm.initial_state(B), reverse=True)[0]
    fast = reversed_hiddens(lstm, x, resets)
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)
    params = list(lstm.parameters())
    for got, want in zip(*(torch.autograd.grad((y * u).sum(), params) for y in (fast, plain)), strict=True):
        assert (got - want).norm() <= 1e-5 * want.norm()


@pytest.mark.parametrize("B", [5, 1])
def test_the_lstm_of_several_agents(B: int) -> None:
    lstm, xs, resets = LSTM(3, 64).cuda(), draw(4, 6, B, 3), draw(6, B) > 1.0
    params = {name: param.detach() for name, param in lstm.named_parameters()}

    def loss(params: dict[str, torch.Tensor], x: torch.Tensor, fast: bool) -> torch.Tensor:
        with torch.nn.utils.stateless._reparametrize_module(lstm, params):
            hiddens = (
                reversed_hiddens(lstm, x, resets) if fast else lstm.unroll(x, resets, lstm.initial_state(B), reverse=True)[0]
            )
        return hiddens.square().sum()

    together = vmap(grad(loss), in_dims=(None, 0, None))(params, xs, True)
    for i, x in enumerate(xs):
        for name, want in grad(loss)(params, x, False).items():
            assert (together[name][i] - want).norm() <= 1e-5 * want.norm()


def test_the_lstm_of_several_rules_and_no_second_derivative() -> None:
    gates, weight, keeps = draw(4, 5, 64), draw(16, 64, seed=1), torch.ones(4, 5).cuda()

    def loss(weight: torch.Tensor) -> torch.Tensor:
        return lstm_gpu.FusedLSTM.apply(gates, weight, keeps)[0].square().sum()

    weights = torch.stack([weight, 0.5 * weight])
    torch.testing.assert_close(vmap(grad(loss))(weights), torch.stack([grad(loss)(each) for each in weights]))
    with pytest.raises(RuntimeError, match="differentiable once"):
        grad(lambda weight: grad(loss)(weight).sum())(weight)


def test_the_lstm_on_two_streams_of_a_captured_graph() -> None:
    """Each fills the GPU: a launch that was not cooperative could wait for programs that never start."""
    lstm, x, resets = LSTM(3, 256).cuda(), draw(5, 2100, 3), draw(5, 2100) > 1.0

    def fn(x: torch.Tensor) -> torch.Tensor:
        side = SideStream()
        first = side(lambda state: reversed_hiddens(lstm, state, resets), x)
        second = reversed_hiddens(lstm, 2.0 * x, resets)
        side.wait()
        return first + second

    recorded = Recorded(fn, Speed(capture=True))
    for scale in (1.0, 0.5):
        want = [lstm.unroll(k * scale * x, resets, lstm.initial_state(2100), reverse=True)[0] for k in (1.0, 2.0)]
        torch.testing.assert_close(recorded(scale * x), want[0] + want[1], rtol=1e-4, atol=1e-5)


def test_a_launch_that_cannot_be_resident_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lstm_gpu, "tiles_that_fit", lambda *args: 1000)
    lstm, x = LSTM(3, 256).cuda(), draw(2, 16000, 3)
    with pytest.raises(Exception, match="cooperative"), torch.no_grad():
        reversed_hiddens(lstm, x, torch.zeros(2, 16000, dtype=torch.bool).cuda())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hidden_states_of_all_actions(dtype: torch.dtype) -> None:
    cell, recurrent, rows = draw(21, 40).to(dtype), draw(21, 160, seed=1).to(dtype), draw(3, 160, seed=2)
    with torch.no_grad():
        assert gpu.is_supported(cell, recurrent, rows)
        got = torch.ops.disco_torch.action_hiddens(cell, recurrent, rows)
        want = lstm_gates(recurrent.float().unsqueeze(1) + rows, cell.float().unsqueeze(1)).hidden
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(got.float(), want, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_means_under_softmax(dtype: torch.dtype) -> None:
    logits, values = (3.0 * draw(5, 7, 601)).to(dtype), torch.linspace(-300.0, 300.0, 601).cuda()
    with torch.no_grad():
        got = softmax_mean(logits, values)
    torch.testing.assert_close(got, (torch.softmax(logits.float(), -1) * values).sum(-1), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_rows_that_are_parts_of_longer_ones(precision: str) -> None:
    torch.set_float32_matmul_precision(precision)
    recurrent, rows, values = draw(21, 160), draw(3, 160, seed=1), torch.linspace(-3.0, 3.0, 40).cuda()
    part = draw(21, 56, seed=2)[:, 8:48]
    with torch.no_grad():
        hiddens = torch.ops.disco_torch.action_hiddens(part, recurrent, rows)
        means = softmax_mean(part, values)
    # Where matmuls are rounded to TF32, so are the functions before them.
    want = lstm_gates(recurrent.unsqueeze(1) + rows, part.unsqueeze(1)).hidden
    torch.testing.assert_close(hiddens, want, rtol=0, atol=1e-5 if precision == "highest" else 2e-3)
    torch.testing.assert_close(means, (torch.softmax(part, -1) * values).sum(-1), rtol=1e-4, atol=1e-4)


def test_prefetched_results_are_waited_for() -> None:
    """A long computation on a second stream, and sums of its results on the first, launched as one graph."""
    matrix = draw(512, 512) / 30.0

    def fn(x: torch.Tensor) -> torch.Tensor:
        def make() -> torch.Tensor:
            nonlocal x
            for _ in range(20):
                x = x @ matrix
            return x

        return torch.stack([result.sum() for result in prefetched(make, 4)])

    x = draw(512, 512, seed=1)
    recorded = Recorded(fn, Speed(capture=True))
    for scale in (1.0, 2.0, 3.0):
        torch.testing.assert_close(recorded(scale * x), fn(scale * x), rtol=1e-4, atol=1e-6)


def test_work_on_a_side_stream_is_waited_for_and_keeps_what_it_reads() -> None:
    """A slow chain on a second stream; the first one drops what the chain reads and takes new memory."""
    matrix = draw(512, 512) / 30.0

    def slow(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            total = total @ matrix
        return total + x

    def fn(x: torch.Tensor) -> torch.Tensor:
        side, total = SideStream(), torch.zeros_like(x)
        for i in range(1, 7):
            made = x * i
            total = side(slow, total, made)
            del made
        other = x * 7.0
        side.wait()
        return total + other

    x = draw(512, 512, seed=1)
    recorded = Recorded(fn, Speed(capture=True))
    for scale in (1.0, 2.0, 3.0):
        torch.testing.assert_close(recorded(scale * x), fn(scale * x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("speed", [Speed(capture=True), Speed(trace=True, capture=True), Speed(True, True, True)])
def test_a_state_is_carried(speed: Speed) -> None:
    def step(state: dict[str, torch.Tensor], x: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        new = {"mean": 0.9 * state["mean"] + 0.1 * x, "slow": state["slow"].lerp(state["mean"], 0.5), "kept": state["kept"]}
        return new, (x - state["mean"]).square().sum()

    recorded = Recorded(step, speed, carry=True)
    plain = {name: draw(5, seed=i) for i, name in enumerate(("mean", "slow", "kept"))}
    state = {name: x.clone() for name, x in plain.items()}
    for seed in range(4):
        x = draw(5, seed=seed)
        plain, want = step(plain, x)
        state, got = recorded(state, x)
        torch.testing.assert_close((state, got), (plain, want))


def test_a_carried_window_moves_on() -> None:
    """What the next state takes from the last one at another place is read before it is overwritten."""

    def step(window: list[torch.Tensor], x: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        return [window[1], window[2], x + window[0]], window[0]

    recorded = Recorded(step, Speed(capture=True), carry=True)
    plain = [draw(3, seed=i) for i in range(3)]
    window = [x.clone() for x in plain]
    for seed in range(5):
        plain, want = step(plain, draw(3, seed=seed))
        window, got = recorded(window, draw(3, seed=seed))
        torch.testing.assert_close((list(window), got), (plain, want), rtol=0, atol=0)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("N", "C", "K", "H", "W"),
    [(7, 4, 16, 84, 84), (5, 16, 32, 42, 21), (3, 20, 5, 3, 3), (2, 4, 130, 10, 10), (40, 8, 64, 5, 7)],
)
def test_convolutions_of_few_channels(N: int, C: int, K: int, H: int, W: int, layout: torch.memory_format) -> None:
    layer = Convolution(C, K).cuda()
    layer.bias.data = draw(K, seed=1)
    x = draw(N, C, H, W, seed=2).contiguous(memory_format=layout).requires_grad_()
    u = draw(N, K, H, W, seed=3)
    fast = layer(x)
    assert "SmallConvolution" in fast.grad_fn.next_functions[0][0].name(), "else the library's kernel is tested with itself"
    wanted = x.detach().double().requires_grad_()
    params = [layer.weight.detach().double().requires_grad_(), layer.bias.detach().double().requires_grad_()]
    plain = torch.nn.functional.conv2d(wanted, *params, padding=1)
    torch.testing.assert_close(fast.double(), plain, rtol=1e-5, atol=1e-5)
    with torch.backends.cudnn.flags(allow_tf32=False):  # of many outputs the gradient of the input is the library's
        got = torch.autograd.grad((fast * u).sum(), (x, layer.weight, layer.bias))
    want = torch.autograd.grad((plain * u.double()).sum(), (wanted, *params))
    for ours, theirs in zip(got, want, strict=True):
        assert (ours.double() - theirs).norm() <= 1e-5 * theirs.norm()


def test_convolutions_in_bfloat16_and_in_a_graph() -> None:
    layer, x = Convolution(16, 16).cuda(), draw(64, 16, 42, 42)

    def gradients(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad(), torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            return torch.autograd.grad(layer(x).float().square().sum(), list(layer.parameters()))

    with torch.enable_grad():
        plain = torch.nn.functional.conv2d(x, layer.weight, layer.bias, padding=1)
        want = torch.autograd.grad(plain.square().sum(), list(layer.parameters()))
    for speed in (Speed(), Speed(trace=True, capture=True), Speed(trace=True, compile=True, capture=True)):
        for ours, theirs in zip(Recorded(gradients, speed)(x), want, strict=True):
            assert (ours - theirs).norm() <= 1e-2 * theirs.norm(), speed
