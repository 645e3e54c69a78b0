"""Presets: discoveries by name."""

from __future__ import annotations

import dataclasses

from disco_torch.agents import AgentConfig
from disco_torch.data import InputConfig
from disco_torch.discovery.config import NO_CLIP, DiscoverConfig, GroupConfig, HabitatConfig
from disco_torch.discovery.meta_loss import MetaLossWeights
from disco_torch.optim import AdamConfig
from disco_torch.rules import DiscoConfig, MetaNetConfig, MetaRNNConfig, extended_input_option
from disco_torch.training import ValueFunctionConfig

CPU = DiscoverConfig(
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
    rule=DiscoConfig(
        net=MetaNetConfig(
            prediction_size=8,
            hidden_size=32,
            policy_channels=(16, 8),
            policy_target_channels=(32,),
            policy_target_stddev=1.0,
            meta_rnn=MetaRNNConfig(hidden_size=16),
            input_option=extended_input_option(),
        ),
        value_discount=0.99,
        num_bins=21,
        max_abs_value=10.0,
    ),
    meta_updates=600,
    window=5,
    rollout_length=12,
    valid_length=16,
    fresh_validation=True,
    num_envs=16,
    valid_envs=32,
    batch_size=16,
    replayed_share=0.5,
    first_steps=True,
    lifetimes=(50, 100, 200),
    optimizer=AdamConfig(learning_rate=3e-3, max_abs_update=NO_CLIP),
    slow_after=300,
    value_function=ValueFunctionConfig(dense=(32,), learning_rate=3e-3, aligned=True),
)
"""A small rule and small agents, for one core. Bandits pay for an action at once, so that the rule soon leaves the plateau;
they need `first_steps`. Agents learn from hundreds of steps an update: a life must be long enough to learn in, or the rule
gets no signal."""

BIRCH = dataclasses.replace(
    CPU,
    groups=(
        GroupConfig(
            (
                HabitatConfig("catch-variants", {"rows": 5, "columns": 5}, agents=4),
                HabitatConfig("chain", {"length": 6}, agents=4),
                HabitatConfig("bandit", {"arms": 4, "contexts": 8}, agents=4),
                HabitatConfig("slippery", agents=4),
                HabitatConfig("maze", {"rooms": 3}, agents=4),
            ),
            dataclasses.replace(CPU.groups[0].agent, activation="tanh"),
            learning_rates=(3e-3,),
        ),
    ),
    rule=dataclasses.replace(
        CPU.rule, net=dataclasses.replace(CPU.rule.net, policy_target_stddev=0.0), num_bins=1, advantage_push=1.0
    ),
    meta_updates=400,
    epochs=8,
    hyper_params={
        "target_params_coeff": 0.0,
        "value_cost": 0.5,
        "y_cost": 0.2,
        "z_cost": 0.2,
        "aux_policy_cost": 0.2,
    },
    inputs=InputConfig(observations="auto", rewards="normalized", least_deviation=1.0),
    slow_after=250,
    weights=MetaLossWeights(policy_entropy=2e-2),
)
"""Starts as the rule `doubly-robust`, whose policy targets the meta-network corrects, and learns in the loop that agents
train in: several gradient steps on the same targets, normalised inputs. A value is one number, no distribution over bins."""

PAPER_LOOP = dataclasses.replace(
    BIRCH,
    start="birch",
    seed=1,
    meta_updates=300,
    window=20,
    stride=10,
    replay_capacity=1024,
    replayed_share=0.5,
    batch_size=16,
    lifetimes=(100, 200, 400, 1000),
    optimizer=AdamConfig(learning_rate=1e-3, max_abs_update=NO_CLIP),
    slow_after=100,
    adam_per_agent=True,
    weights=MetaLossWeights(policy_entropy=8e-2),
    share_values=True,
)
"""`birch`, fine-tuned in the paper's loop. With longer windows a rule learns to commit too early, unless the policies'
entropy has more weight."""

OWN = dataclasses.replace(
    PAPER_LOOP,
    groups=(
        GroupConfig(
            (HabitatConfig("CartPole-v1", agents=4),),
            dataclasses.replace(BIRCH.groups[0].agent, dense=(64, 64), lstm_size=64, head_mlp_hiddens=(64,), torso="auto"),
            learning_rates=(1e-3, 3e-3),
        ),
    ),
    seed=0,
    meta_updates=200,
    window=10,
    stride=5,
    rollout_length=14,
    valid_length=20,
    valid_envs=0,
    batch_size=32,
    replay_capacity=256,
    slow_after=0,
    value_function=ValueFunctionConfig(dense=(128,), aligned=True),
)
"""`birch`, fine-tuned on a user's environments. These step on the host: a meta-update takes fewer steps of fewer of them,
and inputs are normalised, since their scales are not known."""

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
    "birch": ("the embedded rule's: corrects `doubly-robust`, 20 small agents in levels of 5 families", BIRCH),
    "paper-loop": ("the paper's loop for small agents: fine-tunes birch", PAPER_LOOP),
    "own": ("fine-tunes birch on your environments, named with `--envs`; CartPole-v1 unless named", OWN),
}
"""Presets: named settings, each with what it is for."""
