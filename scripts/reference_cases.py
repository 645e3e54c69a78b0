"""What the JAX reference answers on given inputs, one function for each file of a case folder.

Every function takes a folder's configuration and the inputs of one file as a flat mapping, runs google-deepmind/disco_rl on
them in float64, and returns the outputs of that file under the same names.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import distrax
import jax
import jax.numpy as jnp
import rlax
from disco_rl import agent as reference_agent
from disco_rl import types, utils
from disco_rl.value_fns import value_fn, value_utils
from reference_model import (
    RNG,
    Arrays,
    Config,
    actor_rollout,
    build_agent,
    build_value_function,
    flat_params,
    group,
    haiku_params,
    in_float64,
    initial_state,
    prefixed,
    rule_inputs,
)

NUMBER_OF_CALLS = {"rule": 3, "learner": 5, "actor_critic": 3}
TWO_HOT_BINS, TWO_HOT_MAX = 601, 300.0
PARABOLIC_SHRINK = 20.0
"""The inverse of the signed hyperbolic is taken at x / 20: about the sizes it meets, which are those of shrunk values."""


def values_outputs(config: Config, inputs: Arrays) -> Arrays:
    """V-trace and Retrace on plain arrays, and the value transforms."""
    x = {name: jnp.asarray(array) for name, array in group(inputs, "input").items()}
    steps = (x["rewards"], x["actions"], x["discounts"], x["rho"], x["values"])
    settings = config["values"]
    vtrace = value_utils.estimate_values(*steps, target_values=x["values"], **settings)  # it bootstraps from the same values
    retrace = value_utils.estimate_q_values(*steps, x["target_values"], x["q"], x["target_q"], **settings)
    transforms = {
        "signed_log": rlax.signed_logp1(x["x"]),
        "signed_hyperbolic": rlax.signed_hyperbolic(x["x"]),
        "signed_parabolic": rlax.signed_parabolic(x["x"] / PARABOLIC_SHRINK),
        "two_hot": value_utils.scalar_to_categorical_value(TWO_HOT_BINS, x["x"], TWO_HOT_MAX),
    }
    names = ("adv", "td", "value_target")
    q_names = (*names, "q_target", "q_td", "qv_adv")
    return (
        prefixed("vtrace", {name: vtrace[name] for name in names})
        | prefixed("retrace", {name: retrace[name] for name in q_names})
        | prefixed("transforms", transforms)
    )


def rule_outputs(config: Config, rule: str, inputs: Arrays, eta: Arrays) -> Arrays:
    """Successive applications of the rule to one agent whose parameters stay: only the rule's state is carried over."""
    agent = build_agent(config, rule)
    state = initial_state(agent, group(inputs, "theta"))
    # Not compiled: the advantages are small differences of values, and fusing their sums moves them by 1e-12.
    apply = partial(_apply_rule, agent, config["hyper_params"], haiku_params(eta), state.params)
    meta_state, outputs = state.meta_state, {}
    for n in range(NUMBER_OF_CALLS["rule"]):
        out, agent_out, target_out, meta_state = apply(meta_state, actor_rollout(group(inputs, f"call{n}_in")))
        outputs |= prefixed(f"call{n}_out", out)
        if n == 0:
            outputs |= prefixed("call0_in/agent_out", agent_out) | prefixed("call0_in/target_out", target_out)
    return outputs


def _apply_rule(
    agent: reference_agent.Agent,
    hyper_params: Config,
    eta: types.MetaParams,
    params: types.AgentParams,
    meta_state: types.MetaState,
    rollout: types.ActorRollout,
) -> tuple[dict[str, jax.Array], types.AgentOuts, types.AgentOuts, types.MetaState]:
    """One application: (outputs by name, the agent's outputs, the target network's outputs, the rule's next state)."""
    agent_out, _ = agent.unroll_net(params, {}, rollout)
    rule, inputs = agent.update_rule, rule_inputs(rollout, agent_out)
    meta_out, meta_state = rule.unroll_meta_net(
        meta_params=eta,
        params=params,
        state={},
        meta_state=meta_state,
        rollout=inputs,
        hyper_params=hyper_params,
        unroll_policy_fn=agent._network.unroll,  # what the agent itself passes; it has no public name
        rng=RNG,
    )
    loss, log = rule.agent_loss(inputs, meta_out, hyper_params, backprop=False)
    loss_no_meta, log_no_meta = rule.agent_loss_no_meta(inputs, meta_out, hyper_params)
    target_out = meta_out.pop("target_out")
    advantages, errors = meta_state["adv_ema_state"], meta_state["td_ema_state"]
    rnn = meta_state["rnn_state"]["lstm"]["meta_rnn_state"]
    outputs = meta_out | {"loss": loss, "loss_no_meta": loss_no_meta, "rnn_h": rnn.hidden, "rnn_c": rnn.cell}
    outputs |= {"adv_m1": advantages.moment1, "adv_m2": advantages.moment2, "decay": advantages.decay_product}
    outputs |= {"td_m1": errors.moment1, "td_m2": errors.moment2}
    outputs |= {f"log/{name}": x for name, x in (log | log_no_meta).items()}
    return outputs, agent_out, target_out, meta_state


def learner_outputs(config: Config, rule: str, inputs: Arrays, eta: Arrays) -> Arrays:
    """Agent updates, one on each rollout; with the actor-critic rule the parameters alone are the final state."""
    agent = build_agent(config, rule)
    state = initial_state(agent, group(inputs, "theta0"))
    eta_params = haiku_params(eta)
    step = jax.jit(partial(agent.learner_step, is_meta_training=False))
    N = NUMBER_OF_CALLS["actor_critic" if rule == "actor_critic" else "learner"]
    outputs: Arrays = {}
    for n in range(N):
        state, _, log = step(RNG, actor_rollout(group(inputs, f"step{n}_in")), state, {}, eta_params)
        log.pop("meta_out")
        outputs |= prefixed(f"step{n}_log", log)
    outputs |= prefixed(f"theta{N}", flat_params(state.params))
    if rule != "actor_critic":
        adam = state.opt_state[0]
        trees = {"target": state.meta_state["target_params"], "mu": adam.mu, "nu": adam.nu}
        for name, tree in trees.items():
            outputs |= prefixed(f"{name}{N}", flat_params(tree))
    return outputs


def meta_gradient_outputs(config: Config, rule: str, inputs: Arrays, eta: Arrays) -> Arrays:
    """The gradient of the meta-loss in the rule's parameters, and what the meta-loss was made of."""
    agent, value_function = build_agent(config, rule), build_value_function(config)
    state = initial_state(agent, group(inputs, "theta0"))
    value_params = haiku_params(group(inputs, "value_params0"))
    value_state = in_float64(value_function.initial_state(RNG, jnp.asarray(inputs["train0/observations"][0])))
    value_state = value_state.replace(params=value_params)
    train = utils.tree_stack([actor_rollout(group(inputs, f"train{n}")) for n in range(config["meta"]["inner_steps"])])
    valid = actor_rollout(group(inputs, "valid"))
    loss = partial(_meta_loss, agent, value_function, config["meta"]["weights"])
    gradients, aux = jax.jit(jax.grad(loss, has_aux=True))(haiku_params(eta), state, value_state, train, valid)
    trees = {name: aux.pop(name) for name in ("theta", "value_params")}
    outputs = prefixed("grads", flat_params(gradients)) | prefixed("aux", aux)
    for name, tree in trees.items():
        outputs |= prefixed(f"aux/{name}", flat_params(tree))
    return outputs


def _meta_loss(
    agent: reference_agent.Agent,
    value_function: value_fn.ValueFunction,
    weights: Config,
    eta: types.MetaParams,
    state: reference_agent.LearnerState,
    value_state: types.ValueState,
    train: types.ActorRollout,
    valid: types.ActorRollout,
) -> tuple[jax.Array, dict[str, Any]]:
    """The policy-gradient loss on `valid` of the agent that the rule trained on `train`, and regularisers.

    Gradients reach `eta` through the agent's parameters and through the targets; the advantage is a constant.
    """

    def inner_step(carry: tuple[Any, Any], rollout: types.ActorRollout) -> tuple[tuple[Any, Any], types.UpdateRuleOuts]:
        state, value_state = carry
        # The value function follows the policy that the agent had before this step's update.
        logits = agent.unroll_net(state.params, {}, rollout)[0]["logits"]
        state, _, log = agent.learner_step(RNG, rollout, state, {}, eta, is_meta_training=True)
        value_state, _, _ = value_function.update(value_state, rollout, logits)
        return (state, value_state), log["meta_out"]

    (state, value_state), targets = jax.lax.scan(inner_step, (state, value_state), train)
    out, _ = agent.unroll_net(state.params, {}, valid)
    value_out, _, _, _ = value_function.get_value_outs(value_state, valid, out["logits"])
    actions, logits = valid.actions[:-1], out["logits"][:-1]
    advantages = jax.lax.stop_gradient(value_out.normalized_adv)
    log_prob = utils.batch_lookup(jax.nn.log_softmax(logits), actions)
    pg_loss = -jnp.mean(log_prob * advantages)

    entropy = _mean_entropy(logits)
    prediction_entropy = _mean_entropy(out["y"]) + _mean_entropy(utils.batch_lookup(out["z"][:-1], actions))
    target_mean = sum(
        jnp.mean(targets[name].mean((1, 2, 3)) ** 2) for name in ("pi", "y", "z")
    )  # targets are [N, T, B, ...]
    target_policy = jax.lax.stop_gradient(targets["target_out"]["logits"][:, :-1])  # [N, T, B, A]
    target_kl = jnp.mean(rlax.categorical_kl_divergence(target_policy, targets["pi"]))
    reg_loss = weights["target_mean"] * target_mean + weights["target_kl"] * target_kl
    reg_loss -= weights["policy_entropy"] * entropy + weights["prediction_entropy"] * prediction_entropy
    meta_loss = pg_loss + reg_loss
    aux = {"meta_loss": meta_loss, "pg_loss": pg_loss, "reg_loss": reg_loss, "entropy": entropy}
    aux |= {"adv": value_out.adv, "normalized_adv": value_out.normalized_adv, "value": value_out.value}
    return meta_loss, aux | {"theta": state.params, "value_params": value_state.params}


def _mean_entropy(logits: jax.Array) -> jax.Array:
    return jnp.mean(distrax.Softmax(logits).entropy())


Compute = Callable[[Config, str, Arrays, Arrays], Arrays]
COMPUTE: dict[str, Compute] = {
    "values": lambda config, rule, inputs, eta: values_outputs(config, inputs),
    "rule": rule_outputs,
    "learner": learner_outputs,
    "actor_critic": learner_outputs,
    "meta_gradient": meta_gradient_outputs,
}
"""For each kind of file: its outputs, from (configuration, rule, inputs, rule parameters)."""
