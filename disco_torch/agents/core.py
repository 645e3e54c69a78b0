"""Cores: what an agent remembers from row to row. A core reads the torso's features; the heads read the core's."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class NoMemory(nn.Module):
    """The core of an agent without memory: its features are the torso's."""

    def __init__(self, in_features: int) -> None:
        super().__init__()
        self.out_features = in_features

    def initial_state(self, batch_size: int) -> Any:
        """The memory before the first observation, a tree of [B, ...] tensors; None here."""
        return None

    def forward(self, features: Tensor, should_reset: Tensor | None, state: Any) -> tuple[Tensor, Any]:
        """Features of each row and the memory after the last one.

        Args:
          features: [T, B, F] of the torso.
          should_reset: [T, B] bool, rows that begin an episode, before which the memory is reset.
          state: the memory before the first row.

        Returns:
          [T, B, out_features], and the memory.
        """
        return features, state
