"""Families whose time limits are no ends, and varied ones, in a population: recorded as plain, with cuts and first steps."""

from __future__ import annotations

import warnings

import torch
from small_groups import make_group, random_rule, tiny_config

from disco_torch.discovery.config import HabitatConfig
from disco_torch.discovery.local_group import LocalGroup
from disco_torch.discovery.session import DiscoverySession
from disco_torch.kernels import Speed
from disco_torch.types import flatten_tree

HABITATS = (
    HabitatConfig("swing", {"varied": True, "num_actions": 9}),
    HabitatConfig("bandit", {"arms": 4, "contexts": 5}),
    HabitatConfig("maze", {"rooms": 3, "view": "coordinates"}),
    HabitatConfig("doors", {"size": 5}),
    HabitatConfig("lander"),
    HabitatConfig("slippery", {"positions": 12}),
    HabitatConfig("chain", {"length": 4}),
    HabitatConfig("recall", {"delay": 9}),
)


def test_a_population_in_all_of_them_carries_the_cuts() -> None:
    habitats = make_group(tiny_config(*HABITATS)).habitats
    assert habitats.truncates and habitats.num_actions == 9
    assert habitats.of_unknown_scale(habitats.habitats).tolist() == [1, 0, 1, 0, 1, 0, 0, 0]


def test_every_life_draws_its_own_variation() -> None:
    habitats = make_group(tiny_config(HABITATS[0])).habitats
    generator = torch.Generator().manual_seed(0)
    scales = [habitats.begin(0, generator)[1].variation.reward_scale for _ in range(5)]
    assert all((scale == scale[0]).all() for scale in scales) and len({scale[0].item() for scale in scales}) == 5


def test_recorded_is_plain() -> None:
    config, rollouts = tiny_config(*HABITATS), []
    for speed in (Speed(), Speed(trace=True)):
        group = LocalGroup(config, 0, random_rule(), torch.device("cpu"), speed)
        numbers = group.habitats.draws(150, torch.Generator().manual_seed(5))
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # no stage may fail
            _, rollout, _ = group.meta_update.parts.collect(group.state.learners.params, group.state.acting, *numbers)
        rollouts.append(rollout)
    plain, traced = (flatten_tree(rollout)[0] for rollout in rollouts)
    for a, b in zip(plain, traced, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert rollouts[0].truncations is not None and rollouts[0].truncations.any()


def test_a_rule_is_updated() -> None:
    """With first steps, without which an agent learns nothing from a bandit."""
    session = DiscoverySession(tiny_config(*HABITATS, rollout_length=3, valid_length=3, window=1, first_steps=True))
    before = {name: param.clone() for name, param in session.rule_params.items()}
    session.advance()
    assert all(param.isfinite().all() for param in session.rule_params.values())
    assert any((param != before[name]).any() for name, param in session.rule_params.items())
