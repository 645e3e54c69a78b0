"""How good an agent is: whole episodes, with its sampled and its greedy policy, and how sure that is."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from disco_torch.agents import Agent
from disco_torch.analysis import Interval, mean_interval
from disco_torch.data import act, agent_step, init_actor
from disco_torch.envs import FAMILIES, Environment, PureEnvironment, make_env
from disco_torch.files import replacing
from disco_torch.runs import first_not_finite, resolve_device, restoring, unpack
from disco_torch.runs.checkpoint import FIX, CheckpointMismatch, typed
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
        raise ValueError(
            f"episodes of {env.name} did not end within {max_steps} steps in each environment; raise `max_steps`."
        )
    finished = [episode for own in played for episode in own[:each]]
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
        prefix, leaves = "learner/params/", typed(session, "learning", dict)
        stored = {name.removeprefix(prefix): leaf for name, leaf in leaves.items() if str(name).startswith(prefix)}
        outputs = OutputSpec(**session["outputs"])
        _check_sizes(outputs, stored)
        agent = Agent(env.observation_example, env.num_actions, outputs, sizes).to(where)
        params = unpack(stored, {name: param.detach() for name, param in agent.named_parameters()}, prefix[:-1])
    env.close()
    if (problem := first_not_finite(params)) is not None:
        raise ValueError(f"{problem} in the checkpoint of {folder.path}; an agent cannot act with it.")
    return TrainedAgent(folder, agent, params, where)


def _check_sizes(outputs: OutputSpec, stored: dict[str, Any]) -> None:
    """Raises unless each output has a head of its size among the stored parameters: an agent allocates what they say."""
    for name, size in [*outputs.flat.items(), *outputs.per_action.items()]:
        biases = [x for key, x in stored.items() if f".{name}." in key and isinstance(x, Tensor) and x.ndim == 1]
        if type(size) is not int or not any(len(x) == size and x.is_contiguous() for x in biases):
            got = size if type(size) is int else type(size).__name__
            raise CheckpointMismatch(f"the checkpoint's `outputs/{name}` must be the size of its head, got {got}; {FIX}.")


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

    env = _recording_env(trained)
    generator = torch.Generator(env.device).manual_seed(seed)
    actor = init_actor(trained.agent, env, generator)
    frames = [env.render(actor.env_state)]
    step = agent_step(trained.agent, trained.params, env, generator, greedy=policy == "greedy")
    for after, (_, ended) in act(step, actor, range(max_steps)):
        frames.append(env.render(after.env_state))
        if ended.ends.any():
            break
    env.close()
    images = [Image.fromarray(frame) for frame in frames if frame is not None]
    if not images:
        raise ValueError(f"{env.name} draws no pictures, so that there is nothing to record; evaluate it without --record.")
    with replacing(path) as file:
        images[0].save(file, format="GIF", save_all=True, append_images=images[1:], duration=80, loop=0)
    return len(images)


def _recording_env(trained: TrainedAgent) -> Environment:
    """One environment that still shows the last state of an episode after the step that ended it."""
    config = trained.folder.config
    if config.env in ("catch", *FAMILIES):
        env = trained.make_env(1)
        assert isinstance(env, PureEnvironment)
        env.autoreset = False
        return env
    changes: dict[str, Any] = {"render_mode": "rgb_array"}
    if config.env_args.get("vectorization_mode") != "vector_entry_point":  # which has an autoreset mode of its own
        changes["vector_kwargs"] = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    return trained.make_env(1, **changes)
