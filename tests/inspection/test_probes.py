"""Probes find what is there, and not what is noise."""

from __future__ import annotations

import math

import pytest
import torch

from disco_torch.inspection import Future, make_futures, measure_approach, measure_probes
from disco_torch.inspection.probes import AHEAD, steps_ahead

T, B = 40, 25


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_a_probe_finds_what_is_linearly_there_and_not_noise() -> None:
    source, other = noise(T, B, 8), noise(T, B, 8, seed=1)
    told = torch.stack([source[..., :3].sum(-1), noise(T, B, seed=2)], dim=-1)  # k = 0 is there, k = 1 is not
    probes = measure_probes({"source": source, "other": other}, [Future("x", told)])
    scores = {probe.source: probe.scores for probe in probes}
    assert scores["source"][0] > 0.9 and scores["source"][1] < 0.05
    assert max(scores["other"]) < 0.05


def test_a_probe_finds_what_is_not_linear() -> None:
    source = noise(T, B, 3)
    (probe,) = measure_probes({"source": source}, [Future("x", source[..., :1].square())])
    assert probe.scores[0] > 0.8


def test_events_are_scored_by_balanced_accuracy() -> None:
    source = noise(T, B, 4)
    event = (source[..., 0] > 1.0).float()  # 16% of the steps
    future = Future("event", torch.stack([event, (noise(T, B, seed=3) > 1.0).float()], dim=-1), is_event=True)
    (probe,) = measure_probes({"source": source}, [future])
    assert probe.is_event and probe.scores[0] > 0.9 and abs(probe.scores[1] - 0.5) < 0.08


def test_labels_that_are_missing_or_constant() -> None:
    values = torch.full((T, B, 3), math.nan)
    values[:, :, 0] = 1.0
    values[0, :3, 1] = noise(3)
    (probe,) = measure_probes({"source": noise(T, B, 2)}, [Future("x", values)])
    assert all(math.isnan(score) for score in probe.scores)  # constant, too few, none


def test_futures_stay_within_the_episode() -> None:
    x = torch.arange(5.0).unsqueeze(1)
    ends = torch.tensor([0, 0, 1, 0, 0]).bool().unsqueeze(1)
    found = steps_ahead(x, ends, 3)[:, 0]
    nan = math.nan
    expected = torch.tensor([[0.0, 1, 2], [1, 2, nan], [2, nan, nan], [3, 4, nan], [4, nan, nan]])
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_entropy_large_rewards_and_returns() -> None:
    rewards, ends = torch.zeros(30, 1), torch.zeros(30, 1, dtype=torch.bool)
    rewards[4], rewards[6], rewards[7], ends[7] = 1.0, 0.2, -3.0, True
    entropies = torch.arange(30.0).unsqueeze(1)
    entropy, large, returns = make_futures(rewards, ends, entropies, discount=0.5)
    assert [future.name for future in (entropy, large, returns)] == ["policy entropy", "large reward", "return"]
    assert entropy.values.shape == (30, 1, AHEAD + 1) and float(entropy.values[2, 0, 5]) == 7.0
    assert large.is_event and large.values[:, 0, 0].nonzero()[:, 0].tolist() == [4]
    assert float(large.values[1, 0, 3]) == 1.0
    assert float(returns.values[4, 0, 0]) == pytest.approx(1.0 + 0.25 * 0.2 + 0.125 * -3.0)
    assert float(returns.values[8, 0, 0]) == 0.0  # of the next episode
    assert returns.values[21:, 0, 0].isnan().all() and returns.values[20, 0, 0].isfinite()  # the data end before


def test_confidence_before_an_event() -> None:
    event = torch.zeros(30, 40)
    event[10::10] = 1.0
    future = Future("event", steps_ahead(event, torch.zeros(30, 40, dtype=torch.bool), 3), is_event=True)
    x = torch.zeros(30, 40)
    x[9::10], x[10::10] = 2.0, 5.0
    (found,) = measure_approach({"y": x}, future)
    assert found.before == [5.0, 2.0, 0.0] and found.mean == pytest.approx(float(x.mean()))
    (few,) = measure_approach({"y": x[:, :9]}, Future("event", future.values[:, :9], is_event=True))
    assert all(math.isnan(mean) for mean in few.before)


def test_too_few_trajectories() -> None:
    with pytest.raises(ValueError, match="`sources` must have at least 5 trajectories, one for each fold, got 4"):
        measure_probes({"source": noise(T, 4, 2)}, [Future("x", noise(T, 4, 1))])
    with pytest.raises(ValueError, match=r"`sources\['source'\]`"):
        measure_probes({"source": noise(T + 1, B, 2)}, [Future("x", noise(T, B, 1))])
