"""Several processes of one run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from processes import free_port
from small_discoveries import end, start

from disco_torch.runs.world import ProcessLost, World, is_first_process


def no_file() -> str:
    raise ValueError("`run` must be there")


def test_alone_there_is_nobody_to_talk_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with World.from_environment() as world:
        assert world == World() and world.is_first and is_first_process()
        assert not torch.distributed.is_initialized()
        tensor = torch.ones(3)
        assert world.sum(tensor) is tensor and world.gather("a") == ["a"] and world.share(lambda: 4) == 4
        assert world.any(True) and not world.any(False)
        assert world.gather_in_all("a") == ["a"] and world.mean_across_processes is None
        world.barrier()
        with pytest.raises(ValueError, match="`run` must be there"):
            world.share(no_file)


def talk(size: int) -> None:
    with World.from_environment() as world:
        rank = int(os.environ["RANK"])
        assert world == World(rank, size, rank) and world.is_first == is_first_process() == (rank == 0)
        assert world.device("cpu") == torch.device("cpu")

        mine = torch.full((2, 3), rank + 1.0, dtype=torch.float64)
        turned = mine.T  # not contiguous
        assert torch.equal(world.sum(turned), torch.full((3, 2), size * (size + 1) / 2, dtype=torch.float64))
        assert torch.equal(mine, torch.full_like(mine, rank + 1.0)), "the argument must stay as it is"
        bits = world.gather(world.sum(torch.rand(100, generator=torch.Generator().manual_seed(rank))))
        assert bits is None or all(torch.equal(bits[0], other) for other in bits)

        assert [world.any(rank == who) for who in range(size + 1)] == [True] * size + [False]
        values = world.gather({"rank": rank, "tensor": torch.arange(rank)})
        assert (values is None) == (rank > 0)
        if values is not None:
            assert [value["rank"] for value in values] == list(range(size))
            assert [len(value["tensor"]) for value in values] == list(range(size))
        assert world.gather_in_all(rank) == list(range(size))
        mean = world.mean_across_processes
        assert mean is not None and mean(torch.tensor(float(rank))) == (size - 1) / 2
        assert world.share(lambda: f"of {rank}") == "of 0"
        world.barrier()
        with pytest.raises(ValueError, match="`run` must be there"):
            world.share(no_file)
        assert world.share(lambda: "still there") == "still there"
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("size", [2, 3])
def test_processes_talk(size: int) -> None:
    assert end(start(talk, size, size=size)) == [0] * size


def lose_one(how: str) -> None:
    with World.from_environment(timeout=timedelta(seconds=1.5 if how == "silent" else 60)) as world:
        assert world.sum(torch.ones(())) == 3
        if world.rank == 1:
            if how == "dead":
                os._exit(7)
            time.sleep(4)
            os._exit(7)
        began = time.monotonic()
        with pytest.raises(ProcessLost, match="another process of this run has died or does not answer"):
            world.barrier()
        assert time.monotonic() - began < 3.5


@pytest.mark.parametrize("how", ["dead", "silent"])
def test_a_lost_process_is_noticed(how: str) -> None:
    assert end(start(lose_one, how, size=3), seconds=30) == [0, 7, 0]


def test_the_error_of_a_process_ends_the_others(tmp_path: Path) -> None:
    assert end(start(fail_in_one, size=2, errors=tmp_path)) == [1, 1]
    assert "ZeroDivisionError" in (tmp_path / "1.txt").read_text()
    assert "ProcessLost" in (tmp_path / "0.txt").read_text()


def fail_in_one() -> None:
    with World.from_environment() as world:
        world.barrier()
        print(1 // (1 - world.rank))
        world.barrier()


SCRIPT = """
from pathlib import Path
import torch
from disco_torch.kernels import sum_across_processes
from disco_torch.runs import World

def gloo_threads():
    return [name for path in Path("/proc/self/task").glob("*/comm") if "gloo" in (name := path.read_text())]

with World.from_environment():
    assert sum_across_processes(torch.ones(2)).tolist() == [1, 1]
    assert gloo_threads()
assert not gloo_threads(), gloo_threads()
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted where there is /proc")
def test_no_thread_of_the_group_outlives_the_run() -> None:
    """In a fresh process, as modules that are first imported during the run could keep the group."""
    names = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=os.environ | names, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr


def test_each_process_takes_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    for name in ("auto", "cuda"):
        assert World(rank=3, size=4, local_rank=1).device(name) == torch.device("cuda", 1)
    assert taken == [torch.device("cuda", 1)] * 2
    assert World().device("cuda") == torch.device("cuda") and World().device("cuda:1") == torch.device("cuda", 1)
    assert World(rank=2, size=3, local_rank=2).device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match=r"`--nproc-per-node` must be at most the number of GPUs, 2, got process 3"):
        World(rank=2, size=3, local_rank=2).device("auto")
    with pytest.raises(ValueError, match="which take one GPU each, got 'cuda:0'"):
        World(rank=0, size=2).device("cuda:0")
