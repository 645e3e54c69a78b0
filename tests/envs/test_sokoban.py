"""Sokoban by its rules, on boards made by hand; levels that are made, and levels from files."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from disco_torch.envs import make_env, sokoban_generator
from disco_torch.envs.levels import draw_planes
from disco_torch.envs.sokoban import DOWN, LEFT, RIGHT, UP, Sokoban
from disco_torch.envs.sokoban_files import BOX, PLAYER, SIGNS, TARGET, WALL, read_levels, write_levels
from disco_torch.envs.sokoban_generator import MOVES, generate_levels

BOARD = """
########
#@ $ . #
#  $#  #
# *.   #
########
"""
NAMES = {cell: sign for sign, cell in SIGNS.items()}


def file_of(tmp_path: Path, *boards: str) -> str:
    path = tmp_path / "levels.txt"
    path.write_text("\n".join(f"; {i}\n{board.strip(chr(10))}\n" for i, board in enumerate(boards)))
    return str(path)


def begin(tmp_path: Path, board: str, **arguments):
    env = Sokoban(1, levels=file_of(tmp_path, board), **arguments)
    return env, env.reset(torch.Generator().manual_seed(0))[0]


def play(env, state, *actions):
    """The state after some actions, and the row of each."""
    rows = []
    for action in actions:
        state, row = env.step_with(state, torch.tensor([action]), torch.zeros(1, 1))
        rows.append(row)
    return state, rows


def text_of(env, state) -> list[str]:
    episode = state.episode
    cells = WALL * episode.walls[0] + TARGET * episode.targets[0] + BOX * episode.boxes[0]
    cells[episode.player[0]] += PLAYER
    return ["".join(NAMES[cell] for cell in row) for row in cells.view(env.rows, env.columns).tolist()]


def rewards(rows) -> list[float]:
    return [round(row.rewards.item(), 5) for row in rows]


def test_walls_hold_the_player_and_boxes_are_pushed(tmp_path):
    env, state = begin(tmp_path, BOARD)
    state, rows = play(env, state, UP, LEFT, RIGHT, RIGHT)
    assert text_of(env, state)[1] == "#  @$. #" and rewards(rows) == [-0.1] * 4
    state, rows = play(env, state, DOWN)
    assert text_of(env, state)[2:4] == ["#  @#  #", "# **   #"] and rewards(rows) == [0.9]


def test_a_box_is_held_by_a_wall_and_by_another_box(tmp_path):
    env, state = begin(tmp_path, "######\n#@$#.#\n#$   #\n#$  .#\n#.   #\n######")
    before = text_of(env, state)
    state, rows = play(env, state, RIGHT, DOWN)
    assert text_of(env, state) == before and rewards(rows) == [-0.1, -0.1]


def test_targets_pay_once_and_cost_when_left(tmp_path):
    env, state = begin(tmp_path, "########\n#@$..$ #\n########")
    state, rows = play(env, state, RIGHT, RIGHT, RIGHT)
    assert rewards(rows) == [0.9, -0.1, -0.1], "onto a target; from one to another; another box is in the way"
    assert text_of(env, state)[1] == "#  +*$ #"
    env, state = begin(tmp_path, "########\n#@$.  .#\n#    $ #\n########")
    state, rows = play(env, state, RIGHT, RIGHT)
    assert rewards(rows) == [0.9, -1.1], "onto a target and off it again"
    assert text_of(env, state)[1] == "#  +$ .#"


def test_the_last_box_ends_it_and_the_next_level_begins(tmp_path):
    env, state = begin(tmp_path, BOARD)
    env.autoreset = False
    solving = [RIGHT, RIGHT, RIGHT]  # the upper box to its target
    state, rows = play(env, state, *solving)
    assert rewards(rows) == [-0.1, -0.1, 0.9] and text_of(env, state)[1] == "#   @* #"
    state, rows = play(env, state, LEFT, DOWN)
    assert rewards(rows) == [-0.1, 10.9], "1 for the box, 10 for all"
    assert rows[-1].discounts == 0 and rows[-1].episode_ends and not rows[-1].truncations
    assert text_of(env, state)[3] == "# **   #"
    env, state = begin(tmp_path, BOARD)
    state, rows = play(env, state, *solving, LEFT, DOWN)
    assert rows[-1].is_first and rows[-1].discounts == 0 and text_of(env, state) == BOARD.split("\n")[1:6]


def test_the_edge_of_a_board_without_walls_holds(tmp_path):
    env, state = begin(tmp_path, "@$\n. ")
    before = text_of(env, state)
    state, rows = play(env, state, UP, LEFT, RIGHT)
    assert text_of(env, state) == before and rewards(rows) == [-0.1] * 3


def test_the_time_limit_is_no_end(tmp_path):
    env, state = begin(tmp_path, BOARD)
    state, rows = play(env, state, *[UP] * 119)
    assert not any(row.episode_ends for row in rows)
    state, (row,) = play(env, state, DOWN)
    assert row.truncations and row.episode_ends and row.discounts == 1 and row.is_first
    assert row.final_observations[0, 0].nonzero().tolist() == [[2, 1]], "the last one of the episode"
    assert row.observations[0, 0].nonzero().tolist() == [[1, 1]]
    env, state = begin(tmp_path, BOARD, limit=2)
    assert play(env, state, UP, UP)[1][1].truncations


def test_observations_and_the_picture(tmp_path):
    env, state = begin(tmp_path, BOARD)
    planes = env.observe(state.levels, state.episode)
    assert env.observation_example.shape == (4, 5, 8) and planes.shape == (1, 4, 5, 8) and planes.dtype == torch.float32
    marks = [{tuple(cell) for cell in plane.nonzero().tolist()} for plane in planes[0]]
    assert marks[0] == {(1, 1)} and len(marks[1]) == 23 and marks[2] == {(1, 5), (3, 2), (3, 3)}
    assert marks[3] == {(1, 3), (2, 3), (3, 2)}
    image = env.render(state)
    assert image.shape == (80, 128, 3) and np.array_equal(
        image, draw_planes(env.picture(state.levels, state.episode)[0].numpy())
    )
    colours = [tuple(image[16 * row, 16 * column]) for row, column in ((1, 1), (0, 0), (1, 5), (1, 3), (3, 2), (1, 2))]
    assert colours == [(255,) * 3, (110,) * 3, (240, 190, 40), (220, 60, 60), (70, 170, 90), (32,) * 3]


def test_every_episode_draws_a_level(tmp_path):
    boards = [f"#####\n#{row}#\n#####" for row in ("@$.", ".$@")]
    env = Sokoban(64, levels=file_of(tmp_path, *boards), limit=1)
    generator = torch.Generator().manual_seed(0)
    state, _ = env.reset(generator)
    drawn = [state.episode.player]
    for _ in range(20):
        state, _ = env.step(state, torch.full((64,), UP), generator)
        drawn.append(state.episode.player)
    cells, counts = torch.stack(drawn).unique(return_counts=True)
    assert cells.tolist() == [6, 8] and (counts > 500).all() and env.num_levels == 2


def by_the_rules(rows: list[str], action: int) -> tuple[list[str], float]:
    """A step on a board as text, cell by cell, and its reward."""
    board = {(i, j): SIGNS[sign] for i, row in enumerate(rows) for j, sign in enumerate(row)}
    (place,) = [cell for cell, kinds in board.items() if kinds & PLAYER]
    to, behind = (tuple(np.add(place, np.multiply(MOVES[action], far)).tolist()) for far in (1, 2))
    on_targets = sum(kinds == BOX | TARGET for kinds in board.values())
    if board[to] & BOX and not board[behind] & (WALL | BOX):
        board[to], board[behind] = board[to] - BOX, board[behind] + BOX
    if not board[to] & (WALL | BOX):
        board[place], board[to] = board[place] - PLAYER, board[to] + PLAYER
    now = sum(kinds == BOX | TARGET for kinds in board.values())
    solved = now == sum(bool(kinds & BOX) for kinds in board.values())
    text = ["".join(NAMES[board[i, j]] for j in range(len(row))) for i, row in enumerate(rows)]
    return text, now - on_targets + 10.0 * solved - 0.1


def test_random_games_by_the_rules():
    env, generator = Sokoban(1, num_levels=30, size=7, boxes=3), torch.Generator().manual_seed(0)
    env.autoreset = False
    pushes = 0
    for level in range(30):
        state, _ = env.start(torch.zeros(1, 0), torch.full((1, 1), (level + 0.5) / 30))
        for action in torch.randint(4, (60,), generator=generator).tolist():
            board, reward = by_the_rules(text_of(env, state), action)
            before = state.episode.boxes
            state, (row,) = play(env, state, action)
            assert text_of(env, state) == board and row.rewards.item() == pytest.approx(reward)
            pushes += bool((before != state.episode.boxes).any())
            if row.discounts == 0:
                break
            assert reward < 9
    assert pushes > 100


def test_same_numbers_same_game():
    env = Sokoban(32, num_levels=50, size=7, boxes=2)
    generator = torch.Generator().manual_seed(0)
    state, row = env.reset(generator)
    for _ in range(130):
        actions = torch.randint(4, (32,), generator=generator)
        uniforms = torch.rand(32, env.step_draws + env.episode_draws, generator=generator)
        kept = pytree.tree_map(lambda x: x.clone(), (state, actions, uniforms))
        state, row = env.step_with(state, actions, uniforms)
        again, part = env.step_with(*kept), env.step_with(*pytree.tree_map(lambda x: x[5:9], kept))
        for whole, other, piece in zip(*map(pytree.tree_leaves, ((state, row), again, part)), strict=True):
            assert torch.equal(whole, other) and torch.equal(whole[5:9], piece)


def test_nothing_is_read_back():
    env = Sokoban(4, num_levels=5, size=6, boxes=1, device="meta")
    state, _ = env.start(torch.empty(4, 0, device="meta"), torch.empty(4, 1, device="meta"))
    env.step_with(state, torch.empty(4, dtype=torch.long, device="meta"), torch.empty(4, 1, device="meta"))


def way(walls: set[int], start: int, goal: int, size: int) -> list[int]:
    """The actions of a shortest walk."""
    seen, queue = {start: []}, deque([start])
    while queue:
        cell = queue.popleft()
        if cell == goal:
            return seen[cell]
        for action, (row, column) in enumerate(MOVES):
            to = cell + row * size + column
            if to not in seen and to not in walls:
                seen[to] = [*seen[cell], action]
                queue.append(to)
    raise AssertionError("no way")


def solve(env: Sokoban, state, pushes: list[list[int]]) -> int:
    """Steps of a solution: before each push the player walks there. It may be solved before the last push."""
    steps = 0
    for box, direction in pushes:
        if box < 0:
            continue
        row, column = MOVES[direction]
        blocked = (state.episode.walls | state.episode.boxes)[0].nonzero().flatten().tolist()
        walk = way(set(blocked), int(state.episode.player[0]), box - row * env.columns - column, env.columns)
        for action in [*walk, direction]:
            state, (row_,) = play(env, state, action)
            steps += 1
        if row_.discounts == 0:
            assert row_.rewards > 9
            return steps
    raise AssertionError("not solved")


@pytest.mark.parametrize("arguments", [{"size": 10, "boxes": 4}, {"size": 7, "boxes": 1, "split": "held-out"}])
def test_levels_that_are_made_are_solved_by_their_pushes(arguments):
    levels, pushes = generate_levels(40, **arguments)
    env = Sokoban(1, num_levels=len(levels), **arguments)
    assert torch.equal(env.boards, levels.flatten(1))
    lengths = []
    for index in range(40):
        state, _ = env.start(torch.zeros(1, 0), torch.full((1, 1), (index + 0.5) / len(levels)))
        lengths.append(solve(env, state, pushes[index].tolist()))
    assert max(lengths) <= 120 and min(lengths) >= arguments["boxes"]


@pytest.mark.parametrize(("split", "remainders"), [("train", {2, 3, 4}), ("validation", {1}), ("held-out", {0})])
def test_levels_and_the_split(split, remainders):
    levels, _ = generate_levels(200, size=8, boxes=2, split=split)
    walls, targets, boxes, players = (((levels & kind) > 0).flatten(1) for kind in (WALL, TARGET, BOX, PLAYER))
    assert set(((walls.sum(1) + (targets * torch.arange(64)).sum(1)) % 5).tolist()) == remainders
    assert (boxes.sum(1) == 2).all() and (targets.sum(1) == 2).all() and (players.sum(1) == 1).all()
    assert not (boxes & targets).any() and not (walls & (boxes | targets | players)).any()
    border = walls.unflatten(1, (8, 8))
    assert border[:, [0, -1]].all() and border[:, :, [0, -1]].all()
    assert len({level.tobytes() for level in levels.numpy()}) == 200
    again, _ = generate_levels(200, size=8, boxes=2, split=split, seed=1)
    assert not torch.equal(levels, again)


def test_files_are_read_as_they_were_written(tmp_path):
    levels, _ = generate_levels(20)
    write_levels(tmp_path / "b.txt", levels[:12].numpy())
    write_levels(tmp_path / "c.txt", levels[12:].numpy())
    (tmp_path / "notes.md").write_text("no levels")
    assert np.array_equal(read_levels(tmp_path / "b.txt"), levels[:12].numpy())
    assert np.array_equal(read_levels(tmp_path), levels.numpy())
    text = (tmp_path / "b.txt").read_text()
    assert text.startswith("; 0\n##########\n")
    (tmp_path / "b.txt").write_bytes(text.replace("\n", "\r\n").encode())
    assert np.array_equal(read_levels(tmp_path / "b.txt"), levels[:12].numpy())
    env = make_env("sokoban", 3, levels=str(tmp_path), frame_stack=4)
    assert env.observation_example.shape == (4, 4, 10, 10)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("; 0\n#####\n#@$.\n#####\n", r"line 3 of .*x.txt must have 5 characters, got 4: '#@\$.'"),
        (
            "#####\n#@$.#\n#####\n\n; 1\n#####\n#@$.#\n",
            r"the level at line 6 of .*x.txt must have 3 lines as the others, got 2",
        ),
        ("#####\n#@$.#\n####x\n", r"line 3 of .*x.txt must be made of ' ' '#' .*got another character at column 5"),
        ("#####\n# $.#\n#####\n", r"the level at line 1 of .*x.txt must have one player, got 0"),
        (
            "#####\n#@$.#\n#####\n\n#####\n#@$ #\n#####\n",
            r"at line 5 of .*must have as many targets as boxes, at least one, got 0 and 1",
        ),
        ("#####\n#@* #\n#####\n", r"at line 1 of .*must have a box that is not on a target yet, got none"),
        ("; nothing\n\n", r"x.txt holds no level; a level is a block of lines"),
        ("#####\n#@$é#\n#####\n", r"x.txt cannot be read as text of ASCII"),
    ],
)
def test_files_that_are_no_levels(text, message, tmp_path):
    (tmp_path / "x.txt").write_text(text)
    with pytest.raises(ValueError, match=message):
        make_env("sokoban", 1, levels=str(tmp_path / "x.txt"))


def test_errors(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"`levels` must be a file of Sokoban levels or a folder .*which is not there"):
        Sokoban(1, levels=str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"`levels` must be a folder with files \*.txt, got .*which has none"):
        Sokoban(1, levels=str(tmp_path))
    for name, value in (("size", 7), ("boxes", 2), ("num_levels", 5), ("split", "held-out")):
        with pytest.raises(ValueError, match=rf"`{name}` of sokoban must be left out where `levels` are read from files"):
            Sokoban(1, levels=file_of(tmp_path, BOARD), **{name: value})
    with pytest.raises(ValueError, match=r"`level_seed` of sokoban must be an integer, got None"):
        Sokoban(1, level_seed=None)
    with pytest.raises(ValueError, match=r"`boxes` must lie in 1 .. 4 on boards of size 5, .*got 5"):
        Sokoban(1, size=5, boxes=5)
    with pytest.raises(ValueError, match=r"`size` must be at least 5, got 4"):
        Sokoban(1, size=4)
    monkeypatch.setattr(sokoban_generator, "BATCH", 64)
    monkeypatch.setattr(sokoban_generator, "MAX_IN_VAIN", 2)
    with pytest.raises(ValueError, match=r"`num_levels` must be levels that there are, got 2000 of size 5 with 1 boxes"):
        generate_levels(2000, size=5, boxes=1, longest=1)
    with pytest.raises(ValueError, match=r"`sokoban` takes .*frame_stack, got 'colour'"):
        make_env("sokoban", 1, colour=1)
