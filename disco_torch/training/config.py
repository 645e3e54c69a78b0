"""What a training run is: one dataclass, and presets of it by name. The command line is derived from it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from disco_torch.agents import AgentConfig
from disco_torch.checks import check_between, check_least
from disco_torch.data import InputConfig
from disco_torch.data.alignment import check_burn_in
from disco_torch.envs import Environment, ObservationKind, SpaceConfig
from disco_torch.optim import AdamConfig
from disco_torch.runs import check_run_name
from disco_torch.training.minibatches import check_gradient_steps

Setting = bool | int | float | str


SMALL_AGENT = AgentConfig(dense=(128, 128), lstm_size=64, head_mlp_hiddens=(64,), torso="auto")
"""A small agent; its torso is chosen from the observations."""


@dataclass(frozen=True)
class ObjectsConfig:
    """The objects that a run was given in place of names, and the spaces of its environment; written by the run.

    Attributes:
      env: qualified name of the environment's factory or class, "module:name"; empty where `TrainConfig.env` makes it.
      env_kind: what the object is; empty for none.
      agent: qualified name of the class of the agent or torso.
      rule: qualified name of the class of the rule.
      observation_space, action_space: of one environment.
      observation_kinds: what the leaves of an observation are, by name; see `disco_torch.envs.kinds`.
    """

    env: str = ""
    env_kind: Literal["", "factory", "vector environment", "environment"] = ""
    agent: str = ""
    rule: str = ""
    observation_space: SpaceConfig | None = None
    action_space: SpaceConfig | None = None
    observation_kinds: dict[str, ObservationKind] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainConfig:
    """A training run. The defaults suit small environments; `default_config` has those of each rule, and presets those of
    some tasks.
    """

    env: str = "catch"
    """Environment: `catch`, `sokoban`, a family of levels such as `grid`, one of another package such as `minatar/breakout`,
    a registered name, the id of a Gymnasium one, or `module:function` for a function that returns one."""
    env_args: dict[str, Setting] = field(default_factory=dict)
    """Arguments of the environment, such as `rows 5 columns 5`."""
    wrappers: Sequence[str] = field(default=(), metadata={"later": True})
    """Wrappers around each Gymnasium environment, as `module:Name`; the first is the innermost."""
    rule: str = "birch"
    """Update rule: `ppo-replay`, `ppo`, `birch`, `disco103`, `doubly-robust`, `actor-critic`, `policy-gradient`, a
    file, or `hf:ORG/NAME[@revision]` on the Hugging Face Hub; `auto` is `ppo-replay`."""
    hyper_params: dict[str, float] = field(default_factory=dict)
    """Changes to the rule's hyper-parameters, such as `value_cost 0.5`."""
    seed: int = 0
    """Random seed."""
    device: str = "auto"
    """Device to learn on: `cpu` or `cuda`; `auto` is the GPU if there is one."""
    speed: Literal["auto", "plain", "traced", "captured", "compiled"] = "auto"
    """Execution mode: plain PyTorch; traced, without the overhead of Python; captured as CUDA graphs; or compiled first,
    which takes a minute or more at the start. `auto` is `captured` on a GPU, else `plain`, but for the updates of long runs,
    which are traced."""

    steps: int = 256_000
    """Environment steps to take, over all parallel environments."""
    num_envs: int = 16
    """Number of parallel environments."""
    rollout_length: int = 16
    """Number of rows of each rollout, the observations and actions between two updates: 16 rows have 15 steps between them
    to learn from."""
    batch_size: int = 32
    """Number of trajectories that an update learns from; 0 for all that the replay keeps."""
    updates_per_rollout: int = 4
    """Number of updates after each rollout."""
    overlap: bool = field(default=False, metadata={"later": True})
    """Collect the next rollout while the agent learns from the present one, in environments that step on the host. It then
    acts with the parameters from before these updates: the policy is the updates of one rollout older than without."""
    epochs: int = field(default=1, metadata={"later": True})
    """Number of times that an update goes through the steps of its batch, with the same targets."""
    minibatches: int = field(default=1, metadata={"later": True})
    """Number of random parts that the steps of a batch are divided into in each epoch, with a gradient step on each; whole
    trajectories, where the agent has a memory."""
    max_gradient_norm: float = field(default=0.0, metadata={"later": True})
    """Bound on the norm of the gradient; a larger one is scaled down to it. 0 leaves gradients as they are."""
    replay_capacity: int = 256
    """Number of trajectories to keep for replay, at least those of a rollout; 0 for as many as a batch has."""
    replay_device: Literal["auto", "cpu", "cuda"] = field(default="auto", metadata={"later": True})
    """Device that stores the replay; `auto` is the device to learn on. With `cpu` a run on a GPU keeps it in the memory of
    the host, and its batches come through pinned memory."""
    replayed_share: float = 0.5
    """Share of each batch that is drawn uniformly from the replay; the rest are the newest trajectories."""
    burn_in: int = field(default=0, metadata={"later": True})
    """Number of first steps of each trajectory that only warm up the memory, for agents that have one. They are left out of
    the loss, while gradients of the later ones still flow back through the memory there. A trajectory begins with the memory
    of the policy that acted, which is an older one than the policy that learns."""

    inputs: InputConfig = field(
        default_factory=lambda: InputConfig(observations="auto", rewards="normalized"),
        metadata={"later": True, "before": InputConfig()},
    )
    """Scale of what the agent sees: normalisation of observations and rewards."""
    first_steps: bool = field(default=True, metadata={"later": True, "before": False})
    """Learn also from the first step of each episode, which the reference leaves out of the loss."""

    agent: AgentConfig = field(default_factory=lambda: SMALL_AGENT)
    """Network of the agent."""
    optimizer: AdamConfig = field(default_factory=lambda: AdamConfig(learning_rate=5e-4))
    """Settings of Adam: learning rate, clip of the update, weight decay."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate schedule; `cosine` decays to 0 at the last step."""
    warmup_steps: int = 0
    """Environment steps over which the learning rate rises linearly from 0."""

    eval_every: int = field(default=0, metadata={"later": True})
    """Environment steps between two evaluations during training, with one more at the end; 0 for none. They have
    environments and random numbers of their own, and the checkpoint with the best mean return is kept as best.pt."""
    eval_episodes: int = field(default=20, metadata={"later": True})
    """Number of whole episodes of an evaluation."""
    eval_policy: Literal["sampled", "greedy"] = field(default="sampled", metadata={"later": True})
    """Policy of evaluations: sample actions, or take the most probable one."""
    target_return: float | None = field(default=None, metadata={"later": True})
    """Mean return at which the run stops: that of an evaluation or, without evaluations, of the last 100 episodes."""

    name: str = ""
    """Name of the run, which is that of its folder; defaults to one made of environment, rule and seed."""
    runs: Path = Path("runs")
    """Folder that runs are written to."""
    log_every: int = 20
    """Number of rollouts between two lines of metrics."""
    checkpoint_every: int = 500
    """Number of rollouts between two checkpoints; 0 for one at the start and one at the end."""
    keep_checkpoints: int = 2
    """Number of checkpoints to keep, the newest ones."""
    checkpoint_replay: bool = True
    """Store the replay in checkpoints; without it a resumed run starts with an empty one."""
    tensorboard: bool = True
    """Write TensorBoard events."""
    wandb_project: str = ""
    """Also log to this Weights & Biases project."""
    trackio_project: str = ""
    """Also log to this trackio project."""
    objects: Annotated[ObjectsConfig, tyro.conf.Suppress, tyro.conf.Fixed] = field(
        default_factory=ObjectsConfig, metadata={"later": True}
    )
    """What the run was given as objects, and the spaces of its environment; the run writes it."""

    def __post_init__(self) -> None:
        least = {"steps": 1, "num_envs": 1, "rollout_length": 2, "batch_size": 0, "updates_per_rollout": 1}
        least |= {"replay_capacity": 0, "warmup_steps": 0, "log_every": 1, "checkpoint_every": 0, "keep_checkpoints": 1}
        least |= {"eval_every": 0, "eval_episodes": 1}
        for name, low in least.items():
            check_least(name, getattr(self, name), low)
        target = self.target_return
        if target is not None and not (isinstance(target, Real) and math.isfinite(target)):
            raise ValueError(f"`target_return` must be finite, got {target!r}; leave it out for none.")
        check_gradient_steps(self.epochs, self.minibatches, self.max_gradient_norm)
        check_burn_in(self.burn_in, self.rollout_length)
        check_run_name(self.name)
        check_between("replayed_share", self.replayed_share, 0.0, 1.0)

    def with_sizes(self) -> TrainConfig:
        """The same settings with the numbers of trajectories that `batch_size` and `replay_capacity` stand for."""
        capacity = max(self.replay_capacity or self.batch_size, self.num_envs)
        return dataclasses.replace(self, batch_size=self.batch_size or capacity, replay_capacity=capacity)

    def check_that_it_learns(self) -> None:
        """Raises where the run would end before its first update, which needs a batch in the replay."""
        rollouts = math.ceil(min(self.batch_size, self.replay_capacity) / self.num_envs)
        if self.steps < (least := rollouts * self.steps_per_rollout):
            raise ValueError(
                f"`steps` must be at least {least} for a first update, {rollouts} rollouts of {self.steps_per_rollout} "
                f"steps that fill a batch of {self.batch_size} trajectories, got {self.steps}."
            )

    def check_memory(self, memory: Any, env: Environment) -> None:
        """Raises where settings do not go together with the agent's memory, a tree, or None for an agent without one."""
        if memory is not None and env.ends_within_episodes:
            raise ValueError(
                f"`env_args` of {env.name} must not end returns within episodes for an agent with memory, which would be "
                "reset there in learning but not in acting; leave out `lost_life_ends_return`, or set `core` to 'none'."
            )
        if memory is None and self.burn_in:
            raise ValueError(
                f"`burn_in` must be 0 for an agent without memory, got {self.burn_in}; set the agent's `core` to 'lstm'."
            )

    @property
    def num_fresh(self) -> int:
        """Trajectories of each batch that are the newest ones."""
        return round(self.batch_size * (1.0 - self.replayed_share))

    @property
    def num_gradient_steps(self) -> int:
        """Gradient steps of the whole run, about."""
        return self.steps // self.steps_per_rollout * self.updates_per_rollout * self.epochs * self.minibatches

    @property
    def services(self) -> dict[str, str]:
        """Services to log to, by the name of their package, and the project in each."""
        asked = {"wandb": self.wandb_project, "trackio": self.trackio_project}
        return {module: project for module, project in asked.items() if project}

    @property
    def steps_per_rollout(self) -> int:
        return self.num_envs * self.rollout_length
