"""Training: from an environment to a learned agent."""

from disco_torch.training.comparison import Contender, Task, compare
from disco_torch.training.config import SMALL_AGENT, ObjectsConfig, TrainConfig
from disco_torch.training.defaults import default_config
from disco_torch.training.evaluation import Evaluation, evaluate, record
from disco_torch.training.loop import TrainResult, train
from disco_torch.training.paper_presets import PAPER_SETTINGS, PaperSettings, paper_config
from disco_torch.training.presets import PRESETS
from disco_torch.training.trained import TrainedAgent, load_run
from disco_torch.training.trainer import DiscoTrainer
from disco_torch.training.update import Learner, LearnerState
from disco_torch.training.value_function import ValueFunction, ValueFunctionConfig, ValueFunctionState

__all__ = [
    "PAPER_SETTINGS",
    "PRESETS",
    "SMALL_AGENT",
    "Contender",
    "DiscoTrainer",
    "Evaluation",
    "Learner",
    "LearnerState",
    "ObjectsConfig",
    "PaperSettings",
    "Task",
    "TrainConfig",
    "TrainResult",
    "TrainedAgent",
    "ValueFunction",
    "ValueFunctionConfig",
    "ValueFunctionState",
    "compare",
    "default_config",
    "evaluate",
    "load_run",
    "paper_config",
    "record",
    "train",
]
