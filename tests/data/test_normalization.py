"""Input normalisation: statistics as NumPy has them, what they do to each kind of input, and what never counts."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from disco_torch.data import InputConfig, InputNormalizer, InputStats, NormalizedAgent, make_normalizer
from disco_torch.envs import Catch, GymnasiumEnvironment
from disco_torch.kernels import Recorded, Speed
from disco_torch.types import Rollout, flatten_tree, tree_map

B, A = 3, 2
KINDS = {
    "observation/image": "image",
    "observation/board": "unit",
    "observation/speed": "numbers",
    "observation/codes": "numbers",
}
EXAMPLE = {
    "image": torch.zeros(32, 32, dtype=torch.uint8),
    "board": torch.zeros(2, 2, dtype=torch.uint8),
    "speed": torch.zeros(2),
    "codes": torch.zeros(3, dtype=torch.uint8),
}


def normalizer(discount: float = 0.9, **changes: Any) -> InputNormalizer:
    usual = {"observations": "auto", "rewards": "normalized", "least_deviation": 1.0, "largest_deviation": 1.0}
    config = InputConfig(**(usual | changes))
    return InputNormalizer(config, KINDS, discount)  # type: ignore[arg-type]


def raw_rollout(seed: int, rows: int = 5, **changes: Any) -> Rollout:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(rows, B, *shape, generator=generator)

    def integers(high: int, *shape: int) -> Tensor:
        return torch.randint(high, (rows, B, *shape), generator=generator)

    observations = {
        "image": integers(256, 32, 32).byte(),
        "board": integers(2, 2, 2).byte(),
        "speed": normal(2) * torch.tensor([300.0, 1e-3]) + torch.tensor([1e4, 7.0]),
        "codes": integers(11, 3).byte(),
    }
    discounts = (torch.rand(rows, B, generator=generator) > 0.3).float()
    rollout = Rollout(observations, integers(A), 5.0 + 3.0 * normal(), discounts, normal(A))
    return dataclasses.replace(rollout, **changes)


def counted(norm: InputNormalizer, rollouts: list[Rollout]) -> InputStats:
    stats = norm.init(EXAMPLE, B)
    for rollout in rollouts:
        stats = norm.update(stats, rollout)
    return stats


def returns_by_hand(rollouts: list[Rollout], discount: float) -> np.ndarray:
    """Discounted returns at all rows, [all rows, B]; they begin anew behind an end or a time limit."""
    running, result = np.zeros(B), []
    for rollout in rollouts:
        ends = rollout.discounts.numpy() == 0
        ends = ends if rollout.truncations is None else ends | rollout.truncations.numpy()
        for rewards, ended in zip(rollout.rewards.double().numpy(), ends, strict=True):
            result.append(discount * running + rewards)
            running = np.where(ended, 0.0, result[-1])
    return np.stack(result)


def test_statistics_are_those_of_numpy_over_many_rollouts() -> None:
    rollouts = [raw_rollout(seed, rows) for seed, rows in enumerate((5, 2, 7, 3, 16, 5))]
    norm = normalizer()
    stats = counted(norm, rollouts)
    assert list(stats.observations) == ["observation/speed", "observation/codes"]
    for name, moments in stats.observations.items():
        leaf = name.removeprefix("observation/")
        numbers = np.concatenate([r.observations[leaf].double().flatten(0, 1).numpy() for r in rollouts])
        assert float(moments.count) == len(numbers) and moments.mean.dtype == torch.float64
        np.testing.assert_allclose(moments.mean, numbers.mean(0), rtol=1e-12)
        np.testing.assert_allclose(moments.square / moments.count, numbers.var(0), rtol=1e-9)
        np.testing.assert_allclose(moments.deviation(), np.sqrt(numbers.var(0) + 1e-8), rtol=1e-9)
    assert stats.rewards is not None and stats.returns is not None
    returns = returns_by_hand(rollouts, 0.9)
    np.testing.assert_allclose(stats.rewards.deviation(), np.sqrt(returns.var() + 1e-8), rtol=1e-9)
    ended = rollouts[-1].discounts[-1].numpy() == 0
    np.testing.assert_allclose(stats.returns, np.where(ended, 0.0, returns[-1]), rtol=1e-12)


def test_a_constant_far_from_zero_becomes_zero() -> None:
    rollout = raw_rollout(0)
    rollout.observations["speed"] = torch.full_like(rollout.observations["speed"], 12345.678)
    norm = normalizer()
    seen = norm.normalize_observations(norm.snapshot(counted(norm, [rollout, rollout, rollout])), rollout.observations)
    assert (seen["speed"] == 0).all()


def test_what_each_kind_of_leaf_becomes() -> None:
    rollouts = [raw_rollout(seed) for seed in range(20)]
    norm, raw = normalizer(), rollouts[0].observations
    snapshot = norm.snapshot(counted(norm, rollouts))
    seen = norm.normalize_observations(snapshot, raw)
    assert seen["image"].dtype == torch.uint8 and torch.equal(seen["image"], raw["image"])  # the agent divides by 255
    assert seen["board"].dtype == torch.float32 and torch.equal(seen["board"], raw["board"].float())
    everything = torch.cat([norm.normalize_observations(snapshot, r.observations)["speed"] for r in rollouts]).flatten(0, 1)
    torch.testing.assert_close(everything.mean(0), torch.zeros(2), atol=1e-2, rtol=0)
    torch.testing.assert_close(everything.std(0), torch.ones(2), atol=1e-2, rtol=0)
    assert seen["codes"].dtype == torch.float32 and seen["codes"].abs().max() < 3
    far = norm.normalize_observations(snapshot, raw | {"speed": raw["speed"] * 1e6})
    assert far["speed"].abs().max() == 10.0
    near = normalizer(clip=0.5).normalize_observations(snapshot, raw)
    assert near["speed"].abs().max() == 0.5


def test_deviations_are_brought_between_their_bounds() -> None:
    """300, 0.4 and 0.001 become 1, 0.4 and 0.1: what is neither large nor small keeps its scale."""
    scales = torch.tensor([300.0, 0.4, 1e-3])
    speed = torch.randn(2000, B, 3, generator=torch.Generator().manual_seed(0)) * scales + 7.0
    config = InputConfig(observations="auto")
    norm = InputNormalizer(config, {"observation": "numbers"})
    rollout = dataclasses.replace(raw_rollout(0), observations=speed, rewards=torch.zeros(2000, B))
    snapshot = norm.snapshot(norm.update(norm.init(torch.zeros(3), B), rollout))
    seen = norm.normalize_observations(snapshot, speed).flatten(0, 1)
    torch.testing.assert_close(seen.std(0), torch.tensor([1.0, 0.4, 0.1]), rtol=0.05, atol=0)
    torch.testing.assert_close(seen.mean(0), torch.zeros(3), rtol=0, atol=1e-3)


@pytest.mark.parametrize(("scale", "becomes"), [(100.0, 1.0), (0.4, 0.4), (1e-3, 0.1)])
def test_so_is_the_deviation_of_the_returns(scale: float, becomes: float) -> None:
    norm = InputNormalizer(InputConfig(rewards="normalized"), {"observation": "unit"}, discount=0.0)
    rewards = scale * torch.randn(2000, B, generator=torch.Generator().manual_seed(0))
    rollout = dataclasses.replace(raw_rollout(0), observations=rewards[..., None], rewards=rewards, discounts=rewards**2)
    seen = norm.normalize_rollout(norm.snapshot(norm.update(norm.init(torch.zeros(1), B), rollout)), rollout)
    assert float(seen.rewards.std()) == pytest.approx(becomes, rel=0.05)
    assert torch.equal(seen.observations, rollout.observations)


def test_before_anything_was_counted_inputs_are_as_they_are() -> None:
    norm, rollout = normalizer(clip=1e9), raw_rollout(0)
    seen = norm.normalize_rollout(norm.snapshot(norm.init(EXAMPLE, B)), rollout)
    for name, leaf in rollout.observations.items():
        assert torch.equal(seen.observations[name].float(), leaf.float()), name
    assert torch.equal(seen.rewards, rollout.rewards)
    assert seen.actions is rollout.actions and seen.discounts is rollout.discounts


@pytest.mark.parametrize(
    ("changes", "factor", "limit"),
    [
        ({"rewards": "raw"}, 1.0, 1e9),
        ({"rewards": "scaled", "reward_scale": 0.25}, 0.25, 1e9),
        ({"rewards": "clipped", "reward_clip": 2.0}, 1.0, 2.0),
    ],
)
def test_rewards_without_statistics(changes: dict[str, Any], factor: float, limit: float) -> None:
    norm, rollout = normalizer(**changes), raw_rollout(0)
    stats = counted(norm, [rollout])
    assert stats.rewards is None and stats.returns is None and norm.restart(stats) is stats
    seen = norm.normalize_rollout(norm.snapshot(stats), rollout)
    torch.testing.assert_close(seen.rewards, (rollout.rewards * factor).clamp(-limit, limit))


def test_normalised_rewards_are_divided_and_keep_their_sign() -> None:
    norm, rollouts = normalizer(), [raw_rollout(seed) for seed in range(4)]
    snapshot = norm.snapshot(counted(norm, rollouts))
    deviation = np.sqrt(returns_by_hand(rollouts, 0.9).var() + 1e-8)
    got = norm.normalize_rewards(snapshot, rollouts[0].rewards)
    torch.testing.assert_close(got, rollouts[0].rewards / float(deviation))
    assert norm.normalize_rewards(snapshot, torch.tensor([-1e9, 1e9])).tolist() == [-10.0, 10.0]


def test_rows_that_no_step_led_to_do_not_count_as_returns() -> None:
    """An environment that resets in a step of its own: row 2 shows the last observation, row 3 came of the reset."""
    rows = {"rewards": torch.tensor([0.0, 2.0, 4.0, 0.0, 6.0]), "discounts": torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0])}
    executed = torch.tensor([True, True, False, True, True])
    rollout = raw_rollout(
        0, executed=executed[:, None].expand(5, B), **{n: x[:, None].expand(5, B) for n, x in rows.items()}
    )
    norm = normalizer(discount=0.5)
    stats = counted(norm, [rollout])
    assert stats.rewards is not None and stats.returns is not None and stats.executed is not None
    returns = np.array([0.0, 2.0, 5.0, 6.0])  # of row 3, nothing
    assert float(stats.rewards.count) == len(returns) * B
    np.testing.assert_allclose(float(stats.rewards.mean), returns.mean())
    np.testing.assert_allclose(float(stats.rewards.square) / float(stats.rewards.count), returns.var())
    assert stats.returns.tolist() == [6.0] * B
    # Cut within the dead row, the rest counts alike.
    pieces = [tree_map(lambda x: x[:3], rollout), tree_map(lambda x: x[3:], rollout)]
    in_two = counted(norm, pieces)
    assert in_two.rewards is not None
    torch.testing.assert_close(flatten_tree(in_two.rewards)[0], flatten_tree(stats.rewards)[0])


def test_a_time_limit_ends_a_return() -> None:
    truncations = torch.zeros(5, B, dtype=torch.bool)
    truncations[2] = True
    rollouts = [raw_rollout(seed, truncations=truncations, discounts=torch.ones(5, B)) for seed in range(2)]
    stats = counted(normalizer(), rollouts)
    assert stats.rewards is not None
    np.testing.assert_allclose(stats.rewards.deviation(), np.sqrt(returns_by_hand(rollouts, 0.9).var() + 1e-8), rtol=1e-9)


def test_new_episodes_everywhere_begin_new_returns() -> None:
    norm = normalizer()
    stats = counted(norm, [raw_rollout(0, discounts=torch.ones(5, B))])
    restarted = norm.restart(stats)
    assert restarted.returns is not None and stats.returns is not None
    assert stats.returns.abs().min() > 0 and restarted.returns.tolist() == [0.0] * B
    assert restarted.rewards is stats.rewards and restarted.observations is stats.observations


def test_observations_may_be_left_out() -> None:
    norm, rollout = normalizer(), raw_rollout(0)
    stats = norm.update(norm.init(EXAMPLE, B), rollout, torch.zeros(()))
    assert all(float(moments.count) == 0 and not moments.mean.any() for moments in stats.observations.values())
    assert stats.rewards is not None and float(stats.rewards.count) == 5 * B


def test_statistics_can_be_recorded() -> None:
    norm = normalizer()
    stats, rollouts = counted(norm, [raw_rollout(0)]), [raw_rollout(1), raw_rollout(2)]
    recorded = Recorded(
        lambda stats, rollout: norm.normalize_rollout(norm.snapshot(norm.update(stats, rollout)), rollout), Speed(trace=True)
    )
    for rollout in rollouts:
        plain = norm.normalize_rollout(norm.snapshot(norm.update(stats, rollout)), rollout)
        torch.testing.assert_close(flatten_tree(recorded(stats, rollout))[0], flatten_tree(plain)[0])


class Echo:
    """Returns what it is shown as its logits."""

    def initial_state(self, batch_size: int) -> int:
        return batch_size

    def act(self, params: Any, observations: Any, generator: Any = None, should_reset: Any = None, state: Any = None) -> Any:
        return None, observations["speed"], state

    def policy(self, params: Any, observations: Any, should_reset: Any = None, state: Any = None) -> Any:
        return observations["speed"], state


def test_an_agent_behind_its_inputs_sees_them_normalised() -> None:
    norm, rollout = normalizer(), raw_rollout(0)
    snapshot = norm.snapshot(counted(norm, [rollout]))
    agent = NormalizedAgent(Echo(), norm, snapshot)
    seen = norm.normalize_observations(snapshot, rollout.observations)["speed"]
    assert agent.initial_state(4) == 4
    _, acted, state = agent.act({}, rollout.observations, None, None, "memory")
    assert torch.equal(acted, seen) and state == "memory"
    assert torch.equal(agent.policy({}, rollout.observations)[0], seen)


def test_none_where_nothing_would_change() -> None:
    catch = Catch(2, rows=4, columns=3)
    assert make_normalizer(InputConfig(), catch, 0.9) is None
    assert make_normalizer(InputConfig(observations="auto"), catch, 0.9) is None  # a board of 0 and 1
    made = make_normalizer(InputConfig(rewards="scaled"), catch, 0.9)
    assert made is not None and not made.has_statistics
    import gymnasium

    env = GymnasiumEnvironment(gymnasium.make_vec("CartPole-v1", 2))
    made = make_normalizer(InputConfig(observations="auto"), env, 0.9)
    assert made is not None and made.normalized_leaves == ["observation"] and made.discount == 0.9
    env.close()


def test_bounds_of_the_deviation_are_in_order() -> None:
    message = r"`largest_deviation` must be at least `least_deviation`, 2.0, got 1.0; they are the bounds of a deviation"
    with pytest.raises(ValueError, match=message):
        InputConfig(least_deviation=2.0)


@pytest.mark.parametrize("name", ["least_deviation", "reward_scale", "reward_clip", "clip"])
def test_scales_are_positive(name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}` must be greater than 0, got 0.0; it is a scale"):
        InputConfig(**{name: 0.0})
