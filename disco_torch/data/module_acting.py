"""Acting with any module in any environment: `collect_rollout`, for `DiscoTrainer`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from disco_torch.agents import sample_actions
from disco_torch.data.acting import act, stack_rows
from disco_torch.types import Rollout, tree_items, tree_map

StepFn = Callable[[Any], tuple[Any, Any, Any]]
"""`step_fn(actions) -> (observations, rewards, dones)`, arrays or tensors of [B, ...]."""


def as_tensor(x: Any, device: torch.device) -> Tensor:
    """An array or a tensor as a new tensor on `device`; float64 becomes float32, bytes stay bytes.

    Always a copy: an environment may write its next observation into the array that it handed out.
    """
    tensor = torch.tensor(np.asarray(x)).to(device) if not isinstance(x, Tensor) else x.detach().to(device, copy=True)
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def collect_rollout(
    agent: torch.nn.Module,
    step_fn: StepFn,
    obs: Any,
    lstm_state: Any,
    rollout_len: int,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Rollout, Any, Any]:
    """Acts with any module in any environment, for `DiscoTrainer`.

    Args:
      agent: a module with `forward_step(observations [B, ...], lstm_state) -> (outputs, lstm_state)`.
      step_fn: executes actions [B], given as the kind of array that `obs` is, and returns what came: observations,
        rewards and whether the episode is over. After an end the observation must be the next episode's first.
      obs: observations to act on, [B, ...].
      lstm_state: the agent's memory, from `agent.init_lstm_state(B, device)` at first.
      rollout_len: number of STEPS to take. The rollout has one row more: elsewhere, `rollout_length` counts rows.
      device: device of the rollout; defaults to the agent's.
      generator: the source of randomness, on that device.

    Returns:
      A rollout of `rollout_len + 1` rows, with the memory before the first of them, and the observations and the memory to
      continue from.
    """
    device = next(agent.parameters()).device if device is None else torch.device(device)
    as_numpy = not isinstance(obs, Tensor)

    def row_at(seen: ModuleState) -> tuple[Rollout, Any]:
        with torch.no_grad():
            out, memory = agent.forward_step(seen.observations, seen.memory)  # type: ignore[operator]
        actions = sample_actions(out["logits"], generator)
        return Rollout(seen.observations, actions, seen.rewards, 1.0 - seen.dones.float(), out["logits"]), memory

    def step(seen: ModuleState, _: Any) -> tuple[ModuleState, Rollout]:
        row, memory = row_at(seen)
        obs, *came = step_fn(row.actions.cpu().numpy() if as_numpy else row.actions)
        shown, rewards, dones = (as_tensor(x, device) for x in (obs, *came))
        after = ModuleState(obs, shown, rewards.float(), dones.bool(), memory)
        check_step(seen.observations, after)
        return dataclasses.replace(after, memory=reset_memory(memory, after.dones)), row

    shown = as_tensor(obs, device)
    zeros = torch.zeros(shown.shape[0], device=device)
    seen, rows = ModuleState(obs, shown, zeros, zeros.bool(), lstm_state), []
    for after, row in act(step, seen, range(rollout_len)):
        seen = after
        rows.append(row)
    last, _ = row_at(seen)  # only bootstraps: nothing is executed on it
    rollout = dataclasses.replace(stack_rows([*rows, last]), first_state=lstm_state if tree_items(lstm_state) else None)
    return rollout, seen.given, seen.memory


@dataclass(frozen=True)
class ModuleState:
    """Where `collect_rollout` stands: observations as the environment gave them, what it showed as tensors, and memory."""

    given: Any
    observations: Tensor
    rewards: Tensor
    dones: Tensor
    memory: Any


def reset_memory(state: Any, dones: Tensor) -> Any:
    """Zeros in the memory of the entries that are done; every tensor of the memory is [B, ...]."""

    def kept(x: Tensor) -> Tensor:
        if x.shape[:1] != dones.shape:
            batch = dones.shape[0]
            raise ValueError(
                f"`lstm_state` must hold tensors of [{batch}, ...], got {list(x.shape)}; one entry for each environment."
            )
        return torch.where(dones.reshape(-1, *[1] * (x.ndim - 1)), torch.zeros_like(x), x)

    return tree_map(kept, state)


def check_step(before: Tensor, after: ModuleState) -> None:
    """Raises unless what `step_fn` returned has the shape of the observations `before` it, [B, ...], and [B]."""
    for name, value, shape in (
        ("observations", after.observations, before.shape),
        ("rewards", after.rewards, before.shape[:1]),
        ("dones", after.dones, before.shape[:1]),
    ):
        if value.shape != shape:
            raise ValueError(
                f"`step_fn` must return {name} of {list(shape)}, got {list(value.shape)}; one entry for each environment."
            )
