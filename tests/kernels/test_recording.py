"""Recorded functions: they give what the plain function gives, run its Python once, and say where a stage fails."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

from disco_torch.kernels import Recorded, Speed, is_by_parameter, recording
from disco_torch.kernels.compiling import on_copies
from disco_torch.kernels.recording import STRICT, on_gpu, outline_of, record
from disco_torch.optim import AdamConfig, AdamState, adam_backward, adam_gains, adam_update
from disco_torch.types import flatten_tree, tree_dataclass

TRACED = Speed(trace=True)


class Counted:
    """A function that counts how often its Python runs."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn, self.calls = fn, 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self.fn(*args)


@tree_dataclass
class Pair:
    first: Tensor
    second: Tensor | None = None


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def energy(w: Tensor, x: Tensor) -> Tensor:
    return torch.log_softmax(torch.tanh(x @ w), dim=-1).square().mean()


def gradients(w: Tensor, x: Tensor) -> Tensor:
    return vmap(grad(energy), in_dims=(0, None))(w, x)


def curvature(w: Tensor, x: Tensor) -> Any:
    return jvp(lambda w: grad(energy, argnums=(0, 1))(w, x), (w,), (torch.ones_like(w),))


def batched_curvature(w: Tensor, x: Tensor) -> Any:
    return vmap(curvature, in_dims=(0, None))(w, x)


def assert_same(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("fn", "shape"), [(energy, (3, 4)), (gradients, (2, 3, 4)), (curvature, (3, 4)), (batched_curvature, (2, 3, 4))]
)
def test_traced_is_the_plain_function(fn: Callable[..., Any], shape: tuple[int, ...]) -> None:
    plain, recorded = Counted(fn), Counted(fn)
    traced = Recorded(recorded, TRACED)
    for seed in range(3):
        args = draw(*shape, seed=seed), draw(5, 3, seed=10 + seed)
        torch.testing.assert_close(traced(*args), plain(*args), rtol=1e-12, atol=1e-14)
        if seed == 0:
            once = recorded.calls
    assert plain.calls == 3 and recorded.calls == once, "other data of the same shapes must not run Python again"
    assert traced.warm_up_seconds > 0


def test_without_stages_it_is_the_function_itself_without_a_graph() -> None:
    fn = Counted(lambda x: x * 2)
    plain = Recorded(fn, Speed())
    x = draw(3).requires_grad_()
    assert not plain(x).requires_grad and plain(x).tolist() == (2 * x).tolist()
    assert fn.calls == 3 - 1 and plain.warm_up_seconds == 0
    assert not Recorded(fn, TRACED)(x).requires_grad


def test_what_must_end_before_a_recording_is_waited_for() -> None:
    waits: list[int] = []
    traced = Recorded(torch.neg, TRACED, before_recording=lambda: waits.append(len(waits)))
    for shape in (2, 2, 3, 2):
        traced(draw(shape))
    assert waits == [0, 1], "once for each combination of shapes"


@pytest.mark.parametrize("other", [draw(4), draw(3).float(), draw(3, 1)], ids=["size", "dtype", "rank"])
def test_another_kind_of_tensor_is_recorded_anew(other: Tensor) -> None:
    fn = Counted(lambda x: x.sum() + x.shape[0])
    recorded = Recorded(fn, TRACED)
    first = draw(3)
    assert_same(recorded(first), fn.fn(first))
    calls = fn.calls
    assert_same(recorded(other), fn.fn(other))
    assert fn.calls > calls
    calls = fn.calls
    for x in (first + 1, other + 1):  # both are kept
        assert_same(recorded(x), fn.fn(x))
    assert fn.calls == calls


def test_what_is_no_tensor_is_part_of_the_recording() -> None:
    fn = Counted(lambda x, power, sign: sign * x**power if sign else x**power)
    recorded = Recorded(fn, TRACED)
    x = draw(3)
    for power, sign in ((2, 1), (3, 1), (2, None), (2, -1), (2, 1)):
        assert_same(recorded(x, power, sign), fn.fn(x, power, sign))
    calls = fn.calls
    assert_same(recorded(x + 1, 2, None), (x + 1) ** 2)
    assert fn.calls == calls


def test_trees_come_and_go_as_they_are() -> None:
    def swap(pair: Pair, more: dict[str, list[Tensor]]) -> tuple[Pair, dict[str, Tensor]]:
        second = pair.first if pair.second is None else pair.second + 1
        return Pair(more["x"][0] * 2, None), {"second": second}

    recorded = Recorded(swap, TRACED)
    for pair in (Pair(draw(2), draw(3)), Pair(draw(2)), Pair(draw(2, seed=1), draw(3, seed=2))):
        got, want = (fn(pair, {"x": [draw(4)]}) for fn in (recorded, swap))
        assert isinstance(got[0], Pair) and got[0].second is None and got[1].keys() == {"second"}
        assert_same((got[0].first, got[1]), (want[0].first, want[1]))


def test_later_outputs_leave_earlier_ones_alone() -> None:
    recorded = Recorded(lambda x: (x + 1, torch.cumsum(x, 0)), TRACED)
    first = recorded(draw(3))
    kept = [x.clone() for x in first]
    second = recorded(draw(3, seed=1))
    assert_same(list(first), kept)
    pointers = {x.data_ptr() for x in (*first, *second)}
    assert len(pointers) == 4
    second[0].zero_()
    assert_same(recorded(draw(3, seed=1))[0], draw(3, seed=1) + 1)


def test_what_depends_on_the_data_runs_plain_and_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def turn(x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x - 1

    recorded = Recorded(turn, TRACED, name="the turn")
    x = draw(3).abs()
    for value in ("", "0"):
        monkeypatch.setenv(STRICT, value)
    with pytest.warns(UserWarning, match=r"^could not trace the turn \(\w+: .*\); it runs without\.$") as caught:
        assert_same(recorded(x), x + 1)
    assert len(caught) == 1 and "\n" not in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(recorded(-x), -x - 1)  # by the plain function, on its own data, without another word


@pytest.mark.parametrize("speed", [Speed(), TRACED, Speed(trace=True, compile=True)])
def test_an_error_of_the_function_is_its_own(speed: Speed) -> None:
    def strict(x: Tensor) -> Tensor:
        if x.ndim != 2:
            raise ValueError(f"`x` must be a matrix, got {list(x.shape)}.")
        return x.t()

    recorded = Recorded(strict, speed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(ValueError, match=r"^`x` must be a matrix, got \[3\]\.$"):
                recorded(draw(3))


def test_a_compiler_that_fails_leaves_the_traced_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("no compiler\nand a long story")

    monkeypatch.delenv(STRICT)
    monkeypatch.setattr("disco_torch.kernels.recording.compiled", broken)
    fn = Counted(lambda x: x * 3)
    recorded = Recorded(fn, Speed(trace=True, compile=True), name="tripling")
    with pytest.warns(UserWarning, match=r"^could not compile tripling \(RuntimeError: no compiler\); it runs without\.$"):
        assert_same(recorded(draw(3)), draw(3) * 3)
    calls = fn.calls
    assert_same(recorded(draw(3, seed=1)), draw(3, seed=1) * 3)
    assert fn.calls == calls


@pytest.mark.parametrize(("stage", "speed"), [("record", TRACED), ("compiled", Speed(trace=True, compile=True))])
def test_in_strict_mode_a_stage_that_fails_raises(monkeypatch: pytest.MonkeyPatch, stage: str, speed: Speed) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError(f"{stage} is broken")

    monkeypatch.setattr(f"disco_torch.kernels.recording.{stage}", broken)
    monkeypatch.setenv(STRICT, "1")
    with pytest.raises(RuntimeError, match=f"{stage} is broken"):
        Recorded(lambda x: x * 3, speed)(draw(3))
    monkeypatch.delenv(STRICT)
    with pytest.warns(UserWarning, match=f"{stage} is broken"):
        assert_same(Recorded(lambda x: x * 3, speed)(draw(3)), draw(3) * 3)


def test_why_the_compiler_failed_is_in_the_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("backend='inductor' raised:\nOSError: no C compiler\n\na long story")

    monkeypatch.delenv(STRICT)
    monkeypatch.setattr("disco_torch.kernels.recording.compiled", broken)
    with pytest.warns(UserWarning, match=r"\(RuntimeError: backend='inductor' raised: OSError: no C compiler\); it runs"):
        Recorded(lambda x: x * 3, Speed(trace=True, compile=True))(draw(3))


@pytest.mark.slow
def test_compiled_once_whatever_objects_come_later() -> None:
    """One tensor given twice, a parameter, other strides where a size is 1: none of them is compiled anew."""
    compiled = Recorded(lambda a, b: a * 2 + b.sum(), Speed(trace=True, compile=True))
    args = draw(1, 3), draw(1, 3, seed=1)
    compiled(*args)
    (run,) = compiled._recordings.values()
    with torch.compiler.set_stance("fail_on_recompile"):
        for a, b in ((args[0], args[0]), (torch.nn.Parameter(args[1]), args[0]), (draw(4, 3)[::4], args[1])):
            torch.testing.assert_close(compiled(a, b), (a * 2 + b.sum()).detach(), rtol=1e-12, atol=1e-14)
    assert list(compiled._recordings.values()) == [run]


@pytest.mark.slow
def test_compiled_is_the_plain_function() -> None:
    fn = Counted(gradients)
    compiled = Recorded(fn, Speed(trace=True, compile=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for seed in range(2):
            args = draw(2, 3, 4, seed=seed), draw(5, 3, seed=seed)
            torch.testing.assert_close(compiled(*args), gradients(*args), rtol=1e-12, atol=1e-14)


def test_parameters_in_a_compiled_function_are_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """With parameters in the graph the compiler would prepare a backward pass, which a carried state makes impossible."""
    graphs: list[torch.fx.GraphModule] = []

    def compiler(graph: torch.fx.GraphModule, **options: Any) -> Any:
        graphs.append(graph)
        return graph

    monkeypatch.setattr(torch, "compile", compiler)
    layer = torch.nn.Linear(3, 3).double()
    run = Recorded(lambda x: layer(x).relu(), Speed(trace=True, compile=True))
    torch.testing.assert_close(run(draw(2, 3)), layer(draw(2, 3)).relu().detach())
    held = [getattr(graphs[0], str(node.target)) for node in graphs[0].graph.find_nodes(op="get_attr")]
    assert len(held) == 2 and not any(x.requires_grad for x in held)
    assert {x.data_ptr() for x in held} == {x.data_ptr() for x in layer.parameters()}


def test_capture_does_nothing_on_a_cpu() -> None:
    recorded = Recorded(lambda x: x + 1, Speed(trace=True, capture=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(recorded(draw(3)), draw(3) + 1)
    assert not on_gpu([draw(3)]) and not on_gpu([])


def test_one_tensor_as_two_arguments_is_two_when_they_differ() -> None:
    recorded = Recorded(lambda x, y: x - 2 * y, TRACED)
    x, y = draw(3), draw(3, seed=1)
    assert_same(recorded(x, x), x - 2 * x)
    assert_same(recorded(x, y), x - 2 * y)
    assert_same(recorded(y, x), y - 2 * x)


def test_the_layout_of_an_input_may_change() -> None:
    recorded = Recorded(lambda x: x.reshape(-1) * 2, TRACED)
    for x in (draw(2, 3), draw(3, 2).t()):
        assert_same(recorded(x), x.reshape(-1) * 2)


def test_equal_values_of_other_types_are_recorded_apart() -> None:
    assert len({outline_of(value)[1] for value in (1, 1.0, True)}) == 3
    recorded = Recorded(lambda x, factor: x * factor, TRACED)
    x = torch.arange(3)
    assert [recorded(x, factor).dtype for factor in (1, 1.0)] == [torch.int64, torch.float32]


def test_what_is_written_into_is_not_shared() -> None:
    """Derivatives write into fresh tensors of their own, each into another one even where they begin alike."""

    def scatter(x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = torch.zeros_like(x), torch.zeros_like(x)
        first[0], second[1] = x[0], x[1]
        return first, second

    assert_same(Recorded(scatter, TRACED)(draw(2, 3)), scatter(draw(2, 3)))


def test_what_writes_into_its_arguments_may_be_given_one_tensor_twice() -> None:
    def step(a: Tensor, b: Tensor, x: Tensor) -> list[Tensor]:
        return [a.add_(1), b.add_(2), x]

    zero, x = torch.zeros(2), torch.ones(2)
    assert_same(on_copies(step, 2)(zero, zero, x), [zero + 1, zero + 2, x])
    assert (zero == 0).all()


def test_a_carried_state_is_the_callers_own_on_a_cpu() -> None:
    recorded = Recorded(lambda state, x: ({"sum": state["sum"] + x}, x * 2), Speed(trace=True, capture=True), carry=True)
    state = {"sum": draw(3)}
    kept = state["sum"].clone()
    after, doubled = recorded(state, draw(3, seed=1))
    assert_same((after["sum"], doubled, state["sum"]), (kept + draw(3, seed=1), 2 * draw(3, seed=1), kept))


class Spot(NamedTuple):
    x: Tensor
    y: Tensor


TREES = {
    "tensors": (draw(2), [draw(3), {"b": draw(1), "a": (draw(4), None)}], 3.0),
    "nodes": {"pair": Pair(draw(2), None), "both": Pair(draw(2), draw(3)), "none": None},
    "others": (Spot(draw(2), draw(3)), OrderedDict(b=draw(1), a=2), "text"),
}


@pytest.mark.parametrize("name", TREES)
def test_an_outline_has_the_tensors_of_a_tree_in_their_order(name: str) -> None:
    tree = TREES[name]
    want = [leaf for leaf in flatten_tree(tree)[0] if isinstance(leaf, Tensor)]
    assert all(a is b for a, b in zip(outline_of(tree)[0], want, strict=True))


def test_outlines_differ_where_recordings_do() -> None:
    x, y = draw(2), draw(2, seed=1)
    trees = [
        *TREES.values(), x, x.float(), x[:1], (x,), [x], (x, y), {"a": x}, {"b": x}, {"a": (x, y)}, {"a": x, "b": y},
        Pair(x, None), Pair(x, y), (Pair(x, None), y), Spot(x, y), (x, None), (x, 1), (x, 1.0), (x, True), (x, "1"),
    ]  # fmt: skip
    assert len({outline_of(tree)[1] for tree in trees}) == len(trees)
    assert outline_of((x, y))[1] == outline_of((y, x))[1]
    assert outline_of(draw(3, 2).t())[0][0].is_contiguous()


@pytest.mark.parametrize("on", [True, False])
def test_garbage_is_collected_afterwards_as_before(on: bool) -> None:
    during: list[bool] = []

    def fn(x: Tensor) -> Tensor:
        during.append(gc.isenabled())
        return x * 2

    try:
        gc.enable() if on else gc.disable()
        Recorded(fn, TRACED)(draw(2))
        assert gc.isenabled() == on and not during[-1]
        with pytest.raises(ZeroDivisionError):
            Recorded(lambda x: x / (1 // 0), TRACED)(draw(2))
        assert gc.isenabled() == on
    finally:
        gc.enable()


def test_looking_at_arguments_keeps_none_of_them() -> None:
    gc.disable()
    try:
        tensor = draw(3)
        outline_of(({"a": [tensor]}, 1))
        gone = weakref.ref(tensor)
        del tensor
        assert gone() is None
    finally:
        gc.enable()


def test_optimisers_by_parameter_compute_the_same_and_join_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As compiled for a GPU, where it is faster."""
    monkeypatch.setattr(recording, "on_gpu", lambda tensors: True)
    monkeypatch.setattr(recording, "run_passes", lambda *args: None)
    config, rates = AdamConfig(1e-2, weight_decay=0.1), torch.rand(4, dtype=torch.float64)

    def step(grads, mu, nu, params, rate):
        changes, after = adam_update(grads, AdamState(mu, nu, torch.tensor(3)), params, config, rate)
        return changes, after.mu, after.nu, *adam_backward(params, mu, adam_gains(after, config), config, rate)

    shapes = [(4, 3), (4, 2, 5), (4,)]
    trees = [{f"{i}": torch.randn(s, dtype=torch.float64).abs() for i, s in enumerate(shapes)} for _ in range(4)]
    tensors = [x for tree in trees for x in tree.values()]

    def of_tensors(*tensors: Tensor) -> list[Tensor]:
        per_tree = [dict(zip("012", tensors[i : i + 3], strict=True)) for i in range(0, 12, 3)]
        return flatten_tree(vmap(step)(*per_tree, rates))[0]

    assert not is_by_parameter()
    graph = record(of_tensors, tensors, by_parameter=True)
    joined = record(of_tensors, tensors)
    torch.testing.assert_close(graph(*tensors), of_tensors(*tensors), rtol=0, atol=0)
    cats = [len(list(g.graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default))) for g in (graph, joined)]
    assert cats == [1, 8], cats  # the gains, which are one vector
    assert not is_by_parameter()
