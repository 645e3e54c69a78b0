"""The next rollout, collected in a thread of its own while the agent learns from the present one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack

import torch

from disco_torch.data import ActorState, Episodes
from disco_torch.data.transfers import used_now
from disco_torch.types import Rollout

Collected = tuple[Rollout, ActorState, Episodes]
HIGH_PRIORITY = -1


class CollectedAhead:
    """At most one rollout that is being collected, or waits to be taken.

    On a GPU the thread has a stream of its own: the policy's small kernels run before what is left of an update's.

    Args:
      device: device that is acted on.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="collecting")
        self._running: Future[Collected] | None = None
        self._stream = torch.cuda.Stream(device, priority=HIGH_PRIORITY) if device.type == "cuda" else None

    def start(self, collect: Callable[[], Collected]) -> None:
        """Begins to collect, after all that the device has been given up to now."""
        assert self._running is None
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
        self._running = self._thread.submit(self._collect, collect)

    def _collect(self, collect: Callable[[], Collected]) -> Collected:
        with ExitStack() as stack:
            if self._stream is not None:
                stack.enter_context(torch.cuda.device(self.device))
                stack.enter_context(torch.cuda.stream(self._stream))
            return collect()

    def take(self) -> Collected | None:
        """The rollout that was begun, complete; None if none was. Raises what was raised there."""
        if self._running is None:
            return None
        running, self._running = self._running, None
        collected = running.result()
        if self._stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._stream)
        return used_now(collected)

    def wait(self) -> None:
        """Returns when nothing is being collected."""
        if self._running is not None:
            wait([self._running])

    def close(self) -> None:
        """Waits, and ends the thread. What has not been taken is lost."""
        self._running = None
        self._thread.shutdown()
