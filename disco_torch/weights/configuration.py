"""Configurations as plain data, so that a file can carry them.

Any dataclass of numbers, texts, sequences and other dataclasses can be converted to JSON and back. Sequences become tuples.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from disco_torch.rules import RuleInput
from disco_torch.weights.stored_inputs import input_from_stored, stored_form

C = TypeVar("C")


def config_to_plain(config: object, where: str = "config") -> Any:
    """Dictionaries, lists, numbers and texts that stand for a configuration; raises at a function, which nothing can."""
    if isinstance(config, RuleInput):
        return stored_form(config, where)
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
        return {name: config_to_plain(value, f"{where}.{name}") for name, value in fields.items()}
    if config is None or isinstance(config, str | bool | int | float):
        return config
    if isinstance(config, np.generic):
        return config.item()
    if isinstance(config, Path):
        return str(config)
    if isinstance(config, Mapping):
        return {str(name): config_to_plain(value, f"{where}.{name}") for name, value in config.items()}
    if isinstance(config, Sequence):
        return [config_to_plain(value, f"{where}[{i}]") for i, value in enumerate(config)]
    raise ValueError(f"`{where}` must be numbers, texts or sequences of them, got {type(config).__name__}.")


MAX_DEPTH, MAX_ENTRIES, MAX_VALUES, MAX_INTEGER = 32, 256, 10_000, 2**63 - 1


def check_plain(plain: object, where: str = "config", max_entries: int = MAX_ENTRIES, max_values: int = MAX_VALUES) -> None:
    """Raises where plain data from a file is larger than any configuration: nothing is made of it before.

    Limits: `MAX_DEPTH` levels, `max_entries` entries of a list, `max_values` values in all, integers of 64 bits. Numbers
    must be finite; JSON knows NaN and Infinity, no setting does.
    """
    waiting, count = [(plain, where, 0)], 0
    while waiting:
        value, path, depth = waiting.pop()
        count += 1
        if depth > MAX_DEPTH or count > max_values:
            raise ValueError(f"`{where}` must have at most {MAX_DEPTH} levels and {max_values} values, got more.")
        if isinstance(value, Mapping | list) and len(value) > max_entries:
            raise ValueError(f"`{path}` must have at most {max_entries} entries, got {len(value)}.")
        if isinstance(value, Mapping):
            waiting += [(part, f"{path}.{name}", depth + 1) for name, part in value.items()]
        elif isinstance(value, list):
            waiting += [(part, f"{path}[{i}]", depth + 1) for i, part in enumerate(value)]
        elif isinstance(value, int) and abs(value) > MAX_INTEGER:
            raise ValueError(f"`{path}` must be an integer of at most 64 bits, got one of {value.bit_length()} bits.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"`{path}` must be finite, got {value}.")


def config_from_plain(kind: type[C], plain: object, where: str = "config") -> C:
    """The configuration of a class that `config_to_plain` gave this for; the inverse up to lists, which become tuples.

    Every field must be there: one that took a default in silence would make another rule of the same weights. Fields that
    are marked as `later` came with a default that means what was done before, or name that as `before`; files from before
    do not have them.
    """
    if not isinstance(plain, Mapping):
        raise ValueError(f"`{where}` must be the fields of a {kind.__name__}, got {type(plain).__name__}.")
    hints = typing.get_type_hints(kind)
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    names = [field.name for field in fields if field.name in plain or not field.metadata.get("later")]
    for name in sorted(set(names) ^ set(plain)):
        problem = "is missing" if name in names else "is not known"
        raise ValueError(f"`{where}.{name}` {problem}; was the file written by another version of disco-torch?")
    before = {field.name: field.metadata["before"] for field in fields if "before" in field.metadata}
    given = {name: _field_from_plain(hints[name], plain[name], f"{where}.{name}") for name in names}
    return kind(**(before | given))


def _field_from_plain(kind: Any, plain: object, where: str) -> Any:
    if kind is RuleInput:
        return input_from_stored(plain, where)
    if dataclasses.is_dataclass(kind):
        return config_from_plain(typing.cast(type, kind), plain, where)
    if kind is Path and isinstance(plain, str):
        return Path(plain)
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is dict and isinstance(plain, Mapping):
        return {name: _field_from_plain(parts[1], value, f"{where}.{name}") for name, value in plain.items()}
    if origin is typing.Literal:
        if plain not in parts:
            raise ValueError(f"`{where}` must be one of {list(parts)}, got {plain!r}.")
        return plain
    if origin is Sequence:
        if not isinstance(plain, list):
            raise ValueError(f"`{where}` must be a list, got {type(plain).__name__}.")
        return tuple(_field_from_plain(parts[0], value, f"{where}[{i}]") for i, value in enumerate(plain))
    if origin in (typing.Union, types.UnionType):
        if plain is None and types.NoneType in parts:
            return None
        # Of several types the one that fits; the others are None, or functions, which no file holds.
        kind = next((part for part in parts if type(plain) is part), parts[0])
        if dataclasses.is_dataclass(kind):
            return config_from_plain(typing.cast(type, kind), plain, where)
    if kind is float and type(plain) is int:
        return float(plain)
    if type(plain) is not kind:
        raise ValueError(f"`{where}` must be {kind.__name__}, got {plain!r}.")
    return plain


def flat_config(plain: object, where: str = "config") -> dict[str, Any]:
    """Each leaf of a plain configuration under its path; a list of numbers or texts is one leaf."""
    if isinstance(plain, Mapping):
        items = [(f"{where}.{name}", value) for name, value in plain.items()]
    elif isinstance(plain, list) and any(isinstance(value, Mapping) for value in plain):
        items = [(f"{where}[{i}]", value) for i, value in enumerate(plain)]
    else:
        return {where: plain}
    return {path: leaf for inner, value in items for path, leaf in flat_config(value, inner).items()}


def first_difference(ours: object, theirs: object) -> str | None:
    """Where two plain configurations differ first, in words; None where they are equal."""
    a, b = flat_config(ours), flat_config(theirs)
    for path in [*a, *b]:
        if path not in a or path not in b or a[path] != b[path]:
            return f"`{path}` is {a.get(path, 'absent')!r} here and {b.get(path, 'absent')!r} in the file"
    return None
