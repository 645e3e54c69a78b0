"""Discovered rules in files: their weights and, in a `.safetensors`, all that they are besides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from disco_torch.checks import check_between
from disco_torch.files import reason_of
from disco_torch.rules import DiscoConfig, DiscoHyperParams, DiscoUpdateRule, resolve_hyper_params
from disco_torch.types import Params
from disco_torch.weights.arrays import stored_dtype
from disco_torch.weights.configuration import check_plain, config_from_plain, config_to_plain, first_difference
from disco_torch.weights.disco103 import find_disco103_weights
from disco_torch.weights.files import StoredFile, format_of_content, naming, read_file
from disco_torch.weights.haiku import rule_layers
from disco_torch.weights.parameters import check_fits, max_file_bytes, metadata_of, params_from, plain_metadata, save_params


def save_rule(
    path: str | Path,
    rule: DiscoUpdateRule,
    *,
    params: Params | None = None,
    provenance: Mapping[str, Any] | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Writes a discovered rule; the file appears complete or not at all.

    Args:
      path: `.safetensors`, which carries the configuration too, or `.npz`, which the reference harness reads.
      rule: the rule. Its list of inputs must consist of names; a function cannot be written.
      params: to write instead of the rule's own, by the names of `rule.named_parameters()`.
      provenance: where the rule comes from, as JSON can hold it; `.safetensors` only.
      dtype: to store in; defaults to that of the parameters.
    """
    _check_rule(rule)
    config = config_to_plain(rule.config) if Path(path).suffix == ".safetensors" else None
    save_params(path, rule, lambda: rule_layers(rule), params, metadata_of("rule", config, provenance), dtype)


def load_rule_file(
    path: str | Path,
    *,
    config: DiscoConfig | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> DiscoUpdateRule:
    """The rule in a file.

    Args:
      path: as `save_rule` or the reference harness wrote it.
      config: what the rule is. A `.safetensors` file says so itself and must agree; an `.npz` file does not, and without
        `config` it is taken for one of Disco103's shapes.
      device: where to put it.
      dtype: of its parameters; defaults to the stored one.
    """
    if format_of_content(Path(path)) == "npz":  # says nothing of its configuration, so that what it may unpack to is known
        rule = untrained_rule(config or DiscoConfig())
        stored = read_file(path, max_file_bytes(rule))
    else:
        stored = read_file(path)
        config = rule_config(stored, config)
        with naming(stored.path):
            check_fits(stored, outline_of(config))  # before anything is allocated by what the file says of itself
            rule = untrained_rule(config)
    with naming(stored.path):
        rule.to(device=device, dtype=dtype or stored_dtype(stored.arrays))
    rule.load_state_dict(params_from(stored, rule, lambda: rule_layers(rule), "rule"))
    return rule


def stored_hyper_params(path: str | Path) -> dict[str, float]:
    """The hyper-parameters that agents learned with while a rule was discovered, where they were not the defaults.

    A rule's targets are made for the losses that learned from them, so a new agent should have these, too.
    """
    if format_of_content(Path(path)) == "npz":
        return {}
    stored = read_file(path)
    with naming(stored.path):
        plain = plain_metadata(stored, "provenance") or {}
        config = plain.get("config") if isinstance(plain, dict) else None
        stated = config.get("hyper_params", {}) if isinstance(config, dict) else {}
        if not isinstance(stated, dict) or not all(is_finite_number(value) for value in stated.values()):
            raise ValueError(f"`hyper_params` of the provenance must be finite numbers by name, got {stated!r}.")
        resolve_hyper_params(DiscoHyperParams, stated)
    return {name: float(value) for name, value in stated.items()}


def is_finite_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def outline_of(config: DiscoConfig) -> DiscoUpdateRule:
    """A rule of this configuration on the device "meta": every shape and no memory, however large it is."""
    try:
        with torch.device("meta"):
            return DiscoUpdateRule(config)
    # Sizes that no tensor can have fail wherever they are first used.
    except (RuntimeError, OverflowError, TypeError) as error:
        raise ValueError(f"`config` must describe a rule that can be built ({reason_of(error)}).") from error


def untrained_rule(config: DiscoConfig) -> DiscoUpdateRule:
    """A rule whose weights are yet to come; it draws none of the caller's random numbers."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        return DiscoUpdateRule(config)


def rule_config(stored: StoredFile, expected: DiscoConfig | None = None) -> DiscoConfig:
    """The configuration that a rule file is of: its own, else the expected one, else Disco103's."""
    plain = plain_metadata(stored, "config")
    if plain is None:
        if stored.format == "safetensors" and expected is None:
            raise ValueError(
                f"{stored.path}: the metadata must hold the rule's configuration under 'config', got "
                f"{sorted(stored.metadata)}; was it saved by `save_rule`? Otherwise give `config`."
            )
        return expected or DiscoConfig()
    with naming(stored.path):
        if stored.metadata.get("kind", "rule") != "rule":
            raise ValueError(f"must hold a rule, got the kind {stored.metadata['kind']!r}.")
        check_plain(plain)
        config = config_from_plain(DiscoConfig, plain)
        _check_scalars(config)
        difference = None if expected is None else first_difference(config_to_plain(expected), plain)
        if difference is not None:
            raise ValueError(f"holds a rule of another configuration: {difference}.")
    return config


MAX_BINS = 100_000


def _check_scalars(config: DiscoConfig) -> None:
    """Raises at a setting that no array of the file depends on and that is out of its range."""
    if not 1 <= config.num_bins <= MAX_BINS:
        raise ValueError(f"`config.num_bins` must lie in 1 .. {MAX_BINS}, got {config.num_bins}.")
    check_between("config.moving_average_eps", config.moving_average_eps, 0.0, 1.0)


def load_disco103_weights(rule: DiscoUpdateRule, path: str | Path | None = None) -> None:
    """Loads the released weights of Disco103 into a rule of its configuration, on the rule's device and in its dtype.

    Every array is checked before the first is used; a file that does not fit leaves the rule as it was.

    Args:
      rule: as `DiscoUpdateRule()` makes it.
      path: an `.npz` or `.safetensors` file; else the weights are looked for and, if need be, downloaded, see
        `find_disco103_weights`.
    """
    _check_rule(rule)
    stored = read_file(find_disco103_weights() if path is None else path, max_file_bytes(rule))
    rule_config(stored, rule.config)
    rule.load_state_dict(params_from(stored, rule, lambda: rule_layers(rule), "rule"))


def _check_rule(rule: object) -> None:
    if not isinstance(rule, DiscoUpdateRule):
        raise ValueError(
            f"`rule` must be a DiscoUpdateRule, got {type(rule).__name__}; other rules have no weights, "
            "`load_rule` makes them by name."
        )
