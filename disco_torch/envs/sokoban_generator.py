"""Levels of Sokoban that can be solved: boxes are pulled away from their targets, and a solution pushes them back.

All levels are made together, on the CPU, from one generator.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from disco_torch.checks import check_least
from disco_torch.envs.boards import with_neighbours
from disco_torch.envs.levels import Split
from disco_torch.envs.sokoban_files import BOX, PLAYER, TARGET, WALL

MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
"""Up, down, left, right; the opposite of move `d` is `d ^ 1`."""
STAMPS = ("...xxx...", ".x..x..x.", "...xx..x.", "...xx.xx.", "....xx.x.")
"""What a random walk clears around its place, in rows of a square of 3."""
TURN = 0.35
"""Probability that the walk takes another direction."""
PULLS = 12
"""Pulls for each box, as far as the longest solution allows."""
BATCH = 1024
MAX_IN_VAIN = 10
"""Batches without a new level after which there are no more."""
REMAINDERS: dict[Split, tuple[int, ...]] = {"train": (2, 3, 4), "validation": (1,), "held-out": (0,)}


@lru_cache(maxsize=8)  # an evaluation plays the levels of the run
def generate_levels(
    num_levels: int, *, size: int = 10, boxes: int = 4, seed: int = 0, split: Split = "train", longest: int = 120
) -> tuple[Tensor, Tensor]:
    """Levels, all different, and a solution of each.

    A room is cleared by a random walk, boxes stand on random targets, and random pulls take them away. A walk of the player
    can be taken back, and a pull is taken back by a push. No box begins on a target. The split of a level is the remainder
    of (number of walls + sum of the cells of its targets) by 5: 0 is held out, 1 for validation, else to train.

    Args:
      num_levels: number of levels.
      size: side of the boards, walls included.
      boxes: number of boxes and targets.
      seed: other levels for another seed.
      split: which levels.
      longest: most steps that the solution of a level may take, walks included.

    Returns:
      [N, size, size] uint8, cells as in `sokoban_files`; and [N, pulls, 2] integers, the pushes of a solution in order: the
      cell of the box before the push and the direction. Pushes that a level has less begin with -1.
    """
    check_least("num_levels", num_levels, 1)
    check_least("size", size, 5)
    if not 1 <= boxes <= (most := ((size - 2) ** 2 - 1) // 2):
        raise ValueError(f"`boxes` must lie in 1 .. {most} on boards of size {size}, half of the cells inside, got {boxes}.")
    check_least("longest", longest, 1)
    generator = torch.Generator().manual_seed(seed)
    found: dict[bytes, tuple[Tensor, Tensor]] = {}
    vain = 0  # batches in a row without a new level
    while vain < MAX_IN_VAIN:
        before = len(found)
        levels, pushes = _draft(generator, size, boxes, split, longest)
        for level, pushed in zip(levels, pushes, strict=True):
            found.setdefault(level.numpy().tobytes(), (level, pushed))
        vain = 0 if len(found) > before else vain + 1
        if len(found) >= num_levels:
            kept = list(found.values())[:num_levels]
            return torch.stack([level for level, _ in kept]), torch.stack([pushed for _, pushed in kept])
    raise ValueError(
        f"`num_levels` must be levels that there are, got {num_levels} of size {size} with {boxes} boxes, of which "
        f"{len(found)} were found; ask for fewer levels or boxes, or for a larger size."
    )


def _draft(generator: torch.Generator, size: int, boxes: int, split: Split, longest: int) -> tuple[Tensor, Tensor]:
    """Some levels of a split, [N, size, size], and the pushes that solve them."""
    floor = _rooms(generator, size)
    cells = size**2
    order = torch.rand(BATCH, cells, generator=generator).masked_fill(~floor.flatten(1), -1.0).argsort(1, descending=True)
    targets = torch.zeros(BATCH, cells, dtype=torch.bool).scatter(1, order[:, :boxes], True)
    remainder = (cells - floor.flatten(1).sum(1) + (targets * torch.arange(cells)).sum(1)) % 5
    is_wide = floor.flatten(1).sum(1) >= max(2 * boxes + 1, (size - 2) ** 2 // 3)
    fits = torch.isin(remainder, torch.tensor(REMAINDERS[split])) & is_wide
    floor, targets, player = floor[fits], targets[fits].unflatten(1, (size, size)), order[fits, boxes]
    places, player, pushes = _pull_apart(generator, floor, targets, player, PULLS * boxes, longest)
    at_player = torch.zeros(len(player), cells, dtype=torch.bool).scatter(1, player[:, None], True).view_as(floor)
    levels = (WALL * ~floor + TARGET * targets + BOX * places + PLAYER * at_player).to(torch.uint8)
    is_apart = ~(places & targets).flatten(1).any(1)
    return levels[is_apart], pushes[is_apart]


def _rooms(generator: torch.Generator, size: int) -> Tensor:
    """Floors of rooms within a border of walls, [N, size, size] bool; all cells of a room are joined."""
    stamps = torch.tensor([[mark == "x" for mark in stamp] for stamp in STAMPS]).unflatten(1, (3, 3))
    moves = torch.tensor(MOVES)
    floor = torch.zeros(BATCH, size, size, dtype=torch.bool)
    place = torch.randint(1, size - 1, (BATCH, 2), generator=generator)
    direction = torch.randint(4, (BATCH,), generator=generator)
    rows = torch.arange(BATCH)
    stuck = torch.zeros(BATCH, dtype=torch.bool)
    for _ in range(int(3.4 * size)):
        turns = stuck | (torch.rand(BATCH, generator=generator) < TURN)
        direction = torch.where(turns, torch.randint(4, (BATCH,), generator=generator), direction)
        before, place = place, (place + moves[direction]).clamp(1, size - 2)
        stuck = (place == before).all(1)  # at the border
        stamp = stamps[torch.randint(len(STAMPS), (BATCH,), generator=generator)]
        for row in range(3):
            for column in range(3):
                at = rows, place[:, 0] + row - 1, place[:, 1] + column - 1
                floor[at] = floor[at] | stamp[:, row, column]
    floor[:, [0, -1]], floor[:, :, [0, -1]] = False, False
    return floor


def _pull_apart(
    generator: torch.Generator, floor: Tensor, boxes: Tensor, player: Tensor, pulls: int, longest: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Pulls boxes at random.

    Args:
      floor, boxes: [N, size, size] bool.
      player: its cell, [N].
      pulls: number of pulls.
      longest: most steps of the solution.

    Returns:
      Where boxes and player are then, and the pushes that take it back, the last pull first.
    """
    N, size, _ = floor.shape
    offsets = torch.tensor([row * size + column for row, column in MOVES])
    cells, pushes, length = torch.arange(size**2), [], torch.zeros(N, dtype=torch.long)
    targets = boxes
    for _ in range(pulls):
        free = floor & ~boxes
        steps = _walks(free, player)  # [N, size, size], -1 where there is no way
        # A box at `b` is pulled to `b + d` by a player who walks from there to `b + 2 d`.
        beside = torch.stack([_shift(steps + 1, d) - 1 for d in range(4)], dim=1)  # [N, 4, size, size], to `b + d`
        beyond = torch.stack([_shift(_shift(free, d), d) for d in range(4)], dim=1)
        can = boxes[:, None] & (beside >= 0) & beyond & (beside + 1 + length[:, None, None, None] <= longest)
        # Boxes that are on a target come first more often than not.
        rank = torch.rand(can.shape, generator=generator) + 0.5 * (boxes & targets)[:, None]
        chosen = rank.masked_fill(~can, -1.0).flatten(1).argmax(1)
        pulled = can.flatten(1).any(1)
        direction, box = chosen // size**2, chosen % size**2
        to = box + offsets[direction]
        moved = (boxes.flatten(1) & (cells != box[:, None])) | (cells == to[:, None])
        boxes = torch.where(pulled[:, None], moved, boxes.flatten(1)).unflatten(1, (size, size))
        player = torch.where(pulled, to + offsets[direction], player)
        walked = beside.flatten(1).gather(1, chosen[:, None])[:, 0]
        length = length + torch.where(pulled, walked + 1, 0)
        pushes.append(torch.where(pulled[:, None], torch.stack([to, direction ^ 1], dim=1), -1))
    steps = _walks(floor & ~boxes, player).flatten(1)
    near = (steps >= 0) & (steps + length[:, None] <= longest)
    player = torch.rand(N, size**2, generator=generator).masked_fill(~near, -1.0).argmax(1)
    return boxes, player, torch.stack(pushes[::-1], dim=1)


def _walks(free: Tensor, player: Tensor) -> Tensor:
    """Steps from the player [N] to each free cell [N, size, size]; -1 where there is no way."""
    reached = torch.zeros_like(free).flatten(1).scatter(1, player[:, None], True).view_as(free)
    steps = torch.where(reached, 0, -1)
    for step in range(1, free.shape[1] * free.shape[2]):
        further = with_neighbours(reached) & free & ~reached
        if not further.any():
            break
        steps, reached = torch.where(further, step, steps), reached | further
    return steps


def _shift(x: Tensor, direction: int) -> Tensor:
    """At each cell of a board [N, size, size] what lies one step in a direction; 0 outside."""
    row, column = MOVES[direction]
    wide = torch.nn.functional.pad(x, (1, 1, 1, 1))
    return wide[:, 1 + row : 1 + row + x.shape[1], 1 + column : 1 + column + x.shape[2]]
