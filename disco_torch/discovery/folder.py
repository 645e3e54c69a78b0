"""The folder of a discovery."""

from __future__ import annotations

from pathlib import Path

from disco_torch.discovery.config import DiscoverConfig
from disco_torch.runs.folder import ConfiguredFolder


class DiscoveryFolder(ConfiguredFolder[DiscoverConfig]):
    """The folder of a discovery."""

    kind = DiscoverConfig
    length = "meta_updates"
    counter = "meta_updates"
    run = "discovery"

    @classmethod
    def made_up_name(cls, config: DiscoverConfig) -> str:
        return f"discovery-seed{config.seed}"

    def snapshot(self, meta_updates: int) -> Path:
        """The file of the rule after this number of meta-updates."""
        return self.path / "rules" / f"rule-{meta_updates:06d}.safetensors"
