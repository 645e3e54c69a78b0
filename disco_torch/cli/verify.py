"""`disco-torch verify`: recompute a folder of reference outputs and print the relative errors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from rich.console import Console
from rich.table import Table

from disco_torch.verification import Verdict, verify


@dataclass(frozen=True)
class Verify:
    """Recompute every reference file of a folder and compare. Exit status 1 if anything is above the tolerance."""

    folder: Annotated[Path, tyro.conf.Positional]
    """Folder of reference files, a config.json and .npz files; see docs/verification.md."""
    weights: Path | None = None
    """File of the released Disco103 weights (disco_103.npz), for the cases that use them."""
    dtype: Literal["float64", "float32"] = "float64"
    """Data type to compute in."""
    tolerance: float | None = None
    """Largest relative error that passes; defaults to 1e-9 in float64 and 2e-2 in float32."""

    def run(self) -> int:
        verdicts = verify(self.folder, self.weights, getattr(torch, self.dtype), self.tolerance)
        console = Console()
        console.print(table(verdicts))
        judged = [verdict for verdict in verdicts if verdict.verdict in ("ok", "FAIL")]
        failed = [verdict for verdict in judged if verdict.failed]
        largest = max(verdict.error or 0.0 for verdict in judged)
        agree = f"{len(judged) - len(failed)} of {len(judged)} quantities agree in {self.dtype}"
        console.print(f"{agree}; largest error {largest:.1e}.", soft_wrap=True)
        return 1 if failed else 0


def table(verdicts: list[Verdict]) -> Table:
    rows = Table("file", "quantity", "max relative error", "worst array", "verdict")
    for verdict in verdicts:
        error = "-" if verdict.error is None else f"{verdict.error:.1e}"
        style = "red" if verdict.failed else None
        rows.add_row(verdict.file, verdict.quantity, error, verdict.worst, verdict.verdict, style=style)
    return rows
