"""The Catch training loop with the JAX reference, for `training_loop.py`; runs in the peer's environment.

Acting and the update are jitted; the replay between them is a deque of trajectories on the host that are split and stacked
with the libraries' own functions, as in the reference's evaluation notebook, with all of an agent's outputs in them. Unlike
there, logs are fetched once for all loops of a piece of work.
"""

import collections
import json
import sys

import jax
import numpy as np
import rlax
from disco_rl import utils
from peer_reference import act, begin_world, make_catch, make_catch_agent, serve_jax

setting = json.loads(sys.argv[1])
env = make_catch(8, 8, setting["num_envs"])
agent = make_catch_agent(env, learning_rate=1e-2)
key = jax.random.PRNGKey(0)
rule_params, _ = agent.update_rule.init_params(key)
state, world = agent.initial_learner_state(key), begin_world(agent, env, key)
memory = agent.initial_actor_state(key)
replay, rng = collections.deque(maxlen=1024), np.random.default_rng(0)
collect = jax.jit(lambda params, world, key: act(agent, env, params, world, key, 29))


@jax.jit
def update(state, batch, rule_params):
    after, _, logs = agent.learner_step(key, batch, state, memory, rule_params, False)
    del logs["meta_out"]  # the targets themselves, which are not read
    return after, logs


def loop():
    """One rollout, and an update once there are enough trajectories; returns its logs."""
    global state, world, key
    key, acting_key = jax.random.split(key)
    rollout, world = collect(state.params, world, acting_key)
    replay.extend(rlax.tree_split_leaves(jax.device_get(rollout), axis=1))
    if len(replay) < 64:
        return {}
    drawn = [replay[i] for i in rng.integers(len(replay), size=64)]
    state, logs = update(state, utils.tree_stack(drawn, axis=1), rule_params)
    return logs


def work(i):
    while not (logs := loop()):  # the replay is filled in the first run
        pass
    for _ in range(setting["loops"]):
        logs = loop()
    return jax.device_get(logs), state


serve_jax(work)
