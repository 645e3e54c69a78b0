"""An update of a training run as recorded functions: input normalisation, value function and learner."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from disco_torch.data import InputNormalizer, InputSnapshot, memory_resets
from disco_torch.kernels import Recorded, Speed
from disco_torch.training.minibatches import StepTable
from disco_torch.training.update import Learner, LearnerState
from disco_torch.training.value_function import ValueFunction, ValueFunctionState
from disco_torch.types import Logs, MeanAcrossProcesses, Rollout, ValueOuts, tree_dataclass

ALWAYS_LOGGED = ("total_loss", "global_gradient_norm", "global_update_norm")
"""Logs that a recorded update always returns; the others only when metrics are due."""


@tree_dataclass
class Learning:
    """What an update changes: the agent's learner, and the value function beside it where a rule needs one."""

    learner: LearnerState
    value: ValueFunctionState | None = None


class RecordedUpdate:
    """One update, recorded in one piece or, with epochs and minibatches, as its targets and a gradient step.

    Args:
      learner: the agent, its rule and the optimiser.
      value_function: beside the agent, for a rule that needs one.
      normalizer: of the inputs; None where they stay as they are.
      speed: stages of recording.
      mean_across_processes: where the batch is split over processes; None where it is not.
      before_recording: see `Recorded`.
    """

    def __init__(
        self,
        learner: Learner,
        value_function: ValueFunction | None,
        normalizer: InputNormalizer | None,
        speed: Speed,
        mean_across_processes: MeanAcrossProcesses | None = None,
        before_recording: Callable[[], None] | None = None,
    ) -> None:
        self.learner, self.value_function, self.normalizer = learner, value_function, normalizer
        self.mean = mean_across_processes
        recorded = partial(Recorded, speed=speed, before_recording=before_recording)
        self._update = recorded(self.update, name="the update", carry=True, by_parameter=True)
        self._prepare = recorded(self.prepare, name="the targets")
        self._step = recorded(self.step, name="a gradient step", carry=True, by_parameter=True)

    def __call__(
        self,
        state: Learning,
        batch: Rollout,
        rate: Tensor,
        all_logs: bool,
        snapshot: InputSnapshot | None,
        generator: torch.Generator,
    ) -> tuple[Learning, Logs]:
        """The state after an update on a raw batch, and its logs.

        Args:
          state: before it; consumed.
          batch: [T+1, B] rows as the environments gave them.
          rate: [] learning rate.
          all_logs: whether metrics are due.
          snapshot: statistics of the normalizer.
          generator: source of the order of minibatches.
        """
        if self.learner.in_one_step:
            return self._update(state, batch, rate, all_logs, snapshot)
        prepared, table = self._prepare(state, batch, snapshot)
        learner_state, logs = self.learner.gradient_steps(
            prepared.learner, table, lambda state, part: self._step(state, part, rate, all_logs), generator
        )
        return Learning(learner_state, prepared.value), logs

    def update(
        self, state: Learning, batch: Rollout, rate: Tensor, all_logs: bool, snapshot: InputSnapshot | None
    ) -> tuple[Learning, Logs]:
        """One update: a pure function, which can be recorded. A recording does not compute what it does not return."""
        batch, value_state, value_out = self._normalized(state, batch, snapshot)
        learner_state, logs = self.learner.update(
            state.learner, batch, value_out=value_out, learning_rate=rate, mean_across_processes=self.mean
        )
        return Learning(learner_state, value_state), logs if all_logs else always_logged(logs)

    def prepare(self, state: Learning, batch: Rollout, snapshot: InputSnapshot | None) -> tuple[Learning, StepTable]:
        """The targets of a batch, and the state of the rule and the value function after it."""
        batch, value_state, value_out = self._normalized(state, batch, snapshot)
        learner_state, table = self.learner.prepare(
            state.learner, batch, value_out=value_out, mean_across_processes=self.mean
        )
        return Learning(learner_state, value_state), table

    def step(self, state: LearnerState, part: StepTable, rate: Tensor, all_logs: bool) -> tuple[LearnerState, Logs]:
        """A gradient step on a minibatch."""
        state, logs = self.learner.minibatch_step(state, part, rate, self.mean)
        return state, logs if all_logs else always_logged(logs)

    def _normalized(
        self, state: Learning, batch: Rollout, snapshot: InputSnapshot | None
    ) -> tuple[Rollout, ValueFunctionState | None, ValueOuts | None]:
        """The batch, normalised once: the same numbers reach the agent, its target network and the value function, whose
        next state and estimates come with it.
        """
        if self.normalizer is not None and snapshot is not None:
            batch = self.normalizer.normalize_rollout(snapshot, batch)
        if self.value_function is None or state.value is None:
            return batch, state.value, None
        resets = memory_resets(batch)
        out, _ = self.learner.agent.unroll(state.learner.params, batch.observations, resets, batch.first_state)
        value_state, value_out, _ = self.value_function.update(state.value, batch, out["logits"], self.mean)
        return batch, value_state, value_out


def always_logged(logs: Logs) -> Logs:
    return {name: logs[name] for name in ALWAYS_LOGGED}
