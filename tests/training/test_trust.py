"""Nothing lost and nothing silent: full disks, hangs, removed and edited files, two processes, numbers that overflow."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from small_runs import assert_same, last_state, metrics_of, small_config

from disco_torch import AdamConfig, InputConfig, TrainConfig, load_run, train
from disco_torch.cli import main
from disco_torch.runs import RunDiverged, RunInUse, checkpoint
from disco_torch.runs.checkpoint import checkpoint_path, list_checkpoints, load_checkpoint, save_checkpoint
from disco_torch.training.session import TrainingSession


def run(config: TrainConfig | None = None, **kwargs: Any) -> Path:
    return train(config, view=False, **kwargs).folder


@pytest.fixture
def after(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`after(rollouts, act)` calls `act(session)` at the end of that rollout."""
    advance, actions = TrainingSession.advance, {}

    def advancing(session: TrainingSession) -> None:
        advance(session)
        actions.pop(session.counters.rollouts, lambda session: None)(session)

    monkeypatch.setattr(TrainingSession, "advance", advancing)
    return actions.__setitem__


class Huge(gymnasium.Env):
    """Shows one observation of 1e18: with it every loss is finite, and the squares of some gradients are not."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)
    value = 1e18

    def __init__(self, at: int = 16) -> None:
        self.at, self.steps = at, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        value = self.value if self.steps == self.at else 0.5
        return np.full(2, value, np.float32), 0.5, self.steps % 3 == 0, False, {}


@pytest.mark.parametrize("value", [1e18, 1e22])
@pytest.mark.parametrize("log_every", [2, 1000])
def test_moments_that_overflow_end_the_run_and_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_every: int, value: float
) -> None:
    monkeypatch.setattr(Huge, "value", value)
    spec = gymnasium.envs.registration.EnvSpec("Huge-v0", entry_point=Huge)
    monkeypatch.setitem(gymnasium.registry, "Huge-v0", spec)
    # Raw: normalised, such observations would do no harm.
    config = small_config(
        tmp_path, env="Huge-v0", env_args={}, name="huge", log_every=log_every, inputs=InputConfig(), first_steps=False
    )
    with pytest.raises(RunDiverged, match=r"`learner/\S+` must be finite, got (inf|nan) .* at step \d+; look") as caught:
        run(config)
    assert value > 1e18 or "`learner/opt_state/nu/" in str(caught.value)
    assert all(leaf.isfinite().all() for leaf in last_state(tmp_path / "huge")["learning"].values())


def test_every_part_of_the_state_is_looked_at(tmp_path: Path) -> None:
    session = TrainingSession(small_config(tmp_path, rule="policy-gradient"))
    assert session.not_finite() is None
    assert session.value_state is not None
    parts = {
        "learner/params": session.learner_state.params,
        "learner/opt_state/mu": session.learner_state.opt_state.mu,
        "learner/opt_state/nu": session.learner_state.opt_state.nu,
        "value/params": session.value_state.params,
    }
    for where, part in parts.items():
        for name, tensor in part.items():
            for value in (float("inf"), float("nan")):
                kept = tensor.view(-1)[-1].item()
                tensor.view(-1)[-1] = value
                assert (session.not_finite() or "").startswith(f"`{where}/{name}` must be finite, got {value} (1 of")
                tensor.view(-1)[-1] = kept
    # Large, yet finite: the sum of all numbers overflows, which is no reason to stop.
    for tensor in session.learner_state.opt_state.nu.values():
        tensor.fill_(3e38)
    assert session.not_finite() is None


def test_checkpoints_from_before_are_named_only_where_there_are_some(tmp_path: Path, after: Any) -> None:
    def ruin(session: TrainingSession) -> None:
        session.learner_state.params["torso.0.weight"][0, 0] = float("nan")

    for keep in (True, False):
        name = f"keep-{keep}"
        after(3, lambda session: None)
        after(5, ruin)
        if not keep:
            after(4, lambda session, name=name: shutil.rmtree(tmp_path / name / "checkpoints"))
        with pytest.raises(RunDiverged, match=r"`learner/params/torso.0.weight` must be finite, got nan") as caught:
            run(small_config(tmp_path, name=name, checkpoint_every=0, log_every=1))
        assert ("are from before" in str(caught.value)) == keep


def test_metrics_that_lost_half_a_line_are_trimmed(tmp_path: Path, after: Any) -> None:
    after(7, lambda session: signal.raise_signal(signal.SIGTERM))
    folder = run(small_config(tmp_path))
    lines = (folder / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").write_bytes(lines[:-20])
    with pytest.warns(UserWarning, match=r"lines are missing, and the run continues behind the last whole one"):
        run(resume=folder)
    assert [line["steps"] for line in metrics_of(folder)] == [24, 48, 96, 120]
    run(small_config(tmp_path, steps=144), resume=folder)
    assert [line["steps"] for line in metrics_of(folder)] == [24, 48, 96, 120, 144]
    assert main(["plot", str(folder), "--out", str(tmp_path / "x.png")]) == 0


LOCK = "import sys; from pathlib import Path; from disco_torch.runs import run_lock\nwith run_lock(Path(sys.argv[1])): "


def test_a_run_is_locked_while_it_runs(tmp_path: Path, after: Any) -> None:
    answers: list[str] = []

    def ask(session: TrainingSession) -> None:
        command = [sys.executable, "-c", LOCK + "print('free')", str(tmp_path / "mine")]
        answers.append(subprocess.run(command, capture_output=True, text=True, check=False).stderr)

    after(2, ask)
    run(small_config(tmp_path, name="mine", steps=36))
    after(4, ask)
    run(small_config(tmp_path, steps=60), resume=tmp_path / "mine")
    who = f"process {os.getpid()} on {socket.gethostname()}"
    assert len(answers) == 2 and all(f"is open in another process, {who}; wait until it has" in text for text in answers)


def test_a_second_resume_is_refused_and_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(small_config(tmp_path))
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
    holder = subprocess.Popen(
        [sys.executable, "-c", LOCK + "print('held', flush=True); sys.stdin.readline()", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with pytest.raises(RunInUse, match=f"is open in another process, process {holder.pid} on"):
        run(small_config(tmp_path, steps=240), resume=folder)
    assert main(["train", "--resume", str(folder), "--steps", "240"]) == 2
    assert f"process {holder.pid} on" in capsys.readouterr().err
    assert files == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
    holder.communicate("\n", timeout=30)
    run(small_config(tmp_path, steps=144), resume=folder)


def full(*args: Any, **kwargs: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError("PytorchStreamWriter failed writing file data")


@pytest.mark.parametrize("fail", [full, broken])
def test_a_full_disk_while_checkpointing_loses_nothing(
    tmp_path: Path, after: Any, monkeypatch: pytest.MonkeyPatch, fail: Callable[..., None]
) -> None:
    whole = run(small_config(tmp_path))
    after(6, lambda session: monkeypatch.setattr(checkpoint.torch, "save", fail))
    with monkeypatch.context(), pytest.raises(OSError, match=r"the checkpoint of .*mine cannot be written") as caught:
        run(small_config(tmp_path, name="mine"))
    assert "checkpoint-000000004.pt is whole; free some space, then `disco-torch train --resume" in str(caught.value)
    monkeypatch.undo()
    folder = tmp_path / "mine"
    assert not list(folder.rglob("*.partial"))
    run(resume=folder)
    assert_same(last_state(folder), last_state(whole))
    assert metrics_of(folder) == metrics_of(whole)


@pytest.mark.parametrize("limit", [100, 20_000])
def test_a_file_that_the_system_does_not_let_grow(tmp_path: Path, after: Any, limit: int) -> None:
    """The same with PyTorch's own writer, and with a line of metrics."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    after(5, lambda session: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old[1])))
    try:
        with pytest.raises(OSError, match=r"(the checkpoint|metrics) of .*mine cannot be written .*File too large"):
            run(small_config(tmp_path, name="mine"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    run(resume=tmp_path / "mine")
    assert [line["steps"] for line in metrics_of(tmp_path / "mine")] == [24, 48, 72, 96, 120]


def test_partial_files_are_removed_at_the_next_start(tmp_path: Path, after: Any) -> None:
    after(5, lambda session: signal.raise_signal(signal.SIGTERM))
    folder = run(small_config(tmp_path))
    (folder / "rules").mkdir()
    partial = [folder / place / ".x.0123.partial" for place in (".", "checkpoints", "rules")]
    for path in partial:
        path.write_bytes(b"half")
    other = folder / "checkpoints" / "notes.txt"
    other.write_text("mine")
    run(resume=folder)
    assert not any(path.exists() for path in partial) and other.exists()


@pytest.mark.parametrize("log_every", [2, 1000])
def test_a_folder_that_is_removed_in_mid_run_stays_so(tmp_path: Path, after: Any, log_every: int) -> None:
    after(5, lambda session: shutil.rmtree(tmp_path / "mine"))
    with pytest.raises(FileNotFoundError, match=r"the folder .*mine must stay while its run is going on"):
        run(small_config(tmp_path, name="mine", log_every=log_every))
    assert not (tmp_path / "mine").exists()


def test_a_folder_that_is_removed_inside_a_write_is_not_said_to_be_whole(
    tmp_path: Path, after: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(content: Any, file: Any) -> None:
        shutil.rmtree(tmp_path / "mine")

    after(6, lambda session: monkeypatch.setattr(checkpoint.torch, "save", remove))
    with pytest.raises(FileNotFoundError, match=r"the folder .*mine must stay while its run is going on"):
        run(small_config(tmp_path, name="mine"))
    assert not (tmp_path / "mine").exists()


HANG = """
import os, time
from pathlib import Path
import gymnasium, numpy as np

class Hang(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 30:
            Path(__file__).with_name(f"hangs-{os.getpid()}").touch()
            time.sleep(600)
        return np.zeros(2, np.float32), 0.5, self.steps % 3 == 0, False, {}

gymnasium.register("Hang-v0", entry_point=Hang)
"""


def is_alive(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_sigterm_ends_a_run_whose_environment_hangs(tmp_path: Path, mode: str, times: int) -> None:
    """With the second one at once, or after a time of grace."""
    (tmp_path / "hanging.py").write_text(HANG)
    options = ["--rule", "actor-critic", "--device", "cpu", "--steps", "100000", "--agent.dense", "8", "--num-envs", "2"]
    options += ["--env", "hanging:Hang-v0", "--env-args", "vectorization_mode", mode, "--rollout-length", "6"]
    options += ["--batch-size", "4", "--replay-capacity", "8", "--checkpoint-every", "1", "--no-tensorboard"]
    process = subprocess.Popen(
        [sys.executable, "-m", "disco_torch", "train", *options, "--runs", str(tmp_path), "--name", "mine"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ
        | {
            "OMP_NUM_THREADS": "1",
            "DISCO_TORCH_GRACE_SECONDS": "2" if times == 1 else "60",
            "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
        },
    )
    deadline, wanted = time.monotonic() + 60, 2 if mode == "async" else 1
    while len(found := list(tmp_path.glob("hangs-*"))) < wanted:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    workers = [int(path.name.removeprefix("hangs-")) for path in found]
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    if times == 2:
        process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    why = "told to stop, but the run hangs" if times == 1 else "told to stop twice"
    assert process.returncode == 128 + signal.SIGTERM and f"{why}; ended without a new checkpoint" in errors
    while any(is_alive(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert last_state(tmp_path / "mine")["counters"]["rollouts"] == 4


NAMES = ["../x", "a/b", "/x", "..", ".", "a:b", "a\\b", "a\nb", "a\0b", 'a"b', "x" * 201, "ü" * 101]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_are_not_those_of_one_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="`name` must"):
        small_config(tmp_path / "runs", name=name)
    assert list(tmp_path.iterdir()) == []


def test_a_name_is_refused_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--runs", str(tmp_path / "runs"), "--name", "../x"]) == 2
    assert "`name` must be the name of one folder, without / \\ :" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda plain: plain | {"spede": 1}, "`config.spede` is not known"),
        (lambda plain: {name: value for name, value in plain.items() if name != "seed"}, "`config.seed` is missing"),
        (lambda plain: plain | {"seed": "one"}, "`config.seed` must be int, got 'one'"),
        (lambda plain: plain | {"agent": [8]}, "`config.agent` must be the fields of a AgentConfig, got list"),
        (lambda plain: plain | {"agent": plain["agent"] | {"dense": 8}}, "`config.agent.dense` must be a list, got int"),
        (lambda plain: plain | {"env_args": [1]}, "`config.env_args` must be dict"),
        (lambda plain: plain | {"schedule": "sine"}, "`config.schedule` must be one of"),
        (lambda plain: plain | {"steps": "many"}, "`config.steps` must be int, got 'many'"),
        (
            lambda plain: plain | {"replayed_share": 10**400},
            "`config.replayed_share` must be an integer of at most 64 bits, got one of 1329 bits",
        ),
        (lambda plain: plain | {"batch_size": -1}, "`batch_size` must be at least 0, got -1"),
        (lambda plain: [plain], "`config` must be the fields of a TrainConfig, got list"),
    ],
)
def test_a_configuration_that_was_edited_is_named(tmp_path: Path, edit: Callable[[Any], Any], message: str) -> None:
    folder = run(small_config(tmp_path, steps=24))
    file = folder / "config.json"
    file.write_text(json.dumps(edit(json.loads(file.read_text()))))
    for use in (lambda: run(resume=folder), lambda: load_run(folder, "cpu")):
        with pytest.raises(ValueError, match=r"config.json is not the configuration of a training run") as caught:
            use()
        assert message in str(caught.value) and str(file) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_configuration_that_is_not_json(tmp_path: Path, content: bytes) -> None:
    folder = run(small_config(tmp_path, steps=24))
    (folder / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"config.json must be JSON, as the run wrote it"):
        load_run(folder, "cpu")


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("agent", {"dense": [16]}, "config.agent.dense"),
        ("agent", {"observation_scale": [2.0]}, "config.agent.observation_scale"),  # no shape tells
        ("optimizer", {"learning_rate": 1.0}, "config.optimizer.learning_rate"),
        ("seed", 3, "config.seed"),
    ],
)
def test_settings_that_were_edited_are_not_those_of_the_checkpoint(
    tmp_path: Path, name: str, value: Any, field: str
) -> None:
    folder = run(small_config(tmp_path, steps=24))
    file = folder / "config.json"
    plain = json.loads(file.read_text())
    plain[name] = plain[name] | value if isinstance(value, dict) else value
    file.write_text(json.dumps(plain))
    for use in (lambda: run(resume=folder), lambda: load_run(folder, "cpu")):
        with pytest.raises(ValueError, match=rf"`{field}` in .*config.json must be .*, as in the checkpoint, got .*; undo"):
            use()


def test_where_it_runs_and_what_it_writes_may_be_edited(tmp_path: Path) -> None:
    folder = run(small_config(tmp_path, steps=24))
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"steps": 48, "log_every": 1, "speed": "plain"}))
    run(resume=folder)
    assert [line["steps"] for line in metrics_of(folder)] == [24, 36, 48]


def edited(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Changes the newest checkpoint, with all its sums made right again."""
    content = load_checkpoint(folder / "checkpoints")
    edit(content)
    count = int(list_checkpoints(folder / "checkpoints")[-1].stem.removeprefix("checkpoint-"))
    content.pop("format", None)
    save_checkpoint(folder / "checkpoints", count, content, keep=9)


def put(value: Any, *path: str) -> Callable[[dict[str, Any]], Any]:
    def edit(content: dict[str, Any]) -> None:
        for part in path[:-1]:
            content = content[part]
        content[path[-1]] = value

    return edit


WEIGHT = ("session", "learning", "learner/params/torso.0.weight")


@pytest.mark.parametrize(
    "edit",
    [
        put(7, "session"),
        put(7, "config"),
        put("{", "config"),
        put(None, "metrics_bytes"),
        put(torch.zeros(2), "seconds"),
        put({}, "session", "counters"),
        put("many", "session", "counters", "steps"),
        put([[1.0]], "session", "recent"),
        put("x", "session", "recent"),
        put(torch.zeros(3), "session", "generator"),
        put(torch.zeros(3, 2), *WEIGHT),
        put([1.0], *WEIGHT),
        put({}, "session", "learning"),
        put({}, "session", "actor"),
        put({}, "session", "replay"),
        put({"tensors": torch.zeros(()).expand(2**40)}, "session", "replay"),
        put(torch.zeros(()).expand(2**40, 2), "session", "recent"),
        put(torch.zeros(()).expand(2**40), "seconds"),
        put(float("nan"), "seconds"),
        put(-1, "metrics_bytes"),
        put(-1, "session", "counters", "episodes"),
        put(7, "session", "counters", "steps"),
        put("abacus", "session", "device"),
        put({"flat": {"logits": 10**9}, "per_action": {}}, "session", "outputs"),
        put(1, "session", "more"),
        put("{}", "config"),
        lambda content: content["session"]["replay"]["tensors"]["actions"].fill_(9),
        lambda content: content["session"]["replay"].update(more=1),
        lambda content: content["session"]["replay"]["tensors"].update(rewards=[1.0]),
        lambda content: content["session"].pop("device"),
        lambda content: content["session"].pop("replay"),
        lambda content: content.pop("config"),
    ],
)
def test_a_checkpoint_of_another_structure_is_refused(tmp_path: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    folder = run(small_config(tmp_path, steps=24))
    edited(folder, edit)
    with pytest.raises(ValueError, match="checkpoint"):
        run(small_config(tmp_path, steps=48), resume=folder)


def test_the_field_of_a_checkpoint_that_is_wrong_is_named(tmp_path: Path) -> None:
    folder = run(small_config(tmp_path, steps=24))
    whole = list_checkpoints(folder / "checkpoints")[-1].read_bytes()
    huge = torch.zeros(()).expand(2**40)
    messages = {
        r"the checkpoint's `recent` must be list, got Tensor": put(huge, "session", "recent"),
        r"the checkpoint's `recent` must be pairs of a return and a length": put([1.0], "session", "recent"),
        r"the checkpoint's `seconds` must lie in 0.0 \.\. \d+, got nan": put(float("nan"), "seconds"),
        r"the checkpoint's `learning_is_checked` must be bool, got Tensor": put(huge, "learning_is_checked"),
        r"the checkpoint's `counters/steps` must lie in 24 \.\. 24, got 7": put(7, "session", "counters", "steps"),
        r"the checkpoint's `more` is not part of this state": put(1, "session", "more"),
        r"the checkpoint's `outputs` must be \{.*\}, got \{": lambda content: content["session"]["outputs"].update(x={}),
        r"the checkpoint's `learning/learner/params/torso.0.weight` must be .*, got \[1099511627776\]": put(huge, *WEIGHT),
        r"`tensors` of `state`, a replay's `state_dict`, must be dict, got Tensor": put(
            huge, "session", "replay", "tensors"
        ),
        r"`actions` must lie in 0 \.\. 2, got 9": lambda content: content["session"]["replay"]["tensors"]["actions"].fill_(
            9
        ),
        r"`config.x` is not known": lambda content: content.update(
            config=json.dumps(json.loads(content["config"]) | {"x": 1})
        ),
    }
    for message, edit in messages.items():
        edited(folder, edit)
        with pytest.raises(ValueError, match=message):
            run(small_config(tmp_path, steps=48), resume=folder)
        checkpoint_path(folder / "checkpoints", 2).write_bytes(whole)
    run(small_config(tmp_path, steps=48), resume=folder)


def test_a_checkpoint_under_another_name_is_refused(tmp_path: Path) -> None:
    folder = run(small_config(tmp_path, steps=24))
    path = checkpoint_path(folder / "checkpoints", 2)
    path.rename(checkpoint_path(folder / "checkpoints", 9))
    with pytest.raises(ValueError, match=r"checkpoint-000000009.pt holds the state after 2 rollouts"):
        run(resume=folder)


def test_sizes_are_compared_before_an_agent_is_built(tmp_path: Path) -> None:
    folder = run(small_config(tmp_path, steps=24))
    edited(folder, lambda content: content["session"]["outputs"]["flat"].update(v=10**12))
    with pytest.raises(ValueError, match=r"the checkpoint's `outputs/v` must be the size of its head, got 1000000000000"):
        load_run(folder, "cpu")


def test_numbers_that_the_first_rollout_cannot_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run(small_config(tmp_path, steps=24))

    def fails(session: TrainingSession) -> None:
        raise IndexError("index 99 is out of bounds")

    monkeypatch.setattr(TrainingSession, "advance", fails)
    with pytest.raises(ValueError, match=r"cannot continue from the checkpoint in .* \(IndexError: index 99 is out of bou"):
        run(small_config(tmp_path, steps=48), resume=folder)
    with pytest.raises(IndexError, match="index 99"):  # a new run has no checkpoint to doubt
        run(small_config(tmp_path, steps=48))


def test_settings_that_could_not_be_read_again_are_refused_at_the_start(tmp_path: Path) -> None:
    config = small_config(tmp_path / "runs", optimizer=AdamConfig(max_abs_update=float("inf")))
    with pytest.raises(ValueError, match=r"`config.optimizer.max_abs_update` must be finite, got inf"):
        run(config)
    assert not (tmp_path / "runs").exists()


def test_a_configuration_of_any_size_is_not_read(tmp_path: Path) -> None:
    folder = run(small_config(tmp_path, steps=24))
    with (folder / "config.json").open("r+b") as file:
        file.truncate(2**34)  # takes no space on the disk
    with pytest.raises(ValueError, match=r"config.json must have at most 16777216 bytes, got 17179869184"):
        load_run(folder, "cpu")


def test_weights_that_are_not_finite_neither_act_nor_learn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(small_config(tmp_path, steps=24))
    edited(folder, lambda content: content["session"]["learning"][WEIGHT[2]].fill_(float("nan")))
    with pytest.raises(ValueError, match=r"`torso.0.weight` must be finite, got nan .* in the checkpoint of"):
        load_run(folder, "cpu")
    assert main(["evaluate", str(folder), "--device", "cpu"]) == 2
    assert "must be finite, got nan" in capsys.readouterr().err
    message = r"`learner/params/torso.0.weight` must be finite, got nan .* in the newest checkpoint in .*; remove it to"
    with pytest.raises(RunDiverged, match=message):
        run(small_config(tmp_path, steps=48), resume=folder)


def test_a_folder_is_named_only_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while it is made, its name is still free, and nothing that has the name is in the way."""
    with monkeypatch.context() as patch:
        patch.setattr("disco_torch.runs.folder._rename_to_free", lambda *args: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            run(small_config(tmp_path, name="mine", steps=24))
    assert list(tmp_path.iterdir()) == []
    run(small_config(tmp_path, name="mine", steps=24))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert checkpoint_path(tmp_path / "mine" / "checkpoints", 2).is_file()
