"""Where a rule comes from, to be written into its file."""

from __future__ import annotations

import dataclasses
from importlib import metadata
from pathlib import Path
from typing import Any

from disco_torch.discovery.config import DiscoverConfig
from disco_torch.weights.configuration import config_to_plain

PACKAGE = Path(__file__).parents[1]


def rule_provenance(config: DiscoverConfig, counters: Any) -> dict[str, Any]:
    """How a discovered rule can be found again.

    Args:
      config: of the discovery.
      counters: how far it is, a dataclass of numbers.
    """
    return {
        "made_by": "disco-torch discover",
        "version": _version(),
        "commit": read_commit(PACKAGE.parent),
        "started_from": config.start or "random weights",
        "seeds": [config.seed],
        **dataclasses.asdict(counters),
        "config": config_to_plain(config),
    }


def _version() -> str | None:
    try:
        return metadata.version("disco-torch")
    except metadata.PackageNotFoundError:  # used from its folder, without an installation
        return None


def read_commit(checkout: Path) -> str | None:
    """The commit that a checkout is at, read from its files: git itself may not be there. None outside of a checkout."""
    git = checkout / ".git"
    try:
        if git.is_file():  # of a worktree: the path of its folder
            git = checkout / git.read_text().removeprefix("gitdir:").strip()
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref:"):
            return head or None
        ref = head.removeprefix("ref:").strip()
        shared = git / "commondir"
        common = git / shared.read_text().strip() if shared.is_file() else git
        for folder in (git, common):
            if (folder / ref).is_file():
                return (folder / ref).read_text().strip()
        lines = [line.split() for line in (common / "packed-refs").read_text().splitlines()]
        return next((words[0] for words in lines if words[1:] == [ref]), None)
    except OSError:
        return None
