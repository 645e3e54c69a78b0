"""`hf:ORG/NAME[@revision]`: rules and runs of the Hugging Face Hub.

Only files that hold data are fetched: safetensors, JSON and recordings. Nothing in them is run.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from disco_torch.files import reason_of

PREFIX = "hf:"
RULE_FILE, AGENT_FILE = "rule.safetensors", "agent.safetensors"
RUN_FILES = ("config.json", "metrics.jsonl", "summary.json", AGENT_FILE, RULE_FILE, "*.gif")
"""What is fetched of a run."""


@dataclass(frozen=True)
class HubName:
    """A repository of the Hub, and the branch, tag or commit of it; None is its main branch."""

    repository: str
    revision: str | None = None


def is_hub_name(name: str | Path) -> bool:
    return str(name).startswith(PREFIX)


def parse_hub_name(name: str | Path, argument: str = "name") -> HubName:
    """The repository and revision of `hf:ORG/NAME[@revision]`; `argument` is what the caller calls it."""
    part = r"[A-Za-z0-9][\w.-]{0,95}"
    match = re.fullmatch(rf"{PREFIX}({part}/{part})(?:@([\w][\w./-]{{0,199}}))?", str(name))
    if match is None or ".." in str(name):
        raise ValueError(
            f"`{argument}` must be hf:ORG/NAME or hf:ORG/NAME@REVISION, as the Hugging Face Hub names it, got {str(name)!r}."
        )
    return HubName(match[1], match[2])


def import_hub(argument: str) -> Any:
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        raise ImportError(
            f"`{argument}` needs the package huggingface_hub, which is not installed; install disco-torch with its "
            "extra `hub`, or pip install huggingface_hub."
        ) from None


def fetch_from_hub(name: str | Path, files: Sequence[str], argument: str = "name") -> Path:
    """Fetches files of a repository and returns the folder in the cache that they are in, which is named by the commit.

    Without a network the files of the cache are used.

    Args:
      name: `hf:ORG/NAME[@revision]`.
      files: names or patterns of files; those that there are not are left out.
      argument: what the caller calls the name, for messages.
    """
    asked = parse_hub_name(name, argument)
    hub = import_hub(str(name))
    try:
        return Path(hub.snapshot_download(asked.repository, revision=asked.revision, allow_patterns=list(files)))
    # The library and the network fail in many ways.
    except Exception as error:
        raise FileNotFoundError(
            f"`{argument}` could not be loaded from the Hugging Face Hub, got {name} ({type(error).__name__}: "
            f"{reason_of(error)}); "
            "look for a mistake in the name or the revision, log in with `hf auth login` if it is private, and without a "
            "network load it once before."
        ) from error


def fetch_rule(name: str | Path, argument: str = "name") -> Path:
    """The rule file of a repository, in the cache."""
    path = fetch_from_hub(name, [RULE_FILE], argument) / RULE_FILE
    if not path.is_file():
        raise ValueError(f"`{argument}` must be a repository with a {RULE_FILE}, got {name}, which has none.")
    return path


def fetch_run(name: str | Path, argument: str = "run") -> Path:
    """The folder of a run in a repository, in the cache; it has no checkpoints."""
    return fetch_from_hub(name, RUN_FILES, argument)


def pin_rule(name: str) -> str:
    """The name of a rule with the commit that it has now, so that a stored name means the same weights for ever."""
    return f"{PREFIX}{parse_hub_name(name, 'rule').repository}@{fetch_rule(name, 'rule').parent.name}"


def refuse_hub_name(name: str | Path, argument: str) -> None:
    """Raises where something would be written into a run of the Hub."""
    if is_hub_name(name):
        raise ValueError(
            f"`{argument}` must be a folder on this machine, got {name}; a run on the Hub holds the agent, not the "
            "checkpoints that it could be resumed from."
        )
