"""Processes that carry out plans of compilations. What they leave is in the compiler's cache on disk, and nowhere else."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from disco_torch.kernels.fusing import Plan

PATIENCE = 600.0
"""Seconds after which processes are no longer waited for."""


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
        self._files: list[Path] = []

    def begin(self, plan: Plan) -> Path:
        """Hands a plan over, as a file that is there until the plan has been carried out, or could not be."""
        with tempfile.NamedTemporaryFile(prefix="disco-torch-plan-", delete=False) as file:
            self._files.append(Path(file.name))
            pickle.dump((torch.get_num_threads(), products(), written(plan.module), plan.like, plan.options), file)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has failed already
            self._process.stdin.write(os.fsencode(file.name) + b"\n")
            self._process.stdin.flush()
        return self._files[-1]

    def is_done(self, file: Path) -> bool:
        return not file.exists() or self._process.poll() is not None

    def stop(self) -> None:
        """Ends all of them."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        for file in self._files:
            file.unlink(missing_ok=True)


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
    """What the first process does: it has all that takes time to import, and forks for each file whose name comes in."""
    import torch._inductor.compile_fx  # noqa: F401

    files: dict[int, Path] = {}

    def tidy(*_: object) -> None:
        """Removes the files of processes that have ended, however they did."""
        for process in list(files):
            with contextlib.suppress(ChildProcessError):  # a signal came while this was being done
                if os.waitpid(process, os.WNOHANG)[0]:
                    files.pop(process).unlink(missing_ok=True)

    gc.disable()
    signal.signal(signal.SIGCHLD, tidy)
    for line in sys.stdin.buffer:
        file = Path(os.fsdecode(line.rstrip(b"\n")))
        process = os.fork()
        if process == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # names are for the first alone
            try:
                compile_plan(file)
            finally:  # not by `exit`, which would wait for the compiler's own processes, for seconds
                os._exit(0)
        files[process] = file
        tidy()  # it may have ended before it was known
    # The run is gone; what was begun is of use to the next.
    deadline = time.monotonic() + PATIENCE
    while files and time.monotonic() < deadline:
        time.sleep(0.1)
    if files:
        os.killpg(0, signal.SIGKILL)


def compile_plan(file: Path) -> None:
    """Compiles the plan in a file, into the compiler's cache."""
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
