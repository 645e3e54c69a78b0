"""What a training loop watches while it runs: evaluations, the target return, and whether the agent learns at all."""

from __future__ import annotations

import math
import warnings
from typing import Any

from disco_torch.analysis.learning_check import EPISODES, learning_problem
from disco_torch.envs import EnvironmentFailure
from disco_torch.runs import RunLoop
from disco_torch.runs.checkpoint import best_path, load_checkpoint, save_best, typed
from disco_torch.training.defaults import DEFAULT_RULE
from disco_torch.training.episodes import RECENT_EPISODES
from disco_torch.training.folder import RunFolder
from disco_torch.training.periodic_evaluation import EvaluationPoint, PeriodicEvaluation
from disco_torch.training.ranks import failing_together
from disco_torch.training.session import TrainingSession

ADVICE = "docs/not_learning.md"
LEAST_UPDATES = 100
"""Updates before which the entropy of a policy says nothing."""


class WatchedLoop(RunLoop[RunFolder, TrainingSession]):
    """The part of a training loop that looks at the run. Nothing in it changes what is learned."""

    def __post_init__(self) -> None:
        super().__post_init__()
        config, session = self.folder.config, self.session
        self.evaluation = PeriodicEvaluation(config, lambda n: session.objects.make_env(config, n, session.device))
        self.best: dict[str, float] | None = self.world.share(self._stored_best)
        """Steps and mean return of the best evaluation so far."""
        self.warnings: list[str] = []
        """What speaks against learning, at the end of the run."""
        self._said: str | None = None
        self._is_checked = "learning_is_checked" in self.content and typed(self.content, "learning_is_checked", bool)
        self._first_updates = session.counters.updates
        if not config.eval_every:
            self._check_recent_returns()
        elif self.best is not None:
            self._check_target(self.best["eval_return"], f"an evaluation at step {self.best['steps']}")

    # What happens before the first update.

    def activity(self) -> str:
        session, config = self.session, self.folder.config
        if session.counters.updates > self._first_updates:
            return ""
        stored, needed = self.world.size * len(session.replay), min(config.batch_size, config.replay_capacity)
        made = "compiling" if session.speed.compile else "recording" if session.speed.trace else ""
        if stored + config.num_envs < needed:
            collected = f"collecting rollouts, {stored} of the {needed} trajectories that the first update needs"
            return f"{made} and {collected}" if made and not stored else collected
        return f"{made} the first update" if made else "making the first update"

    # Evaluations, the best checkpoint and the target.

    def after_advance(self, logged: bool) -> None:
        if self.evaluation.is_due(self.session.counters.steps):
            self._evaluate()
        if logged:
            if not self.folder.config.eval_every:
                self._check_recent_returns()
            self._check_learning()

    def _evaluate(self) -> None:
        self.check_finite()  # an agent that is not finite has nothing to show
        self.doing(f"evaluating the agent in {self.folder.config.eval_episodes} episodes")
        try:
            point = self._evaluated()
        except EnvironmentFailure:
            if not self.world.any(self.asked_to_stop()):  # Ctrl-C in a terminal ends the environment's processes, too
                self.save()
                raise
            return
        finally:
            self.doing(self.activity())
        if point is None:
            return
        counters = self.session.counters
        done = {"rollouts": counters.rollouts, "steps": counters.steps, "updates": counters.updates}
        metrics = {**done, "seconds": self.seconds, **point.metrics}
        self.write_metrics(metrics)
        self._keep_best(point)
        self._check_target(point.interval.mean, "the evaluation")
        self.call_back("after_evaluation", metrics)

    def _evaluated(self) -> EvaluationPoint | None:
        """The first process plays the episodes, while the others wait for it. Collective."""
        session, point = self.session, None
        with failing_together(self.world):
            if self.world.is_first:
                point = self.evaluation.run(session.acting_agent(), session.learner_state.params, session.counters.steps)
        return self.world.share(lambda: point)

    def _keep_best(self, point: EvaluationPoint) -> None:
        """Writes a checkpoint beside the others, without the replay, if no evaluation was as good as this one."""
        if self.best is not None and point.interval.mean <= self.best["eval_return"]:
            return
        content = self.content_now()
        self.best = {"steps": point.steps, **point.metrics}
        if content is None:  # the first process writes
            return
        content["session"]["replay"] = None
        with self.writing("the best checkpoint"):
            save_best(self.folder.checkpoints, content | {"best": dict(self.best)})

    def _stored_best(self) -> dict[str, float] | None:
        """The best evaluation of a run that is resumed."""
        if not best_path(self.folder.checkpoints).is_file():
            return None
        try:
            stored = typed(load_checkpoint(self.folder.checkpoints, "best"), "best", dict)
            steps, mean = typed(stored, "steps", int, "best"), typed(stored, "eval_return", float, "best")
            if not math.isfinite(mean):
                raise ValueError(f"the checkpoint's `best/eval_return` must be finite, got {mean}")
            return {"steps": steps, **{name: float(x) for name, x in stored.items() if name != "steps"}}
        except (ValueError, TypeError, OverflowError, RuntimeError) as error:
            path = best_path(self.folder.checkpoints)
            warnings.warn(f"{path} does not load ({error}); the next evaluation replaces it.", stacklevel=2)
            return None

    def _check_recent_returns(self) -> None:
        recent = self.session.episodes.recent
        if len(recent) == RECENT_EPISODES:
            mean = sum(numbers[0] for numbers in recent) / RECENT_EPISODES
            self._check_target(mean, f"the last {RECENT_EPISODES} episodes")

    def _check_target(self, mean: float, of_what: str) -> None:
        target = self.folder.config.target_return
        if target is not None and mean >= target and not self.stop_reason:
            self.stop_reason = f"the mean return of {of_what}, {mean:.4g}, reached the target of {target:.4g}"

    # Whether anything is learned.

    def _check_learning(self) -> None:
        """Looks once, after a fifth of the run and as soon as there are enough episodes, and says if nothing is learned."""
        counters = self.session.counters
        if self._is_checked or 5 * counters.steps < self.folder.config.steps:
            return
        problem = self._learning_problem()
        self._say(problem)
        self._is_checked = problem is not None or counters.episodes >= 2 * EPISODES

    def _say(self, problem: str | None) -> None:
        """Prints what speaks against learning; in a short run the end comes with the first look, and once is enough."""
        if problem not in (None, self._said) and self.world.is_first:
            self.live.print(problem)
        self._said = problem

    def _learning_problem(self) -> str | None:
        """One line that says what speaks against learning and where to read on."""
        session = self.session
        separate = session.counters.episodes >= 2 * EPISODES
        last = [numbers[0] for numbers in session.episodes.recent] if separate else []
        entropy = self.metrics.get("entropy") if session.counters.updates >= LEAST_UPDATES else None
        problem = learning_problem(session.episodes.first_returns, last, entropy, session.env.num_actions)
        if problem is None:
            return None
        default = "" if self.folder.config.rule == DEFAULT_RULE else f"`--rule {DEFAULT_RULE}` is the one to try, and "
        return f"Not learning? At step {session.counters.steps:,} {problem}; {default}{ADVICE} has more."

    def findings(self) -> dict[str, Any]:
        """What the summary says about evaluations and learning. Where nothing was learned, a line says so again."""
        config, counters = self.folder.config, self.session.counters
        problem = self._learning_problem() if 5 * counters.steps >= config.steps else None
        self.warnings = [] if problem is None else [problem]
        self._say(problem)
        return {"best": self.best, "warnings": self.warnings} if self.best is not None else {"warnings": self.warnings}

    def more_content(self) -> dict[str, Any]:
        return {"learning_is_checked": self._is_checked}
