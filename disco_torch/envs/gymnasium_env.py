"""Gymnasium's vector environments behind the protocol of this package: every autoreset mode becomes one layout."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor

from disco_torch.checks import check_actions, check_shape
from disco_torch.envs.actions import number_actions
from disco_torch.envs.base import Environment, EnvironmentFailure, EnvStep
from disco_torch.envs.final_observations import (
    FinalObservationCheck,
    copy_final_observations,
    shares_memory,
)
from disco_torch.envs.kinds import kinds_of_space
from disco_torch.envs.reset_modes import check_mode, reset_mode_of
from disco_torch.envs.spaces import BadOutput, checked_example, observation_tensors, stack_observations, without_text
from disco_torch.envs.vector_failures import close_workers, trace_failure
from disco_torch.types import Observations, flatten_tree, tree_map, unflatten_tree


class GymnasiumEnvironment(Environment):
    """Any vector environment of Gymnasium whose actions can be numbered. Its state stays inside, so `state` is None.

    Actions of MultiDiscrete and MultiBinary spaces are joint ones, up to `MAX_JOINT_ACTIONS`; see `envs/actions.py`.

    Each autoreset mode gives the rows of `disco_torch.envs.base`:

    - same_step: the row that ends an episode shows the next one's first observation; the truncated episode's last one comes
      from `info["final_obs"]`. The environments of a `SyncVectorEnv` are wrapped so that they may reuse their array.
    - disabled: the adapter resets the environments that ended right after the step, and returns what same_step would.
    - next_step: the row that ends an episode shows its last observation; one more row, whose action is ignored, shows the
      next one's first with reward 0 and discount 0.
    - envpool: as next_step, for pools that take no seed at reset (they are seeded when made).

    Episodes that are terminated and truncated at once count as terminated.

    Args:
      env: the vector environment. A pool without `single_observation_space` is taken to name the spaces of a single one.
      name: for messages; defaults to the environment's id, or the name of its class.
      device: where the tensors shall lie.
      autoreset_mode: a name from above or Gymnasium's `AutoresetMode`; defaults to what `env` says of itself.
    """

    truncates = True
    saves_state = False

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        *,
        name: str | None = None,
        device: str | torch.device = "cpu",
        autoreset_mode: str | AutoresetMode | None = None,
    ) -> None:
        self.env = env
        self.name = name or _name_of(env)
        self.num_envs = _num_envs(env)
        self.device = torch.device(device)
        self._mode, self._mode_is_certain = reset_mode_of(env, autoreset_mode)
        if self._mode == "same_step":
            copy_final_observations(env)
        self._check_finals = FinalObservationCheck(self.name)
        single = hasattr(env, "single_observation_space")
        self.coding = number_actions(env.single_action_space if single else env.action_space)
        self.num_actions = self.coding.num_actions
        self.observation_space, texts = without_text(env.single_observation_space if single else env.observation_space)
        if texts:
            warnings.warn(
                f"environment {self.name!r}: {', '.join(texts)} is text and left out; to use it, make numbers of it with "
                "gymnasium.wrappers.TransformObservation.",
                stacklevel=2,
            )
        self.observation_example = tree_map(lambda x: x.to(self.device), checked_example(self.observation_space))
        self.observation_kinds = kinds_of_space(self.observation_space)
        self._steps = 0
        self._failed = False
        self._waits_for_first: np.ndarray | None = None  # [B] whose next row begins an episode; None before reset

    def reset(self, generator: torch.Generator) -> tuple[None, EnvStep]:
        """Starts an episode in every environment; their seeds are consecutive numbers from one that is drawn here."""
        with self._naming_failures():
            if self._mode == "envpool":
                batch, _ = self.env.reset()
            else:
                # A vector environment may take one seed only, from which it counts up.
                seed = torch.randint(2**31 - self.num_envs, (), generator=generator, device=generator.device)
                batch, _ = self.env.reset(seed=int(seed))
            observations = self._tensors(batch)
        no = np.zeros(self.num_envs, dtype=bool)
        self._waits_for_first = no
        return None, self._row(observations, no, observations, closes=no, truncated=no, begins=~no, ended=no)

    def step(self, state: None, actions: Tensor, generator: torch.Generator) -> tuple[None, EnvStep]:
        """Takes a step in every environment. They drew their randomness at reset; `generator` is not read."""
        if self._waits_for_first is None:
            raise ValueError("`reset` must come before `step`, got a step first; it starts the first episodes.")
        host_actions = self._host_actions(actions)
        self._steps += 1
        with self._naming_failures():
            batch, rewards, terminations, truncations, infos = self.env.step(host_actions)
            rewards = self._rewards(rewards)
            terminated, truncated = self._flags("terminations", terminations), self._flags("truncations", truncations)
            ended = terminated | truncated
            truncated = truncated & ~terminated
            check_mode(self._mode, infos, truncated if self._mode_is_certain else ended)
            observations = self._tensors(batch)
            if self._mode in ("next_step", "envpool"):
                return None, self._next_step_row(observations, rewards, terminated, truncated)
            final = observations
            if self._mode == "disabled" and ended.any():
                batch, _ = self.env.reset(options={"reset_mask": ended})
                last, observations = observations, self._tensors(batch)
                final = _where(truncated, last, observations)
            elif truncated.any():
                final = self._with_finals(batch, observations, infos, np.flatnonzero(truncated))
        return None, self._row(
            observations, rewards, final, closes=terminated, truncated=truncated, begins=ended, ended=ended
        )

    def render(self, state: None = None) -> np.ndarray | None:
        """An image of environment 0 if the environment was made with render_mode="rgb_array", else None."""
        if getattr(self.env, "render_mode", None) != "rgb_array":
            return None
        vector = self.env.unwrapped
        frames = (vector.envs[0].render(),) if isinstance(vector, SyncVectorEnv) else self.env.render()
        return None if frames is None else np.asarray(frames[0])

    def close(self) -> None:
        """Closes the vector environment and ends its workers, also those of one that failed."""
        vector = self.env.unwrapped
        if not isinstance(vector, AsyncVectorEnv):
            self.env.close()
            return
        if not self._failed:
            try:
                self.env.close()
                return
            except (OSError, EOFError):  # Ctrl-C in a terminal reaches the workers too, and they are gone
                self._failed = True
        close_workers(vector)

    def _next_step_row(
        self, observations: Observations, rewards: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> EnvStep:
        """The row of a mode that shows last observations, and first ones a step later."""
        begins = self._waits_for_first
        assert begins is not None
        ended = terminated | truncated
        self._waits_for_first = ended
        rewards = np.where(begins, np.float32(0.0), rewards)
        closes = terminated | begins
        return self._row(observations, rewards, observations, closes=closes, truncated=truncated, begins=begins, ended=ended)

    def _row(
        self,
        observations: Observations,
        rewards: np.ndarray,
        final_observations: Observations,
        *,
        closes: np.ndarray,
        truncated: np.ndarray,
        begins: np.ndarray,
        ended: np.ndarray,
    ) -> EnvStep:
        return EnvStep(
            observations=observations,
            rewards=torch.tensor(rewards, dtype=torch.float32, device=self.device),
            discounts=torch.tensor(~closes, dtype=torch.float32, device=self.device),
            truncations=torch.tensor(truncated, device=self.device),
            final_observations=final_observations,
            is_first=torch.tensor(begins, device=self.device),
            episode_ends=torch.tensor(ended, device=self.device),
        )

    def _host_actions(self, actions: Tensor) -> np.ndarray:
        check_shape("actions", actions, (self.num_envs,), "it needs one action for each environment")
        actions = actions.cpu()
        check_actions("actions", actions, self.num_actions)
        return self.coding.decode(actions.numpy())

    def _tensors(self, batch: Any) -> Observations:
        return observation_tensors(self.observation_space, batch, np.arange(self.num_envs), self.device)

    def _rewards(self, rewards: Any) -> np.ndarray:
        """[B] float32, all finite."""
        rewards = np.asarray(rewards)
        if rewards.shape != (self.num_envs,):
            raise BadOutput(f"rewards must have shape [{self.num_envs}], got {list(rewards.shape)}")
        bad = np.flatnonzero(~(np.abs(rewards) <= np.finfo(np.float32).max))  # NaN compares false
        if bad.size:
            raise BadOutput(f"the reward must be a finite float32, got {rewards[bad[0]]}", index=int(bad[0]))
        return rewards.astype(np.float32)

    def _flags(self, name: str, flags: Any) -> np.ndarray:
        flags = np.array(flags, dtype=bool)
        if flags.shape != (self.num_envs,):
            raise BadOutput(f"{name} must have shape [{self.num_envs}], got {list(flags.shape)}")
        return flags

    def _with_finals(self, batch: Any, observations: Observations, infos: dict[str, Any], cut: np.ndarray) -> Observations:
        """`observations` with the last ones of the episodes that were truncated in the environments `cut`, [K]."""
        finals = infos["final_obs"]
        separate = isinstance(finals, np.ndarray) and finals.dtype == object  # else arrays of the whole batch
        if separate:
            finals = [finals[index] for index in cut]
            if any(final is None for final in finals):
                raise BadOutput("info['final_obs'] must hold the last observation of a truncated episode", int(cut[0]))
        if shares_memory(batch, finals):
            raise BadOutput(
                "info['final_obs'] must not share the memory of the observations, which overwrite it", int(cut[0])
            )
        if separate:
            finals = stack_observations(self.observation_space, finals)
        else:
            leaves, structure = flatten_tree(finals)
            finals = unflatten_tree([np.asarray(leaf)[cut] for leaf in leaves], structure)
        last = observation_tensors(self.observation_space, finals, cut, self.device, "final_obs")  # [K, ...]
        where = torch.tensor(cut, device=self.device)
        final = tree_map(lambda x, y: x.index_copy(0, where, y), observations, last)
        self._check_finals(observations, final, cut)
        return final

    @contextmanager
    def _naming_failures(self) -> Iterator[None]:
        """Turns whatever goes wrong inside the environment into an error that says which, when and at which index."""
        try:
            yield
        except Exception as error:
            self._failed = True
            index, problem = trace_failure(self.env, error)
            place = "in all environments or one that could not be told" if index is None else f"in environment {index}"
            raise EnvironmentFailure(
                f"environment {self.name!r} failed at step {self._steps} {place}: {problem}. "
                "Close it and make a new one; if it fails there again, look into the environment itself."
            ) from error


def _name_of(env: VectorEnv[Any, Any, Any]) -> str:
    """The id of an environment, that of its single ones where they can be reached, or else the name of a class."""
    vector = env.unwrapped
    inner = vector.envs[0] if isinstance(vector, SyncVectorEnv) else vector
    for spec in (env.spec, inner.spec):
        if spec is not None:
            return spec.id
    return type(inner.unwrapped).__name__


def _num_envs(env: Any) -> int:
    if hasattr(env, "num_envs"):
        return int(env.num_envs)
    if hasattr(env, "__len__"):  # some pools
        return len(env)
    raise ValueError(
        f"`env` must be a vector environment, got the single {type(env).__name__}; "
        "make it with gymnasium.make_vec, or with `make_gymnasium` here."
    )


def _where(mask: np.ndarray, chosen: Observations, otherwise: Observations) -> Observations:
    """Trees of [B, ...]: `chosen` in the rows of `mask`, [B]."""

    def pick(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(torch.tensor(mask, device=x.device).reshape(-1, *[1] * (x.ndim - 1)), x, y)

    return tree_map(pick, chosen, otherwise)
