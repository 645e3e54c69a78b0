"""Evaluation during training: in environments and with random numbers of its own, so that training does not notice."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from disco_torch.analysis import Interval
from disco_torch.data.acting import ActingAgent
from disco_torch.envs import Environment
from disco_torch.runs import Metrics
from disco_torch.training.config import TrainConfig
from disco_torch.training.evaluation import EpisodesDoNotEnd, evaluate
from disco_torch.types import Params

SEED_OFFSET = 1_000_000_007
"""Between the seed of the run and that of its evaluations."""
MAX_STEPS = 50_000
"""Steps of an episode after which an evaluation is given up."""


@dataclass(frozen=True)
class EvaluationPoint:
    """One evaluation: mean return with its 95% interval, mean length, and the environment steps before it."""

    steps: int
    interval: Interval
    length: float
    episodes: int

    @property
    def metrics(self) -> Metrics:
        mean, low, high = self.interval
        returns = {"eval_return": mean, "eval_return_low": low, "eval_return_high": high}
        return {**returns, "eval_length": self.length, "eval_episodes": self.episodes}


class PeriodicEvaluation:
    """Plays whole episodes every `eval_every` environment steps, and at the end.

    Every evaluation begins with the same seed: two of them differ in the agent, not in the episodes that they began with.

    Args:
      config: settings of the run.
      make_env: makes so many parallel environments, which the evaluation has for itself.
    """

    def __init__(self, config: TrainConfig, make_env: Callable[[int], Environment]) -> None:
        self.config, self.make_env = config, make_env
        self._env: Environment | None = None

    def is_due(self, steps: int) -> bool:
        """Whether the rollout that ended with this environment step passed a multiple of `eval_every`, or was the last."""
        every = self.config.eval_every
        if not every:
            return False
        return steps // every > (steps - self.config.steps_per_rollout) // every or steps >= self.config.steps

    def run(self, agent: ActingAgent, params: Params, steps: int) -> EvaluationPoint | None:
        """Evaluates an agent with these parameters; None, with a warning, where its episodes do not end."""
        config, episodes = self.config, self.config.eval_episodes
        if self._env is None:
            self._env = self.make_env(min(episodes, config.num_envs))
        limit = MAX_STEPS * -(-episodes // self._env.num_envs)
        seed = config.seed + SEED_OFFSET
        try:
            played = evaluate(agent, params, self._env, episodes, policy=config.eval_policy, seed=seed, max_steps=limit)
        except EpisodesDoNotEnd as error:
            hint = (
                "" if config.eval_policy == "sampled" else " A greedy policy may walk in circles; use `eval_policy` sampled."
            )
            warnings.warn(f"no evaluation at step {steps}: {error}{hint}", stacklevel=2)
            return None
        count = len(played.returns)
        return EvaluationPoint(steps, played.interval, sum(played.lengths) / count, count)

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None
