"""The agent of a run: to act with, and to evaluate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from disco_torch.agents import Agent, sample_actions
from disco_torch.data import NormalizedAgent
from disco_torch.data.normalization import normalizer_of_kinds
from disco_torch.envs import (
    BadOutput,
    Environment,
    EnvSource,
    ObservationKind,
    Wrapper,
    make_space,
    number_actions,
    observation_tensors,
)
from disco_torch.envs.spaces import observation_example
from disco_torch.runs import first_not_finite, resolve_device, restoring, unpack
from disco_torch.runs.checkpoint import FIX, CheckpointMismatch, check_leaves, typed
from disco_torch.training.agent_export import has_export, read_export
from disco_torch.training.bring_your_own import RunObjects, bring_again, describe_env
from disco_torch.training.evaluation import Evaluation, PolicyKind, evaluate
from disco_torch.training.folder import RunFolder
from disco_torch.types import Observations, OutputSpec, Params, flatten_tree, tree_map, unflatten_tree


class TrainedAgent:
    """An agent from a checkpoint of a run.

    Attributes:
      folder: folder of the run.
      agent: acts on observations as the environment gives them; the statistics of its inputs are frozen.
      params: its parameters.
      device: device that it acts on.
      observation_space, action_space: those of the run's environment, as Gymnasium has them; without texts.
    """

    def __init__(self, folder: RunFolder, session: dict[str, Any], device: torch.device, objects: RunObjects, seed: int):
        self.folder, self.device, self._objects = folder, device, objects
        names = folder.config.objects
        if names.observation_space is None or names.action_space is None:  # a run from before the configuration had them
            env = objects.make_env(folder.config, 1, device)
            names = describe_env(folder.config, env).objects
            objects.close(env)
        assert names.observation_space is not None and names.action_space is not None
        self.observation_space: spaces.Space[Any] = make_space(names.observation_space)
        self._coding = number_actions(make_space(names.action_space))
        self.action_space: spaces.Space[Any] = self._coding.space
        example = tree_map(lambda x: x.to(device), observation_example(self.observation_space))
        agent, self.params = self._load_agent(session, example)
        self.agent: Agent | NormalizedAgent = self._with_inputs(agent, session, example, names.observation_kinds)
        self._generator = torch.Generator(device).manual_seed(seed)
        self._memory: Any = None
        self._begins = torch.ones(0, dtype=torch.bool, device=device)  # [B], whose next observation begins an episode

    def _load_agent(self, session: dict[str, Any], example: Observations) -> tuple[Agent, Params]:
        config = self.folder.config
        sizes = replace(config.agent, bfloat16=config.agent.bfloat16 and self.device.type == "cuda")
        with restoring(self.folder.checkpoints):
            # What the agent computes stands in the checkpoint: to act, the rule itself is not needed.
            outputs, prefix = OutputSpec(**session["outputs"]), "learner/params/"
            leaves = typed(session, "learning", dict)
            stored = {name.removeprefix(prefix): leaf for name, leaf in leaves.items() if str(name).startswith(prefix)}
            check_sizes(outputs, stored)
        build = partial(self._objects.make_agent, replace(config, agent=sizes), example, self.num_actions, outputs)
        with torch.device("meta"):  # sizes are compared before anything is allocated
            check_leaves(stored, dict(build().named_parameters()), prefix[:-1])
        agent = build().to(self.device)
        with restoring(self.folder.checkpoints):
            params = unpack(stored, {name: param.detach() for name, param in agent.named_parameters()}, prefix[:-1])
        if (problem := first_not_finite(params)) is not None:
            raise ValueError(f"{problem} in the checkpoint of {self.folder.path}; an agent cannot act with it.")
        return agent, params

    def _with_inputs(
        self, agent: Agent, session: dict[str, Any], example: Observations, kinds: dict[str, ObservationKind]
    ) -> Agent | NormalizedAgent:
        """The agent behind the normalisation of its inputs, with the statistics of the checkpoint, which are frozen."""
        config = self.folder.config
        normalizer = normalizer_of_kinds(config.inputs, kinds, example, discount=0.0)  # acting reads no rewards
        if normalizer is None:
            return agent
        with restoring(self.folder.checkpoints):
            stats = unpack(session["inputs"], normalizer.init(example, config.num_envs), "inputs")
        return NormalizedAgent(agent, normalizer, normalizer.snapshot(stats))

    @property
    def num_actions(self) -> int:
        """Number of actions of the agent; joint ones where the environment has several at a time."""
        return self._coding.num_actions

    def predict(self, observation: Any, *, deterministic: bool = False) -> Any:
        """Acts on one observation, or on a batch of them, which is told by its shape.

        Args:
          observation: as the environment gives it, arrays [...] or [B, ...]. An agent with memory keeps one for each place
            of the batch; call `reset` where episodes begin.
          deterministic: take the most probable action instead of sampling one.

        Returns:
          An action of the environment's own space, or an array of them, [B, ...].
        """
        batch, is_single = as_batch(self.observation_space, observation)
        size = _batch_size(self.observation_space, batch)
        try:
            observations = observation_tensors(self.observation_space, batch, np.arange(size), self.device)
        except BadOutput as problem:
            raise ValueError(f"`observation` must fit {self.observation_space}: {problem}.") from problem
        if self._begins.shape[0] != size:
            self._memory = self.agent.initial_state(size)
            self._begins = torch.ones(size, dtype=torch.bool, device=self.device)
        with torch.no_grad():
            logits, self._memory = self.agent.policy(self.params, observations, self._begins, self._memory)  # [B, A]
        self._begins = torch.zeros_like(self._begins)
        numbers = logits.argmax(-1) if deterministic else sample_actions(logits, self._generator)
        actions = self._coding.decode(numbers.cpu().numpy())
        return actions[0] if is_single else actions

    def reset(self, mask: Any = None) -> None:
        """Begins new episodes: the agent forgets what it has seen.

        Args:
          mask: [B] bool, the places of the batch whose next observation begins an episode; all of them unless given.
        """
        if mask is None:
            self._begins = self._begins[:0]  # the next call begins anew, with any number of observations
            return
        begins = torch.as_tensor(np.asarray(mask), device=self.device)
        if begins.dtype != torch.bool or begins.shape != self._begins.shape:
            raise ValueError(
                f"`mask` must be [{self._begins.shape[0]}] bool, as many as the last batch of observations, got "
                f"{list(begins.shape)} of {str(begins.dtype).removeprefix('torch.')}."
            )
        self._begins = self._begins | begins

    def make_env(self, num_envs: int, **changes: Any) -> Environment:
        """The run's environment, for `evaluate`: `num_envs` parallel ones, or the object itself that `load_run` was given.

        Args:
          num_envs: number of parallel environments.
          changes: arguments of the environment that differ from the run's.
        """
        return self._objects.make_env(self.folder.config, num_envs, self.device, **changes)

    def recording_env(self) -> Environment:
        """One environment of the run that draws itself; see `RunObjects.recording_env`."""
        return self._objects.recording_env(self.folder.config, self.device)

    def close(self, env: Environment) -> None:
        """Closes environments of `make_env`, unless they are the user's own object."""
        self._objects.close(env)

    def evaluate(
        self, episodes: int = 100, *, policy: PolicyKind = "sampled", num_envs: int = 10, seed: int = 1_000_003
    ) -> Evaluation:
        """Plays at least so many whole episodes in new environments of the run; see `disco_torch.evaluate`."""
        env = self.make_env(max(1, min(num_envs, episodes)))
        try:
            return evaluate(self.agent, self.params, env, episodes, policy=policy, seed=seed)
        finally:
            self.close(env)


def load_run(
    run: Path | str,
    device: str = "auto",
    *,
    checkpoint: str | int = "newest",
    env: EnvSource | None = None,
    agent: nn.Module | None = None,
    wrappers: Sequence[Wrapper | str] | None = None,
    seed: int = 0,
) -> TrainedAgent:
    """The agent that a run has trained.

    Args:
      run: folder of the run, or `hf:ORG/NAME[@revision]` for one on the Hugging Face Hub, whose agent is the newest. A
        downloaded configuration imports no module: import what registers its environment, or pass `env`.
      device: device to act on; "auto" is the GPU if there is one.
      checkpoint: "newest", "best" for that of the best evaluation during training, or a checkpoint's number of rollouts.
      env: the environment, where the run was given an object; only `evaluate` and `make_env` need it.
      agent: the network, where the run was given an object.
      wrappers: those of the environment, where the run was given any as objects.
      seed: random seed of the actions that `predict` samples.
    """
    folder = RunFolder.open(Path(run))
    where = resolve_device(device)
    is_export = has_export(folder)
    if is_export and checkpoint != "newest":
        raise ValueError(f"`checkpoint` must be 'newest' for {run}, which holds one agent, got {checkpoint!r}.")
    session = read_export(folder) if is_export else folder.load_checkpoint(checkpoint)["session"]
    objects = bring_again(folder.config, env=env, agent=agent, wrappers=wrappers)
    objects = replace(objects, imports_names=not is_export)  # somebody else may have written what was downloaded
    return TrainedAgent(folder, session, where, objects, seed)


def check_sizes(outputs: OutputSpec, stored: dict[str, Any]) -> None:
    """Raises unless each output has a head of its size among the stored parameters: an agent allocates what they say."""
    for name, size in [*outputs.flat.items(), *outputs.per_action.items()]:
        biases = [x for key, x in stored.items() if f".{name}." in key and isinstance(x, Tensor) and x.ndim == 1]
        if type(size) is not int or not any(len(x) == size and x.is_contiguous() for x in biases):
            got = size if type(size) is int else type(size).__name__
            raise CheckpointMismatch(f"the checkpoint's `outputs/{name}` must be the size of its head, got {got}; {FIX}.")


def as_batch(space: spaces.Space[Any], observation: Any) -> tuple[Any, bool]:
    """One observation or a batch of them as a batch, arrays [B, ...], and whether it was one."""
    arrays = _arrays(space, observation)
    parts = list(_parts(space, arrays))
    if all(array.shape == shape for array, shape in parts):
        leaves, structure = flatten_tree(arrays)
        return unflatten_tree([x[None] for x in leaves], structure), True
    sizes = {array.shape[0] if array.shape[1:] == shape and array.ndim else 0 for array, shape in parts}
    if len(sizes) == 1 and 0 not in sizes:
        return arrays, False
    raise ValueError(
        f"`observation` must be one of {space}, or a batch of them with one dimension more in front, got "
        f"{[list(array.shape) for array, _ in parts]} where one has {[list(shape) for _, shape in parts]}."
    )


def _arrays(space: spaces.Space[Any], observation: Any) -> Any:
    """The parts of an observation that the space has, as arrays."""
    if isinstance(space, spaces.Dict):
        if not isinstance(observation, Mapping) or not observation.keys() >= space.spaces.keys():
            raise ValueError(f"`observation` must be a dict with {sorted(space.spaces)}, got {_outline(observation)}.")
        return {key: _arrays(part, observation[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(observation, tuple | list) or len(observation) != len(space.spaces):
            raise ValueError(f"`observation` must be a tuple of {len(space.spaces)}, got {_outline(observation)}.")
        return tuple(_arrays(part, item) for part, item in zip(space.spaces, observation, strict=True))
    array = observation.detach().cpu().numpy() if isinstance(observation, Tensor) else np.asarray(observation)
    # Numbers that were typed in, or computed in double precision, are as good.
    is_same_kind = space.dtype is None or np.can_cast(array.dtype, space.dtype, casting="same_kind")
    return array.astype(space.dtype) if not is_same_kind and np.dtype(space.dtype).kind == "f" else array


def _parts(space: spaces.Space[Any], arrays: Any) -> list[tuple[np.ndarray, tuple[int, ...]]]:
    """All arrays with the shapes that they have in one observation."""
    if isinstance(space, spaces.Dict):
        return [pair for key, part in space.spaces.items() for pair in _parts(part, arrays[key])]
    if isinstance(space, spaces.Tuple):
        return [pair for part, item in zip(space.spaces, arrays, strict=True) for pair in _parts(part, item)]
    return [(arrays, space.shape or ())]


def _batch_size(space: spaces.Space[Any], batch: Any) -> int:
    return len(_parts(space, batch)[0][0])


def _outline(observation: Any) -> str:
    return f"one with {sorted(map(str, observation))}" if isinstance(observation, Mapping) else type(observation).__name__
