"""What a training run is: its limits, its presets, and its way through a file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from disco_torch import PRESETS, AdamConfig, AgentConfig, TrainConfig
from disco_torch.weights.configuration import config_from_plain, config_to_plain


@pytest.mark.parametrize(
    ("name", "low"),
    [
        ("steps", 1),
        ("num_envs", 1),
        ("rollout_length", 2),
        ("batch_size", 0),
        ("updates_per_rollout", 1),
        ("replay_capacity", 0),
        ("epochs", 1),
        ("minibatches", 1),
        ("warmup_steps", 0),
        ("log_every", 1),
        ("checkpoint_every", 0),
        ("keep_checkpoints", 1),
    ],
)
def test_limits(name: str, low: int) -> None:
    assert getattr(TrainConfig(**{name: low}), name) == low  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"`{name}` must be at least {low}, got {low - 1}"):
        TrainConfig(**{name: low - 1})  # type: ignore[arg-type]


def test_the_replay_keeps_at_least_a_rollout() -> None:
    for given, kept in ((9, 9), (8, 8), (7, 8)):
        config = TrainConfig(num_envs=8, batch_size=4, replay_capacity=given).with_sizes()
        assert (config.batch_size, config.replay_capacity) == (4, kept)


def test_a_batch_of_0_is_all_that_the_replay_keeps() -> None:
    for num_envs, batch in ((4, 32), (16, 32), (40, 40)):
        config = TrainConfig(num_envs=num_envs, batch_size=0, replay_capacity=32, replayed_share=0.0).with_sizes()
        assert config.batch_size == config.replay_capacity == config.num_fresh == batch


def test_sizes_of_0_are_those_of_a_rollout() -> None:
    config = TrainConfig(num_envs=8, batch_size=0, replay_capacity=0, replayed_share=0.0).with_sizes()
    assert (config.batch_size, config.replay_capacity, config.num_fresh) == (8, 8, 8)
    assert TrainConfig(num_envs=8, replay_capacity=0).with_sizes().replay_capacity == TrainConfig.batch_size
    assert TrainConfig().with_sizes() == TrainConfig()


@pytest.mark.parametrize("norm", [-1.0, float("inf"), float("nan")])
def test_the_bound_on_the_gradients_norm(norm: float) -> None:
    assert TrainConfig(max_gradient_norm=0.5).max_gradient_norm == 0.5
    with pytest.raises(ValueError, match=rf"`max_gradient_norm` must be finite and not negative, got {norm}; 0 leaves"):
        TrainConfig(max_gradient_norm=norm)


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_the_replayed_share_is_a_share(share: float) -> None:
    with pytest.raises(ValueError, match=r"`replayed_share` must lie in \[0.0, 1.0\]"):
        TrainConfig(replayed_share=share)


@pytest.mark.parametrize(("share", "fresh"), [(1.0, 0), (0.0, 64), (0.75, 16), (0.5, 32)])
def test_fresh_trajectories_are_the_rest_of_the_batch(share: float, fresh: int) -> None:
    assert TrainConfig(batch_size=64, replayed_share=share).num_fresh == fresh


def test_steps_of_a_rollout() -> None:
    assert TrainConfig(num_envs=3, rollout_length=7).steps_per_rollout == 21


def test_services_that_were_asked_for() -> None:
    assert TrainConfig().services == {}
    assert TrainConfig(wandb_project="a", trackio_project="b").services == {"wandb": "a", "trackio": "b"}
    assert TrainConfig(trackio_project="b").services == {"trackio": "b"}


def test_the_notebook_preset_has_its_numbers() -> None:
    _, config = PRESETS["catch"]
    assert (config.env, config.rule, config.num_envs, config.rollout_length) == ("catch", "disco103", 2, 29)
    assert config.steps == 1000 * config.steps_per_rollout
    assert (config.batch_size, config.replay_capacity, config.replayed_share) == (64, 1024, 1.0)
    assert config.optimizer.learning_rate == 1e-2 and config.agent == AgentConfig()


def through_json(config: TrainConfig) -> TrainConfig:
    return config_from_plain(TrainConfig, json.loads(json.dumps(config_to_plain(config))))


@pytest.mark.parametrize("name", PRESETS)
def test_presets_go_to_a_file_and_back(name: str) -> None:
    what, config = PRESETS[name]
    assert what and through_json(config) == config


def test_every_field_goes_to_a_file_and_back() -> None:
    config = TrainConfig(
        env="CartPole-v1",
        env_args={"flag": True, "count": 3, "scale": 0.5, "text": "x", "one": 1, "zero": 0.0},
        hyper_params={"value_cost": 2.0},
        schedule="cosine",
        runs=Path("somewhere") / "else",
        agent=AgentConfig(dense=(3, 4), head_w_init_std=None, observation_scale=(0.5, 2.0)),
        optimizer=AdamConfig(learning_rate=0.25, weight_decay=0.125),
        checkpoint_replay=False,
    )
    again = through_json(config)
    assert again == config
    assert all(type(again.env_args[name]) is type(value) for name, value in config.env_args.items())
    assert isinstance(again.runs, Path)


def test_it_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainConfig().seed = 3  # type: ignore[misc]
