"""The learner update of the JAX reference, jitted, for `learner.py`; runs in the peer's environment."""

import json
import sys

import jax
import numpy as np
from dm_env import specs
from peer_reference import make_agent, serve_jax, types

setting = json.loads(sys.argv[1])
T, B, A, size = (setting[name] for name in ("T", "B", "A", "observation"))
network = {name: setting[name] for name in ("dense", "lstm_size", "head_mlp_hiddens")}
observations = specs.Array((size,), np.float32, "observation")
agent = make_agent(observations, specs.BoundedArray((), np.int32, 0, A - 1, "action"), **network)
key = jax.random.PRNGKey(0)
rule_params, _ = agent.update_rule.init_params(key)
state, memory = agent.initial_learner_state(key), agent.initial_actor_state(key)
rng = np.random.default_rng(0)


def rollout():
    logits = rng.standard_normal((T + 1, B, A), np.float32)
    return types.ActorRollout(
        observations=rng.random((T + 1, B, size), np.float32),
        actions=rng.integers(A, size=(T + 1, B)).astype(np.int32),
        rewards=rng.standard_normal((T + 1, B), np.float32),
        discounts=(rng.random((T + 1, B)) > 0.1).astype(np.float32),
        agent_outs={"logits": logits},
        states=memory,
        logits=logits,
    )


@jax.jit
def update(state, rollout, rule_params):
    after, _, logs = agent.learner_step(key, rollout, state, memory, rule_params, False)
    return after, logs["total_loss"]


rollouts = [jax.device_put(rollout()) for _ in range(3)]


def work(i):
    global state
    state, loss = update(state, rollouts[i % 3], rule_params)
    return state, loss


serve_jax(work)
