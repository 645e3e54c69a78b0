"""What the loop of a run needs of the run in memory."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from disco_torch.runs.sinks import Metrics


class Session(Protocol):
    """A run in memory."""

    device: torch.device

    @property
    def counters(self) -> Any:
        """How far the run is: a dataclass of integers."""

    def advance(self) -> None:
        """Runs one unit of work: a rollout and its updates, or a meta-update."""

    def read_metrics(self) -> Metrics:
        """What was measured since the last call. Collective, as are the methods below."""

    def not_finite(self) -> str | None:
        """The first part of the state that is not finite, in words."""

    def state_dict(self) -> dict[str, Any] | None:
        """Everything that changes, in the first process; None in the others."""
