"""What the peers with the JAX reference share: its agent, acting in its Catch, and serving."""

import jax
from disco_rl import agent as agent_lib
from disco_rl import types
from disco_rl.environments import jittable_envs
from ml_collections import config_dict
from serve import cpu_memory, serve


def make_catch(rows, columns, num_envs):
    settings = config_dict.ConfigDict({"rows": rows, "columns": columns})
    return jittable_envs.CatchJittableEnvironment(num_envs, settings)


def make_agent(observations, actions, learning_rate=3e-4, **network):
    """The reference's agent for these specs, with a rule of Disco103's sizes.

    Args:
      observations, actions: specs of one observation and one action.
      learning_rate: of its Adam.
      **network: `dense`, `lstm_size` and `head_mlp_hiddens`, where they are not the reference's own.
    """
    settings = agent_lib.get_settings_disco()
    settings.learning_rate = learning_rate
    sizes = settings.net_settings.net_args
    sizes.dense = tuple(network.get("dense", sizes.dense))
    for name in ("lstm_size", "head_mlp_hiddens"):
        value = network.get(name, sizes.model_kwargs[name])
        sizes.model_kwargs[name] = tuple(value) if isinstance(value, list) else value
    return agent_lib.Agent(
        single_observation_spec=observations, single_action_spec=actions, agent_settings=settings, batch_axis_name=None
    )


def make_catch_agent(env, **settings):
    return make_agent(env.single_observation_spec(), env.single_action_spec(), **settings)


def act(agent, env, params, world, key, rows):
    """A rollout of [rows, environments], and the world after it: environments, what they showed last, the agent's memory."""

    def step(world, key):
        env_state, shown, memory = world
        row, memory = agent.actor_step(params, key, shown, memory)
        env_state, shown = env.step(env_state, row.actions)
        return (env_state, shown, memory), row

    world, seen = jax.lax.scan(step, world, jax.random.split(key, rows))
    return types.ActorRollout.from_timestep(seen), world


def begin_world(agent, env, key):
    return *env.reset(key), agent.initial_actor_state(key)


def device_memory():
    """MiB on a GPU, now and peak."""
    stats = jax.local_devices()[0].memory_stats()
    return stats["bytes_in_use"] / 2**20, stats["peak_bytes_in_use"] / 2**20


def serve_jax(work):
    """`work` returns arrays; it is done when they are there."""
    on_gpu = jax.default_backend() != "cpu"
    serve(lambda i: jax.block_until_ready(work(i)), memory=device_memory if on_gpu else cpu_memory)
