"""Compilations side by side: the parts of a larger function are found in one run of it and compiled in processes.

    with together():
        fn(...)        # each part that is to be compiled is begun; it runs once as traced and gives that again and again
    fn(...)            # with all parts compiled

All that a process leaves is an entry of the compiler's cache on disk. After it the same compilation is asked for here, and
finds it there; were a process to fail, it would only take longer. What is in the cache already needs no process.
A large part is two: the longer a graph, the longer it takes to compile.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from disco_torch.kernels.cutting import halve
from disco_torch.kernels.fusing import CHOICES, Plan, outlines

FEW_CORES = 8
"""With fewer, compilations side by side take as long as one after the other, and more memory."""
PATIENCE = 600.0
"""Seconds after which processes are no longer waited for."""
CACHED = 64 << 20
"""Bytes between the halves of a part. More than a GPU's cache holds would take time to be written and read."""


class Part:
    """A graph that is being compiled. Until it is, all it gives is what it gave for its first arguments.

    Args:
      graph: as it was traced.
      tensors: such as it will be given.
      plan: of its compilation.
      failed: is told why the compilation failed; the graph is used as it is then.
    """

    def __init__(
        self, graph: fx.GraphModule, tensors: list[Tensor], plan: Plan, failed: Callable[[Exception], None]
    ) -> None:
        self.plan = plan
        self._graph, self._tensors, self._failed = graph, tensors, failed
        self._given: list[Tensor] = list(graph(*tensors))
        self._run: Callable[..., Any] | None = None

    def __call__(self, *tensors: Tensor) -> Any:
        return list(self._given) if self._run is None else self._run(*tensors)

    def finish(self) -> None:
        """Takes what a process has made, or makes it."""
        try:
            self._run = carried_out(self.plan, self._tensors)
        except Exception as error:  # a compiler may fail in any way; the graph is always there
            self.give_up(error)
        self._tensors, self._given = [], []

    def give_up(self, error: Exception) -> None:
        """The graph is used as it is, unless it was compiled already."""
        if self._run is None:
            self._failed(error)
            self._run, self._tensors, self._given = self._graph, [], []


class Workshop:
    """Parts, and the processes that compile them, the first of which is begun with the first part."""

    def __init__(self) -> None:
        self._parts: list[tuple[Part, Path | None]] = []
        self._workers: Workers | None = None

    def add(self, part: Part) -> None:
        self._parts.append((part, self._begun(part.plan)))

    def _begun(self, plan: Plan) -> Path | None:
        """Where the plan is while a process is at work, or None where none can be begun."""
        try:
            if self._workers is None:
                self._workers = Workers()
            return self._workers.begin(plan)
        except OSError:  # no memory, no room on the disk
            return None

    def finish(self) -> None:
        """Takes over what is ready as it becomes ready."""
        if self._parts:
            with contextlib.suppress(Exception):  # it takes seconds, in which the processes work; parts say if it fails
                import torch._inductor.compile_fx  # noqa: F401
        waiting = list(self._parts)
        deadline = time.monotonic() + PATIENCE
        while waiting:
            late = time.monotonic() > deadline
            for part, plan in [each for each in waiting if late or self._is_done(each[1])]:
                part.finish()
                waiting.remove((part, plan))
            time.sleep(0.02)

    def _is_done(self, plan: Path | None) -> bool:
        return self._workers is None or plan is None or self._workers.is_done(plan)

    def close(self) -> None:
        if self._workers is not None:
            self._workers.stop()
        for part, _ in self._parts:
            part.give_up(RuntimeError("interrupted"))


_open: list[Workshop] = []


def compiled(
    graph: fx.GraphModule, tensors: list[Tensor], carried: int, failed: Callable[[Exception], None]
) -> Callable[..., Any]:
    """The graph compiled: at once, or with others where `together` is open."""
    plan = Plan.of(graph, tensors, carried)
    if not _open:
        return carried_out(plan, tensors)
    halves = None if plan.carried else halve(plan.module)
    if halves is not None:
        with torch.no_grad():
            between: list[Tensor] = list(halves[0](*tensors))
        if sum(tensor.nbytes for tensor in between) <= CACHED:
            given = tensors, [*between, *tensors]
            first, second = (
                begun(Plan(half, outlines(inputs), plan.options, 0), half, inputs, failed)
                for half, inputs in zip(halves, given, strict=True)
            )
            return lambda *inputs: second(*first(*inputs), *inputs)
    return begun(plan, graph, tensors, failed)


def begun(
    plan: Plan, graph: fx.GraphModule, tensors: list[Tensor], failed: Callable[[Exception], None]
) -> Callable[..., Any]:
    """A part whose compilation has begun, in a process; or what the cache has, at once."""
    if mark_of(plan).is_file():
        return carried_out(plan, tensors)
    part = Part(graph, tensors, plan, failed)
    _open[-1].add(part)
    return part


def carried_out(plan: Plan, tensors: list[Tensor]) -> Callable[..., Any]:
    """The plan carried out, and a mark that it was: next time the cache has it, and no process is needed."""
    mark = mark_of(plan)
    run = plan.carry_out(tensors)
    with contextlib.suppress(OSError):
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    return run


def mark_of(plan: Plan) -> Path:
    """A file beside the compiler's cache, whose name says all that the plan consists of."""
    from torch._inductor.runtime.runtime_utils import cache_dir

    nodes, constants = written(plan.module)
    numbers = {name: (constant.dtype, constant.device, constant.tolist()) for name, constant in constants.items()}
    devices = {device for *_, device in plan.like if device.type == "cuda"}
    gpus = sorted(torch.cuda.get_device_name(device) for device in devices)
    tag = (torch.__version__, CHOICES, getattr(torch.compiler.config, "cache_key_tag", ""), gpus, products())
    text = repr((tag, nodes, numbers, plan.like, plan.options))
    return Path(cache_dir()) / "disco-torch" / hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def together() -> Iterator[None]:
    """What is recorded meanwhile is compiled side by side, and has been at the end. Until then results mean nothing."""
    if cores() < FEW_CORES or sys.platform != "linux":  # elsewhere a process cannot be had twice, or not safely
        yield
        return
    workshop = Workshop()
    _open.append(workshop)
    try:
        yield
        workshop.finish()
    finally:
        _open.remove(workshop)
        workshop.close()


def cores() -> int:
    """Those that this process may use, where others of a distributed run have as many."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, own // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


class Workers:
    """A process that imports the compiler once, finding modules where this one does, and forks for each plan."""

    def __init__(self) -> None:
        # Of the compiler's algebra of indices more is remembered than a thousand results: a fourteenth of its time.
        defaults = {"TORCHINDUCTOR_COMPILE_THREADS": str(max(1, cores() // 4)), "SYMPY_CACHE_SIZE": "100000"}
        environment = defaults | dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        # Had the first asked a GPU itself, the others could not use it; where NVML is missing, parts are compiled here.
        environment |= {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "TORCH_WARM_POOL": "0"}
        command = [sys.executable, "-P", "-c", f"from {__name__} import main; main()"]
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        # A session of its own: Ctrl-C is for the run, which may have to save.
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=nothing, stderr=nothing, env=environment, start_new_session=True
        )
        self._plans: list[Path] = []

    def begin(self, plan: Plan) -> Path:
        """Hands a plan over, as a file that is there until the plan has been carried out, or could not be."""
        with tempfile.NamedTemporaryFile(prefix="disco-torch-plan-", delete=False) as file:
            self._plans.append(Path(file.name))
            pickle.dump((torch.get_num_threads(), products(), written(plan.module), plan.like, plan.options), file)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has failed already
            self._process.stdin.write(os.fsencode(file.name) + b"\n")
            self._process.stdin.flush()
        return self._plans[-1]

    def is_done(self, plan: Path) -> bool:
        return not plan.exists() or self._process.poll() is not None

    def stop(self) -> None:
        """Ends all of them."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        for plan in self._plans:
            plan.unlink(missing_ok=True)


def products() -> str | None:
    """How precise products are, or None if nobody has set it: that is not the same to the cache as the default being set."""
    by_new_name: str = getattr(torch.backends.cuda.matmul, "fp32_precision", "")
    try:
        return None if by_new_name == "none" else torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set by its new name, and cannot be asked for by the old one then
        return by_new_name


@dataclass(frozen=True)
class Result:
    """Stands for what a node gives."""

    node: int


def written(module: fx.GraphModule) -> tuple[list[tuple[Any, ...]], dict[str, Tensor]]:
    """A graph, and the constants in it, as what can be pickled. PyTorch's own way would run it, and change it."""
    numbers: dict[fx.Node, Any] = {node: Result(i) for i, node in enumerate(module.graph.nodes)}
    nodes = []
    for node in numbers:
        target = str(node.target) if isinstance(node.target, OpOverload) else node.target
        args, kwargs = fx.map_arg((node.args, node.kwargs), numbers.__getitem__)
        nodes.append((node.op, node.name, target, args, kwargs))
    constants = {str(node.target): getattr(module, str(node.target)) for node in numbers if node.op == "get_attr"}
    return nodes, constants


def read(nodes: list[tuple[Any, ...]], constants: dict[str, Tensor]) -> fx.GraphModule:
    """The graph that was written."""
    graph, made = fx.Graph(), list[fx.Node]()

    def given(tree: Any) -> Any:
        return pytree.tree_map(lambda leaf: made[leaf.node] if isinstance(leaf, Result) else leaf, tree)

    for op, name, target, args, kwargs in nodes:
        if op == "call_function" and isinstance(target, str):
            target = reduce(getattr, target.split("."), torch.ops)
        made.append(graph.create_node(op, target, given(args), given(kwargs), name))
    return fx.GraphModule(constants, graph)


def main() -> None:
    """What the first process does: it has all that takes time to import, and forks for each plan whose name comes in."""
    import torch._inductor.compile_fx  # noqa: F401

    plans: dict[int, Path] = {}

    def tidy(*_: object) -> None:
        """Lets go of the plans of processes that have ended, however they did."""
        for process in list(plans):
            with contextlib.suppress(ChildProcessError):  # a signal came while this was being done
                if os.waitpid(process, os.WNOHANG)[0]:
                    plans.pop(process).unlink(missing_ok=True)

    gc.disable()
    signal.signal(signal.SIGCHLD, tidy)
    for line in sys.stdin.buffer:
        plan = Path(os.fsdecode(line.rstrip(b"\n")))
        process = os.fork()
        if process == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # plans are for the first alone
            try:
                carry_out(plan)
            finally:  # not by `exit`, which would wait for the compiler's own processes, for seconds
                os._exit(0)
        plans[process] = plan
        tidy()  # it may have ended before it was known
    # The run is gone; what was begun is of use to the next.
    deadline = time.monotonic() + PATIENCE
    while plans and time.monotonic() < deadline:
        time.sleep(0.1)
    if plans:
        os.killpg(0, signal.SIGKILL)


def carry_out(file: Path) -> None:
    """Compiles what is in a file, into the compiler's cache."""
    threads, precision, module, like, options = pickle.loads(file.read_bytes())
    torch.set_num_threads(threads)
    if precision in ("highest", "high", "medium"):
        torch.set_float32_matmul_precision(precision)
    elif precision is not None:
        torch.backends.cuda.matmul.fp32_precision = precision
    for *_, device in like:
        if device.type == "cuda":
            torch.cuda.set_device(device)
    Plan(read(*module), like, options, carried=0).compile()
