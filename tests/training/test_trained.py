"""The agent of a run: predictions, memory, and which checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from own_environments import Levers, Rooms
from small_runs import small_config

from disco_torch import evaluate, load_run, train
from disco_torch.runs.checkpoint import checkpoint_path
from disco_torch.training.evaluation import record


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = small_config(tmp_path_factory.mktemp("runs"), env="CartPole-v1", env_args={}, keep_checkpoints=9)
    return train(config, view=False).folder


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(small_config(tmp_path_factory.mktemp("runs"), env_args={}), env=Rooms, view=False).folder


def test_deterministic_is_the_most_probable_action(cartpole: Path) -> None:
    run = load_run(cartpole, "cpu")
    batch = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    logits, _ = run.agent.policy(run.params, torch.tensor(batch))
    greedy = run.predict(batch, deterministic=True)
    assert greedy.tolist() == logits.argmax(-1).tolist() and greedy.dtype == np.int64
    sampled = np.stack([run.predict(batch) for _ in range(400)])
    assert np.abs(sampled.mean(0) - logits.softmax(-1)[:, 1].numpy()).max() < 0.15  # 6 standard deviations
    again, other = load_run(cartpole, "cpu"), load_run(cartpole, "cpu", seed=1)
    assert (again.predict(batch) == sampled[0]).all() and (other.predict(batch) != sampled[0]).any()


def test_predictions_play_as_evaluate_does(cartpole: Path) -> None:
    """A loop of the user's, with greedy actions, gets the return of the evaluation."""
    run = load_run(cartpole, "cpu")
    env = run.make_env(1)
    wanted = evaluate(run.agent, run.params, env, 1, policy="greedy", seed=5)
    seed = int(torch.randint(2**31 - 1, (), generator=torch.Generator().manual_seed(5)))
    single = gymnasium.make("CartPole-v1")
    observation, _ = single.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        observation, reward, terminated, truncated, _ = single.step(run.predict(observation, deterministic=True))
        total, over = total + float(reward), terminated or truncated
    assert wanted.returns == [total] and run.evaluate(1, policy="greedy", seed=5).returns == [total]


@pytest.mark.filterwarnings("ignore:environment .* is text and left out")
def test_trees_of_observations(rooms: Path) -> None:
    run = load_run(rooms, "cpu")
    env = Rooms()
    observation, _ = env.reset()
    action = run.predict(observation, deterministic=True)
    assert env.action_space.contains(action)
    batch = {name: np.stack([np.asarray(value)] * 3) for name, value in observation.items() if name != "mission"}
    assert (run.predict(batch, deterministic=True) == action).all()
    with pytest.raises(ValueError, match=r"must be a dict with \['key', 'place', 'view'\], got one with \['key'\]"):
        run.predict({"key": 1})
    with pytest.raises(ValueError, match=r"`observation` must be a dict with .*, got ndarray"):
        run.predict(np.zeros(3))
    batch["place"] = batch["place"][:2]
    with pytest.raises(ValueError, match=r"`observation` must be one of Dict.*, or a batch .* got .*\[2, 2\]"):
        run.predict(batch)


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (np.zeros(3), r"got \[\[3\]\] where one has \[\[4\]\]"),
        (np.zeros((2, 2, 4)), r"got \[\[2, 2, 4\]\] where one has \[\[4\]\]"),
        (np.zeros((0, 4)), r"got \[\[0, 4\]\]"),
        (np.array([0, 0, np.nan, 0]), r"`observation` must fit Box.*: observation must be finite, got nan at \[2\]"),
    ],
)
def test_observations_that_do_not_fit(cartpole: Path, observation: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_run(cartpole, "cpu").predict(observation)


def test_lists_and_integers_are_as_good(cartpole: Path) -> None:
    run = load_run(cartpole, "cpu")
    assert run.predict([0, 0, 1, 0], deterministic=True) == run.predict(np.array([0.0, 0, 1, 0]), deterministic=True)
    assert run.predict(torch.zeros(3, 4)).shape == (3,)


class Counting:
    """An agent with memory: it prefers the action of the number of steps that it has seen in this episode."""

    def initial_state(self, batch_size: int) -> torch.Tensor:
        return torch.zeros(batch_size, dtype=torch.long)

    def policy(self, params: Any, observations: Any, should_reset: torch.Tensor, state: torch.Tensor) -> Any:
        state = torch.where(should_reset, 0, state)
        return torch.nn.functional.one_hot(state % 2, 2).float(), state + 1


def test_memory_is_kept_until_it_is_reset(cartpole: Path) -> None:
    run = load_run(cartpole, "cpu")
    run.agent = Counting()  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"`mask` must be \[0\] bool, as many as the last batch"):
        run.reset([True, False])
    batch = np.zeros((2, 4))

    def act() -> list[int]:
        return run.predict(batch, deterministic=True).tolist()

    assert [act() for _ in range(3)] == [[0, 0], [1, 1], [0, 0]]
    run.reset([False, True])
    assert [act() for _ in range(2)] == [[1, 0], [0, 1]]
    run.reset()
    assert act() == [0, 0]
    with pytest.raises(ValueError, match=r"`mask` must be \[2\] bool, .* got \[3\] of bool"):
        run.reset([True] * 3)
    with pytest.raises(ValueError, match=r"`mask` must be \[2\] bool, .* got \[2\] of int64"):
        run.reset([0, 1])


def test_which_checkpoint(cartpole: Path, tmp_path: Path) -> None:
    """A run of 10 rollouts with a checkpoint every 4."""
    newest = load_run(cartpole, "cpu").params
    first, last = (load_run(cartpole, "cpu", checkpoint=number).params for number in (0, 10))
    name = "heads.logits.0.weight"
    assert torch.equal(last[name], newest[name]) and not torch.equal(first[name], newest[name])
    with pytest.raises(ValueError, match=r"'newest', 'best' or the number of a checkpoint in .*, \[0, 4, 8, 10\], got 3"):
        load_run(cartpole, "cpu", checkpoint=3)
    with pytest.raises(ValueError, match=r"has no best.pt; a run writes it with `eval_every` above 0"):
        load_run(cartpole, "cpu", checkpoint="best")
    copy = shutil.copytree(cartpole, tmp_path / "run")
    checkpoint_path(copy / "checkpoints", 4).rename(copy / "checkpoints" / "best.pt")
    best = load_run(copy, "cpu", checkpoint="best").params
    assert not torch.equal(best[name], newest[name])
    assert torch.equal(best[name], load_run(cartpole, "cpu", checkpoint=4).params[name])


def test_a_recorded_episode_of_a_factory(tmp_path: Path) -> None:
    folder = train(small_config(tmp_path, env_args={}), env=Levers, view=False).folder
    assert record(load_run(folder, "cpu", env=Levers), tmp_path / "levers.gif") == 5  # before each of 4 steps, and the last
    with pytest.raises(ValueError, match="draws no pictures"):
        record(load_run(folder, "cpu", env=lambda: Levers()), tmp_path / "none.gif")
