"""`disco-torch discover`: find an update rule by meta-gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from disco_torch.cli.imports import Imports, import_options
from disco_torch.cli.presets import check_settings_of_resumed, describe_presets
from disco_torch.discovery.config import PRESETS, DiscoverConfig, GroupConfig
from disco_torch.discovery.folder import DiscoveryFolder
from disco_torch.discovery.run import discover
from disco_torch.rules import DiscoConfig
from disco_torch.runs import is_first_process


@dataclass(frozen=True)
class DiscoverOptions(DiscoverConfig):
    """The settings as options. Population and rule come from the preset: they are too deep to be written as options."""

    groups: tyro.conf.Suppress[Sequence[GroupConfig]] = (GroupConfig(),)
    rule: tyro.conf.Suppress[DiscoConfig] = field(default_factory=DiscoConfig)

    @classmethod
    def of(cls, config: DiscoverConfig) -> DiscoverOptions:
        return cls(**{setting.name: getattr(config, setting.name) for setting in fields(config)})

    @property
    def config(self) -> DiscoverConfig:
        return DiscoverConfig(**{setting.name: getattr(self, setting.name) for setting in fields(self)})


@dataclass(frozen=True)
class Discover:
    """Discover a rule, with settings from a preset and changes to them.

    Presets: {presets}.

    On several GPUs: `torchrun --nproc-per-node N -m disco_torch discover ...`.
    """

    preset: Annotated[str, tyro.conf.arg(metavar="NAME")] = next(iter(PRESETS))
    """Named settings to start from; the other options change them."""
    options: Annotated[DiscoverOptions, tyro.conf.arg(name="")] = field(default_factory=DiscoverOptions)
    """All settings of the discovery but the population and the shape of the rule, which are the preset's."""
    resume: Path | None = None
    """Folder of a discovery to resume, on any number of processes. Of the other options only --meta-updates, to lengthen it,
    --minutes, --device and --speed can be given."""
    imports: Imports = ()
    """Module to import first, such as one that registers families of levels; may be given several times."""

    def run(self) -> int:
        config = self.options.config
        if self.resume is not None:
            own = DiscoveryFolder.open(self.resume).config
            check_settings_of_resumed(config, own, "meta_updates", may_change=("device", "speed", "minutes"))
        result = discover(config, resume=self.resume)
        if not is_first_process():
            return 0
        console = Console()
        for env, value in result.final_returns.items():
            console.print(f"mean return on {env}: {value:.4g}", highlight=False, soft_wrap=True)
        console.print(f"the rule: {result.rule}", highlight=False, soft_wrap=True)
        if result.stopped:
            how = f"stopped; resume with `disco-torch discover --resume {result.folder}{import_options(self.imports)}`"
        else:
            how = f"done; train an agent with `disco-torch train --rule {result.rule}`"
        console.print(how, highlight=False, soft_wrap=True)
        return 0


assert Discover.__doc__ is not None
Discover.__doc__ = Discover.__doc__.format(presets=describe_presets(PRESETS))
