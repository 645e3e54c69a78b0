"""A recorded function in two halves: what can be done before its last arguments are known, and the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from disco_torch.kernels.cutting import split
from disco_torch.kernels.recording import Recorded, Recording, Speed, examples, outlined, staged


class Halves:
    """A pure function `fn(early, late)` of two trees of tensors, recorded, whose first half runs before `late` is known.

        finish = halves.ahead(early, like)      # does all that does not depend on `late`
        result = finish(late)

    Args:
      fn: as a `Recorded` one must be.
      speed: stages to go through, not a capture: this is part of a larger one.
      name: for notices.
      apart: have halves at all; if not, all is left to `finish`.
    """

    def __init__(self, fn: Callable[[Any, Any], Any], speed: Speed, name: str, *, apart: bool = True) -> None:
        self.speed, self.name, self.apart = speed, name, apart and speed != Speed()
        self._whole = Recorded(fn, speed, name)
        self._recordings: dict[Any, tuple[Callable[..., Any], Callable[..., Any], Any]] = {}

    @torch.no_grad()
    def ahead(self, early: Any, like: Any) -> Callable[[Any], Any]:
        """What is left to do. `like` is in the shapes of what it will be given; without halves it is not looked at."""
        if not self.apart:
            return lambda late: self._whole(early, late)
        given, outline = outlined(early)
        expected = outlined(like)[1]
        if (outline, expected) not in self._recordings:
            self._recordings[outline, expected] = self._record(early, like)
        first, second, out_structure = self._recordings[outline, expected]
        kept = first(*given)

        def finish(late: Any) -> Any:
            rest, outline = outlined(late)
            if outline != expected:
                raise ValueError(
                    "`late` must have the structure, shapes and values of `like`, got others; call `ahead` again."
                )
            with torch.no_grad():
                return pytree.tree_unflatten(list(second(*kept, *given, *rest)), out_structure)

        return finish

    def _record(self, early: Any, late: Any) -> tuple[Callable[..., Any], Callable[..., Any], Any]:
        recording, tensors = Recording(self._whole.fn, (early, late)), examples((early, late))
        run = staged(recording.run, tensors, Speed(trace=True), self.name)
        if not isinstance(run, fx.GraphModule):  # could not be traced
            return (lambda *given: []), run, recording.out_structure
        number = len(outlined(early)[0])
        given, rest = tensors[:number], tensors[number:]
        first, second = split(run, number)
        kept = list(first(*given))
        stages = Speed(compile=self.speed.compile)
        quick = staged(first, given, stages, f"the first half of {self.name}") if kept else first
        return quick, staged(second, [*kept, *given, *rest], stages, self.name), recording.out_structure
