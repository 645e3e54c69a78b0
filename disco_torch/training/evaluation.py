"""How good an agent is: whole episodes, with its sampled and its greedy policy, and how sure that is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from disco_torch.analysis import Interval, mean_interval
from disco_torch.data import act, agent_step, init_actor
from disco_torch.data.acting import ActingAgent
from disco_torch.envs import Environment, PureEnvironment
from disco_torch.files import replacing
from disco_torch.types import Params

if TYPE_CHECKING:
    from disco_torch.training.trained import TrainedAgent

PolicyKind = Literal["sampled", "greedy"]


class EpisodesDoNotEnd(ValueError):
    """Episodes of an evaluation have not ended within the given number of steps."""


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of the episodes of an evaluation, and the policy that played them."""

    policy: PolicyKind
    returns: list[float]
    lengths: list[float]

    @property
    def interval(self) -> Interval:
        """Mean return and its 95% interval."""
        return mean_interval(self.returns)


def evaluate(
    agent: ActingAgent,
    params: Params,
    env: Environment,
    episodes: int,
    *,
    policy: PolicyKind = "sampled",
    seed: int = 0,
    max_steps: int = 1_000_000,
) -> Evaluation:
    """Plays at least `episodes` whole episodes.

    Every parallel environment plays equally many: stopping at the first so many that end would favour short ones.

    Args:
      agent, params: the agent to evaluate.
      env: its environments.
      episodes: number of episodes, rounded up to a multiple of `env.num_envs`.
      policy: sample actions, or take the most probable one.
      seed: random seed.
      max_steps: steps in each environment after which it is an error that episodes have not ended.
    """
    if episodes < 1:
        raise ValueError(f"`episodes` must be at least 1, got {episodes}.")
    generator = torch.Generator(env.device).manual_seed(seed)
    each = math.ceil(episodes / env.num_envs)
    step = agent_step(agent, params, env, generator, greedy=policy == "greedy")
    played: list[list[tuple[float, float]]] = [[] for _ in range(env.num_envs)]
    for _, (_, ended) in act(step, init_actor(agent, env, generator), range(max_steps)):
        numbers = torch.stack([ended.ends.double(), ended.returns, ended.lengths]).cpu()  # one transfer from the device
        for i in numbers[0].nonzero()[:, 0].tolist():
            played[i].append((numbers[1, i].item(), numbers[2, i].item()))
        if all(len(own) >= each for own in played):
            break
    else:
        raise EpisodesDoNotEnd(
            f"episodes of {env.name} did not end within {max_steps} steps in each environment; raise `max_steps`."
        )
    finished = [episode for own in played for episode in own[:each]]
    return Evaluation(policy, [numbers[0] for numbers in finished], [numbers[1] for numbers in finished])


def record(
    trained: TrainedAgent, path: Path, *, policy: PolicyKind = "sampled", seed: int = 0, max_steps: int = 2000
) -> int:
    """Writes an animated GIF of one episode, from its first to its last state, and returns its number of frames.

    Args:
      trained: the agent.
      path: file to write.
      policy: sample actions, or take the most probable one.
      seed: random seed.
      max_steps: steps after which the recording stops.
    """
    from PIL import Image

    env = trained.recording_env()
    if isinstance(env, PureEnvironment):
        env.autoreset = False
    generator = torch.Generator(env.device).manual_seed(seed)
    actor = init_actor(trained.agent, env, generator)
    frames = [env.render(actor.env_state)]
    step = agent_step(trained.agent, trained.params, env, generator, greedy=policy == "greedy")
    for after, (_, ended) in act(step, actor, range(max_steps)):
        frames.append(env.render(after.env_state))
        if ended.ends[0]:  # of the environment that is drawn
            break
    trained.close(env)
    images = [Image.fromarray(frame) for frame in frames if frame is not None]
    if not images:
        raise ValueError(
            f"{env.name} draws no pictures, so that there is nothing to record; evaluate it without --record. A function "
            "that makes an environment is asked for pictures by the argument `render_mode`, if it takes one."
        )
    with replacing(path) as file:
        images[0].save(file, format="GIF", save_all=True, append_images=images[1:], duration=80, loop=0)
    return len(images)
