"""Levels of Sokoban as text, in the format of the Boxoban files (Guez et al., 2018), and as arrays of cells.

    #  wall          .  target                $  box
    @  player        +  player on a target    *  box on a target       a space is floor

A level is a block of lines of equal length; a line that begins with ";" or is empty lies between two levels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

WALL, TARGET, BOX, PLAYER = 1, 2, 4, 8
"""What is in a cell, as bits: a box on a target is `TARGET | BOX`."""
SIGNS = {" ": 0, "#": WALL, ".": TARGET, "$": BOX, "*": TARGET | BOX, "@": PLAYER, "+": TARGET | PLAYER}
UNKNOWN = 255
CELLS = np.full(256, UNKNOWN, np.uint8)
CELLS[[ord(sign) for sign in SIGNS]] = list(SIGNS.values())


def read_levels(path: str | Path) -> np.ndarray:
    """The levels of a file, or of all files *.txt of a folder in the order of their names: [N, rows, columns] uint8.

    Raises:
      ValueError: at the first line that is no part of a level that can be played, with file and number of the line.
    """
    path = Path(path)
    if not path.exists():
        raise ValueError(
            f"`levels` must be a file of Sokoban levels or a folder of such files, got {path}, which is not there."
        )
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"`levels` must be a folder with files *.txt, got {path}, which has none; name one of its folders.")
    parts: list[np.ndarray] = []
    for file in files:
        parts.append(_read_file(file, parts[0].shape[1:] if parts else None))
    return np.concatenate(parts)


def write_levels(path: str | Path, levels: np.ndarray) -> None:
    """Writes levels [N, rows, columns] uint8 as text that `read_levels` reads."""
    signs = {cell: sign for sign, cell in SIGNS.items()}
    blocks = ["\n".join("".join(signs[cell] for cell in row) for row in level) for level in levels.tolist()]
    Path(path).write_text("".join(f"; {number}\n{block}\n\n" for number, block in enumerate(blocks)))


def _read_file(path: Path, shape: tuple[int, ...] | None) -> np.ndarray:
    """The levels of a file; all have the `shape` of those that were read before, if there were any."""
    try:
        text = path.read_bytes().decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"`levels`: {path} cannot be read as text of ASCII ({error}).") from error
    blocks = list(_blocks(text.splitlines()))
    if not blocks:
        raise ValueError(f"`levels`: {path} holds no level; a level is a block of lines such as '#@ $.#'.")
    rows, columns = shape or (len(blocks[0][1]), len(blocks[0][1][0]))
    for first, lines in blocks:
        for number, line in enumerate(lines, start=first):
            if len(line) != columns:
                raise ValueError(
                    f"`levels`: line {number} of {path} must have {columns} characters, got {len(line)}: {line!r}."
                )
        if len(lines) != rows:
            raise ValueError(
                f"`levels`: the level at line {first} of {path} must have {rows} lines as the others, got {len(lines)}; "
                "levels that are played together have one size."
            )
    text = "".join(line for _, lines in blocks for line in lines)
    levels = CELLS[np.frombuffer(text.encode("ascii"), np.uint8)].reshape(len(blocks), rows, columns)
    _check_levels(levels, [first for first, _ in blocks], path)
    return levels


def _blocks(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """The lines of each level, with the number of the first."""
    block: list[str] = []
    number = 0
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.startswith(";"):
            block.append(line)
        elif block:
            yield number - len(block), block
            block = []
    if block:
        yield number + 1 - len(block), block


def _check_levels(levels: np.ndarray, firsts: list[int], path: Path) -> None:
    """Raises unless each level has one player, and as many boxes as targets, not all of them there already."""
    if (levels == UNKNOWN).any():
        level, row, column = np.argwhere(levels == UNKNOWN)[0]
        raise ValueError(
            f"`levels`: line {firsts[level] + row} of {path} must be made of {' '.join(map(repr, SIGNS))}, got another "
            f"character at column {column + 1}."
        )
    players, boxes, targets = (((levels & kind) > 0).sum((1, 2)) for kind in (PLAYER, BOX, TARGET))
    left = ((levels & (BOX | TARGET)) == BOX).sum((1, 2))
    for bad, wanted, found in (
        (players != 1, "one player", lambda i: f"{players[i]}"),
        (
            (boxes == 0) | (boxes != targets),
            "as many targets as boxes, at least one",
            lambda i: f"{targets[i]} and {boxes[i]}",
        ),
        (left == 0, "a box that is not on a target yet", lambda i: "none"),
    ):
        if bad.any():
            index = int(np.flatnonzero(bad)[0])
            raise ValueError(
                f"`levels`: the level at line {firsts[index]} of {path} must have {wanted}, got {found(index)}."
            )
