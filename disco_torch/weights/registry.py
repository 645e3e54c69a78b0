"""Rules by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from disco_torch.rules import (
    PPO,
    ActorCritic,
    ActorCriticConfig,
    DiscoConfig,
    DoublyRobust,
    DoublyRobustConfig,
    PolicyGradient,
    UpdateRule,
)
from disco_torch.weights.disco103 import find_disco103_weights, local_disco103_weights
from disco_torch.weights.hub import fetch_rule, is_hub_name, parse_hub_name
from disco_torch.weights.rule_files import load_rule_file, stored_hyper_params


@dataclass(frozen=True)
class RuleEntry:
    """A rule that has a name.

    Attributes:
      name: the name that `load_rule` accepts.
      kind: "discovered" or "hand-written", or "registered" by `register_rule`.
      description: one line.
      source: where it comes from.
      num_parameters: number of its parameters; None where that is not known before it is made.
      load: makes the rule with its weights.
      locate: returns the file of its weights, or None while it is not on this machine; None for a rule without weights.
      config: its configuration, unless its file holds it.
      hyper_params: recommended hyper-parameters that differ from the defaults of its class.
    """

    name: str
    kind: str
    description: str
    source: str
    num_parameters: int | None
    load: Callable[[], UpdateRule]
    locate: Callable[[], Path | None] | None = None
    config: object = None
    hyper_params: Mapping[str, float] = field(default_factory=dict)


SCALAR_ACTOR_CRITIC = ActorCriticConfig(num_bins=1, nonlinear_value_transform=False, normalize_adv=True, center_adv=False)
"""A scalar value, and advantages divided by their deviation. The reference's categorical value, on 601 bins to +-300, is
so noisy at first that Catch is not learned; with its raw advantages the policy becomes deterministic where rewards are
large."""


def shipped(name: str, description: str, source: str, num_parameters: int) -> RuleEntry:
    """A rule whose file is part of the package; the file says itself where it comes from."""
    path = Path(__file__).with_name(f"{name}.safetensors")
    return RuleEntry(name, "discovered", description, source, num_parameters, lambda: load_rule_file(path), lambda: path)


REGISTRY: dict[str, RuleEntry] = {
    entry.name: entry
    for entry in (
        shipped(
            "birch",
            "Ships with disco-torch: a correction of doubly-robust, discovered in minutes on one CPU core.",
            "disco-torch; reproduce it with `disco-torch discover --preset birch --device cpu`",
            num_parameters=17_312,
        ),
        RuleEntry(
            name="disco103",
            kind="discovered",
            description="The rule discovered on 103 environments: Atari, ProcGen and DMLab.",
            source="Oh et al., Nature 648 (2025); weights of google-deepmind/disco_rl",
            num_parameters=754_778,
            load=lambda: load_rule_file(find_disco103_weights(), config=DiscoConfig()),
            locate=local_disco103_weights,
            config=DiscoConfig(),
        ),
        RuleEntry(
            name="actor-critic",
            kind="hand-written",
            description="Policy gradient with V-trace advantages, a value loss and an entropy bonus.",
            source="Espeholt et al., IMPALA (2018)",
            num_parameters=0,
            load=lambda: ActorCritic(SCALAR_ACTOR_CRITIC),
            config=SCALAR_ACTOR_CRITIC,
            hyper_params={"entropy_cost": 0.01},
        ),
        RuleEntry(
            name="ppo",
            kind="hand-written",
            description="Clipped policy gradient with generalised advantages, several epochs on each rollout.",
            source="Schulman et al., Proximal policy optimization algorithms (2017)",
            num_parameters=0,
            load=PPO,
        ),
        RuleEntry(
            name="ppo-replay",
            kind="hand-written",
            description="The default: PPO on the last few short rollouts, corrected by V-trace, in small gradient steps.",
            source="disco-torch; the loss of Schulman et al. (2017) with the targets of Espeholt et al., IMPALA (2018)",
            num_parameters=0,
            load=PPO,
            hyper_params={"least_deviation": 0.1},
        ),
        RuleEntry(
            name="doubly-robust",
            kind="hand-written",
            description="Policy improvement by action values, corrected by what was observed of the taken actions.",
            source="disco-torch; the estimate of Jiang and Li (2016), with PPO's bound on the ratio",
            num_parameters=0,
            load=DoublyRobust,
            config=DoublyRobustConfig(),
        ),
        RuleEntry(
            name="policy-gradient",
            kind="hand-written",
            description="Policy gradient with the advantages of a value function outside of the rule.",
            source="Williams, REINFORCE (1992)",
            num_parameters=0,
            load=PolicyGradient,
        ),
    )
}


def register_rule(
    name: str, rule: Any = None, *, description: str = "", hyper_params: Mapping[str, float] | None = None
) -> Any:
    """Makes a rule known by name, to `load_rule`, runs and the command line; a function or a decorator.

        @register_rule("my-rule")
        class MyRule(UpdateRule): ...

    Args:
      name: new name of the rule.
      rule: a class of `UpdateRule`, or a function that returns a rule; called without arguments.
      description: one line; defaults to the first one of the docstring.
      hyper_params: those that it trains well with, where they are not the defaults of its class.
    """
    if rule is None:
        return partial(register_rule, name, description=description, hyper_params=hyper_params)
    if not callable(rule) or isinstance(rule, UpdateRule):
        raise ValueError(
            f"`rule` must be a class of UpdateRule or a function that returns one, got {type(rule).__name__}; "
            "a rule that is made already is an argument of `train`."
        )
    source = f"{rule.__module__}:{rule.__qualname__}"
    known = REGISTRY.get(name)
    if not name or (known is not None and (known.kind, known.source) != ("registered", source)):
        raise ValueError(f"`name` must be a new name, got {name!r}; choose another one.")
    first_line = (rule.__doc__ or "").strip().partition("\n")[0]
    REGISTRY[name] = RuleEntry(
        name,
        "registered",
        description or first_line,
        source,
        None,
        partial(_made, name, rule),
        hyper_params=hyper_params or {},
    )
    return rule


def _made(name: str, make: Callable[[], Any]) -> UpdateRule:
    rule = make()
    if not isinstance(rule, UpdateRule):
        raise ValueError(f"the rule {name!r} must be an UpdateRule, got {type(rule).__name__}; see docs/rules.md.")
    return rule


def list_rules() -> list[RuleEntry]:
    """The rules that have names."""
    return list(REGISTRY.values())


def load_rule(
    name_or_path: str | Path,
    *,
    config: DiscoConfig | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> UpdateRule:
    """A rule by its name, or from a file.

    Args:
      name_or_path: a name of `list_rules()`, a `.safetensors` or `.npz` file of a discovered rule, or
        `hf:ORG/NAME[@revision]` for one on the Hugging Face Hub.
      config: for files, see `load_rule_file`: needed for an `.npz` whose shapes are not Disco103's.
      device: where to put it.
      dtype: of its parameters; as stored unless given.
    """
    entry = REGISTRY.get(str(name_or_path))
    if entry is None:
        check_name_or_file(name_or_path)
        path = fetch_rule(name_or_path, "name_or_path") if is_hub_name(name_or_path) else name_or_path
        return load_rule_file(path, config=config, device=device, dtype=dtype)
    if config is not None:
        raise ValueError(f"`config` is for files, got one with the name {entry.name!r}, whose configuration is fixed.")
    return entry.load().to(device=device, dtype=dtype)


def check_name_or_file(name_or_path: str | Path, argument: str = "name_or_path") -> None:
    """Raises where this is neither a name of a rule nor a file; `argument` is what the caller calls it.

    Of a name on the Hub only its form is looked at.
    """
    if is_hub_name(name_or_path):
        parse_hub_name(name_or_path, argument)
        return
    if str(name_or_path) not in REGISTRY and not Path(name_or_path).is_file():
        raise ValueError(
            f"`{argument}` must be one of {sorted(REGISTRY)} or an .npz or .safetensors file, got {str(name_or_path)!r}, "
            "which is neither; one of your own is known once the module that registers it is imported, on the command line "
            "with --import MODULE; one on the Hugging Face Hub is hf:ORG/NAME."
        )


def default_hyper_params(name_or_path: str | Path) -> dict[str, float]:
    """The hyper-parameters that a rule trains well with, where they are not the defaults of its class.

    Those of a file are what the agents of its discovery learned with.
    """
    entry, path = REGISTRY.get(str(name_or_path)), rule_path(name_or_path)
    stored = {} if path is None else stored_hyper_params(path)
    return stored | ({} if entry is None else dict(entry.hyper_params))


def rule_path(name_or_path: str | Path) -> Path | None:
    """The file that holds a rule's weights on this machine; None for a rule without weights, or where they are not here."""
    entry = REGISTRY.get(str(name_or_path))
    if entry is not None:
        return None if entry.locate is None else entry.locate()
    path = fetch_rule(name_or_path) if is_hub_name(name_or_path) else Path(name_or_path)
    return path if path.is_file() else None
