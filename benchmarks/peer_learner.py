"""The learner update of the JAX reference, for `learner.py`; runs in the peer's environment, one update for each line."""

import json
import sys
import time

import jax
import numpy as np
from disco_rl import agent as agent_lib
from disco_rl import types
from dm_env import specs

setting = json.loads(sys.argv[1])
T, B, A, size = (setting[name] for name in ("T", "B", "A", "observation"))
settings = agent_lib.get_settings_disco()
settings.net_settings.net_args.dense = tuple(setting["dense"])
settings.net_settings.net_args.model_kwargs.lstm_size = setting["lstm_size"]
settings.net_settings.net_args.model_kwargs.head_mlp_hiddens = tuple(setting["head_mlp_hiddens"])
agent = agent_lib.Agent(
    single_observation_spec=specs.Array((size,), np.float32, "observation"),
    single_action_spec=specs.BoundedArray((), np.int32, 0, A - 1, "action"),
    agent_settings=settings,
    batch_axis_name=None,
)
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


def update(state, rollout, rule_params):
    after, _, logs = agent.learner_step(key, rollout, state, memory, rule_params, False)
    return after, logs["total_loss"]


update = jax.jit(update)
rollouts = [jax.device_put(rollout()) for _ in range(3)]
for line in sys.stdin:
    started = time.perf_counter()
    state, loss = update(state, rollouts[int(line) % 3], rule_params)
    jax.block_until_ready(state)
    print("seconds", time.perf_counter() - started, flush=True)
