"""How good an agent is: whole episodes of every copy alike, and pictures of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from small_runs import last_state, small_config
from torch import Tensor

from disco_torch import TrainConfig, collect, evaluate, init_actor, load_run, train
from disco_torch.envs import CATCH_ID, Catch, Environment, EnvStep
from disco_torch.training import record


class Lines(Environment):
    """Copy b plays episodes of b + 1 steps; each step gives 1 for action 1, and 0 else. Observes [copy, step]."""

    name, num_actions, saves_state = "lines", 2, True

    def __init__(self, num_envs: int, ends: bool = True) -> None:
        self.num_envs, self.ends, self.device = num_envs, ends, torch.device("cpu")
        self.observation_example = torch.zeros(2)

    def row(self, now: Tensor, rewards: Tensor, ends: Tensor, first: Tensor) -> tuple[Tensor, EnvStep]:
        shown = torch.stack([torch.arange(self.num_envs), now], dim=1).float()
        return now, EnvStep(shown, rewards, (~ends).float(), torch.zeros_like(ends), None, first, ends)

    def reset(self, generator: torch.Generator) -> tuple[Tensor, EnvStep]:
        now = torch.zeros(self.num_envs, dtype=torch.long)
        return self.row(now, now.float(), now.bool(), ~now.bool())

    def step(self, state: Tensor, actions: Tensor, generator: torch.Generator) -> tuple[Tensor, EnvStep]:
        now = state + 1
        ends = (now > torch.arange(self.num_envs)) if self.ends else torch.zeros(self.num_envs, dtype=torch.bool)
        return self.row(now * ~ends, actions.float(), ends, ends)


class Prefers:
    """Takes action 1 with the given probability."""

    def __init__(self, probability: float) -> None:
        self.logits = torch.tensor([1.0 - probability, probability]).log()

    def initial_state(self, batch_size: int) -> Tensor:
        return torch.zeros(batch_size)

    def act(self, params, observations, generator=None, should_reset=None, state=None):
        state = torch.where(should_reset, 0.0, state) + 1
        assert torch.equal(state, observations[:, 1] + 1)  # the memory is carried on, and begins anew with each episode
        logits = self.logits.expand(len(observations), 2)
        return torch.multinomial(logits.exp(), 1, generator=generator)[:, 0], logits, state


def play(probability: float, episodes: int, copies: int = 3, **kwargs: Any) -> Any:
    return evaluate(Prefers(probability), {}, Lines(copies), episodes, **kwargs)  # type: ignore[arg-type]


@pytest.mark.parametrize(("episodes", "each"), [(1, 1), (3, 1), (6, 2), (7, 3)])
def test_every_copy_plays_as_many_episodes(episodes: int, each: int) -> None:
    result = play(1.0, episodes)
    assert result.lengths == [1.0] * each + [2.0] * each + [3.0] * each
    assert result.returns == result.lengths and result.policy == "sampled"
    assert result.interval.mean == 2.0


def test_greedy_and_sampled() -> None:
    greedy = play(0.6, 60, policy="greedy")
    sampled = play(0.6, 300, seed=1)
    assert greedy.policy == "greedy" and greedy.interval.mean == 2.0
    assert sampled.interval.low < 0.6 * 2.0 < sampled.interval.high < 2.0
    assert play(0.4, 6, policy="greedy").returns == [0.0] * 6


def test_the_seed_decides_the_episodes() -> None:
    assert play(0.5, 30, seed=4).returns == play(0.5, 30, seed=4).returns != play(0.5, 30, seed=5).returns


def test_too_few_and_too_long() -> None:
    with pytest.raises(ValueError, match="`episodes` must be at least 1, got 0"):
        play(1.0, 0)
    message = "episodes of lines did not end within 20 steps in each environment; raise `max_steps`"
    with pytest.raises(ValueError, match=message):
        evaluate(Prefers(1.0), {}, Lines(1, ends=False), 1, max_steps=20)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [0, 1])
def test_an_evaluation_is_the_sums_of_a_collected_rollout(seed: int) -> None:
    """An agent that evaluates takes the steps that it would take to learn from."""
    agent, generator = Prefers(0.5), torch.Generator().manual_seed(seed)
    rollout, _, episodes = collect(agent, {}, Lines(3), init_actor(agent, Lines(3), generator), 13, generator)
    result = evaluate(agent, {}, Lines(3), 12, seed=seed)  # type: ignore[arg-type]
    expected = []
    for env in range(3):
        # The reward of a step arrives with the next row; each environment plays 4 episodes of env + 1 steps.
        rewards = rollout.rewards[1 : 1 + 4 * (env + 1), env]
        expected += rewards.unflatten(0, (4, env + 1)).sum(1).tolist()
        assert episodes.returns[episodes.ends[:, env], env][:4].tolist() == expected[-4:]
    assert result.returns == expected


@pytest.fixture(scope="module")
def catch_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(small_config(tmp_path_factory.mktemp("runs")), view=False).folder


def test_the_agent_of_a_run(catch_run: Path) -> None:
    trained = load_run(catch_run, "cpu")
    stored = last_state(catch_run)["learning"]
    for name, param in trained.params.items():
        assert torch.equal(param, stored[f"learner/params/{name}"])
    env = trained.make_env(5)
    assert isinstance(env, Catch) and (env.rows, env.columns, env.num_envs) == (4, 3, 5)
    result = evaluate(trained.agent, trained.params, env, 20)
    assert len(result.returns) == 20 and set(result.lengths) == {3.0} and set(result.returns) <= {-1.0, 1.0}


def test_loading_takes_no_random_numbers_of_the_agent(catch_run: Path) -> None:
    first, second = load_run(catch_run, "cpu"), load_run(str(catch_run), "cpu")
    assert all(torch.equal(first.params[name], param) for name, param in second.params.items())


def frames_of(path: Path) -> tuple[int, tuple[int, int]]:
    with Image.open(path) as image:
        assert image.format == "GIF"
        return getattr(image, "n_frames", 1), image.size


def balls_of(path: Path) -> list[int]:
    """The row of the ball in each frame: the first row of a board that is not empty."""
    rows = []
    with Image.open(path) as image:
        for i in range(getattr(image, "n_frames", 1)):
            image.seek(i)
            board = np.asarray(image.convert("L"))[::16, ::16]
            rows.append(int((board > 128).any(1).argmax()))
    return rows


@pytest.mark.parametrize("policy", ["sampled", "greedy"])
def test_a_recorded_episode(catch_run: Path, tmp_path: Path, policy: Any) -> None:
    path = tmp_path / "new" / "episode.gif"
    assert record(load_run(catch_run, "cpu"), path, policy=policy) == 4  # a state before each of 3 steps and the last one
    assert frames_of(path) == (4, (3 * 16, 4 * 16))
    assert balls_of(path) == [0, 1, 2, 3], "the ball falls to the last row, where the episode ends"
    assert [file.name for file in path.parent.iterdir()] == ["episode.gif"]


def test_a_recorded_episode_of_gymnasium(tmp_path: Path) -> None:
    config: TrainConfig = small_config(tmp_path, env=CATCH_ID, steps=24)
    trained = load_run(train(config, view=False).folder, "cpu")
    path = tmp_path / "episode.gif"
    assert record(trained, path) == 4 and frames_of(path) == (4, (3 * 16, 4 * 16))
    assert balls_of(path) == [0, 1, 2, 3]


def test_a_recorded_episode_of_a_family(tmp_path: Path) -> None:
    config: TrainConfig = small_config(tmp_path, env="catch-variants", env_args={"level_seed": 1}, steps=24)
    trained = load_run(train(config, view=False).folder, "cpu")
    path = tmp_path / "episode.gif"
    assert record(trained, path, max_steps=2) == 3 and frames_of(path) == (3, (7 * 16, 7 * 16))


def test_an_environment_without_pictures(catch_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Catch, "render", Environment.render)
    with pytest.raises(ValueError, match="catch draws no pictures, so that there is nothing to record"):
        record(load_run(catch_run, "cpu"), tmp_path / "episode.gif")
    assert list(tmp_path.iterdir()) == []
