"""`disco-torch rules`: the rules that have names, and a page about each of them or about a file."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from disco_torch.cli.imports import Imports
from disco_torch.rules import DiscoConfig
from disco_torch.weights.configuration import config_to_plain, flat_config
from disco_torch.weights.files import read_file, sha256_of
from disco_torch.weights.hub import fetch_rule, is_hub_name
from disco_torch.weights.parameters import plain_metadata
from disco_torch.weights.registry import REGISTRY, RuleEntry, check_name_or_file, list_rules
from disco_torch.weights.rule_files import untrained_rule

ArrayRow = tuple[str, tuple[int, ...], str]
"""An array's name, shape and dtype."""


@dataclass(frozen=True)
class Rules:
    """List the rules that have names, or show a page about one of them: what it is, where it comes from, how to use it."""

    name: Annotated[str | None, tyro.conf.Positional] = None
    """A rule's name, or an .npz or .safetensors file of a rule, an agent or a value function."""
    arrays: bool = False
    """Also list all arrays, and the whole configuration and provenance."""
    imports: Imports = ()
    """Module to import first, such as one that registers rules; may be given several times."""

    def run(self) -> int:
        # Names stay whole where there is no terminal to fit them into, as in a pipe.
        console = Console(soft_wrap=True)
        if not console.is_terminal:
            console.width = 200
        if self.name is None:
            console.print(rules_table(list_rules()))
            return 0
        check_name_or_file(self.name)
        path = fetch_rule(self.name) if is_hub_name(self.name) else Path(self.name)
        page = page_of_entry(REGISTRY[self.name]) if self.name in REGISTRY else page_of_file(path, name=self.name)
        print_page(console, page)
        if self.arrays:
            print_details(console, page)
        return 0


@dataclass(frozen=True)
class Page:
    """What is known about a rule or a file of one.

    Attributes:
      title: its name and what it is.
      lines: a label and a text each.
      arrays: its arrays.
      config, provenance: as plain data, None where there is none.
    """

    title: str
    lines: list[tuple[str, str]]
    arrays: list[ArrayRow]
    config: Mapping[str, Any] | None = None
    provenance: Mapping[str, Any] | None = None


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


def page_of_entry(entry: RuleEntry) -> Page:
    """A rule with a name. Nothing is downloaded for this: without the weights the shapes are those of its configuration."""
    path = None if entry.locate is None else entry.locate()
    title, source = f"{entry.name} ({entry.kind}): {entry.description}", ("source", entry.source)
    if path is not None:
        page = page_of_file(path, entry.config)
        lines = [(label, text) for label, text in page.lines if label not in ("kind", *dict(usage("")))]
        return Page(title, [source, *lines, *usage(entry.name)], page.arrays, page.config, page.provenance)
    arrays: list[ArrayRow] = []
    weights = "none needed"
    if isinstance(entry.config, DiscoConfig):
        weights = "not downloaded; a run with this rule downloads them"
        params = untrained_rule(entry.config).named_parameters()
        arrays = [(name, tuple(param.shape), str(param.dtype)) for name, param in params]
    config = config_to_plain(entry.config)
    lines = [source, ("weights", weights), *sizes(arrays), *settings(config)]
    if entry.hyper_params:
        lines.append(("hyper-parameters", in_words(entry.hyper_params)))
    return Page(title, [*lines, *usage(entry.name)], arrays, config)


def page_of_file(path: Path, config: object = None, name: str = "") -> Page:
    """What a file says of itself, whatever network it is of; `config` where the file has none, `name` to call it by."""
    stored = read_file(path)
    arrays = [(name, tuple(array.shape), str(array.dtype)) for name, array in stored.arrays.items()]
    plain = plain_metadata(stored, "config") or config_to_plain(config)
    provenance = plain_metadata(stored, "provenance")
    kind = stored.metadata.get("kind")
    lines = [("weights", f"{path}, sha256 {sha256_of(path)}"), *sizes(arrays)]
    if kind is not None:
        lines.insert(0, ("kind", str(kind)))
    if kind == "rule" or config is not None:
        lines += settings(plain)
    if provenance:
        lines += history(provenance)
    if kind == "rule":
        lines += usage(name or str(path))
    return Page(name if is_hub_name(name) else path.name, lines, arrays, plain, provenance)


def sizes(arrays: Sequence[ArrayRow]) -> list[tuple[str, str]]:
    total = sum(math.prod(shape) for _, shape, _ in arrays)
    return [("size", f"{len(arrays)} arrays, {total:,} parameters in total")] if arrays else []


def settings(plain: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """The settings of a rule that are single numbers, those of its network among them; initial deviations are left out."""
    if not plain:
        return []
    net = plain.get("net")
    both = {**(net if isinstance(net, Mapping) else {}), **plain}
    numbers = in_words({name: value for name, value in both.items() if not name.endswith("_stddev")})
    return [("settings", numbers)] if numbers else []


def history(provenance: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How a rule was found: the numbers and texts of its provenance, and those of each run that led to it."""
    runs = provenance.get("runs")
    each = [run for run in runs if isinstance(run, Mapping)] if isinstance(runs, list) else []
    lines = [("found by", in_words(provenance)), *((f"run {i}", in_words(run)) for i, run in enumerate(each, start=1))]
    return [line for line in lines if line[1]]


def usage(name: str) -> list[tuple[str, str]]:
    return [("use it", f"disco-torch train --rule {name}"), ("in Python", f'load_rule("{name}")')]


def in_words(plain: Mapping[str, Any]) -> str:
    """The numbers and texts of a mapping; its lists and mappings are left out."""
    shown = [(key, value) for key, value in plain.items() if value is not None and not isinstance(value, Mapping | list)]
    return "; ".join(f"{str(key).replace('_', ' ')} {in_digits(value)}" for key, value in shown)


def in_digits(value: Any) -> str:
    """A number as it is read: large ones with commas."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def print_page(console: Console, page: Page) -> None:
    """A label and a text a line, wrapped between words: paths and commands stay whole."""
    width = max(len(label) for label, _ in page.lines) + 2
    wrapper = textwrap.TextWrapper(100, subsequent_indent=" " * width, break_long_words=False, break_on_hyphens=False)
    console.print(Text(page.title))
    for label, text in page.lines:  # as Text: what stands in a file is not ours and may look like markup
        console.print(Text(wrapper.fill(f"{label:<{width}}{text}")))


def print_details(console: Console, page: Page) -> None:
    """Everything else that is known: each array, and each leaf of the configuration and of the provenance."""
    if page.arrays:
        print_arrays(console, page.arrays)
    print_plain(console, "config", page.config)
    print_plain(console, "provenance", page.provenance)


def print_arrays(console: Console, arrays: Sequence[ArrayRow]) -> None:
    rows = Table(Column("array", overflow="fold"), "shape", "dtype", "count")
    for name, shape, dtype in arrays:
        # As Text: a name in a file is not ours and may look like markup.
        rows.add_row(Text(name), Text(str(list(shape))), dtype.removeprefix("torch."), f"{math.prod(shape):,}")
    console.print(rows)


def print_plain(console: Console, title: str, plain: Mapping[str, Any] | None) -> None:
    """A configuration or a provenance, a leaf a line."""
    for path, value in flat_config(plain, title).items() if plain is not None else ():
        console.print(Text(f"{path} = {value}"))
