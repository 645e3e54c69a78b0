"""Networks and rules that a user brings as objects, and what becomes of images and texts."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from own_environments import Levers, Rooms
from small_runs import assert_same, last_state
from torch import Tensor, nn

from disco_torch import ActorCritic, AdamConfig, Agent, AgentConfig, PolicyGradient, load_rule, load_run, train
from disco_torch.training.folder import RunFolder


class Convolutions(nn.Module):
    """Reads the view of `Rooms`, [T, B, 4, 4, 3] as normalised numbers, and its place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 2)

    def forward(self, observations: Any) -> Tensor:
        view = observations["view"]
        assert view.dtype == torch.float32 and view.abs().max() <= 10
        features = self.conv(view.flatten(0, 1).movedim(-1, 1)).relu().flatten(1).unflatten(0, view.shape[:2])
        return torch.cat([features, observations["place"]], dim=-1)  # [T, B, 47]


@pytest.mark.filterwarnings("ignore:environment .* is text and left out")
def test_a_torso(tiny: dict[str, Any]) -> None:
    torso = Convolutions()
    start = torso.conv.weight.detach().clone()
    folder = train(env=Rooms, **tiny | {"agent": torso}).folder
    assert torch.equal(torso.conv.weight, start), "the module's own weights stay as they are"
    with pytest.raises(ValueError, match=r"`agent` must be given again: the run was given a network as an object, .*:Con"):
        load_run(folder, "cpu")
    run = load_run(folder, "cpu", agent=Convolutions(), env=Rooms)
    assert not torch.equal(run.params["torso.module.conv.weight"], start) and run.evaluate(2).lengths == [5.0, 5.0]
    assert train(resume=folder, agent=torso, env=Rooms, steps=72, view=False).folder == folder
    with pytest.raises(ValueError, match=r"`agent` must be that of the run, .*:Convolutions, got .*:Linear"):
        load_run(folder, "cpu", agent=nn.Linear(3, 3))


def test_a_torso_is_traced(tiny: dict[str, Any]) -> None:
    torch.manual_seed(0)
    torso = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.SiLU())
    runs = [train(env="CartPole-v1", speed=speed, **tiny | {"agent": torso}).folder for speed in ("plain", "traced")]
    plain, traced = (load_run(folder, "cpu", agent=torso).params for folder in runs)
    assert all(torch.allclose(plain[name], traced[name], atol=1e-5) for name in plain)


def test_a_whole_agent(tiny: dict[str, Any]) -> None:
    rule = load_rule("actor-critic")
    agent = Agent(torch.zeros(4), 2, rule.outputs(2), AgentConfig(dense=(7,)))
    folder = train(env="CartPole-v1", **tiny | {"agent": agent}).folder
    assert tuple(RunFolder.open(folder).config.agent.dense) == (7,)
    assert load_run(folder, "cpu", agent=agent).predict(np.zeros(4)) in (0, 1)
    with pytest.raises(ValueError, match=r"`agent` must have the `observation_shapes` of .*, \[\(6,\)\], got \[\(4,\)\]"):
        train(env="Acrobot-v1", **tiny | {"agent": agent})


def test_objects_that_a_run_was_not_given(tiny: dict[str, Any]) -> None:
    folder = train(env="CartPole-v1", **tiny).folder
    with pytest.raises(ValueError, match="`agent` must be left out, got Linear; the run's own configuration makes it"):
        load_run(folder, "cpu", agent=nn.Linear(4, 3))
    with pytest.raises(ValueError, match="`rule` must be left out, got PolicyGradient"):
        train(resume=folder, rule=PolicyGradient(), view=False)


def test_a_rule(tiny: dict[str, Any]) -> None:
    rule = load_rule("actor-critic")
    tiny |= {"updates_per_rollout": 2, "optimizer": AdamConfig(learning_rate=1e-2)}  # a name would bring settings of its own
    same = train(env="CartPole-v1", **tiny).folder
    folder = train(env="CartPole-v1", hyper_params={"entropy_cost": 0.01}, **tiny | {"rule": rule}).folder
    assert folder.name == "CartPole-v1-ActorCritic-seed0"
    assert_same(*(last_state(path)["learning"] for path in (same, folder)))
    with pytest.raises(ValueError, match="`rule` must be given again: the run was given a rule as an object"):
        train(resume=folder, steps=72, view=False)
    with pytest.raises(ValueError, match=r"`rule` must be that of the run, .*:ActorCritic, got .*:PolicyGradient"):
        train(resume=folder, rule=PolicyGradient(), view=False)
    assert train(resume=folder, rule=ActorCritic(rule.config), steps=72, view=False).folder == folder
    assert load_run(folder, "cpu").evaluate(1).returns, "to act, the rule is not needed"


class Picture(gymnasium.Env):
    observation_space = spaces.Box(0, 255, (40, 32, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros((40, 32, 3), np.uint8), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros((40, 32, 3), np.uint8), 0.0, True, False, {}


def test_images_without_a_convolutional_torso(tiny: dict[str, Any]) -> None:
    """8 trajectories of 6 images of 3840 bytes are 0.18 MiB."""
    tiny["replay_capacity"] = 100
    message = r"images of \[40, 32, 3\] bytes, .* as 3,840 separate numbers, with 30,720 weights .*replay takes 2 MiB"
    with pytest.warns(UserWarning, match=message):
        train(env=Picture, **tiny)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(env=Picture, **tiny | {"agent": nn.Flatten(2)})


@pytest.mark.filterwarnings("ignore:.*")
def test_texts_are_left_out_with_a_notice(tiny: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match=r"environment 'own/Rooms-v0': observation\['mission'\] is text and left out"):
        folder = train(env="own/Rooms-v0", **tiny).folder
    parts = RunFolder.open(folder).config.objects.observation_space.parts
    assert set(parts) == {"view", "place", "key"}


def test_levers_are_learned_from_as_joint_actions(tiny: dict[str, Any]) -> None:
    run = load_run(train(env=Levers, **tiny).folder, "cpu", env=Levers)
    assert run.num_actions == 6
    taken = {tuple(run.predict((np.array([0, 0]), np.zeros(1, np.float32)))) for _ in range(200)}
    assert taken == {(i, 5 + j) for i in range(2) for j in range(3)}
