"""The episodes that a run has ended: their returns and lengths, fetched from the device now and then."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from disco_torch.data import Episodes
from disco_torch.runs import World
from disco_torch.runs.checkpoint import number_list, number_pairs
from disco_torch.training.ranks import episodes_of_all

RECENT_EPISODES = 100


class FinishedEpisodes:
    """Returns and lengths of episodes.

    Args:
      world: the processes, whose episodes are put together.

    Attributes:
      recent: of the last episodes.
      first_returns: returns of the first episodes, as many as are kept of the last.
      interval: those since the last `read`, whatever checkpoints lie between.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.recent: deque[tuple[float, float]] = deque(maxlen=RECENT_EPISODES)
        self.first_returns: list[float] = []
        self.interval: list[tuple[float, float]] = []
        self._unread: list[Episodes] = []

    def add(self, episodes: Episodes) -> None:
        """Takes note of a rollout's, whose numbers stay on the device for now."""
        self._unread.append(episodes)

    def fetch(self) -> int:
        """Reads the numbers of all rollouts since the last time, in one transfer. Returns how many episodes have ended."""
        if not self._unread:
            return 0
        ends = torch.cat([episodes.ends for episodes in self._unread])
        returns = torch.cat([episodes.returns for episodes in self._unread])
        lengths = torch.cat([episodes.lengths for episodes in self._unread])
        numbers = torch.stack([returns[ends], lengths[ends]], dim=1)
        finished: list[tuple[float, float]] = [(row[0], row[1]) for row in numbers.tolist()]
        if self.world.size > 1:
            finished = episodes_of_all(self.world, ends, finished)
        self._unread = []
        self.recent.extend(finished)
        self.first_returns += [numbers[0] for numbers in finished[: RECENT_EPISODES - len(self.first_returns)]]
        self.interval.extend(finished)
        return len(finished)

    def read(self) -> list[tuple[float, float]]:
        """The fetched episodes since the last call."""
        finished, self.interval = self.interval, []
        return finished

    def state_dict(self) -> dict[str, Any]:
        recent, interval = ([list(numbers) for numbers in part] for part in (self.recent, self.interval))
        return {"recent": recent, "interval": interval, "first_returns": list(self.first_returns)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        recent, self.interval = (number_pairs(state, name) for name in ("recent", "interval"))
        self.recent = deque(recent, maxlen=RECENT_EPISODES)
        self.first_returns = number_list(state, "first_returns")
