"""Environments: one batched protocol, Catch and families of levels as tensors on any device, and what Gymnasium knows."""

from disco_torch.envs.base import Environment, EnvironmentFailure, EnvStep
from disco_torch.envs.bricks import Bricks
from disco_torch.envs.catch import Catch, CatchState
from disco_torch.envs.catch_gym import CATCH_ID, CatchEnv, register_catch
from disco_torch.envs.catch_variants import CatchVariants
from disco_torch.envs.chain import Chain
from disco_torch.envs.crossing import Crossing
from disco_torch.envs.families import FAMILIES
from disco_torch.envs.gatherer import Gatherer
from disco_torch.envs.grid import GridWorld
from disco_torch.envs.gymnasium_env import GymnasiumEnvironment, make_gymnasium
from disco_torch.envs.invaders import Invaders
from disco_torch.envs.kinds import ObservationKind, kinds_by_name, kinds_of_space
from disco_torch.envs.levels import LevelEnvironment, LevelState, Split, draw_integers
from disco_torch.envs.make import make_env
from disco_torch.envs.pure import PureEnvironment

register_catch()

__all__ = [
    "CATCH_ID",
    "FAMILIES",
    "Bricks",
    "Catch",
    "CatchEnv",
    "CatchState",
    "CatchVariants",
    "Chain",
    "Crossing",
    "EnvStep",
    "Environment",
    "EnvironmentFailure",
    "Gatherer",
    "GridWorld",
    "GymnasiumEnvironment",
    "Invaders",
    "LevelEnvironment",
    "LevelState",
    "ObservationKind",
    "PureEnvironment",
    "Split",
    "draw_integers",
    "kinds_by_name",
    "kinds_of_space",
    "make_env",
    "make_gymnasium",
]
