"""Mutants of what a run writes: checkpoints, configurations and the moments beside a snapshot; see tests/mutations.py.

Each is loaded as a user would: the run is resumed and goes on for a moment, its agent is loaded, or a discovery starts from
the snapshot. A file is right if what was loaded is what it says, and if the run can go on from there.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import json
import random
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from mutations import ODD_VALUES, Mutant, Subject, change_plain
from tensor_mutants import TensorFile
from torch import Tensor

import disco_torch.discovery.run
import disco_torch.training.loop
from disco_torch import (
    AdamConfig,
    AgentConfig,
    DiscoConfig,
    MetaNetConfig,
    MetaRNNConfig,
    TrainConfig,
    ValueFunctionConfig,
    load_run,
    train,
)
from disco_torch.discovery import DiscoverySession
from disco_torch.discovery.config import DiscoverConfig, GroupConfig, HabitatConfig
from disco_torch.discovery.folder import DiscoveryFolder
from disco_torch.discovery.run import discover
from disco_torch.discovery.snapshots import moments_path
from disco_torch.runs import CheckpointMismatch, RunDiverged
from disco_torch.runs.checkpoint import list_checkpoints, pack
from disco_torch.runs.folder import FREE_SETTINGS
from disco_torch.training.folder import RunFolder
from disco_torch.training.session import TrainingSession

warnings.simplefilter("ignore")
if "pytest" not in sys.modules:  # in a process that a test has started, and not in the tests' own
    disco_torch.training.loop.plot_curves = lambda *args, **kwargs: None  # which takes longer than all the rest
    disco_torch.discovery.run.plot_panels = lambda *args, **kwargs: None

AGENT = AgentConfig(dense=(4,), lstm_size=3, head_mlp_hiddens=(3,))
RULE = DiscoConfig(
    net=MetaNetConfig(
        hidden_size=4,
        embedding_size=(3, 1),
        prediction_size=5,
        meta_rnn=MetaRNNConfig(policy_channels=(2,), embedding_size=(2,), pred_embedding_size=(2, 1), hidden_size=3),
        policy_channels=(2,),
        policy_target_channels=(2,),
    ),
    num_bins=5,
)


def training(runs: Path) -> TrainConfig:
    return TrainConfig(
        env_args={"rows": 4, "columns": 3},
        rule="actor-critic",
        device="cpu",
        steps=24,
        num_envs=2,
        rollout_length=3,
        batch_size=2,
        replay_capacity=4,
        agent=AGENT,
        name="run",
        runs=runs,
        log_every=2,
        checkpoint_every=0,
        keep_checkpoints=1,
        tensorboard=False,
    )


def discovery(runs: Path) -> DiscoverConfig:
    """The paper's loop: overlapping windows, a replay, lives, and an Adam for each agent."""
    habitats = (HabitatConfig("catch", {"rows": 4, "columns": 3}), HabitatConfig("chain"))
    return DiscoverConfig(
        groups=(GroupConfig(habitats, AGENT, learning_rates=(1e-2, 1e-3)),),
        rule=RULE,
        device="cpu",
        speed="plain",
        meta_updates=2,
        window=2,
        stride=1,
        fresh_validation=True,
        rollout_length=3,
        valid_length=3,
        num_envs=2,
        batch_size=2,
        replay_capacity=4,
        replayed_share=0.5,
        lifetimes=(2, 5),
        adam_per_agent=True,
        optimizer=AdamConfig(learning_rate=1e-2),
        value_function=ValueFunctionConfig(dense=(4,)),
        name="run",
        runs=runs,
        log_every=1,
        snapshot_every=0,
        checkpoint_every=0,
        keep_checkpoints=1,
        tensorboard=False,
    )


def saved(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


ODD_TENSORS: list[Callable[[Tensor], Any]] = [
    lambda x: x[None],
    lambda x: x.flatten(),
    lambda x: torch.cat([x[None], x[None]]),
    lambda x: x.new_zeros(0),
    lambda x: x.new_zeros(()),
    lambda x: x.new_ones(()).expand(2**40),  # one number that claims to be many
    lambda x: x.new_ones(()).expand(*x.shape, 2**40),
    lambda x: x.new_ones(()).expand(2**40, *x.shape),
    lambda x: x.new_ones(()).expand(x.shape),
    lambda x: x.t().contiguous().t() if x.ndim == 2 else x.clone(),
    lambda x: x.double() if x.dtype == torch.float32 else x.float(),
    lambda x: x.half(),
    lambda x: x.bool(),
    lambda x: x.long() if x.dtype != torch.int64 else x.int(),
    lambda x: x.tolist() if x.numel() < 100 else None,
]


def odd_tensor(x: Tensor, rng: random.Random) -> tuple[str, Any]:
    """One tensor with another shape or dtype, or with a value that is out of the ordinary."""
    if rng.random() < 0.5 or not x.numel() or x.dtype == torch.bool:
        return "tensor: shape or dtype", rng.choice(ODD_TENSORS)(x)
    x = x.clone()
    floats = [float("nan"), float("inf"), float("-inf"), 0.0, -1.0, 1e38]
    values = floats if x.is_floating_point() else [0, 1, 255] if x.dtype == torch.uint8 else [0, -1, 2, 10**9, -(2**31)]
    which = slice(None) if rng.random() < 0.3 else rng.randrange(x.numel())
    x.reshape(-1)[which] = value = rng.choice(values)
    return f"tensor: {'NaN' if value != value else 'value'}", x.reshape(x.shape)


def tensors_of(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Where the tensors of a tree are: what holds each, and its name or place there."""
    for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(part, Tensor):
            yield tree, key
        elif isinstance(part, dict | list):
            yield from tensors_of(part)


def odd_tree(tree: Any, rng: random.Random) -> tuple[str, Any]:
    """Names, order, number or content of the parts of a tree changed."""
    tree = copy.deepcopy(tree)
    if rng.random() < 0.5:
        parent, key = rng.choice(list(tensors_of(tree)))
        kind, parent[key] = odd_tensor(parent[key], rng)
        return kind, tree
    parent, key, part = None, None, tree
    while isinstance(part, dict | list) and part and (parent is None or rng.random() < 0.93):
        keys = list(part) if isinstance(part, dict) else list(range(len(part)))
        parent, key = part, rng.choice(keys)
        part = parent[key]
    assert parent is not None
    choice = rng.random()
    if isinstance(part, Tensor) and choice < 0.6:
        kind, parent[key] = odd_tensor(part, rng)
        return kind, tree
    if choice < 0.6:
        odd = rng.choice([*ODD_VALUES, torch.zeros(()).expand(2**40), torch.zeros(3), "cuda"])
        parent[key] = odd
        return "value: of another kind", tree
    if choice < 0.75:
        del parent[key]
        return "tree: missing", tree
    if isinstance(parent, list):
        if choice < 0.9:
            parent.insert(rng.randrange(len(parent) + 1), copy.deepcopy(part))
            return "tree: one more", tree
        rng.shuffle(parent)
        return "tree: order", tree
    other = rng.choice(list(parent))
    if choice < 0.8:
        parent[rng.choice([f"{key}x", "", str(key).upper(), "extra"])] = copy.deepcopy(part)
        return "tree: one more", tree
    if choice < 0.87:
        parent[f"{key}x"] = parent.pop(key)
        return "tree: renamed", tree
    if choice < 0.94:
        parent[key], parent[other] = parent[other], parent[key]
        return "tree: exchanged", tree
    items = list(parent.items())
    rng.shuffle(items)
    parent.clear()
    parent.update(items)
    return "tree: order", tree


class OfARun(Subject):
    """A file of a run, which is copied anew for each mutant."""

    structural_share = 0.7
    errors = (ValueError, CheckpointMismatch, RunDiverged)
    begin: ClassVar[Callable[[Path], Path]]
    session: ClassVar[Any]

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.run = type(self).begin(self.folder)
        self.rng = random.Random(0)

    def names(self, message: str, path: Path) -> bool:
        """An error of a run names a file, or the field that is wrong."""
        return str(self.run) in message or str(path) in message or "`" in message

    @contextlib.contextmanager
    def changed(self, path: Path, content: bytes) -> Any:
        """The run's folder with one file changed, and as it was after the block."""
        shutil.copytree(self.run, self.folder / "kept")
        path.write_bytes(content)
        try:
            yield
        finally:
            shutil.rmtree(self.run)
            (self.folder / "kept").rename(self.run)

    def resume(self, go_on: Callable[[], Any]) -> Any:
        """Resumes and stops after one rollout or meta-update; returns the state that the session had at first."""
        kind, seen = self.session, []
        load, advance = kind.load_state_dict, kind.advance

        def loading(session: Any, state: Any) -> None:
            load(session, state)
            seen.append(copy.deepcopy(session.state_dict()))

        def advancing(session: Any) -> None:
            advance(session)
            signal.raise_signal(signal.SIGTERM)

        kind.load_state_dict, kind.advance = loading, advancing
        try:
            go_on()
        finally:
            kind.load_state_dict, kind.advance = load, advance
        return seen[0]


def begin_training(folder: Path) -> Path:
    return train(training(folder), view=False).folder


def begin_discovery(folder: Path) -> Path:
    return discover(discovery(folder), view=False).folder


class TrainingCheckpoint(OfARun):
    suffix = ".pt"
    begin = staticmethod(begin_training)
    session = TrainingSession

    def __init__(self) -> None:
        super().__init__()
        (self.path,) = list_checkpoints(self.run / "checkpoints")
        self.content = torch.load(self.path, weights_only=True)

    def original(self) -> Mutant:
        return Mutant("original", self.path.read_bytes(), self.content)

    def structural(self, rng: random.Random) -> Mutant:
        if rng.random() < 0.1:
            plain = change_plain(json.loads(self.content["config"]), rng)
            return self.file("metadata: configuration", self.content | {"config": json.dumps(plain)})
        if rng.random() < 0.1:
            archive = TensorFile(self.content).structural(rng)
            return dataclasses.replace(archive, expected=archive.expected and self.content)
        return self.file(*odd_tree(self.content, rng))

    def file(self, kind: str, content: Any) -> Mutant:
        return Mutant(kind, saved(content), content)

    def load(self, path: Path) -> Any:
        with self.changed(self.path, path.read_bytes()):
            return self.resume(lambda: train(TrainConfig(steps=30), resume=self.run, view=False))

    def holds(self, loaded: Any, expected: Any) -> bool:
        if expected is None:
            return True
        session = expected["session"]
        if session.get("device") != loaded["device"]:  # of another device, whose generators are others
            loaded, session = (without(state, ("device", "generator")) for state in (loaded, session))
        if session.get("replay", {}) is None:  # it was not saved: an empty one is what the file says
            loaded, session = loaded | {"replay": loaded["replay"]["size"]}, session | {"replay": 0}
        return same_state(loaded, session)


class TrainedAgentCheckpoint(TrainingCheckpoint):
    """The same, loaded to act."""

    def load(self, path: Path) -> Any:
        with self.changed(self.path, path.read_bytes()):
            return load_run(self.run, "cpu")

    def holds(self, loaded: Any, expected: Any) -> bool:
        if expected is None:
            return True
        prefix = "learner/params/"
        wanted = {k.removeprefix(prefix): x for k, x in expected["session"]["learning"].items() if k.startswith(prefix)}
        return same_state(dict(loaded.params), wanted)


class DiscoveryCheckpoint(TrainingCheckpoint):
    begin = staticmethod(begin_discovery)
    session = DiscoverySession

    def load(self, path: Path) -> Any:
        with self.changed(self.path, path.read_bytes()):
            return self.resume(lambda: discover(DiscoverConfig(meta_updates=3), resume=self.run, view=False))


def without(tree: Any, names: tuple[str, ...]) -> Any:
    """A tree without what has one of these names."""
    if isinstance(tree, dict):
        return {name: without(part, names) for name, part in tree.items() if name not in names}
    return [without(part, names) for part in tree] if isinstance(tree, list) else tree


def same_state(loaded: Any, expected: Any) -> bool:
    """Whether a state is what a file says; dictionaries in any order, NaN equal to itself."""
    if isinstance(loaded, dict) and isinstance(expected, dict):
        return loaded.keys() == expected.keys() and all(same_state(loaded[key], expected[key]) for key in loaded)
    if isinstance(loaded, list | tuple) and isinstance(expected, list | tuple):
        return len(loaded) == len(expected) and all(map(same_state, loaded, expected))
    if isinstance(loaded, Tensor) and isinstance(expected, Tensor):
        if loaded.dtype != expected.dtype or loaded.shape != expected.shape:
            return False
        if loaded.shape == torch.Generator().get_state().shape and loaded.dtype == torch.uint8:
            expected = torch.Generator().set_state(expected.contiguous()).get_state()  # not all of its bytes mean something
        return torch.equal(loaded, expected) or bool(torch.isclose(loaded, expected, 0.0, 0.0, equal_nan=True).all())
    return type(loaded) is type(expected) and (loaded == expected or (loaded != loaded and expected != expected))


class TrainingConfiguration(OfARun):
    suffix = ".json"
    begin = staticmethod(begin_training)
    session = TrainingSession

    def __init__(self) -> None:
        super().__init__()
        self.path = self.run / "config.json"
        self.plain = json.loads(self.path.read_text())

    def original(self) -> Mutant:
        return Mutant("original", self.path.read_bytes(), None)

    def structural(self, rng: random.Random) -> Mutant:
        plain = change_plain(self.plain, rng)
        if rng.random() < 0.2:
            plain = change_plain(plain, rng)
        return Mutant("configuration", json.dumps(plain).encode(), plain)

    def load(self, path: Path) -> Any:
        with self.changed(self.path, path.read_bytes()):
            if self.rng.random() < 0.3:
                return self.plain_of(load_run(self.run, "cpu").folder)
            self.resume(lambda: train(resume=self.run, view=False))
            return self.plain_of(RunFolder.open(self.run))

    def plain_of(self, folder: Any) -> Any:
        return json.loads(json.dumps(folder.plain_config()))

    def holds(self, loaded: Any, expected: Any) -> bool:
        """What decides the run is as it was when the run began; the rest is as the file says."""
        free = set(FREE)
        same = {name: value for name, value in loaded.items() if name not in free}
        return same == {name: value for name, value in self.plain.items() if name not in free} and (
            expected is None or says(expected, loaded)
        )


def says(file: Any, loaded: Any) -> bool:
    """Whether all that a file says was loaded; fields that came later may be missing in it."""
    if isinstance(file, dict) and isinstance(loaded, dict):
        return all(name in loaded and says(value, loaded[name]) for name, value in file.items())
    if isinstance(file, list) and isinstance(loaded, list):
        return len(file) == len(loaded) and all(map(says, file, loaded))
    return loaded == file


class DiscoveryConfiguration(TrainingConfiguration):
    begin = staticmethod(begin_discovery)
    session = DiscoverySession

    def load(self, path: Path) -> Any:
        with self.changed(self.path, path.read_bytes()):
            self.resume(lambda: discover(resume=self.run, view=False))
            return self.plain_of(DiscoveryFolder.open(self.run))


FREE = (*FREE_SETTINGS, "steps", "meta_updates")


class Moments(OfARun):
    """The optimiser's state beside a snapshot, from which another discovery starts."""

    suffix = ".pt"
    begin = staticmethod(begin_discovery)
    session = DiscoverySession

    def __init__(self) -> None:
        super().__init__()
        self.rule = self.run / "rules" / "rule-000002.safetensors"
        self.path = moments_path(self.rule)
        self.content = torch.load(self.path, weights_only=True)
        self.config = dataclasses.replace(discovery(self.folder), start=str(self.rule), adam_per_agent=False)

    def original(self) -> Mutant:
        return Mutant("original", self.path.read_bytes(), self.content)

    def structural(self, rng: random.Random) -> Mutant:
        if rng.random() < 0.1:
            archive = TensorFile(self.content).structural(rng)
            return dataclasses.replace(archive, expected=archive.expected and self.content)
        kind, content = odd_tree(self.content, rng)
        return Mutant(kind, saved(content), content)

    def load(self, path: Path) -> Any:
        with self.changed(self.path, path.read_bytes()):
            return pack(DiscoverySession(self.config).opt_states[0])

    def holds(self, loaded: Any, expected: Any) -> bool:
        if expected is None:
            return True
        like = pack(expected)
        if any(isinstance(x, Tensor) and x.dtype == torch.float64 for x in like.values()):
            like = {name: x.float() if x.is_floating_point() else x for name, x in like.items()}
        return same_state(loaded, like)


SUBJECTS = {
    "checkpoint of a training run": TrainingCheckpoint,
    "checkpoint of an agent": TrainedAgentCheckpoint,
    "checkpoint of a discovery": DiscoveryCheckpoint,
    "configuration of a training run": TrainingConfiguration,
    "configuration of a discovery": DiscoveryConfiguration,
    "moments": Moments,
}
