"""Human-normalised scores of Atari games."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from disco_torch.analysis.aggregates import normalize_scores

ATARI_RETURNS: dict[str, tuple[float, float]] = {
    "alien": (227.8, 7127.7),
    "amidar": (5.8, 1719.5),
    "assault": (222.4, 742.0),
    "asterix": (210.0, 8503.3),
    "asteroids": (719.1, 47388.7),
    "atlantis": (12850.0, 29028.1),
    "bank_heist": (14.2, 753.1),
    "battle_zone": (2360.0, 37187.5),
    "beam_rider": (363.9, 16926.5),
    "berzerk": (123.7, 2630.4),
    "bowling": (23.1, 160.7),
    "boxing": (0.1, 12.1),
    "breakout": (1.7, 30.5),
    "centipede": (2090.9, 12017.0),
    "chopper_command": (811.0, 7387.8),
    "crazy_climber": (10780.5, 35829.4),
    "defender": (2874.5, 18688.9),
    "demon_attack": (152.1, 1971.0),
    "double_dunk": (-18.6, -16.4),
    "enduro": (0.0, 860.5),
    "fishing_derby": (-91.7, -38.7),
    "freeway": (0.0, 29.6),
    "frostbite": (65.2, 4334.7),
    "gopher": (257.6, 2412.5),
    "gravitar": (173.0, 3351.4),
    "hero": (1027.0, 30826.4),
    "ice_hockey": (-11.2, 0.9),
    "jamesbond": (29.0, 302.8),
    "kangaroo": (52.0, 3035.0),
    "krull": (1598.0, 2665.5),
    "kung_fu_master": (258.5, 22736.3),
    "montezuma_revenge": (0.0, 4753.3),
    "ms_pacman": (307.3, 6951.6),
    "name_this_game": (2292.3, 8049.0),
    "phoenix": (761.4, 7242.6),
    "pitfall": (-229.4, 6463.7),
    "pong": (-20.7, 14.6),
    "private_eye": (24.9, 69571.3),
    "qbert": (163.9, 13455.0),
    "riverraid": (1338.5, 17118.0),
    "road_runner": (11.5, 7845.0),
    "robotank": (2.2, 11.9),
    "seaquest": (68.4, 42054.7),
    "skiing": (-17098.1, -4336.9),
    "solaris": (1236.3, 12326.7),
    "space_invaders": (148.0, 1668.7),
    "star_gunner": (664.0, 10250.0),
    "surround": (-10.0, 6.5),
    "tennis": (-23.8, -8.3),
    "time_pilot": (3568.0, 5229.2),
    "tutankham": (11.4, 167.6),
    "up_n_down": (533.4, 11693.2),
    "venture": (0.0, 1187.5),
    "video_pinball": (16256.9, 17667.9),
    "wizard_of_wor": (563.5, 4756.5),
    "yars_revenge": (3092.9, 54576.9),
    "zaxxon": (32.5, 9173.3),
}
"""Mean returns of a uniform policy and of a human tester in the 57 games, by ale-py's names: the constants that papers since
Wang et al. (2016), Rainbow and Agent57 among them, normalise with. Episodes begin after up to 30 screens without an action
and last 108,000 at most, without sticky actions."""


def atari_scores(returns: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
    """Human-normalised scores, (R - R_random) / (R_human - R_random): 0 is a uniform policy, 1 a human.

    Args:
      returns: mean returns by game, as a run names it: "ms_pacman", "atari/ms_pacman" and "atari/MsPacman" are the same;
        [seeds] each.

    Returns:
      The scores by ale-py's names of the games, for `aggregate`.
    """
    games = {_plain(game): game for game in ATARI_RETURNS}
    found: dict[str, ArrayLike] = {}
    for name, values in returns.items():
        game = games.get(_plain(name.removeprefix("atari/")))
        if game is None:
            raise ValueError(f"`returns` must be of the 57 games in ATARI_RETURNS, got {name!r}; leave it out.")
        if game in found:
            raise ValueError(f"`returns` must name each game once, got {game!r} again as {name!r}; put its seeds together.")
        found[game] = values
    low, high = ({game: pair[i] for game, pair in ATARI_RETURNS.items()} for i in (0, 1))
    return normalize_scores(found, low, high)


def _plain(name: str) -> str:
    return "".join(x for x in name.lower() if x.isalnum())
