"""The JAX reference's agents, states and rollouts, built from a case folder's configuration and flat arrays.

It imports nothing of this project, so what is computed with it is independent of this project.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from disco_rl import agent as reference_agent
from disco_rl import types
from disco_rl.value_fns import value_fn
from dm_env import specs

jax.config.update("jax_enable_x64", True)  # before the first array: float32 would drown what the cases should show

Config = Mapping[str, Any]
Arrays = dict[str, np.ndarray]
"""A file of a case folder: names with `/` between groups, and arrays."""

TARGET_SCALE = 0.95
"""The target parameters start at this multiple of the agent's, so that the two networks differ from the first call on."""

ROLLOUT_FIELDS = ("observations", "actions", "rewards", "discounts", "behaviour_logits")
RNG = jax.random.PRNGKey(0)
"""The reference asks for a key in many places; no number of these cases depends on it."""


def group(arrays: Mapping[str, np.ndarray], prefix: str) -> Arrays:
    """The arrays under `prefix/`, without the prefix."""
    return {name.removeprefix(f"{prefix}/"): x for name, x in arrays.items() if name.startswith(f"{prefix}/")}


def prefixed(prefix: str, arrays: Mapping[str, Any]) -> Arrays:
    """The arrays with `prefix/` before each name, as NumPy arrays."""
    return {f"{prefix}/{name}": np.asarray(x) for name, x in arrays.items()}


def haiku_params(arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, jax.Array]]:
    """Parameters as Haiku nests them, in float64: `module/w` becomes `[module][w]`."""
    params: dict[str, dict[str, jax.Array]] = {}
    for name, x in arrays.items():
        module, leaf = name.rsplit("/", 1)
        params.setdefault(module, {})[leaf] = jnp.asarray(x, jnp.float64)
    return params


def flat_params(params: Mapping[str, Mapping[str, jax.Array]]) -> Arrays:
    """The inverse of `haiku_params`."""
    return {f"{module}/{leaf}": np.asarray(x) for module, leaves in params.items() for leaf, x in leaves.items()}


def build_agent(config: Config, rule: str) -> reference_agent.Agent:
    """The reference's agent with the rule `tiny`, `disco103` or `actor_critic`."""
    is_disco = rule != "actor_critic"
    settings = (reference_agent.get_settings_disco() if is_disco else reference_agent.get_settings_actor_critic()).to_dict()
    section = config["agent"] | (config["rules"][rule] if is_disco else config["actor_critic"])
    settings["hyper_params"] = dict(config["hyper_params"] if is_disco else config["actor_critic"]["hyper_params"])
    settings["learning_rate"] = section["learning_rate"]
    settings["max_abs_update"] = section["max_abs_update"]
    settings["net_settings"]["net_args"]["dense"] = tuple(section["dense"])
    settings["net_settings"]["net_args"]["model_kwargs"] = {
        "head_mlp_hiddens": tuple(section["head_mlp_hiddens"]),
        "lstm_size": section["lstm_size"],
    }
    for name, value in section.items():
        if name in settings["update_rule"]:
            settings["update_rule"][name] = value
        elif name in settings["update_rule"].get("net", {}):
            settings["update_rule"]["net"][name] = _as_tuples(value)
    action_spec = specs.BoundedArray((), np.int32, minimum=0, maximum=config["A"] - 1)
    return reference_agent.Agent(
        single_observation_spec=specs.Array((section["observation_size"],), np.float64),
        single_action_spec=action_spec,
        agent_settings=ml_collections.ConfigDict(settings),
        batch_axis_name=None,
    )


def _as_tuples(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _as_tuples(x) for name, x in value.items()}
    return tuple(value) if isinstance(value, list) else value


def build_value_function(config: Config) -> value_fn.ValueFunction:
    """The value function that meta-training learns beside the agent."""
    settings = dict(config["meta"]["value_fn"])
    net_args = {"dense": tuple(settings.pop("dense")), "head_w_init_std": 1e-2, "action_spec": ()}
    return value_fn.ValueFunction(types.ValueFnConfig(net="mlp", net_args=net_args, **settings), axis_name=None)


def in_float64(tree: Any) -> Any:
    """The tree with its floating arrays in float64: the reference creates its states in float32."""
    return jax.tree.map(lambda x: x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def initial_state(agent: reference_agent.Agent, theta: Arrays) -> reference_agent.LearnerState:
    """A learner at the beginning of its life, at the parameters `theta`."""
    params = haiku_params(theta)
    state = in_float64(agent.initial_learner_state(RNG))
    if "target_params" in state.meta_state:
        target = jax.tree.map(lambda x: TARGET_SCALE * x, params)
        state = state.replace(meta_state=state.meta_state | {"target_params": target})
    return state.replace(params=params)


def actor_rollout(arrays: Mapping[str, np.ndarray]) -> types.ActorRollout:
    """The five arrays of a rollout as the reference's own type; its networks here have no recurrent state."""
    x = {name: jnp.asarray(arrays[name]) for name in ROLLOUT_FIELDS}
    logits = x.pop("behaviour_logits")
    return types.ActorRollout(**x, agent_outs={"logits": logits}, logits=logits, states={})


def rule_inputs(rollout: types.ActorRollout, agent_out: types.AgentOuts) -> types.UpdateRuleInputs:
    """What the rule reads: rewards and ends of the steps that leave rows 0..T-1, so those of rows 1..T."""
    return types.UpdateRuleInputs(
        observations=rollout.observations,
        actions=rollout.actions,
        rewards=rollout.rewards[1:],
        is_terminal=rollout.discounts[1:] == 0,
        behaviour_agent_out=rollout.agent_outs,
        agent_out=agent_out,
    )
