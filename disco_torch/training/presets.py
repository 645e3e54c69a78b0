"""Presets: settings of training runs by name."""

from __future__ import annotations

import dataclasses

from disco_torch.agents import AgentConfig
from disco_torch.data import InputConfig
from disco_torch.optim import AdamConfig
from disco_torch.training.config import TrainConfig
from disco_torch.training.defaults import default_config
from disco_torch.training.paper_presets import PAPER_PRESETS


def _notebook(**changes: object) -> TrainConfig:
    """The reference's evaluation notebook: two parallel environments of 8x8 Catch, rollouts of 29 rows, 1000 of them."""
    config = TrainConfig(
        env="catch",
        num_envs=2,
        rollout_length=29,
        steps=58_000,
        batch_size=64,
        updates_per_rollout=1,
        replay_capacity=1024,
        replayed_share=1.0,
        agent=AgentConfig(),
        inputs=InputConfig(),
        first_steps=False,
        optimizer=AdamConfig(learning_rate=1e-2),
    )
    return dataclasses.replace(config, **changes)  # type: ignore[arg-type]


ATARI_SMALL = TrainConfig(
    env="atari/pong",
    rule="disco103",
    steps=2_500_000,  # 10M frames
    num_envs=30,  # for three updates with ten new trajectories each
    rollout_length=30,
    batch_size=96,
    updates_per_rollout=3,
    replay_capacity=16_384,  # about 490,000 steps
    replayed_share=0.9,
    overlap=True,
    inputs=InputConfig(),
    first_steps=False,
    # IMPALA's own network, with the sizes of the action model that Disco103 was released with.
    agent=AgentConfig(dense=(256,), lstm_size=128, head_mlp_hiddens=(128,), torso="impala", channels=(16, 32, 32)),
    optimizer=AdamConfig(learning_rate=3e-4, weight_decay=0.1),
    schedule="cosine",
    warmup_steps=62_500,  # the same share of the run as in the paper
    checkpoint_replay=False,
)


PRESETS: dict[str, tuple[str, TrainConfig]] = {
    "default": ("PPO on the last few rollouts, for small environments", default_config()),
    "catch-birch": (
        "8x8 Catch with the embedded rule",
        dataclasses.replace(default_config("birch"), env="catch"),
    ),
    "cartpole-birch": (
        "CartPole-v1 with the embedded rule",
        dataclasses.replace(default_config("birch"), env="CartPole-v1"),
    ),
    "catch": ("8x8 Catch with Disco103, the settings of the reference's notebook", _notebook(rule="disco103")),
    "catch-actor-critic": (
        "8x8 Catch with actor-critic",
        _notebook(
            rule="actor-critic",
            num_envs=16,
            steps=232_000,
            replay_capacity=256,
            replayed_share=0.75,
            agent=AgentConfig(dense=(128, 128)),
            optimizer=AdamConfig(learning_rate=3e-3),
        ),
    ),
    "cartpole": (
        "CartPole-v1 with Disco103",
        TrainConfig(
            env="CartPole-v1",
            rule="disco103",
            steps=240_000,
            num_envs=4,
            rollout_length=30,
            batch_size=64,
            updates_per_rollout=1,
            replay_capacity=1024,
            replayed_share=1.0,
            # Position, velocity, angle and angular velocity, each to about unit size, as where Disco103 was measured.
            agent=AgentConfig(observation_scale=(0.4, 0.5, 5.0, 0.5)),
            inputs=InputConfig(),
            first_steps=False,
            optimizer=AdamConfig(learning_rate=1e-3),
        ),
    ),
    "atari-small": ("an Atari game in 10M frames on one GPU; other games by --env atari/GAME", ATARI_SMALL),
    **PAPER_PRESETS,
}
"""Presets: named settings, each with what it is for."""
