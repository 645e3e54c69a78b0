"""Atari games of the Arcade Learning Environment, `atari/GAME`: ale-py's vector environment, with its preprocessing set
on purpose.

ale-py is imported when a game is made; the package does without it otherwise.
"""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from disco_torch.checks import check_actions, check_between, check_least, check_positive, check_shape
from disco_torch.envs.base import ROOT, Environment, EnvStep, FrameStack
from disco_torch.files import reason_of

PREFIX = "atari/"
"""What the names of these environments begin with."""
TWO_PLAYERS = ("combat", "joust", "maze_craze", "warlords")
"""Games that need a second player, which ends the process where they are made."""
SCREEN = (210, 160)
"""Height and width of the screen, for recordings."""
INSTALL = "pip install 'ale-py>=0.12.1'"


@dataclass(frozen=True)
class AtariConfig:
    """How a game is played and shown. The defaults are the protocol of the DQN and its successors, without sticky actions.

    Attributes:
      height, width: size of a frame in pixels.
      grayscale: frames [height, width] of grey values; else [height, width, 3] of colours.
      stack: number of frames of an observation, [stack, ...]; before the first one of an episode stand zeros.
      frame_skip: number of screens that an action is repeated for; rewards are summed over them.
      max_pool: whether a frame is the maximum of the last two screens, since many games draw an object in every other one.
      noop_max: an episode begins after a random number of screens without an action, at most so many.
      repeat_action_probability: probability of sticky actions, that a screen gets the action of the one before; 0.25 is
        usual.
      full_action_space: all 18 actions of the joystick; else those that the game uses.
      max_frames: screens after which a time limit cuts an episode, not counting those before its first observation.
      fire_reset: whether FIRE is pressed at each reset of games that have it. Off: the agent presses it itself, also to get
        the next ball after a lost life, which no wrapper does for it.
      lost_life_ends_return: whether the discount is 0 where a life is lost. The game goes on, and so does the logged return.
    """

    height: int = 84
    width: int = 84
    grayscale: bool = True
    stack: int = 4
    frame_skip: int = 4
    max_pool: bool = True
    noop_max: int = 30
    repeat_action_probability: float = 0.0
    full_action_space: bool = False
    max_frames: int = 108_000
    fire_reset: bool = False
    lost_life_ends_return: bool = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, kind = getattr(self, field.name), type(field.default)
            if kind is not float and type(value) is not kind:
                raise ValueError(f"`{field.name}` of atari must be {kind.__name__}, got {value!r}.")
        for name, low in {"height": 1, "width": 1, "stack": 1, "frame_skip": 1, "noop_max": 0, "max_frames": 1}.items():
            check_least(name, getattr(self, name), low)
        check_between("repeat_action_probability", self.repeat_action_probability, 0.0, 1.0)

    def arguments(self) -> dict[str, Any]:
        """What ale-py calls these settings. Rewards stay as they are: a learner clips them, logged returns must not be."""
        return {
            "img_height": self.height,
            "img_width": self.width,
            "grayscale": self.grayscale,
            "stack_num": self.stack,
            "frameskip": self.frame_skip,
            "maxpool": self.max_pool,
            "noop_max": self.noop_max,
            "repeat_action_probability": float(self.repeat_action_probability),
            "full_action_space": self.full_action_space,
            "continuous": False,
            "continuous_action_threshold": 0.5,  # of no use without continuous actions
            "max_num_frames_per_episode": self.max_frames,
            "use_fire_reset": self.fire_reset,
            "reward_clipping": False,
            "episodic_life": False,  # would restart the whole game
            "life_loss_info": False,  # would call a lost life the end of an episode
            "autoreset_mode": "NextStep",
        }


class Atari(Environment):
    """Parallel games. An episode's last observation is shown; one more row, whose action is ignored, shows the next first
    one with reward 0 and discount 0. Rewards are the game's own.

    Args:
      game: name of the game; "ms_pacman", "ms-pacman" and "MsPacman" are the same.
      num_envs: number of parallel games.
      config: how they are played.
      device: where the tensors shall lie.
      num_threads: number of threads; 0 for one for each core. Games are the same for any number.
      render_mode: "rgb_array" for `render` to return the screen in colours, for which a second set of games plays along.
    """

    truncates = True

    def __init__(
        self,
        game: str,
        num_envs: int,
        config: AtariConfig | None = None,
        *,
        device: str | torch.device = "cpu",
        num_threads: int = 0,
        render_mode: str | None = None,
    ) -> None:
        check_positive("num_envs", num_envs, "it is the number of parallel environments")
        check_least("num_threads", num_threads, 0)
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"`render_mode` of atari must be 'rgb_array' or None, got {render_mode!r}.")
        self.config = config = config or AtariConfig()
        game = find_game(game)
        self.name, self.num_envs, self.device = f"{PREFIX}{game}", num_envs, torch.device(device)
        self._games = _make_games(game, num_envs, config.arguments(), num_threads)
        self._coloured: Any = None
        if render_mode == "rgb_array":
            size = {"grayscale": False, "stack_num": 1, "img_height": SCREEN[0], "img_width": SCREEN[1]}
            self._coloured = _make_games(game, num_envs, config.arguments() | size, num_threads)
        self._screens: np.ndarray | None = None
        self.num_actions = int(self._games.single_action_space.n)
        shape = self._games.single_observation_space.shape
        self.observation_example = torch.zeros(shape, dtype=torch.uint8, device=self.device)
        self.settings = dataclasses.asdict(config)
        self.ends_within_episodes = config.lost_life_ends_return
        if config.stack > 1:
            self.frame_stacks = {ROOT: FrameStack(config.stack, "zeros")}
        self._waits_for_first: np.ndarray | None = None  # [B] whose next row begins an episode; None before reset
        self._lives = np.zeros(num_envs, dtype=np.int64)

    def reset(self, generator: torch.Generator) -> tuple[None, EnvStep]:
        """Starts a game in every environment; their seeds are consecutive numbers from one that is drawn here."""
        seed = int(torch.randint(2**31 - self.num_envs, (), generator=generator, device=generator.device))
        frames, info = self._games.reset(seed=seed)
        if self._coloured is not None:
            self._screens, _ = self._coloured.reset(seed=seed)
        no = np.zeros(self.num_envs, dtype=bool)
        self._waits_for_first, self._lives = no, info["lives"]
        return None, self._row(frames, no, closes=no, truncated=no, begins=~no, ended=no)

    def step(self, state: None, actions: Tensor, generator: torch.Generator) -> tuple[None, EnvStep]:
        """Takes a step in every game. They drew their randomness at reset; `generator` is not read."""
        begins = self._waits_for_first
        if begins is None:
            raise ValueError("`reset` must come before `step`, got a step first; it starts the first episodes.")
        check_shape("actions", actions, (self.num_envs,), "it needs one action for each environment")
        actions = actions.cpu()
        check_actions("actions", actions, self.num_actions)
        numbers = actions.numpy().astype(np.int64)
        frames, rewards, terminated, truncated, info = self._games.step(numbers)
        if self._coloured is not None:
            self._screens = self._coloured.step(numbers)[0]
        ended, closes = terminated | truncated, terminated | begins
        if self.config.lost_life_ends_return:
            closes = closes | (info["lives"] < self._lives)
        self._waits_for_first, self._lives = ended, info["lives"]
        return None, self._row(frames, rewards, closes=closes, truncated=truncated & ~terminated, begins=begins, ended=ended)

    def render(self, state: None = None) -> np.ndarray | None:
        """The screen of game 0 in colours, [210, 160, 3]; None unless the environment was made with "rgb_array"."""
        return None if self._screens is None else self._screens[0, 0]

    def close(self) -> None:
        for games in (self._games, self._coloured):
            if games is not None:
                games.close()

    def _row(
        self,
        frames: np.ndarray,
        rewards: np.ndarray,
        *,
        closes: np.ndarray,
        truncated: np.ndarray,
        begins: np.ndarray,
        ended: np.ndarray,
    ) -> EnvStep:
        observations = torch.tensor(frames, device=self.device)  # a copy: the emulator may use its memory again
        return EnvStep(
            observations=observations,
            rewards=torch.tensor(rewards, dtype=torch.float32, device=self.device),
            discounts=torch.tensor(~closes, dtype=torch.float32, device=self.device),
            truncations=torch.tensor(truncated, device=self.device),
            final_observations=observations,
            is_first=torch.tensor(begins, device=self.device),
            episode_ends=torch.tensor(ended, device=self.device),
        )


def make_atari(name: str, num_envs: int, device: str | torch.device, arguments: dict[str, Any]) -> Atari:
    """Parallel games of "atari/GAME", from the fields of `AtariConfig`, `num_threads` and `render_mode` as a command line
    gives them: "true" and "false" are booleans.
    """
    own = {field.name: type(field.default) for field in dataclasses.fields(AtariConfig)}
    known = [*own, "num_threads", "render_mode"]
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise ValueError(f"`{name}` takes {', '.join(known[:-1])} and {known[-1]}, got {unknown[0]!r}.")
    words = {"true": True, "false": False}
    values = {key: words.get(value, value) if own.get(key) is bool else value for key, value in arguments.items()}
    config = AtariConfig(**{key: values.pop(key) for key in own if key in values})
    return Atari(name.removeprefix(PREFIX), num_envs, config, device=device, **values)


def find_game(name: str) -> str:
    """The name that ale-py has for a game, whatever its capitals and what stands between words; raises if there is none."""
    games = {_plain(game): game for game in _import_ale()[1].get_all_rom_ids()}
    found = games.get(_plain(name))
    if found in TWO_PLAYERS:
        raise ValueError(f"`env` must be a game for one player, got '{PREFIX}{name}', which needs two.")
    if found is not None:
        return found
    near = [games[match] for match in difflib.get_close_matches(_plain(name), games, n=3)] or ["pong", "breakout"]
    raise ValueError(
        f"`env` must be one of the {len(games) - len(TWO_PLAYERS)} games that ale-py has, got '{PREFIX}{name}'; did you "
        f"mean {' or '.join(PREFIX + game for game in near)}?"
    )


def _plain(name: str) -> str:
    return "".join(x for x in name.lower() if x.isalnum())


def _import_ale() -> tuple[Any, Any]:
    """The class of ale-py's vector environment, and its module of games."""
    try:
        from ale_py import roms
        from ale_py.vector_env import AtariVectorEnv
    except ImportError as error:
        raise ValueError(
            f"`env` 'atari/...' needs the package ale-py, which cannot be imported ({reason_of(error)}); install it with "
            f"{INSTALL}"
        ) from None
    return AtariVectorEnv, roms


def _make_games(game: str, num_envs: int, arguments: dict[str, Any], num_threads: int) -> Any:
    try:
        return _import_ale()[0](game, num_envs, num_threads=num_threads, **arguments)
    except TypeError as error:  # an argument that came with a later version
        raise ValueError(f"ale-py is too old for the package ({error}); update it with {INSTALL}.") from error
