"""The compiler's choices, but for two kinds of sums that it makes in several passes and are made in one."""

from __future__ import annotations

from typing import Any

from torch._inductor.choices import InductorChoices
from torch._inductor.runtime.hints import ReductionHint

LONGEST_ROW, LONGEST_COLUMN = 1024, 512
"""Numbers that are summed by one block of threads, of one row, or of a few columns side by side."""
FEW = 1 << 21
"""Numbers of a matrix that is small: it stays in the GPU's cache."""


class Choices(InductorChoices):
    """For sums over rows and over columns of small matrices.

    Over rows: the compiler keeps those that are contiguous in registers, but a bias that is added to each row hides from it
    that they are, and it reads softmaxes over value bins three times from memory. Over columns of small matrices: it adds
    their parts in one kernel and their sums in another; the second takes as long as the first.

    Args:
      name: of this version of the choices.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def uuid(self) -> str:
        """What the compiler's cache takes for all of these choices."""
        return self._name

    @staticmethod
    def should_use_persistent_reduction(features: Any, cooperative_reduction: bool) -> bool:
        if InductorChoices.should_use_persistent_reduction(features, cooperative_reduction):
            return True
        hint, length = features.get_reduction_hint(), int(features.reduction_numel)
        if hint is ReductionHint.OUTER:
            return length <= LONGEST_COLUMN and length * int(features.numel) <= FEW
        return hint is ReductionHint.DEFAULT and length <= LONGEST_ROW and sums_rows(features)

    @staticmethod
    def reduction_split_factor(device: Any, length: int, number: int, inner_reduction: bool) -> int:
        if not inner_reduction and length <= LONGEST_COLUMN and length * number <= FEW:
            return 1
        return InductorChoices.reduction_split_factor(device, length, number, inner_reduction)


def sums_rows(features: Any) -> bool:
    """Whether all that a kernel of the compiler's sums up lies side by side in memory, or is the same number."""

    def step(read: Any) -> Any:
        last, place = read.var_names[-1], read.index.expand(identity=True)
        return place.subs(last, 1) - place.subs(last, 0)

    nodes = [node for node in features.scheduler_nodes() if node.is_reduction()]
    return all(step(read) in (0, 1) for node in nodes for read in node.read_writes.reads if getattr(read, "var_names", ()))
