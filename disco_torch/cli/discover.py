"""`disco-torch discover`: find an update rule by meta-gradients."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from disco_torch.cli.imports import Imports, import_options
from disco_torch.cli.presets import check_settings_of_resumed, describe_presets
from disco_torch.discovery.config import DiscoverConfig, GroupConfig, HabitatConfig
from disco_torch.discovery.folder import DiscoveryFolder
from disco_torch.discovery.host_environments import modules_of
from disco_torch.discovery.presets import PRESETS
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

    On your own environments: `disco-torch discover --preset own --envs CartPole-v1 my_module:make_env`.

    On several GPUs: `torchrun --nproc-per-node N -m disco_torch discover ...`.
    """

    preset: Annotated[str, tyro.conf.arg(metavar="NAME")] = next(iter(PRESETS))
    """Named settings to start from; the other options change them."""
    options: Annotated[DiscoverOptions, tyro.conf.arg(name="")] = field(default_factory=DiscoverOptions)
    """All settings of the discovery but the population and the shape of the rule, which are the preset's."""
    envs: tuple[str, ...] = ()
    """Environments in place of the preset's, with the network of its first group: names as `train --env` takes them, with
    options behind them in the same quotes, such as "grid --agents 8 --env-args size 5"; 4 agents each unless given."""
    resume: Path | None = None
    """Folder of a discovery to resume, on any number of processes. Of the other options only --meta-updates, to lengthen it,
    --minutes, --device and --speed can be given."""
    imports: Imports = ()
    """Module to import first, such as one that registers families of levels; may be given several times."""

    def run(self) -> int:
        config = self._with_envs(self.options.config)
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
            imports = import_options(list(dict.fromkeys([*self.imports, *modules_of(config)])))
            how = f"stopped; resume with `disco-torch discover --resume {result.folder}{imports}`"
        else:
            how = f"done; train an agent with `disco-torch train --rule {result.rule}`"
        console.print(how, highlight=False, soft_wrap=True)
        return 0

    def _with_envs(self, config: DiscoverConfig) -> DiscoverConfig:
        """The configuration with the environments that the options name."""
        if not self.envs:
            return config
        if self.resume is not None:
            raise ValueError("`--envs` must be left out when a discovery is resumed, which has its own; use --start.")
        habitats = tuple(parse_habitat(text) for text in self.envs)
        return replace(config, groups=(replace(config.groups[0], habitats=habitats),))


def parse_habitat(text: str) -> HabitatConfig:
    """The habitat of `ENVIRONMENT [options]`."""
    env, *options = shlex.split(text) or [""]
    if not env or env.startswith("-"):
        raise ValueError(f"`--envs` must begin with a name each, got {text!r}; options come behind it, in the same quotes.")
    return tyro.cli(HabitatConfig, prog="disco-torch discover --envs", args=options, default=HabitatConfig(env, agents=4))


assert Discover.__doc__ is not None
Discover.__doc__ = Discover.__doc__.format(presets=describe_presets(PRESETS))
