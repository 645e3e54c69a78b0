"""Which runs belong together: those that differ in the seed alone, and how each group is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from disco_torch.discovery.folder import DiscoveryFolder
from disco_torch.runs.folder import FREE_SETTINGS
from disco_torch.training.folder import RunFolder
from disco_torch.weights.configuration import flat_config

MAX_LABEL = 60
"""Longest label that lists settings; a group of more has its first run's name instead."""


def training_labels(folders: Sequence[RunFolder]) -> list[tuple[str, str]]:
    """For each run its environment with arguments, and its label there: the rule, and the settings in which runs differ.

    Two runs have the same label if they differ in nothing but the seed and what does not change what is computed.
    """
    plain = [folder.plain_config() for folder in folders]
    settings = [_settings_that_matter(own, ("env", "env_args", "rule")) for own in plain]
    tasks = [" ".join([own["env"], *(f"{key} {value}" for key, value in own["env_args"].items())]) for own in plain]
    rules = [_rule_names([own["rule"] for own in plain])[own["rule"]] for own in plain]
    named = []
    for i, own in enumerate(settings):
        alike = [settings[j] for j in range(len(folders)) if (tasks[j], rules[j]) == (tasks[i], rules[i])]
        named.append((tasks[i], ", ".join([rules[i], *_differences(own, alike)])))
    return named


def discovery_labels(folders: Sequence[DiscoveryFolder]) -> list[str]:
    """A label for each discovery: what it started from, and the settings in which discoveries differ."""
    plain = [folder.plain_config() for folder in folders]
    settings = [_settings_that_matter(own, ("start",)) for own in plain]
    names = _rule_names([own["start"] for own in plain])
    starts = [f"from {names[own['start']]}" if own["start"] else "from random weights" for own in plain]
    return [", ".join([start, *_differences(own, settings)]) for start, own in zip(starts, settings, strict=True)]


def short_labels(labels: Sequence[str], names: Sequence[str]) -> list[str]:
    """The same labels; of one that is too long to read, its beginning and the name of the first run that has it."""
    first = dict(reversed(list(zip(labels, names, strict=True))))
    return [label if len(label) <= MAX_LABEL else f"{label.partition(',')[0]} ({first[label]})" for label in labels]


def _settings_that_matter(plain: Mapping[str, Any], named: Sequence[str]) -> dict[str, Any]:
    """Each leaf of a configuration that changes what is computed, but the seed and those that are `named` anyway."""
    left_out = {"seed", *named, *FREE_SETTINGS}
    leaves = flat_config(plain)
    return {key: leaf for key, leaf in leaves.items() if key.split(".")[1].partition("[")[0] not in left_out}


def _differences(own: Mapping[str, Any], alike: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings of one run that another has otherwise, in words."""
    keys = dict.fromkeys(key for other in alike for key in other)
    differing = [key for key in keys if any(other.get(key) != own.get(key) for other in alike)]
    return [f"{key.removeprefix('config.')} {own.get(key, 'default')}" for key in differing]


def _rule_names(rules: Sequence[str]) -> dict[str, str]:
    """A short name for each rule: of a file its name alone, unless two files have the same."""
    stems = {rule: Path(rule).stem for rule in rules}
    return {rule: stem if list(stems.values()).count(stem) == 1 else rule for rule, stem in stems.items()}
