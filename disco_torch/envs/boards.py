"""What the small games on boards share: marking cells, painting planes, and drawing a level's parameters from tables."""

from __future__ import annotations

import torch
from torch import Tensor

from disco_torch.envs.levels import draw_integers


class Canvas:
    """A grid of `rows` by `columns` cells for each environment; row 0 is on top.

    Attributes:
      row_of: [rows, 1], each row's number.
      column_of: [columns], each column's number.
    """

    def __init__(self, rows: int, columns: int, device: torch.device) -> None:
        self.rows, self.columns = rows, columns
        self.row_of = torch.arange(rows, device=device)[:, None]  # [rows, 1]
        self.column_of = torch.arange(columns, device=device)

    def cell(self, row: Tensor, column: Tensor) -> Tensor:
        """[B, rows, columns] bool: the one cell in `row` [B] and `column` [B]; none where it lies outside."""
        return (self.row_of == row[:, None, None]) & (self.column_of == column[:, None, None])

    def in_each_row(self, column: Tensor) -> Tensor:
        """[B, rows, columns] bool: in every row the cell at its `column` [B, rows]; none where it lies outside."""
        return self.column_of == column[:, :, None]


def check_canvas(rows: int, columns: int, *, least_rows: int, least_columns: int) -> None:
    """Raises unless a game fits on a canvas of this size."""
    for name, value, least in (("rows", rows, least_rows), ("columns", columns, least_columns)):
        if value < least:
            raise ValueError(f"`{name}` must be at least {least}, so that every level fits, got {value}.")


def paint(*masks: Tensor) -> Tensor:
    """Planes of 0 and 1, [B, planes, rows, columns] float32, from masks [B, rows, columns]."""
    return torch.stack(masks, dim=1).to(torch.float32)


def any_cell(mask: Tensor) -> Tensor:
    """[B]: whether any cell of a mask [B, rows, columns] is set."""
    return mask.flatten(1).any(1)


def with_neighbours(mask: Tensor) -> Tensor:
    """[B, rows, columns] bool: the cells of a mask and those above, below and beside them."""
    wide = torch.nn.functional.pad(mask, (1, 1, 1, 1))
    return mask | wide[:, :-2, 1:-1] | wide[:, 2:, 1:-1] | wide[:, 1:-1, :-2] | wide[:, 1:-1, 2:]


def choose(uniforms: Tensor, table: Tensor) -> Tensor:
    """Entries of a `table` [N, ...], each as likely as the others, from uniform numbers [...]."""
    return table[draw_integers(uniforms, 0, len(table) - 1)]


def draw_between(uniforms: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    """Numbers in [low, high) from uniform numbers in [0, 1)."""
    return low + uniforms * (high - low)
