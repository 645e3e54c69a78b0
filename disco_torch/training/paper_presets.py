"""The settings of the paper's agents by name: Extended Data Table 6 of Oh et al. (Nature, 2025), and runs made of it.

What the table says is in `PAPER_SETTINGS`. What it leaves open is chosen here, and untested at this scale:

- Networks other than Atari's are not stated. Images are read by Atari's; boards of 10 x 10 cells, too small for its pooling,
  by 3x3 convolutions of the same channels.
- New trajectories for each update: a batch has (1 - replayed share) x batch new ones, so this is the number of parallel
  environments, with one update a rollout. Crafter has 0.24 of them: one environment, and four updates a rollout.
- Unroll lengths are rows, as in the released code: 29 rows have 28 steps between them. Replay sizes are divided by them.
- Environment steps are actions of the agent. For Atari the table may mean frames, of which an action takes four.
- The discount is the rule's own: Disco103 was discovered with .997 and discounts by it (`value_discount`), as the table has
  for all but DMLab; it is no setting of a run.
- Rewards are as the environment gives them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from disco_torch.agents import AgentConfig
from disco_torch.agents.config import PAPER_ATARI_AGENT
from disco_torch.data import InputConfig
from disco_torch.optim import AdamConfig
from disco_torch.training.config import TrainConfig


@dataclass(frozen=True)
class PaperSettings:
    """A column of Extended Data Table 6.

    Attributes:
      learning_rate: of Adam.
      schedule: of the learning rate, to 0 at the end where it is not constant.
      warmup_steps: environment steps over which the learning rate rises.
      weight_decay: decoupled, of Adam.
      max_abs_update: bound on the scaled update.
      discount: of returns; the rule's own, see above.
      frame_stack: frames of an observation; None where there is no stack.
      batch_size: trajectories of an update.
      unroll_length: length of a trajectory.
      replayed_share: share of the batch that comes from the replay.
      replay_steps: environment steps that the replay keeps.
      steps: environment steps of training.
    """

    learning_rate: float
    schedule: Literal["constant", "cosine"]
    warmup_steps: int
    weight_decay: float
    max_abs_update: float
    discount: float
    frame_stack: int | None
    batch_size: int
    unroll_length: int
    replayed_share: float
    replay_steps: int
    steps: int

    @property
    def replay_capacity(self) -> int:
        """Trajectories that the replay keeps."""
        return round(self.replay_steps / self.unroll_length)

    @property
    def new_trajectories(self) -> float:
        """Trajectories of a batch that do not come from the replay."""
        return self.batch_size * (1.0 - self.replayed_share)


PAPER_SETTINGS: dict[str, PaperSettings] = {
    "atari": PaperSettings(3e-4, "cosine", 5_000_000, 0.1, 1.0, 0.997, 4, 96, 29, 0.95, 1_760_000, 200_000_000),
    "crafter": PaperSettings(3e-4, "constant", 0, 0.3, 1.0, 0.997, 32, 24, 29, 0.99, 400_000, 50_000_000),
    "dmlab": PaperSettings(5e-4, "cosine", 1_000_000, 0.01, 1.0, 0.99, None, 96, 100, 0.9, 220_000, 1_000_000_000),
    "nethack": PaperSettings(1e-4, "cosine", 10_000_000, 0.03, 0.3, 0.997, 4, 96, 29, 0.95, 1_760_000, 200_000_000),
    "procgen": PaperSettings(3e-4, "cosine", 1_000_000, 0.1, 1.0, 0.997, 4, 192, 29, 0.9, 880_000, 200_000_000),
    "sokoban": PaperSettings(3e-4, "cosine", 0, 0.1, 1.0, 0.997, 4, 96, 29, 0.9, 880_000, 200_000_000),
}
"""The table, by benchmark. DMLab has no environment here."""
PAPER_BOARD_AGENT = dataclasses.replace(PAPER_ATARI_AGENT, torso="board")


def paper_config(benchmark: str, env: str, agent: AgentConfig = PAPER_ATARI_AGENT, **env_args: Any) -> TrainConfig:
    """A run with the settings of a benchmark, and Disco103.

    Args:
      benchmark: column of the table.
      env: environment.
      agent: network.
      env_args: of the environment.
    """
    of = PAPER_SETTINGS[benchmark]
    num_envs = max(1, round(of.new_trajectories))
    return TrainConfig(
        env=env,
        env_args=env_args,
        rule="disco103",
        steps=of.steps,
        num_envs=num_envs,
        rollout_length=of.unroll_length,
        batch_size=of.batch_size,
        updates_per_rollout=max(1, round(num_envs / of.new_trajectories)),
        replay_capacity=of.replay_capacity,
        replayed_share=of.replayed_share,
        overlap=True,
        inputs=InputConfig(),
        first_steps=False,
        agent=agent,
        optimizer=AdamConfig(of.learning_rate, of.max_abs_update, weight_decay=of.weight_decay),
        schedule=of.schedule,
        warmup_steps=of.warmup_steps,
        checkpoint_replay=False,
    )


def stacked(benchmark: str) -> int:
    """The frame stack of a benchmark, for an environment that has none of its own."""
    return PAPER_SETTINGS[benchmark].frame_stack or 1


PAPER_PRESETS: dict[str, tuple[str, TrainConfig]] = {
    "atari-paper": ("the paper's Atari, 57 games by --env atari/GAME", paper_config("atari", "atari/pong")),
    "procgen-paper": (
        "the paper's ProcGen, 500 hard levels",
        paper_config(
            "procgen",
            "procgen/coinrun",
            frame_stack=stacked("procgen"),
            distribution_mode="hard",
            num_levels=500,
        ),
    ),
    "crafter-paper": (
        "the paper's Crafter; achievements by --env-args.stats FOLDER",
        paper_config("crafter", "crafter/reward", stats="", frame_stack=stacked("crafter")),
    ),
    "nethack-paper": (
        "the paper's NetHack",
        paper_config("nethack", "nethack/score", frame_stack=stacked("nethack")),
    ),
    "sokoban-paper": (
        "the paper's Sokoban; Boxoban's levels by --env-args.levels FOLDER",
        paper_config("sokoban", "sokoban", PAPER_BOARD_AGENT, levels="", frame_stack=stacked("sokoban")),
    ),
}
"""Runs with the paper's settings, each with what it is for; all with Disco103."""
