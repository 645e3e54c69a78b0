"""Sokoban: push all boxes onto targets. Boards of its own, or from files in the format of Boxoban."""

from __future__ import annotations

import torch
from torch import Tensor

from disco_torch.checks import check_least
from disco_torch.envs.levels import LevelEnvironment, Split, draw_integers
from disco_torch.envs.sokoban_files import BOX, PLAYER, TARGET, WALL, read_levels
from disco_torch.envs.sokoban_generator import MOVES, generate_levels
from disco_torch.types import tree_dataclass

UP, DOWN, LEFT, RIGHT = range(4)
STEP_COST, BOX_REWARD, FINISH_REWARD = 0.1, 1.0, 10.0


@tree_dataclass
class SokobanRules:
    """What stays the same in all levels: the number of steps after which a time limit cuts an episode, [B]."""

    limit: Tensor


@tree_dataclass
class SokobanEpisode:
    """A level and where it stands, for `C = rows * columns` cells."""

    walls: Tensor  # [B, C] bool
    targets: Tensor  # [B, C] bool
    boxes: Tensor  # [B, C] bool
    player: Tensor  # [B], its cell
    time: Tensor  # [B], steps so far


class Sokoban(LevelEnvironment):
    """Sokoban with the rewards of Racaniere et al. (2017) and Guez et al. (2019). Each episode draws one of the levels.

    Actions 0 to 3: up, down, left, right. The player pushes a box in its way if the cell behind it is free; walls and other
    boxes hold both. There is no action for staying, nor are moves and pushes different actions.

    A step costs 0.1. A box that comes onto a target pays 1, one that leaves a target costs 1. When all boxes are on targets
    this pays 10 and ends the episode. A time limit of 120 steps cuts it and is no end.

    The levels are read from files, `levels`, or made: `num_levels` rooms that can be solved within the limit, see
    `generate_levels`, which says what is in which split. Levels of files have no splits here: Boxoban's come in folders.

    Observations are planes, [B, 4, rows, columns] float32: the player, walls, targets and boxes.

    Args:
      num_envs: number of parallel environments.
      levels: a file of levels, or a folder of files *.txt, in place of levels that are made.
      size: side of the boards that are made, walls included; 10 unless given.
      boxes: number of boxes on them; 4 unless given.
      num_levels: number of levels that are made; 1000 unless given.
      limit: number of steps of the time limit.
      split: which of the levels that can be made.
      level_seed: other levels for another seed.
      device: where the tensors shall lie.
    """

    name = "sokoban"
    num_actions = 4
    splits = ("train", "validation", "held-out")
    truncates = True
    episode_draws = 1

    def __init__(
        self,
        num_envs: int,
        *,
        levels: str = "",
        size: int | None = None,
        boxes: int | None = None,
        num_levels: int | None = None,
        limit: int = 120,
        split: Split = "train",
        level_seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__(num_envs, split=split, level_seed=level_seed, device=device)
        if level_seed is None:
            raise ValueError("`level_seed` of sokoban must be an integer, got None; every episode draws a level as it is.")
        check_least("limit", limit, 1)
        self.limit = limit
        if levels:
            others = {"size": size, "boxes": boxes, "num_levels": num_levels}
            self._refuse(others | {"split": None if split == "train" else split})
            boards = torch.from_numpy(read_levels(levels))
        else:
            sizes = {"num_levels": 1000 if num_levels is None else num_levels, "size": 10 if size is None else size}
            sizes |= {"boxes": 4 if boxes is None else boxes, "longest": limit}
            boards, _ = generate_levels(**sizes, seed=level_seed, split=split)
        self.num_levels, self.rows, self.columns = boards.shape
        self.boards = boards.flatten(1).to(self.device)  # [N, C] uint8
        self.observation_example = torch.zeros(4, self.rows, self.columns, dtype=torch.float32, device=self.device)
        self.observation_kinds = "unit"
        self._cells = torch.arange(self.rows * self.columns, device=self.device)
        self._moves = torch.tensor(MOVES, device=self.device)

    @staticmethod
    def _refuse(arguments: dict[str, object]) -> None:
        for name, value in arguments.items():
            if value is not None:
                raise ValueError(f"`{name}` of sokoban must be left out where `levels` are read from files, got {value!r}.")

    def draw_levels(self, uniforms: Tensor) -> SokobanRules:
        return SokobanRules(torch.full((uniforms.shape[0],), self.limit, device=uniforms.device))

    def begin(self, levels: SokobanRules, uniforms: Tensor) -> SokobanEpisode:
        # In float64: float32 has 2^24 uniform numbers, and there may be a million levels.
        board = self.boards[draw_integers(uniforms[:, 0].double(), 0, self.num_levels - 1)]  # [B, C]
        player = (board & PLAYER).argmax(1)
        walls, targets, boxes = ((board & kind) > 0 for kind in (WALL, TARGET, BOX))
        return SokobanEpisode(walls, targets, boxes, player, torch.zeros_like(player))

    def advance(
        self, levels: SokobanRules, episode: SokobanEpisode, actions: Tensor, uniforms: Tensor
    ) -> tuple[SokobanEpisode, Tensor, Tensor]:
        to = self._beside(episode.player, actions)
        behind = self._beside(to, actions)
        meets = _at(episode.boxes, to)
        # At the border, a cell beside is the cell itself: a box that is pushed there is in its own way.
        pushes = meets & ~_at(episode.walls | episode.boxes, behind)
        moves = ~_at(episode.walls, to) & (pushes | ~meets)
        left, entered = ((self._cells == cell[:, None]) & pushes[:, None] for cell in (to, behind))
        boxes = (episode.boxes & ~left) | entered
        player = torch.where(moves, to, episode.player)
        gained = (entered & episode.targets).sum(1) - (left & episode.targets).sum(1)
        solved = ~(boxes & ~episode.targets).any(1)
        rewards = BOX_REWARD * gained + FINISH_REWARD * solved - STEP_COST
        after = SokobanEpisode(episode.walls, episode.targets, boxes, player, episode.time + 1)
        return after, rewards.float(), solved

    def observe(self, levels: SokobanRules, episode: SokobanEpisode) -> Tensor:
        return self._planes(self._player(episode), episode.walls, episode.targets, episode.boxes)

    def picture(self, levels: SokobanRules, episode: SokobanEpisode) -> Tensor:
        """Planes [B, 5, rows, columns]: the player, walls, free targets, boxes beside targets and boxes on targets."""
        boxes, targets = episode.boxes, episode.targets
        return self._planes(self._player(episode), episode.walls, targets & ~boxes, boxes & ~targets, boxes & targets)

    def _player(self, episode: SokobanEpisode) -> Tensor:
        return self._cells == episode.player[:, None]

    def _planes(self, *masks: Tensor) -> Tensor:
        return torch.stack(masks, dim=1).float().unflatten(2, (self.rows, self.columns))

    def _beside(self, cells: Tensor, actions: Tensor) -> Tensor:
        """The cells [B] one step on; the same ones at the border."""
        moves = self._moves[actions]  # [B, 2]
        row = (cells // self.columns + moves[:, 0]).clamp(0, self.rows - 1)
        column = (cells % self.columns + moves[:, 1]).clamp(0, self.columns - 1)
        return row * self.columns + column


def _at(masks: Tensor, cells: Tensor) -> Tensor:
    """Of each mask [B, C] the bit at one cell, [B]."""
    return masks.gather(1, cells[:, None])[:, 0]
