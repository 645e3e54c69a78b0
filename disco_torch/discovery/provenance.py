"""Where a rule comes from, to be written into its file."""

from __future__ import annotations

import dataclasses
from typing import Any

from disco_torch.discovery.config import DiscoverConfig
from disco_torch.runs.system import PACKAGE, package_version, read_commit
from disco_torch.weights.configuration import config_to_plain


def rule_provenance(config: DiscoverConfig, counters: Any) -> dict[str, Any]:
    """How a discovered rule can be found again.

    Args:
      config: of the discovery.
      counters: how far it is, a dataclass of numbers.
    """
    return {
        "made_by": "disco-torch discover",
        "version": package_version(),
        "commit": read_commit(PACKAGE.parent),
        "started_from": config.start or "random weights",
        "seeds": [config.seed],
        **dataclasses.asdict(counters),
        "config": config_to_plain(config),
    }
