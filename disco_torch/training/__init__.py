"""Training: from a rollout to a better agent."""

from disco_torch.training.update import Learner, LearnerState

__all__ = ["Learner", "LearnerState"]
