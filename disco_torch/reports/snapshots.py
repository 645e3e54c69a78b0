"""Snapshots of discoveries, and how fresh agents learned with them in the other runs of a report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from disco_torch.reports.runs import DiscoveryRun
from disco_torch.reports.scores import GroupScores
from disco_torch.weights.files import sha256_of


@dataclass(frozen=True)
class Snapshot:
    """A rule file of a discovery.

    Attributes:
      run: name of the discovery.
      path: the file.
      meta_updates: when it was written.
      checksum: the first letters of its SHA-256.
      scores: those of training runs with this rule, by environment; the best group where there are several.
    """

    run: str
    path: Path
    meta_updates: int
    checksum: str
    scores: Mapping[str, GroupScores]


def find_snapshots(runs: Sequence[DiscoveryRun], groups: Sequence[GroupScores]) -> list[Snapshot]:
    """All snapshots of the discoveries, in their order."""
    found = []
    for run in runs:
        for path in sorted((run.folder.path / "rules").glob("rule-*.safetensors")):
            match = re.fullmatch(r"rule-(\d{1,18})", path.stem)
            if match is not None:
                found.append(Snapshot(run.name, path, int(match[1]), sha256_of(path)[:12], {}))
    return [replace(snapshot, scores=_scores_with(snapshot.path, groups)) for snapshot in found]


def _scores_with(path: Path, groups: Sequence[GroupScores]) -> dict[str, GroupScores]:
    """The scores of the groups that learned with a rule file, by environment."""
    own: dict[str, GroupScores] = {}
    for group in groups:
        if group.scores and _is_file(group.runs[0].folder.config.rule, path):
            best = own.get(group.task)
            own[group.task] = group if best is None or group.mean > best.mean else best
    return own


def _is_file(rule: str, path: Path) -> bool:
    """Whether a rule of a configuration is this file; where it is not found any more, its last folders are compared."""
    named = Path(rule)
    if named.is_file():
        return named.resolve() == path.resolve()
    return named.parts[-3:] == path.resolve().parts[-3:]
