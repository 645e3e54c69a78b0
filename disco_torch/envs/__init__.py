"""Environments: one batched protocol, games and families of levels as tensors, Atari, other packages, all of Gymnasium's."""

from disco_torch.envs.actions import MAX_JOINT_ACTIONS, ActionCoding, number_actions
from disco_torch.envs.atari import Atari, AtariConfig
from disco_torch.envs.bandit import Bandit
from disco_torch.envs.base import Environment, EnvironmentFailure, EnvStep, FrameStack
from disco_torch.envs.bin_actions import BinActions
from disco_torch.envs.bricks import Bricks
from disco_torch.envs.catch import Catch, CatchState
from disco_torch.envs.catch_gym import CATCH_ID, CatchEnv, register_catch
from disco_torch.envs.catch_variants import CatchVariants
from disco_torch.envs.chain import Chain
from disco_torch.envs.crossing import Crossing
from disco_torch.envs.doors import Doors
from disco_torch.envs.families import FAMILIES
from disco_torch.envs.frame_stack import stack_frames
from disco_torch.envs.games import GAMES
from disco_torch.envs.gatherer import Gatherer
from disco_torch.envs.grid import GridWorld
from disco_torch.envs.gymnasium_env import GymnasiumEnvironment
from disco_torch.envs.gymnasium_make import Wrapper, make_from_factory, make_gymnasium
from disco_torch.envs.invaders import Invaders
from disco_torch.envs.kinds import ObservationKind, kinds_by_name, kinds_of_space
from disco_torch.envs.lander import Lander
from disco_torch.envs.levels import LevelEnvironment, LevelState, Split, draw_integers
from disco_torch.envs.make import EnvSource, make_env
from disco_torch.envs.maze import Maze
from disco_torch.envs.packages import PACKAGES
from disco_torch.envs.pure import PureEnvironment
from disco_torch.envs.recall import Recall
from disco_torch.envs.registered import (
    find_named,
    import_modules,
    is_lookup_name,
    make_current_folder_importable,
    qualified_name,
    register_env,
)
from disco_torch.envs.slippery import Slippery
from disco_torch.envs.sokoban import Sokoban
from disco_torch.envs.sokoban_files import read_levels, write_levels
from disco_torch.envs.sokoban_generator import generate_levels
from disco_torch.envs.space_config import SpaceConfig, make_space, spaces_of, without_bounds
from disco_torch.envs.spaces import BadOutput, observation_tensors
from disco_torch.envs.swing import Swing
from disco_torch.envs.variation import Varied

register_catch()

__all__ = [
    "CATCH_ID",
    "FAMILIES",
    "GAMES",
    "MAX_JOINT_ACTIONS",
    "PACKAGES",
    "ActionCoding",
    "Atari",
    "AtariConfig",
    "BadOutput",
    "Bandit",
    "BinActions",
    "Bricks",
    "Catch",
    "CatchEnv",
    "CatchState",
    "CatchVariants",
    "Chain",
    "Crossing",
    "Doors",
    "EnvSource",
    "EnvStep",
    "Environment",
    "EnvironmentFailure",
    "FrameStack",
    "Gatherer",
    "GridWorld",
    "GymnasiumEnvironment",
    "Invaders",
    "Lander",
    "LevelEnvironment",
    "LevelState",
    "Maze",
    "ObservationKind",
    "PureEnvironment",
    "Recall",
    "Slippery",
    "Sokoban",
    "SpaceConfig",
    "Split",
    "Swing",
    "Varied",
    "Wrapper",
    "draw_integers",
    "find_named",
    "generate_levels",
    "import_modules",
    "is_lookup_name",
    "kinds_by_name",
    "kinds_of_space",
    "make_current_folder_importable",
    "make_env",
    "make_from_factory",
    "make_gymnasium",
    "make_space",
    "number_actions",
    "observation_tensors",
    "qualified_name",
    "read_levels",
    "register_env",
    "spaces_of",
    "stack_frames",
    "without_bounds",
    "write_levels",
]
