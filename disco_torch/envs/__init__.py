"""Environments: one batched protocol, Catch as tensors on any device, and whatever Gymnasium knows."""

from disco_torch.envs.base import Environment, EnvironmentFailure, EnvStep
from disco_torch.envs.catch import Catch, CatchState
from disco_torch.envs.catch_gym import CATCH_ID, CatchEnv, register_catch
from disco_torch.envs.gymnasium_env import GymnasiumEnvironment, make_gymnasium
from disco_torch.envs.make import make_env

register_catch()

__all__ = [
    "CATCH_ID",
    "Catch",
    "CatchEnv",
    "CatchState",
    "EnvStep",
    "Environment",
    "EnvironmentFailure",
    "GymnasiumEnvironment",
    "make_env",
    "make_gymnasium",
]
