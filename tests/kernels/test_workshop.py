"""Parts compiled side by side: what was compiled elsewhere is found, failures are survived, nothing is kept."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_graphs import draw, parted
from torch import Tensor

from disco_torch.kernels import Recorded, Speed, cutting, workers, workshop
from disco_torch.kernels.fusing import Plan
from disco_torch.kernels.gpu import rough
from disco_torch.kernels.recording import traced
from disco_torch.kernels.workshop import Part, mark_of, together

COMPILED = Speed(trace=True, compile=True)


@pytest.fixture
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.platform != "linux":
        pytest.skip("there are workers on Linux alone")
    monkeypatch.setattr(workshop, "FEW_CORES", 1)


class Idle:
    """Workers that are done at once, or never, and have done nothing."""

    made: list[Idle]
    done = True

    def __init__(self) -> None:
        self.made.append(self)
        self.begun: list[Plan] = []
        self.stopped = False

    def begin(self, plan: Plan) -> Path:
        assert not self.stopped
        self.begun.append(plan)
        return Path(str(len(self.begun)))

    def is_done(self, plan: Path) -> bool:
        return self.done

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch, many_cores: None, tmp_path: Path) -> type[Idle]:
    monkeypatch.setattr(workshop, "Workers", Idle)
    monkeypatch.setattr(Idle, "made", [], raising=False)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    return Idle


def test_parts_give_their_first_results_until_they_are_compiled(monkeypatch: pytest.MonkeyPatch, idle: type[Idle]) -> None:
    monkeypatch.setattr(Plan, "carry_out", lambda plan, tensors: plan.module)
    recorded = Recorded(parted, COMPILED)
    with together():
        first = recorded(draw(3, 4))
        torch.testing.assert_close(recorded(draw(3, 4, seed=1)), first, rtol=0, atol=0)
    torch.testing.assert_close(first, parted(draw(3, 4)), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(recorded(draw(3, 4, seed=1)), parted(draw(3, 4, seed=1)), rtol=1e-6, atol=1e-7)
    (made,) = idle.made
    assert len(made.begun) == 1 and made.stopped


def test_what_was_compiled_once_needs_no_worker(monkeypatch: pytest.MonkeyPatch, idle: type[Idle]) -> None:
    monkeypatch.setattr(Plan, "carry_out", lambda plan, tensors: plan.module)
    with together():
        Recorded(parted, COMPILED)(draw(3, 4))
    with together():
        again, other = Recorded(parted, COMPILED), Recorded(parted, COMPILED)
        torch.testing.assert_close(again(draw(3, 4)), parted(draw(3, 4)), rtol=1e-6, atol=1e-7)
        assert len(idle.made) == 1
        other(draw(5, 4))
        assert len(idle.made) == 2, "another shape is another compilation"


@pytest.mark.parametrize("first_compiled", [True, False])
def test_a_large_part_is_two(first_compiled: bool, monkeypatch: pytest.MonkeyPatch, idle: type[Idle]) -> None:
    plans: list[Plan] = []

    def carry_out(plan: Plan, tensors: list[Tensor]) -> Any:
        plans.append(plan)
        if not first_compiled and len(plans) == 1:
            raise RuntimeError("no compiler")
        return plan.module

    monkeypatch.setattr(Plan, "carry_out", carry_out)
    monkeypatch.setattr(cutting, "LARGE", 4)
    for _ in range(2):
        recorded = Recorded(parted, COMPILED, "parting")
        with (
            contextlib.nullcontext() if first_compiled or plans else pytest.warns(UserWarning, match="no compiler"),
            together(),
        ):
            first = recorded(draw(3, 4))
        torch.testing.assert_close(first, parted(draw(3, 4)), rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(recorded(draw(3, 4, seed=1)), parted(draw(3, 4, seed=1)), rtol=1e-6, atol=1e-7)
    assert len(plans) == 4
    whole = len(traced(parted, [draw(3, 4)]).graph.nodes)
    assert all(len(plan.module.graph.nodes) < whole for plan in plans)


def test_a_part_with_much_between_its_halves_stays_one(monkeypatch: pytest.MonkeyPatch, idle: type[Idle]) -> None:
    plans: list[Plan] = []
    monkeypatch.setattr(Plan, "carry_out", lambda plan, tensors: plans.append(plan) or plan.module)
    monkeypatch.setattr(cutting, "LARGE", 4)
    monkeypatch.setattr(workshop, "CACHED", 8)
    with together():
        Recorded(parted, COMPILED)(draw(3, 4))
    assert len(plans) == 1


def test_a_part_that_cannot_be_compiled_runs_as_traced(monkeypatch: pytest.MonkeyPatch, idle: type[Idle]) -> None:
    def broken(plan: Plan, tensors: list[Tensor]) -> Any:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(Plan, "carry_out", broken)
    recorded = Recorded(parted, COMPILED, "parting")
    notice = r"^could not compile parting \(RuntimeError: no compiler\); it runs without\.$"
    with pytest.warns(UserWarning, match=notice), together():
        recorded(draw(3, 4))
    torch.testing.assert_close(recorded(draw(3, 4, seed=1)), parted(draw(3, 4, seed=1)), rtol=1e-6, atol=1e-7)


def test_a_run_that_fails_stops_the_workers_and_leaves_parts_that_work(
    monkeypatch: pytest.MonkeyPatch, idle: type[Idle]
) -> None:
    monkeypatch.setattr(Idle, "done", False)
    recorded = Recorded(parted, COMPILED)

    def interrupted() -> None:
        with together():
            recorded(draw(3, 4))
            raise KeyboardInterrupt

    notice = r"^could not compile parted \(RuntimeError: interrupted\); it runs without\.$"
    with pytest.raises(KeyboardInterrupt), pytest.warns(UserWarning, match=notice):
        interrupted()
    assert all(worker.stopped for worker in idle.made)
    torch.testing.assert_close(recorded(draw(3, 4, seed=1)), parted(draw(3, 4, seed=1)), rtol=1e-6, atol=1e-7)


def test_parts_of_a_run_that_fails_keep_no_tensors(idle: type[Idle]) -> None:
    tensor = draw(3, 4)
    part = Part(traced(parted, [tensor]), [tensor], Plan.of(traced(parted, [tensor]), [tensor], 0), print)
    gone = weakref.ref(tensor)
    del tensor
    part.give_up(RuntimeError("interrupted"))
    gc.collect()
    assert gone() is None
    torch.testing.assert_close(list(part(draw(3, 4, seed=1))), parted(draw(3, 4, seed=1)), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("fails", ["__init__", "begin"])
def test_without_processes_parts_are_compiled_here(
    fails: str, monkeypatch: pytest.MonkeyPatch, idle: type[Idle], recwarn: pytest.WarningsRecorder
) -> None:
    def full(*args: object) -> None:
        raise OSError("No space left on device")

    plans: list[Plan] = []
    monkeypatch.setattr(Plan, "carry_out", lambda plan, tensors: plans.append(plan) or plan.module)
    monkeypatch.setattr(Idle, fails, full)
    recorded = Recorded(parted, COMPILED)
    with together():
        recorded(draw(3, 4))
    assert len(plans) == 1 and all(worker.stopped for worker in idle.made)
    assert not [warning for warning in recwarn if "could not compile" in str(warning.message)]
    torch.testing.assert_close(recorded(draw(3, 4, seed=1)), parted(draw(3, 4, seed=1)), rtol=1e-6, atol=1e-7)


def test_a_worker_that_never_ends_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, idle: type[Idle]) -> None:
    monkeypatch.setattr(Idle, "done", False)
    monkeypatch.setattr(workshop, "PATIENCE", 0.1)
    plans: list[Plan] = []
    monkeypatch.setattr(Plan, "carry_out", lambda plan, tensors: plans.append(plan) or plan.module)
    with together():
        Recorded(parted, COMPILED)(draw(3, 4))
    assert len(plans) == 1 and all(worker.stopped for worker in idle.made)


def test_precision_that_was_set_by_its_new_name(monkeypatch: pytest.MonkeyPatch, idle: type[Idle]) -> None:
    def mixed() -> str:
        raise RuntimeError("legacy and new APIs are mixed")

    tensors = [draw(3, 4)]
    plan = Plan.of(traced(parted, tensors), tensors, 0)
    before = mark_of(plan)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", mixed)
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(fp32_precision="tf32"))
    assert workers.products() == "tf32" and rough() and mark_of(plan) != before


def test_with_few_cores_compilations_are_one_after_the_other(monkeypatch: pytest.MonkeyPatch, idle: type[Idle]) -> None:
    monkeypatch.setattr(workshop, "FEW_CORES", 1 << 20)
    monkeypatch.setattr(Plan, "carry_out", lambda plan, tensors: plan.module)
    with together():
        assert not isinstance(workshop.compiled(traced(parted, [draw(3, 4)]), [draw(3, 4)], 0, print), Part)
    assert not idle.made


@pytest.mark.slow
@pytest.mark.parametrize("precision", [None, "highest", "high"])
def test_what_another_process_compiled_is_found(
    precision: str | None, monkeypatch: pytest.MonkeyPatch, many_cores: None, tmp_path: Path
) -> None:
    from torch._dynamo.utils import counters

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    before = torch.get_float32_matmul_precision()
    if precision is not None:
        torch.set_float32_matmul_precision(precision)
    try:
        recorded, other = Recorded(parted, COMPILED), Recorded(lambda x: [x.exp().mean(0)], COMPILED)
        counters.clear()
        with together():
            recorded(draw(3, 4))
            other(draw(3, 4))
    finally:
        if precision is not None:
            torch.set_float32_matmul_precision(before)
    assert counters["inductor"]["fxgraph_cache_hit"] == 2 and not counters["inductor"]["fxgraph_cache_miss"]
    torch.testing.assert_close(recorded(draw(3, 4, seed=1)), parted(draw(3, 4, seed=1)), rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_halves_that_other_processes_compiled(monkeypatch: pytest.MonkeyPatch, many_cores: None, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cutting, "LARGE", 4)

    def check() -> None:
        recorded = Recorded(parted, COMPILED)
        with together():
            recorded(draw(3, 4))
        torch.testing.assert_close(recorded(draw(3, 4, seed=1)), parted(draw(3, 4, seed=1)), rtol=1e-6, atol=1e-7)

    check()
    assert len(list((tmp_path / "disco-torch").iterdir())) == 2
    monkeypatch.setattr(workshop, "Workers", None)  # the second time no process is begun
    check()
