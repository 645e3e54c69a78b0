"""Frames that are stored once: what is sampled equals what a replay of whole stacks gives, bit for bit."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from disco_torch.data import Replay, add_rollout, collect, empty_replay, init_actor, sample_rollout
from disco_torch.data.frames import compact, expand
from disco_torch.envs import Atari, AtariConfig, FrameStack
from disco_torch.types import Rollout, flatten_tree, tree_map

A = 2
Padding = Literal["zeros", "first"]


class Playing:
    """Episodes of random frames in parallel, which end at random, by a terminal state or a time limit."""

    def __init__(self, batch: int, stack: FrameStack, generator: torch.Generator, shape: tuple[int, ...] = (2,)) -> None:
        self.batch, self.stack, self.generator, self.shape = batch, stack, generator, shape
        self.frames: list[list[Tensor]] = [[] for _ in range(batch)]
        self.over = [True] * batch

    def frame(self) -> Tensor:
        # Few values, so that frames of different episodes are often the same.
        return torch.randint(0, 2, self.shape, generator=self.generator, dtype=torch.uint8)

    def rollout(self, rows: int, dictionary: bool = False) -> Rollout:
        parts = [self.row() for _ in range(rows)]
        observations, discounts, truncations = (torch.stack(x) for x in zip(*parts, strict=True))
        rewards = torch.rand(rows, self.batch, generator=self.generator)
        actions = torch.randint(A, (rows, self.batch), generator=self.generator)
        logits = torch.rand(rows, self.batch, A, generator=self.generator)
        shown = {"speed": rewards.unsqueeze(-1), "view": observations} if dictionary else observations
        return Rollout(shown, actions, rewards, discounts, logits, truncations)

    def row(self) -> tuple[Tensor, Tensor, Tensor]:
        """[B, k, *shape], and discounts and truncations [B], as an environment that resets in a step of its own."""
        size, ended = self.stack.size, torch.rand(self.batch, generator=self.generator) < 0.3
        is_limit = torch.rand(self.batch, generator=self.generator) < 0.5
        stacks = []
        for i in range(self.batch):
            if self.over[i]:
                frame = self.frame()
                padding = frame if self.stack.padding == "first" else torch.zeros_like(frame)
                self.frames[i] = [padding] * (size - 1) + [frame]
            else:
                self.frames[i].append(self.frame())
            stacks.append(torch.stack(self.frames[i][-size:]))
        begins = torch.tensor(self.over)
        ended = ended & ~begins
        self.over = ended.tolist()
        return torch.stack(stacks), (~(begins | (ended & ~is_limit))).float(), ended & is_limit


def assert_same(x: Any, y: Any) -> None:
    (left, structure), (right, other) = flatten_tree(x), flatten_tree(y)
    assert structure == other and all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(left, right, strict=True))


@given(
    size=st.integers(2, 5),
    rows=st.integers(2, 7),
    batch=st.integers(1, 3),
    extra=st.integers(0, 4),
    padding=st.sampled_from(["zeros", "first"]),
    dictionary=st.booleans(),
    memory=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_what_is_sampled_is_what_a_replay_of_whole_stacks_gives(
    size: int, rows: int, batch: int, extra: int, padding: Padding, dictionary: bool, memory: bool, seed: int
) -> None:
    """Over ends, time limits and the end of the ring, into which up to three times as much is written as it holds."""
    stack, generator = FrameStack(size, padding), torch.Generator().manual_seed(seed)
    playing = Playing(batch, stack, generator)
    view = torch.zeros(size, 2, dtype=torch.uint8)
    example = {"speed": torch.zeros(1), "view": view} if dictionary else view
    stacks = {"observation/view" if dictionary else "observation": stack}
    own_memory = (torch.zeros(3),) if memory else None
    once, whole = (
        Replay(batch + extra, rows, example, A, memory_example=own_memory, frame_stacks=each) for each in (stacks, None)
    )
    for _ in range(1 + 3 * (batch + extra) // batch):
        rollout = playing.rollout(rows, dictionary)
        if memory:
            rollout.first_state = (torch.rand(batch, 3, generator=generator),)
        once.add(rollout)
        whole.add(rollout)
        draws = [each.sample(6, torch.Generator().manual_seed(seed), num_fresh=2) for each in (once, whole)]
        assert_same(*draws)
    other = Replay(batch + extra, rows, example, A, memory_example=own_memory, frame_stacks=stacks)
    other.load_state_dict(once.state_dict())
    assert_same(*[each.sample(6, torch.Generator().manual_seed(1)) for each in (other, whole)])


@given(st.integers(2, 4), st.integers(2, 5), st.sampled_from(["zeros", "first"]), st.integers(0, 10**6))
def test_rings_of_a_population_store_frames_once(size: int, rows: int, padding: Padding, seed: int) -> None:
    stack, generator = FrameStack(size, padding), torch.Generator().manual_seed(seed)
    agents = [Playing(2, stack, generator, shape=(2, 1)) for _ in range(3)]
    stacks = {"observation": stack}

    def rollouts() -> Rollout:
        return tree_map(lambda *xs: torch.stack(xs), *[agent.rollout(rows) for agent in agents])  # [P, rows, B, ...]

    first = rollouts()
    once, whole = empty_replay(5, compact(first, stacks)[0]), empty_replay(5, first)
    for _ in range(4):
        new = rollouts()
        stored, is_whole = compact(new, stacks)
        assert is_whole and stored.observations.shape == (3, rows, 2, 2, 1)
        once, whole = add_rollout(once, stored), add_rollout(whole, new)
        uniforms = torch.rand(3, 4, generator=generator)
        assert_same(expand(sample_rollout(once, uniforms, 2), stacks), sample_rollout(whole, uniforms, 2))


def test_nothing_is_read_back_from_the_device() -> None:
    stacks = {"observation": FrameStack(3, "zeros")}
    rollout = Playing(2, stacks["observation"], torch.Generator().manual_seed(0)).rollout(4)
    rollout = tree_map(lambda x: x.to("meta"), rollout)
    stored, is_whole = compact(rollout, stacks)
    state = add_rollout(empty_replay(4, stored), stored)
    drawn = expand(sample_rollout(state, torch.empty(3, device="meta")), stacks)
    assert drawn.observations.shape == (4, 3, 3, 2) and is_whole.device.type == "meta"


def atari_rollout(replay: Replay, whole: Replay, game: str, rows: int, rollouts: int, **settings: Any) -> int:
    """Random play, into both replays; returns the number of episodes."""
    env, generator = Atari(game, 3, AtariConfig(**settings), num_threads=1), torch.Generator().manual_seed(3)
    agent = UniformAgent(env.num_actions)
    actor, ended = init_actor(agent, env, generator), 0
    for _ in range(rollouts):
        rollout, actor, episodes = collect(agent, {}, env, actor, rows, generator)
        replay.add(rollout)
        whole.add(rollout)
        ended += int(episodes.ends.sum())
    env.close()
    return ended


class UniformAgent:
    def __init__(self, num_actions: int) -> None:
        self.num_actions = num_actions

    def initial_state(self, batch_size: int) -> None:
        return None

    def act(self, params: Any, observations: Tensor, generator: Any = None, *rest: Any) -> tuple[Tensor, Tensor, None]:
        logits = torch.zeros(observations.shape[0], self.num_actions)
        return torch.randint(self.num_actions, logits.shape[:1], generator=generator), logits, None


@pytest.mark.parametrize(
    ("game", "settings"),
    [
        ("breakout", {"lost_life_ends_return": True}),
        ("breakout", {"max_frames": 60, "fire_reset": True}),
        ("pong", {"max_frames": 100, "grayscale": False, "height": 32, "width": 40, "stack": 3}),
    ],
)
def test_games_come_back_as_they_were_played(game: str, settings: dict[str, Any]) -> None:
    rows, env = 20, Atari(game, 1, AtariConfig(**settings), num_threads=1)
    example, stacks = env.observation_example, env.frame_stacks
    replay, whole = (Replay(10, rows, example, env.num_actions, frame_stacks=each) for each in (stacks, None))
    assert atari_rollout(replay, whole, game, rows, 10, **settings) >= 2
    for seed in range(5):
        assert_same(*[each.sample(8, torch.Generator().manual_seed(seed), num_fresh=3) for each in (replay, whole)])
    assert whole.num_bytes > 2.5 * replay.num_bytes


@pytest.mark.parametrize(("size", "shape", "first_steps"), [(4, (84, 84), False), (2, (3,), True)])
def test_the_memory_is_what_it_says(size: int, shape: tuple[int, ...], first_steps: bool) -> None:
    example = torch.zeros(size, *shape, dtype=torch.uint8)
    stacks = {"observation": FrameStack(size, "zeros")}
    replay = Replay(7, 5, example, A, memory_example=torch.zeros(6), first_steps=first_steps, frame_stacks=stacks)
    real = sum(leaf.untyped_storage().nbytes() for leaf in flatten_tree(replay.state.trajectories)[0])
    frame = example[0].numel()
    assert real == replay.num_bytes == 7 * (5 * (frame + 4 * A + 10 + first_steps + 1) + (size - 1) * frame + 24)


def test_the_replay_of_the_paper_takes_14_gigabytes() -> None:
    """1.76 million steps in trajectories of 30 rows, of a game with all 18 actions."""
    stacks = {"observation": FrameStack(4, "zeros")}
    replay = Replay(10, 30, torch.zeros(4, 84, 84, dtype=torch.uint8), 18, first_steps=True, frame_stacks=stacks)
    needed = replay.num_bytes / 10 * (1_760_000 / 30)
    assert 13e9 < needed < 14e9
    whole = Replay(10, 30, torch.zeros(4, 84, 84, dtype=torch.uint8), 18, first_steps=True)
    assert whole.num_bytes > 3.6 * replay.num_bytes


@pytest.mark.parametrize("padding", ["zeros", "first"])
def test_what_is_no_stack_of_frames_is_refused(padding: Padding) -> None:
    """Wrong stacks would be worse than memory: a row that could not be put together again raises."""
    stack = FrameStack(3, padding)
    rollout = Playing(4, stack, torch.Generator().manual_seed(2), shape=(20,)).rollout(6)
    replay = Replay(8, 6, torch.zeros(3, 20, dtype=torch.uint8), A, frame_stacks={"observation": stack})
    replay.add(rollout)
    wrong = rollout.observations.clone()
    wrong[3, 2, 1] ^= 1
    with pytest.raises(ValueError, match=r"`observation` must be a stack of frames.* in row 3 of trajectory 2; leave"):
        replay.add(dataclasses.replace(rollout, observations=wrong))
    assert len(replay) == 4


@pytest.mark.parametrize(("size", "padding", "message"), [(1, "zeros", "`size` must be at least 2"), (2, "x", "`padding`")])
def test_stacks_that_there_are_not(size: int, padding: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FrameStack(size, padding)
