"""What a discovery is: one dataclass, and presets of it by name. The command line is derived from it."""

from __future__ import annotations

import dataclasses
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
from disco_torch.rules import DiscoConfig, MetaNetConfig, MetaRNNConfig, extended_input_option
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
        least |= {"valid_envs": 0, "batch_size": 1, "replay_capacity": 0, "log_every": 1, "snapshot_every": 0}
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


GROVE5 = DiscoverConfig(
    groups=(
        GroupConfig(
            (
                HabitatConfig("catch-variants", agents=14),
                HabitatConfig("chain", agents=6),
                HabitatConfig("crossing", agents=8),
            ),
            AgentConfig(dense=(128,), lstm_size=64, head_mlp_hiddens=(64,)),
            learning_rates=(1e-3, 2e-3, 4e-3),
        ),
        GroupConfig(
            (HabitatConfig("grid", agents=14), HabitatConfig("gatherer", agents=10)),
            AgentConfig(dense=(64, 64), lstm_size=64, head_mlp_hiddens=(64,)),
            learning_rates=(5e-4, 1e-3, 3e-3),
        ),
    ),
    rule=DiscoConfig(
        net=MetaNetConfig(
            prediction_size=64,
            hidden_size=128,
            policy_channels=(16, 8),
            policy_target_channels=(64,),
            policy_target_stddev=1.0,
            meta_rnn=MetaRNNConfig(hidden_size=64),
            input_option=extended_input_option(),
        ),
        value_discount=0.99,
        num_bins=81,
        max_abs_value=20.0,
    ),
    meta_updates=1351,
    window=6,
    rollout_length=14,
    valid_length=20,
    fresh_validation=True,
    num_envs=32,
    valid_envs=64,
    batch_size=48,
    replay_capacity=1024,
    replayed_share=0.5,
    lifetimes=(100, 200, 400, 1000),
    optimizer=AdamConfig(learning_rate=1.5e-3, max_abs_update=NO_CLIP),
    value_function=ValueFunctionConfig(dense=(128,), aligned=True),
)
"""Found in 7 minutes on one H200. Agents learn from hundreds of steps an update: a life must be long enough to learn in, or
the rule gets no signal."""

GROVE25 = dataclasses.replace(
    GROVE5,
    groups=(
        dataclasses.replace(
            GROVE5.groups[0],
            habitats=tuple(HabitatConfig(env, agents=10) for env in ("catch-variants", "chain", "crossing")),
        ),
        dataclasses.replace(GROVE5.groups[1], habitats=tuple(HabitatConfig(env, agents=12) for env in ("grid", "gatherer"))),
    ),
    start="grove5",
    seed=1,
    meta_updates=316,
    window=20,
    stride=10,
    optimizer=AdamConfig(learning_rate=1e-3, max_abs_update=NO_CLIP),
    slow_after=100,
    adam_per_agent=True,
    weights=MetaLossWeights(policy_entropy=8e-2),
    share_values=True,
)
"""`grove5`, fine-tuned in the paper's loop. With longer windows a rule learns to commit too early, unless the policies'
entropy has more weight."""

OWN = dataclasses.replace(
    GROVE25,
    groups=(
        GroupConfig(
            (HabitatConfig("CartPole-v1", agents=4),),
            AgentConfig(dense=(64, 64), lstm_size=64, head_mlp_hiddens=(64,), torso="auto"),
            learning_rates=(1e-3, 3e-3),
        ),
    ),
    start="grove25",
    seed=0,
    meta_updates=200,
    window=10,
    stride=5,
    num_envs=16,
    valid_envs=0,
    batch_size=32,
    replay_capacity=256,
    inputs=InputConfig(observations="auto", rewards="normalized"),
    first_steps=True,
    slow_after=0,
)
"""`grove25`, fine-tuned on a user's environments. These step on the host: a meta-update takes fewer steps of fewer of them,
and inputs are normalised, since their scales are not known."""

CPU = dataclasses.replace(
    GROVE5,
    groups=(
        GroupConfig(
            (
                HabitatConfig("catch-variants", {"rows": 5, "columns": 5}, agents=6),
                HabitatConfig("chain", {"length": 6}, agents=5),
                HabitatConfig("bandit", {"arms": 3, "contexts": 6}, agents=5),
            ),
            AgentConfig(dense=(32,), lstm_size=16, head_mlp_hiddens=(16,)),
            learning_rates=(1e-2,),
        ),
    ),
    rule=dataclasses.replace(
        GROVE5.rule,
        net=dataclasses.replace(
            GROVE5.rule.net,
            prediction_size=8,
            hidden_size=32,
            policy_target_channels=(32,),
            meta_rnn=MetaRNNConfig(hidden_size=16),
        ),
        num_bins=21,
        max_abs_value=10.0,
    ),
    meta_updates=600,
    window=5,
    rollout_length=12,
    valid_length=16,
    num_envs=16,
    valid_envs=32,
    batch_size=16,
    replay_capacity=0,
    first_steps=True,
    lifetimes=(50, 100, 200),
    optimizer=AdamConfig(learning_rate=3e-3, max_abs_update=NO_CLIP),
    slow_after=300,
    value_function=ValueFunctionConfig(dense=(32,), learning_rate=3e-3, aligned=True),
)
"""A small rule and small agents, for one core. Bandits pay for an action at once, so that the rule soon leaves the plateau;
they need `first_steps`."""

NOTEBOOK_AGENT = AgentConfig(dense=(512, 512), lstm_size=256, head_mlp_hiddens=(256,))


def small_catch(agents: int) -> tuple[HabitatConfig]:
    return (HabitatConfig("catch", {"rows": 5, "columns": 5}, agents=agents),)


PRESETS: dict[str, tuple[str, DiscoverConfig]] = {
    "notebook": (
        "the released notebook's: 2 agents on 5x5 Catch, from random weights",
        DiscoverConfig(groups=(GroupConfig(small_catch(agents=2), NOTEBOOK_AGENT),)),
    ),
    "notebook-lives": (
        "fine-tunes a rule that `notebook` found, given as `--start`: 16 agents with limited lifetimes",
        DiscoverConfig(
            groups=(GroupConfig(small_catch(agents=16), NOTEBOOK_AGENT, learning_rates=(1e-3, 2e-3, 4e-3)),),
            lifetimes=(200, 400, 800),
            meta_updates=1000,
        ),
    ),
    "cpu": ("ten minutes on one core: a small rule and 16 small agents in levels of 3 families, from random weights", CPU),
    "grove5": ("52 agents in levels of 5 families, from random weights", GROVE5),
    "grove25": ("the embedded rule's: fine-tunes grove5 in the paper's loop, 54 agents in levels of 5 families", GROVE25),
    "own": ("fine-tunes grove25 on your environments, named with `--envs`; CartPole-v1 unless named", OWN),
}
"""Presets: named settings, each with what it is for."""
