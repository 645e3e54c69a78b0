"""Acting in the JAX reference's own 8x8 Catch, for `acting.py`; runs in the peer's environment.

A rollout is one jitted scan. The reference's agent computes all its outputs when it acts, those that acting does not need as
well, and keeps them.
"""

import json
import sys

import jax
from peer_reference import act, begin_world, make_catch, make_catch_agent, serve_jax

setting = json.loads(sys.argv[1])
env = make_catch(8, 8, setting["batch"])
agent = make_catch_agent(env)
keys = jax.random.split(jax.random.PRNGKey(0), 3)
lives = [agent.initial_learner_state(key).params for key in keys]
world = begin_world(agent, env, keys[0])
collect = jax.jit(lambda params, world, key: act(agent, env, params, world, key, setting["rows"]))


def work(i):
    global world
    rollout, world = collect(lives[i % 3], world, jax.random.fold_in(keys[0], i))
    return rollout, world


serve_jax(work)
