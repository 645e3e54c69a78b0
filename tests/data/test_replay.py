"""The replay: a ring that keeps the newest, gives them back as they came, and takes no more memory than it says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from disco_torch.data import Replay
from disco_torch.data import capacity as capacity_module
from disco_torch.data.capacity import free_memory
from disco_torch.types import Rollout, flatten_tree, tree_leaves

ROWS, A = 4, 3


def numbered(first: int, batch: int, rows: int = ROWS) -> Rollout:
    """Trajectories `first`, `first + 1`, ...; each number of a trajectory names it and its row."""
    number = torch.arange(first, first + batch).float().expand(rows, batch)  # [rows, B]
    row = torch.arange(rows).float()[:, None]
    return Rollout(
        observations=torch.stack([number, row.expand(rows, batch)], dim=-1),
        actions=((number + row) % A).long(),
        rewards=number + row / 10,
        discounts=((number + row) % 3 > 0).float(),
        behaviour_logits=torch.stack([number, row - number, row.expand(rows, batch)], dim=-1),
    )


def ring(capacity: int, **kwargs: Any) -> Replay:
    return Replay(capacity, ROWS, kwargs.pop("example", torch.zeros(2)), A, **kwargs)


def stored(replay: Replay) -> list[int]:
    """The numbers of the trajectories in the ring."""
    drawn = replay.sample(4000, torch.Generator().manual_seed(0))
    return sorted(set(drawn.observations[0, :, 0].int().tolist()))


def test_what_went_in_comes_out() -> None:
    replay = ring(10)
    replay.add(numbered(0, 3))
    replay.add(numbered(3, 4))
    drawn = replay.sample(50, torch.Generator().manual_seed(1))
    whole = numbered(0, 7)
    which = drawn.observations[0, :, 0].long()
    assert which.unique().tolist() == list(range(7))
    for name in ("observations", "actions", "rewards", "discounts", "behaviour_logits"):
        got, expected = getattr(drawn, name), getattr(whole, name)[:, which]
        assert torch.equal(got, expected.to(got.dtype)), name
    assert drawn.rewards.shape == (ROWS, 50) and drawn.discounts.dtype == torch.float32
    assert drawn.first_state is None


def test_the_oldest_are_overwritten_first() -> None:
    replay = ring(5)
    replay.add(numbered(0, 2))
    assert len(replay) == 2 and stored(replay) == [0, 1]
    replay.add(numbered(2, 2))
    assert len(replay) == 4 and stored(replay) == [0, 1, 2, 3]
    replay.add(numbered(4, 2))  # across the end of the ring
    assert len(replay) == 5 and stored(replay) == [1, 2, 3, 4, 5]
    replay.add(numbered(6, 5))
    assert stored(replay) == [6, 7, 8, 9, 10]


def test_the_newest_are_counted_without_newer_ones() -> None:
    replay = ring(5)
    replay.add(numbered(0, 4))

    def fresh(number: int, newer: int) -> list[float]:
        return replay.sample(number, None, number, newer).rewards[0].tolist()

    newest_first = numbered(0, 4).rewards[0].flip(0).tolist()
    assert fresh(2, 0) == newest_first[:2] and fresh(2, 2) == newest_first[2:] and fresh(1, 1) == newest_first[1:2]
    assert fresh(3, 2) == [*newest_first[2:], newest_first[0]], "of those that there are, again from the newest on"


def test_bytes_stay_bytes_and_dictionaries_dictionaries() -> None:
    example = {"image": torch.zeros(2, 3, dtype=torch.uint8), "speed": torch.zeros(1)}
    replay = Replay(4, ROWS, example, A)
    rollout = numbered(0, 2)
    image = torch.arange(ROWS * 2 * 6).reshape(ROWS, 2, 2, 3).to(torch.uint8)
    rollout.observations = {"image": image, "speed": rollout.rewards[..., None]}
    replay.add(rollout)
    newest = replay.sample(2, num_fresh=2)
    assert newest.observations["image"].dtype == torch.uint8
    assert torch.equal(newest.observations["image"], image.flip(1))
    assert torch.equal(newest.observations["speed"][..., 0], rollout.rewards.flip(1))


@pytest.mark.parametrize(
    ("example", "num_actions"),
    [
        (torch.zeros(8, 8), 3),
        (torch.zeros(84, 84, 4, dtype=torch.uint8), 18),
        ({"a": torch.zeros(5, dtype=torch.uint8), "b": (torch.zeros(2), torch.zeros(()))}, 1),
    ],
)
def test_memory_of_a_step(example: Any, num_actions: int) -> None:
    replay = Replay(7, 5, example, num_actions)
    observation_bytes = sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(example))
    assert replay.bytes_per_step <= observation_bytes + 4 * (num_actions + 3)
    real = sum(leaf.untyped_storage().nbytes() for leaf in flatten_tree(replay.state.trajectories)[0])
    assert real == replay.num_bytes == 7 * 5 * replay.bytes_per_step


def test_sampling_is_uniform() -> None:
    replay, draws = ring(20), 20_000
    replay.add(numbered(0, 12))  # a ring that is not full must not draw its empty part
    drawn = replay.sample(draws, torch.Generator().manual_seed(3)).observations[0, :, 0].long()
    counts = torch.bincount(drawn, minlength=20).float()
    assert (counts[12:] == 0).all()
    expected = draws / 12
    chi_square = ((counts[:12] - expected) ** 2 / expected).sum().item()
    assert chi_square < 31.3  # 0.1% of the chi-square distribution with 11 degrees of freedom lie above
    assert chi_square > 1.6  # and 0.05% below: the draws are random, not dealt out in turn


def test_the_generator_decides_the_draws() -> None:
    replay = ring(8)
    replay.add(numbered(0, 8))
    draws = [replay.sample(16, torch.Generator().manual_seed(seed)).rewards for seed in (5, 5, 6)]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


def newest_of(replay: Replay, batch_size: int, num_fresh: int) -> list[int]:
    drawn = replay.sample(batch_size, torch.Generator().manual_seed(0), num_fresh)
    return drawn.observations[0, :num_fresh, 0].int().tolist()


def test_the_fresh_ones_are_the_newest() -> None:
    replay = ring(5)
    replay.add(numbered(0, 3))
    assert newest_of(replay, 4, 2) == [2, 1]
    assert newest_of(replay, 5, 5) == [2, 1, 0, 2, 1]  # more than there are: again from the newest
    replay.add(numbered(3, 3))
    assert newest_of(replay, 6, 4) == [5, 4, 3, 2]
    assert newest_of(replay, 6, 0) == []
    replay.add(numbered(6, 1))
    assert newest_of(replay, 3, 3) == [6, 5, 4]
    assert set(replay.sample(100, torch.Generator(), 3).observations[0, 3:, 0].tolist()) == {2.0, 3.0, 4.0, 5.0, 6.0}


def leaves(replay: Replay) -> list[Tensor]:
    drawn = replay.sample(30, torch.Generator().manual_seed(9), num_fresh=3)
    found = [drawn.observations, drawn.actions, drawn.rewards, drawn.discounts, drawn.behaviour_logits]
    return found + ([] if drawn.truncations is None else [drawn.truncations])


@pytest.mark.parametrize("batches", [[2], [2, 2], [3, 3], [5, 5, 1]])
def test_a_replay_continues_exactly_from_its_state(batches: list[int], tmp_path: Any) -> None:
    replay, first = ring(5), 0
    for batch in batches:
        replay.add(numbered(first, batch))
        first += batch
    torch.save(replay.state_dict(), tmp_path / "replay.pt")
    again = ring(5)
    again.load_state_dict(torch.load(tmp_path / "replay.pt", weights_only=True))
    for _ in range(3):
        assert len(again) == len(replay)
        assert all(map(torch.equal, leaves(replay), leaves(again)))
        replay.add(numbered(first, 2))
        again.add(numbered(first, 2))
        first += 2


def test_a_state_holds_only_what_is_stored_and_no_view_of_it() -> None:
    replay = ring(100)
    replay.add(numbered(0, 2))
    tensors = replay.state_dict()["tensors"]
    assert set(tensors) == {"observations", "actions", "rewards", "discounts", "behaviour_logits", "truncations"}
    assert all(len(part) == 2 and part.untyped_storage().nbytes() == part.nbytes for part in tensors.values())
    before = tensors["observations"].clone()
    for first in range(2, 102, 2):
        replay.add(numbered(first, 2))
    assert torch.equal(tensors["observations"], before)


def test_a_state_has_the_oldest_trajectory_first() -> None:
    replay, names = ring(5), []
    for first in range(0, 12, 2):
        replay.add(numbered(first, 2))
        names.append(replay.state_dict()["tensors"]["observations"][:, 0, 0].int().tolist())
    assert names == [[0, 1], [0, 1, 2, 3], *([*range(last - 4, last + 1)] for last in (5, 7, 9, 11))]


def test_a_larger_replay_takes_a_state_up() -> None:
    small, large = ring(5), ring(8)
    for first in (0, 3, 6):
        small.add(numbered(first, 3))
        large.add(numbered(first, 3))
    again = ring(8)
    again.load_state_dict(small.state_dict())
    assert len(again) == 5 and stored(again) == stored(small) == [4, 5, 6, 7, 8]
    again.add(numbered(9, 2))
    assert stored(again) == [4, 5, 6, 7, 8, 9, 10] and newest_of(again, 7, 7) == [10, 9, 8, 7, 6, 5, 4]


def test_a_state_of_another_replay_is_refused() -> None:
    replay = ring(5)
    replay.add(numbered(0, 4))
    with pytest.raises(ValueError, match="`state` must hold at most 3 trajectories, the capacity, got 4; raise it"):
        ring(3).load_state_dict(replay.state_dict())
    message = r"`observations` of `state` must be \[4, 4, 3\] of torch.float32, got \[4, 4, 2\] of torch.float32; use the"
    with pytest.raises(ValueError, match=message):
        ring(5, example=torch.zeros(3)).load_state_dict(replay.state_dict())
    with pytest.raises(ValueError, match=r"must be \[4, 4, 2\] of torch.uint8, got \[4, 4, 2\] of torch.float32"):
        ring(5, example=torch.zeros(2, dtype=torch.uint8)).load_state_dict(replay.state_dict())
    names = r"`state` must hold the tensors \[.*'observations.image', .*\], got \[.*'observations', .*\]; use the same"
    with pytest.raises(ValueError, match=names):
        ring(5, example={"image": torch.zeros(2)}).load_state_dict(replay.state_dict())
    old = {"stored": [], "next": 0, "size": 0, "cuts": False}
    with pytest.raises(ValueError, match=r"`has_truncations` of `state`, a replay's `state_dict`, must be bool, got none"):
        ring(5).load_state_dict(old)
    assert len(replay) == 4


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match=r"`observations` must hold entries of shapes \[\(3,\)\], got \[\(2,\)\]"):
        ring(5, example=torch.zeros(3)).add(numbered(0, 2))
    with pytest.raises(ValueError, match=r"`first_state` must hold entries of shapes \[\(6,\)\], got \[\]; make the replay"):
        ring(5, memory_example=torch.zeros(6)).add(numbered(0, 2))


def test_truncations_are_carried_once_there_are_some() -> None:
    replay = ring(4)
    replay.add(numbered(0, 2))
    assert replay.sample(3).truncations is None
    cut = numbered(2, 1)
    cut.truncations = torch.tensor([[False], [True], [False], [False]])
    replay.add(cut)
    drawn = replay.sample(3, num_fresh=3)
    assert torch.equal(drawn.truncations[:, :1], cut.truncations) and not drawn.truncations[:, 1:].any()
    again = ring(4)
    again.load_state_dict(replay.state_dict())
    assert torch.equal(again.sample(3, num_fresh=3).truncations, drawn.truncations)


def test_the_memory_travels_with_its_trajectory() -> None:
    example = {"hidden": torch.zeros(6), "count": torch.zeros((), dtype=torch.long)}
    replay = ring(5, memory_example=example)
    for first in (0, 3):
        rollout = numbered(first, 3)
        number = rollout.observations[0, :, 0]
        rollout.first_state = {"hidden": number[:, None].expand(3, 6), "count": number.long()}
        replay.add(rollout)
    state = replay.state_dict()
    again = ring(5, memory_example=example)
    again.load_state_dict(state)
    for drawn in (replay.sample(20, torch.Generator()), again.sample(20, torch.Generator())):
        number = drawn.observations[0, :, 0]
        assert torch.equal(drawn.first_state["count"], number.long())
        assert torch.equal(drawn.first_state["hidden"], number[:, None].expand(20, 6))


def test_a_ring_that_does_not_fit_says_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    step = 2 * 4 + 4 * A + 10
    monkeypatch.setattr(capacity_module, "free_memory", lambda device: 1000 * ROWS * step + 1)
    assert ring(1000).num_bytes == 1000 * ROWS * step
    with pytest.raises(ValueError, match=r"`replay_capacity` of 4000 trajectories needs .* GiB on cpu.*at most 1000 fit"):
        ring(4000)


def test_the_free_memory_is_about_that_of_the_machine() -> None:
    assert 2**24 < free_memory(torch.device("cpu")) < 2**46


def test_wrong_uses_are_named() -> None:
    replay = ring(3)
    with pytest.raises(ValueError, match="the replay is empty; add rollouts before sampling"):
        replay.sample(1)
    with pytest.raises(ValueError, match="`rollout` must have 4 rows, got 5; collect rollouts of one length"):
        replay.add(numbered(0, 2, rows=5))
    with pytest.raises(ValueError, match="`rollout` must hold at most 3 trajectories, the capacity, got 4"):
        replay.add(numbered(0, 4))
    replay.add(numbered(0, 2))
    for num_fresh in (-1, 5):
        with pytest.raises(ValueError, match=rf"`num_fresh` must lie in 0 \.\. 4, got {num_fresh}"):
            replay.sample(4, num_fresh=num_fresh)
    with pytest.raises(ValueError, match="`capacity` must be at least 1 and `rows` at least 2, got 0 and 4"):
        ring(0)
    with pytest.raises(ValueError, match="got 4 and 1"):
        Replay(4, 1, torch.zeros(2), A)
