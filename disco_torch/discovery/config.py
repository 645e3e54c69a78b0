"""What a discovery is: one dataclass. The command line is derived from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from disco_torch.agents import AgentConfig
from disco_torch.checks import check_between, check_least
from disco_torch.data import InputConfig
from disco_torch.discovery.meta_loss import MetaLossWeights
from disco_torch.optim import AdamConfig
from disco_torch.rules import DiscoConfig
from disco_torch.runs import check_run_name
from disco_torch.training import ValueFunctionConfig

Setting = bool | int | float | str
NO_CLIP = 1e9
"""Value of `max_abs_update` that Adam's update never reaches."""


@dataclass(frozen=True)
class HabitatConfig:
    """An environment and the number of agents of the population in it, each in its own level."""

    env: str = "catch"
    """Environment: `catch`, a family of `disco_torch.envs.FAMILIES`, a registered name, the id of a Gymnasium one, or
    `module:function` for a function that returns one. Those that are not tensors are stepped on the host."""
    env_args: dict[str, Setting] = field(default_factory=dict)
    """Arguments of the environment, such as `rows` 5."""
    agents: int = 1
    """Number of agents."""
    wrappers: Sequence[str] = field(default=(), metadata={"later": True})
    """Wrappers around each Gymnasium environment, as `module:Name`; the first is the innermost."""


@dataclass(frozen=True)
class GroupConfig:
    """Agents of one shape, which are batched: their observations are padded to one size, their actions to one number.

    An action beyond an environment's own number counts from 0 again.
    """

    habitats: Sequence[HabitatConfig] = (HabitatConfig(),)
    """Environments, and the number of agents in each."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    """Network of every agent in the group."""
    learning_rates: Sequence[float] = (5e-4,)
    """Learning rates, which the agents take in turn."""

    def __post_init__(self) -> None:
        if not self.habitats or any(habitat.agents < 1 for habitat in self.habitats):
            raise ValueError("`habitats` must name at least one environment, each with at least 1 agent.")
        if not self.learning_rates or any(not 0 < rate < math.inf for rate in self.learning_rates):
            raise ValueError(f"`learning_rates` must be finite and greater than 0, got {list(self.learning_rates)}.")

    @property
    def num_agents(self) -> int:
        return sum(habitat.agents for habitat in self.habitats)


@dataclass(frozen=True)
class DiscoverConfig:
    """A discovery. The defaults are those of the released notebook; see the presets for others."""

    groups: Sequence[GroupConfig] = (GroupConfig(),)
    """Population of agents, in groups of one network each."""
    rule: DiscoConfig = field(default_factory=DiscoConfig)
    """Configuration of the rule: everything but its weights."""
    start: str = ""
    """Rule to fine-tune, by name or file; defaults to random weights. The optimiser's state beside a snapshot is loaded,
    too."""
    seed: int = 0
    """Random seed."""
    device: str = "auto"
    """Device to learn on: `cpu` or `cuda`; `auto` is the GPU if there is one."""
    dtype: Literal["float32", "float64"] = "float32"
    """Data type of all parameters."""
    speed: Literal["auto", "plain", "traced", "captured", "compiled"] = "auto"
    """Execution mode: plain PyTorch; traced, without the overhead of Python; captured as CUDA graphs; or compiled first,
    which takes a few minutes at the start. `auto` is `captured` on a GPU, else `traced`."""

    meta_updates: int = 800
    """Number of updates of the rule."""
    window: int = 2
    """Number of agent updates that a meta-gradient is backpropagated through."""
    stride: int = 0
    """Number of agent updates between two updates of the rule; 0 for `window`. If it is smaller, windows overlap."""
    rollout_length: int = 16
    """Number of rows of each rollout; there is one step less between them to learn from."""
    valid_length: int = 32
    """Number of rows of a validation rollout."""
    fresh_validation: bool = False
    """Collect validation rollouts after the agent's updates, as the paper does, or before them, as the notebook."""
    num_envs: int = 32
    """Number of parallel environments that an agent learns from."""
    valid_envs: int = 0
    """Number of parallel environments of the validation rollouts, the former among them; 0 for `num_envs`."""
    batch_size: int = 32
    """Number of trajectories that an agent's update learns from."""
    epochs: int = field(default=1, metadata={"later": True})
    """Number of gradient steps of an agent's update, each on all of its batch, towards the same targets."""
    replay_capacity: int = 0
    """Number of trajectories that each agent keeps; 0 for no replay: updates learn from the last rollout."""
    replayed_share: float = 0.9
    """Share of each batch that is drawn from the replay; the rest are the newest trajectories."""
    inputs: InputConfig = field(default_factory=InputConfig, metadata={"later": True})
    """Scale of what the agents see: normalisation of observations and rewards, each agent with statistics of its own."""
    first_steps: bool = field(default=False, metadata={"later": True})
    """Agents learn also from the first step of each episode, which the reference leaves out of the loss."""
    lifetimes: Sequence[int] = ()
    """Possible lifetimes of agents in updates, drawn with probabilities proportional to 1 / lifetime. A new agent then takes
    its place, in a new level. Without any, agents live as long as the discovery."""

    optimizer: AdamConfig = field(default_factory=lambda: AdamConfig(learning_rate=5e-4, max_abs_update=NO_CLIP))
    """Optimiser of the rule."""
    slow_after: int = field(default=0, metadata={"later": True})
    """Number of meta-updates after which the rule's learning rate is quartered, so that noise averages out; 0 for never."""
    adam_per_agent: bool = False
    """One Adam for each agent and the mean of their updates, as the paper has it, or one Adam on the mean gradient."""
    weights: MetaLossWeights = field(default_factory=MetaLossWeights)
    """Weights of the meta-loss's regularisers."""
    agent_optimizer: AdamConfig = field(default_factory=AdamConfig)
    """Optimiser of the agents; the learning rate is that of their group."""
    hyper_params: dict[str, float] = field(default_factory=dict)
    """Changes to the rule's hyper-parameters."""
    value_function: ValueFunctionConfig = field(default_factory=ValueFunctionConfig)
    """Value function of the meta-loss."""
    share_values: bool = False
    """One value function for all agents of a habitat, or one for each agent."""

    name: str = ""
    """Name of the run, which is that of its folder; defaults to one made of the seed."""
    runs: Path = Path("runs")
    """Folder that runs are written to."""
    minutes: float = 0.0
    """Number of minutes after which to stop, as on Ctrl-C; 0 for no limit."""
    log_every: int = 10
    """Number of meta-updates between two lines of metrics."""
    snapshot_every: int = 100
    """Number of meta-updates between two snapshots of the rule; 0 for only one, at the end."""
    checkpoint_every: int = 200
    """Number of meta-updates between two checkpoints; 0 for one at the start and one at the end."""
    keep_checkpoints: int = 2
    """Number of checkpoints to keep, the newest ones."""
    tensorboard: bool = True
    """Write TensorBoard events."""

    def __post_init__(self) -> None:
        if not self.groups:
            raise ValueError("`groups` must name at least one group of agents, got none.")
        if self.dtype == "float64" and any(group.agent.bfloat16 for group in self.groups):
            raise ValueError("`bfloat16` of an agent must be False with `dtype` float64, got True; use float32.")
        least = {"meta_updates": 1, "window": 1, "stride": 0, "rollout_length": 2, "valid_length": 2, "num_envs": 1}
        least |= {"valid_envs": 0, "batch_size": 1, "epochs": 1, "replay_capacity": 0, "log_every": 1, "snapshot_every": 0}
        least |= {"checkpoint_every": 0, "keep_checkpoints": 1, "minutes": 0, "slow_after": 0}
        for name, low in least.items():
            check_least(name, getattr(self, name), low)
        check_run_name(self.name)
        check_between("replayed_share", self.replayed_share, 0.0, 1.0)
        if self.stride > self.window:
            raise ValueError(f"`stride` must be at most the window, {self.window}, got {self.stride}.")
        if any(lifetime < 1 for lifetime in self.lifetimes):
            raise ValueError(f"`lifetimes` must be at least 1 update each, got {list(self.lifetimes)}.")
        if 0 < self.valid_envs < self.num_envs:
            raise ValueError(f"`valid_envs` must be at least `num_envs`, {self.num_envs}, got {self.valid_envs}.")
        if self.replay_capacity == 0 and self.batch_size != self.num_envs:
            raise ValueError(f"`batch_size` must be `num_envs`, {self.num_envs}, without a replay, got {self.batch_size}.")
        if 0 < self.replay_capacity < max(self.num_envs, self.num_fresh):
            raise ValueError(
                f"`replay_capacity` must hold a rollout, {self.num_envs} trajectories, got {self.replay_capacity}."
            )
        if self.num_fresh > self.num_envs and self.replay_capacity:
            raise ValueError(
                f"`replayed_share` must leave at most {self.num_envs} new trajectories of a batch, those that `num_envs` "
                f"environments collect, got {self.replayed_share}, which leaves {self.num_fresh}."
            )
        if not self.fresh_validation and (self.replay_capacity or self.stride not in (0, self.window)):
            raise ValueError("`fresh_validation` is needed with a replay or a stride, got False.")

    @property
    def num_agents(self) -> int:
        return sum(group.num_agents for group in self.groups)

    def learning_rate(self, meta_updates: int) -> float:
        """Learning rate of the rule after `meta_updates` meta-updates."""
        rate = self.optimizer.learning_rate
        return rate / 4.0 if 0 < self.slow_after <= meta_updates else rate

    @property
    def num_parallel_envs(self) -> int:
        """Number of parallel environments that each agent acts in."""
        return self.valid_envs or self.num_envs

    @property
    def updates_per_meta_update(self) -> int:
        return self.stride or self.window

    @property
    def num_fresh(self) -> int:
        """Trajectories of each batch that are the newest ones."""
        return round(self.batch_size * (1.0 - self.replayed_share)) if self.replay_capacity else self.batch_size
