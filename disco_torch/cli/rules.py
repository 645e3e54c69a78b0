"""`disco-torch rules`: the rules that have names, and what a rule file holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from disco_torch.rules import DiscoConfig
from disco_torch.weights.configuration import config_to_plain, flat_config
from disco_torch.weights.files import read_file, sha256_of
from disco_torch.weights.parameters import plain_metadata
from disco_torch.weights.registry import REGISTRY, RuleEntry, check_name_or_file, list_rules
from disco_torch.weights.rule_files import untrained_rule

ArrayRow = tuple[str, tuple[int, ...], str]
"""An array's name, shape and dtype."""


@dataclass(frozen=True)
class Rules:
    """List the rules that have names, or show one of them: its arrays, configuration and provenance."""

    name: Annotated[str | None, tyro.conf.Positional] = None
    """A rule's name, or an .npz or .safetensors file of a rule, an agent or a value function."""

    def run(self) -> int:
        # Names stay whole where there is no terminal to fit them into, as in a pipe.
        console = Console(soft_wrap=True)
        if not console.is_terminal:
            console.width = 200
        if self.name is None:
            console.print(rules_table(list_rules()))
            return 0
        check_name_or_file(self.name)
        if self.name in REGISTRY:
            print_entry(console, REGISTRY[self.name])
        else:
            print_file(console, Path(self.name))
        return 0


def rules_table(entries: Sequence[RuleEntry]) -> Table:
    rows = Table("name", "kind", "parameters", Column("weights", overflow="fold"), "description")
    for entry in entries:
        count = "unknown" if entry.num_parameters is None else f"{entry.num_parameters:,}"
        rows.add_row(entry.name, entry.kind, count, whereabouts(entry), entry.description)
    return rows


def whereabouts(entry: RuleEntry) -> Text:
    """Where a rule's weights are on this machine."""
    if entry.locate is None:
        return Text("none needed")
    try:
        path = entry.locate()
    except (ValueError, FileNotFoundError) as error:
        return Text(str(error), style="red")
    return Text("not downloaded" if path is None else str(path))


def print_entry(console: Console, entry: RuleEntry) -> None:
    """A rule with a name. Nothing is downloaded for this: without the weights the shapes are those of its configuration."""
    console.print(Text(f"{entry.name}: {entry.description}"))
    console.print(Text(f"source: {entry.source}"))
    path = None if entry.locate is None else entry.locate()
    if path is not None:
        print_file(console, path, entry.config)
        return
    if isinstance(entry.config, DiscoConfig):
        console.print("weights: not downloaded; names and shapes by its configuration")
        params = untrained_rule(entry.config).named_parameters()
        print_arrays(console, [(name, tuple(param.shape), str(param.dtype)) for name, param in params])
    else:
        console.print("weights: none needed")
    print_plain(console, "config", config_to_plain(entry.config))


def print_file(console: Console, path: Path, config: object = None) -> None:
    """All that a file says of itself, whatever network it is of; `config` where the file has none."""
    stored = read_file(path)
    console.print(Text(f"file: {path} (.{stored.format})"))
    console.print(f"sha256: {sha256_of(path)}")
    if "kind" in stored.metadata:
        console.print(Text(f"kind: {stored.metadata['kind']}"))
    print_arrays(console, [(name, tuple(array.shape), str(array.dtype)) for name, array in stored.arrays.items()])
    print_plain(console, "config", plain_metadata(stored, "config") or config_to_plain(config))
    print_plain(console, "provenance", plain_metadata(stored, "provenance"))


def print_arrays(console: Console, arrays: Sequence[ArrayRow]) -> None:
    rows = Table(Column("array", overflow="fold"), "shape", "dtype", "count")
    for name, shape, dtype in arrays:
        # As Text: a name in a file is not ours and may look like markup.
        rows.add_row(Text(name), Text(str(list(shape))), dtype.removeprefix("torch."), f"{math.prod(shape):,}")
    console.print(rows)
    total = sum(math.prod(shape) for _, shape, _ in arrays)
    console.print(f"{len(arrays)} arrays, {total:,} parameters in total")


def print_plain(console: Console, title: str, plain: Mapping[str, Any] | None) -> None:
    """A configuration or a provenance, a leaf a line."""
    for path, value in flat_config(plain, title).items() if plain is not None else ():
        console.print(Text(f"{path} = {value}"))
