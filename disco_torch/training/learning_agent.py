"""What learning needs of an agent."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from disco_torch.types import AgentOutput, LearningOutputs, Observations, Params, Rollout, Summarizer


class LearningAgent(Protocol):
    """What learning needs of an agent; `Agent` is one."""

    def init(self, generator: torch.Generator | None = None) -> Params: ...

    def unroll(
        self, params: Params, observations: Observations, should_reset: Tensor | None = None, state: Any = None
    ) -> tuple[AgentOutput, Any]: ...

    def summarized_outputs(
        self,
        params: Params,
        observations: Observations,
        should_reset: Tensor | None,
        state: Any,
        summarizer: Summarizer | None,
    ) -> LearningOutputs: ...

    def learning_outputs(
        self, params: Params, rollout: Rollout, should_reset: Tensor, summarizer: Summarizer | None = None
    ) -> LearningOutputs: ...

    def taken_outputs(self, params: Params, rollout: Rollout, should_reset: Tensor) -> LearningOutputs: ...
