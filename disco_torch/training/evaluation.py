"""How good an agent is: whole episodes, with its sampled and its greedy policy, and how sure that is."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from disco_torch.agents import Agent
from disco_torch.analysis import Interval, mean_interval
from disco_torch.data import init_actor
from disco_torch.envs import FAMILIES, Environment, make_env
from disco_torch.files import replacing
from disco_torch.runs import first_not_finite, resolve_device, restoring, unpack
from disco_torch.training.folder import RunFolder
from disco_torch.types import OutputSpec, Params

PolicyKind = Literal["sampled", "greedy"]


@dataclass(frozen=True)
class Evaluation:
    policy: PolicyKind
    returns: list[float]
    lengths: list[float]

    @property
    def interval(self) -> Interval:
        """Mean return and its 95% interval."""
        return mean_interval(self.returns)


def evaluate(
    agent: Agent,
    params: Params,
    env: Environment,
    episodes: int,
    *,
    policy: PolicyKind = "sampled",
    seed: int = 0,
    max_steps: int = 1_000_000,
) -> Evaluation:
    """Plays at least `episodes` whole episodes.

    Every copy of the environment plays as many as the others: to stop at the first so many that end would favour short ones.
    """
    if episodes < 1:
        raise ValueError(f"`episodes` must be at least 1, got {episodes}.")
    generator = torch.Generator(env.device).manual_seed(seed)
    each = math.ceil(episodes / env.num_envs)
    actor = init_actor(agent, env, generator)
    env_state, step, memory = actor.env_state, actor.step, actor.memory
    returns, lengths = np.zeros(env.num_envs), np.zeros(env.num_envs)
    played: list[list[tuple[float, float]]] = [[] for _ in range(env.num_envs)]
    for _ in range(max_steps):
        actions, logits, memory = agent.act(params, step.observations, generator, step.is_first, memory)
        if policy == "greedy":
            actions = logits.argmax(dim=-1)
        env_state, step = env.step(env_state, actions, generator)
        returns, lengths = returns + step.rewards.cpu().numpy(), lengths + 1
        ends, firsts = step.episode_ends.cpu().numpy(), step.is_first.cpu().numpy()
        for copy in np.flatnonzero(ends):
            played[copy].append((float(returns[copy]), float(lengths[copy])))
        returns[ends | firsts], lengths[ends | firsts] = 0.0, 0.0
        if all(len(each_copy) >= each for each_copy in played):
            break
    else:
        raise ValueError(f"episodes of {env.name} did not end within {max_steps} steps a copy; raise `max_steps`.")
    finished = [episode for each_copy in played for episode in each_copy[:each]]
    return Evaluation(policy, [numbers[0] for numbers in finished], [numbers[1] for numbers in finished])


@dataclass(frozen=True)
class TrainedAgent:
    """An agent from the last checkpoint of a run."""

    folder: RunFolder
    agent: Agent
    params: Params
    device: torch.device

    def make_env(self, num_envs: int, **changes: Any) -> Environment:
        config = self.folder.config
        return make_env(config.env, num_envs, device=self.device, **(config.env_args | changes))


def load_run(run: Path | str, device: str = "auto") -> TrainedAgent:
    """The agent that a run has trained so far."""
    folder = RunFolder.open(Path(run))
    where = resolve_device(device)
    session = folder.load_checkpoint()["session"]
    env = make_env(folder.config.env, 1, device=where, **folder.config.env_args)
    # What the agent computes stands in the checkpoint: to act, the rule itself is not needed.
    sizes = dataclasses.replace(folder.config.agent, bfloat16=folder.config.agent.bfloat16 and where.type == "cuda")
    with restoring(folder.checkpoints):
        agent = Agent(env.observation_example, env.num_actions, OutputSpec(**session["outputs"]), sizes).to(where)
        prefix, leaves = "learner/params/", session["learning"]
        stored = {name.removeprefix(prefix): leaf for name, leaf in leaves.items() if name.startswith(prefix)}
        params = unpack(stored, {name: param.detach() for name, param in agent.named_parameters()}, prefix[:-1])
    env.close()
    if (problem := first_not_finite(params)) is not None:
        raise ValueError(f"{problem} in the checkpoint of {folder.path}; an agent cannot act with it.")
    return TrainedAgent(folder, agent, params, where)


def record(
    trained: TrainedAgent, path: Path, *, policy: PolicyKind = "sampled", seed: int = 0, max_steps: int = 2000
) -> int:
    """Writes an animated GIF of one episode and returns its number of frames."""
    from PIL import Image

    is_gymnasium = trained.folder.config.env not in ("catch", *FAMILIES)
    env = trained.make_env(1, **({"render_mode": "rgb_array"} if is_gymnasium else {}))
    generator = torch.Generator(env.device).manual_seed(seed)
    actor = init_actor(trained.agent, env, generator)
    env_state, step, memory = actor.env_state, actor.step, actor.memory
    frames = [env.render(env_state)]
    for _ in range(max_steps):
        actions, logits, memory = trained.agent.act(trained.params, step.observations, generator, step.is_first, memory)
        env_state, step = env.step(env_state, logits.argmax(dim=-1) if policy == "greedy" else actions, generator)
        if step.episode_ends.any():
            break
        frames.append(env.render(env_state))
    env.close()
    images = [Image.fromarray(frame) for frame in frames if frame is not None]
    if not images:
        raise ValueError(f"{env.name} draws no pictures, so that there is nothing to record; evaluate it without --record.")
    with replacing(path) as file:
        images[0].save(file, format="GIF", save_all=True, append_images=images[1:], duration=80, loop=0)
    return len(images)
