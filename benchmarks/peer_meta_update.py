"""The released notebook's meta-update with the JAX reference, for `meta_update.py`; runs in the peer's environment.

    acting: N training rollouts of 16 rows and a validation rollout of 32, in 32 parallel environments of 5x5 Catch
    N updates of the agent and of its value function, each on one of the rollouts
    the meta-loss on the validation rollout, its gradient through the updates, one Adam step of the rule

all in one jitted function. Up to four agents are taken in turn, as the notebook does; compilation takes longer with each, so
more of them are batched by vmap.
"""

import json
import sys

import jax
import jax.numpy as jnp
import optax
import rlax
from disco_rl import utils
from disco_rl.value_fns import value_fn
from peer_reference import act, begin_world, make_catch, make_catch_agent, serve_jax, types

setting = json.loads(sys.argv[1])
P, N, ROWS, ENVS = setting["agents"], setting["updates"], 16, 32
env = make_catch(5, 5, ENVS)
agent = make_catch_agent(env, learning_rate=5e-4, lstm_size=256, head_mlp_hiddens=[256])
values = value_fn.ValueFunction(
    types.ValueFnConfig(
        net="mlp",
        net_args={"dense": (256, 256), "head_w_init_std": 1e-2, "action_spec": ()},
        learning_rate=1e-3,
        max_abs_update=1.0,
        discount_factor=0.99,
        td_lambda=0.96,
        outer_value_cost=1.0,
    ),
    axis_name=None,
)
optimizer = optax.adam(5e-4)


def begin_life(key):
    """Learner, value function and world of an agent."""
    example = utils.zeros_like_spec(env.single_observation_spec(), (ENVS,))
    return agent.initial_learner_state(key), values.initial_state(key, example), begin_world(agent, env, key)


def entropy(logits):
    return -jnp.sum(jax.nn.softmax(logits) * jax.nn.log_softmax(logits), axis=-1).mean()


def meta_loss(rule_params, learner, value, memory, train, valid, key):
    """How the agent does after its updates, with the notebook's regularisers; and what the updates have changed."""

    def update(carry, inputs):
        learner, memory, value = carry
        rollout, key = inputs
        after, memory_after, logs = agent.learner_step(key, rollout, learner, memory, rule_params, True)
        out, _ = agent.unroll_net(learner.params, memory, rollout)
        value, _, _ = values.update(value, rollout, out["logits"])
        return (after, memory_after, value), logs["meta_out"]

    (learner, memory, value), targets = jax.lax.scan(update, (learner, memory, value), (train, jax.random.split(key, N)))
    out, _ = agent.unroll_net(learner.params, memory, valid)
    value_out, *_ = values.get_value_outs(value, valid, out["logits"])
    logits, actions = out["logits"][:-1], valid.actions[:-1]
    loss = utils.differentiable_policy_gradient_loss(logits, actions, value_out.normalized_adv, backprop=False).mean()
    loss -= 1e-2 * entropy(logits) + 1e-3 * (entropy(out["y"]) + entropy(utils.batch_lookup(out["z"][:-1], actions)))
    for name in ("pi", "y", "z"):  # [N, T, B, ...]
        loss += 1e-3 * jnp.square(targets[name].mean(axis=(1, 2, 3))).mean()
    near = jax.lax.stop_gradient(targets["target_out"]["logits"][:, :-1])
    loss += 1e-2 * rlax.categorical_kl_divergence(near, targets["pi"]).mean()
    return loss, (learner, value)


def advance(rule_params, life, key):
    """One agent: acts, learns, and its meta-gradient."""
    learner, value, world = life
    memory, train = world[2], []
    keys = jax.random.split(key, N + 2)
    for i in range(N):
        rollout, world = act(agent, env, learner.params, world, keys[i], ROWS)
        train.append(rollout)
    valid, world = act(agent, env, learner.params, world, keys[N], 2 * ROWS)
    gradient = jax.grad(meta_loss, has_aux=True)
    grads, (learner, value) = gradient(rule_params, learner, value, memory, utils.tree_stack(train), valid, keys[N + 1])
    return grads, (learner, value, world)


@jax.jit
def meta_update(rule_params, moments, lives, key):
    keys = jax.random.split(key, P)
    if P <= 4:
        results = [advance(rule_params, life, key) for life, key in zip(lives, keys, strict=True)]
        grads, lives = utils.tree_stack([grads for grads, _ in results]), [life for _, life in results]
    else:
        grads, lives = jax.vmap(advance, in_axes=(None, 0, 0))(rule_params, lives, keys)
    updates, moments = optimizer.update(jax.tree.map(lambda x: x.mean(0), grads), moments)
    return optax.apply_updates(rule_params, updates), moments, lives


first, *keys = jax.random.split(jax.random.PRNGKey(0), P + 1)
rule_params, _ = agent.update_rule.init_params(first)
moments = optimizer.init(rule_params)
lives = [begin_life(key) for key in keys]
if P > 4:
    lives = utils.tree_stack(lives)


def work(i):
    global rule_params, moments, lives
    rule_params, moments, lives = meta_update(rule_params, moments, lives, jax.random.fold_in(first, i))
    return rule_params, lives


serve_jax(work)
