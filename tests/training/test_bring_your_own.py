"""What a user brings: environments from an id, a factory and a vector environment, networks and rules as objects."""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from own_environments import Bandit, Levers, make_levers
from small_runs import assert_same, last_state

from disco_torch import TrainConfig, load_run, train
from disco_torch.envs import Catch, registered
from disco_torch.runs.checkpoint import load_checkpoint, save_checkpoint
from disco_torch.training.folder import RunFolder

FIRST_TRIES = ["CartPole-v1", "Acrobot-v1", "FrozenLake-v1", "Blackjack-v1"]
FIRST_TRIES += [next(name for name in ("Taxi-v4", "Taxi-v3") if name in gymnasium.registry)]
FIRST_TRIES += ["LunarLander-v3", "minigrid:MiniGrid-Empty-5x5-v0", "MinAtar/Breakout-v1"]
FIRST_TRIES += ["own/Bandit-v0", "own/Rooms-v0", "own/Levers-v0"]
PACKAGES = {"LunarLander-v3": "Box2D", "minigrid:MiniGrid-Empty-5x5-v0": "minigrid", "MinAtar/Breakout-v1": "minatar"}


def vector_of(env_id: str, mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: gymnasium.make(env_id)] * 2, autoreset_mode=mode)


@pytest.mark.filterwarnings("ignore:environment .* is text and left out")
@pytest.mark.parametrize("source", ["id", "factory", "vector"])
@pytest.mark.parametrize("env_id", FIRST_TRIES)
def test_the_environments_of_a_first_try(env_id: str, source: str, tiny: dict[str, Any]) -> None:
    try_out(env_id, source, tiny)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:environment .* is text and left out")
@pytest.mark.parametrize("source", ["id", "factory", "vector"])
@pytest.mark.parametrize("env_id", FIRST_TRIES)
def test_the_environments_of_a_first_try_with_the_default_rule(env_id: str, source: str, tmp_path: Path) -> None:
    """Nothing but the environment and the length is set, as on a first try."""
    try_out(env_id, source, {"steps": 3_000, "runs": tmp_path, "view": False})


def try_out(env_id: str, source: str, settings: dict[str, Any]) -> None:
    """Trains, resumes, evaluates and predicts."""
    if env_id in PACKAGES and importlib.util.find_spec(PACKAGES[env_id]) is None:
        pytest.skip(f"{env_id} needs the package {PACKAGES[env_id]}")
    if env_id.startswith("MinAtar/") and env_id not in gymnasium.registry:
        importlib.import_module("minatar.gym").register_envs()
    env: Any = {"id": env_id, "factory": lambda: gymnasium.make(env_id), "vector": vector_of(env_id)}[source]
    folder = train(env=env, **settings).folder
    again, before = None if source == "id" else env, last_state(folder)["counters"]["steps"]
    longer = 3 * settings["steps"] // 2
    resumed = train(resume=folder, env=again, steps=longer, view=False)
    assert resumed.folder == folder and last_state(folder)["counters"]["steps"] >= longer > before
    run = load_run(folder, "cpu", env=again)
    assert len(run.evaluate(2, num_envs=2).returns) == 2
    single = gymnasium.make(env_id)
    observation, _ = single.reset(seed=0)
    for _ in range(3):
        action = run.predict(observation)
        assert single.action_space.contains(action)
        observation, _, terminated, truncated, _ = single.step(action)
        if terminated or truncated:
            observation, _ = single.reset()
    batch, _ = vector_of(env_id).reset(seed=0)
    assert run.predict(batch, deterministic=True).shape == (2, *single.action_space.shape)


def test_the_first_lines_of_a_user(tiny: dict[str, Any]) -> None:
    """A lambda has no name: the run is called after its environment, and loads without the object to predict."""
    result = train(env=lambda: gymnasium.make("CartPole-v1"), **tiny)
    assert result.folder.name == "CartPole-v1-actor-critic-seed0"
    action = load_run(result.folder, "cpu").predict(np.zeros(4, np.float32))
    assert action in (0, 1)


def test_what_the_configuration_says_of_objects(tiny: dict[str, Any]) -> None:
    config = json.loads((train(env=make_levers, **tiny).folder / "config.json").read_text())
    objects = config["objects"]
    assert config["env"] == "own/Levers-v0"
    assert (objects["env"], objects["env_kind"]) == ("own_environments:make_levers", "factory")
    assert objects["action_space"]["sizes"] == [2, 3] and objects["action_space"]["starts"] == [0, 5]
    assert objects["observation_space"]["parts"]["1"]["shape"] == [1]


def test_a_factory_steps_as_the_id_does(tiny: dict[str, Any]) -> None:
    runs = [train(env=env, **tiny).folder for env in ("CartPole-v1", lambda: gymnasium.make("CartPole-v1"))]
    assert_same(*(last_state(folder)["learning"] for folder in runs))


def test_a_factory_in_processes(tiny: dict[str, Any]) -> None:
    folder = train(env=Bandit, env_args={"vectorization_mode": "async"}, **tiny).folder
    assert last_state(folder)["counters"]["episodes"] > 20


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_the_reset_mode_is_that_of_the_vector_environment(mode: AutoresetMode, tiny: dict[str, Any]) -> None:
    """24 steps in each of 2 environments; in next_step mode every episode of 4 steps takes one more to begin the next."""
    env = vector_of("own/Levers-v0", mode)
    folder = train(env=env, **tiny).folder
    assert folder.name == "own-Levers-v0-actor-critic-seed0"
    episodes = last_state(folder)["counters"]["episodes"]
    assert episodes == (10 if mode is AutoresetMode.NEXT_STEP else 12)
    env.reset()  # the user's own object is not closed


def test_an_environment_of_tensors(tiny: dict[str, Any]) -> None:
    env = Catch(4, rows=4, columns=3)
    folder = train(env=env, **tiny | {"num_envs": 4}).folder
    config = RunFolder.open(folder).config
    assert (config.env, config.num_envs, config.objects.env_kind) == ("catch", 4, "environment")
    train(resume=folder, env=env, steps=96, view=False)
    whole = train(env=env, **tiny | {"num_envs": 4, "steps": 96}).folder
    assert_same(*(last_state(path)["learning"] for path in (folder, whole)))
    assert load_run(folder, "cpu").predict(np.zeros((4, 3))) in (0, 1, 2)


def test_the_number_of_environments_is_that_of_the_object(tiny: dict[str, Any]) -> None:
    settings = {name: value for name, value in tiny.items() if name != "num_envs"}
    folder = train(env=Catch(3), **settings).folder
    assert RunFolder.open(folder).config.num_envs == 3
    with pytest.raises(ValueError, match="`num_envs` must be that of the environment, 3, got 2; leave it out"):
        train(env=Catch(3), **tiny)
    with pytest.raises(ValueError, match="`env` must have the 3 parallel environments of the run, got 4"):
        train(resume=folder, env=Catch(4), view=False)


def test_wrappers_as_functions_and_by_name(tiny: dict[str, Any]) -> None:
    wrappers = ["gymnasium.wrappers:FlattenObservation", lambda env: gymnasium.wrappers.TimeLimit(env, 3)]
    folder = train(env="own/Levers-v0", wrappers=wrappers, **tiny).folder
    config = RunFolder.open(folder).config
    assert config.wrappers[0].endswith(":FlattenObservation") and "<lambda>" in config.wrappers[1]
    with pytest.raises(ValueError, match=r"`wrappers` must be given again: .*<lambda>.* Pass wrappers=... to"):
        load_run(folder, "cpu").evaluate(1)
    assert load_run(folder, "cpu", wrappers=wrappers).evaluate(2).lengths == [3.0, 3.0]
    with pytest.raises(ValueError, match=r"`wrappers` must be those of the run, \[.*\], got 1"):
        load_run(folder, "cpu", wrappers=wrappers[:1])
    with pytest.raises(ValueError, match=r"`wrappers` must be that of the run, .*FlattenObservation, got .*:FrameStackObs"):
        load_run(folder, "cpu", wrappers=["gymnasium.wrappers:FrameStackObservation", wrappers[1]])


def test_wrappers_of_gymnasium_are_found_again(tiny: dict[str, Any]) -> None:
    config = TrainConfig(env="own/Levers-v0", wrappers=("gymnasium.wrappers:FlattenObservation",))
    folder = train(config, **tiny).folder
    assert train(resume=folder, steps=72, view=False).folder == folder


@pytest.mark.parametrize("wrapper", ["gymnasium.wrappers:Nothing", 3, "own_environments"])
def test_wrappers_that_are_none(wrapper: Any, tiny: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"`wrappers` must be functions or classes, or named as 'module:Name', got"):
        train(env="CartPole-v1", wrappers=[wrapper], **tiny)


@pytest.mark.parametrize(
    "env", ["catch", "grid", Catch(2), vector_of("CartPole-v1")], ids=["catch", "family", "own", "vector"]
)
def test_wrappers_are_for_single_environments(env: Any, tiny: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="`wrappers` are for single Gymnasium environments, got 1 for"):
        train(env=env, wrappers=[lambda env: env], **tiny)


# What is asked for again.


def as_it_is(env: gymnasium.Env) -> gymnasium.Env:
    return env


def test_a_factory_is_asked_for_again(tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registered, "IMPORTED", set())
    folder = train(env=make_levers, **tiny).folder
    asked = (
        r"`env` must be given again: the run was given a factory as an object, own_environments:make_levers, .* Pass "
        r"env=... to `train\(resume=...\)` or `load_run`, or on the command line --import own_environments\."
    )
    with pytest.raises(ValueError, match=asked):
        train(resume=folder, view=False)
    with pytest.raises(ValueError, match=asked):
        load_run(folder, "cpu").evaluate(1)
    registered.import_modules(["own_environments"])  # as --import does
    assert load_run(folder, "cpu").evaluate(1).lengths == [4.0]
    assert load_run(folder, "cpu", env="own_environments:make_levers").evaluate(1).lengths == [4.0]


def test_another_environment_is_refused(tiny: dict[str, Any]) -> None:
    folder = train(env=make_levers, **tiny).folder
    with pytest.raises(ValueError, match=r"`env` must be that of the run, own_environments:make_levers, got .*:Bandit"):
        train(resume=folder, env=Bandit, view=False)
    with pytest.raises(
        ValueError, match=r"`env` must have the `observation_space` of the run, Tuple\(0: MultiDiscrete\(.*got"
    ):
        train(resume=folder, env=lambda: Bandit(), view=False)
    # A function of another kind may give the same environment.
    assert load_run(folder, "cpu", env=vector_of("own/Levers-v0")).evaluate(2).lengths == [4.0, 4.0]


def test_a_configuration_imports_nothing(tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that name another module's function, in the configuration and in the checkpoint, do not have it imported."""
    folder = train(env=make_levers, wrappers=[as_it_is], **tiny).folder
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    text = (folder / "config.json").read_text()
    for module in ("own_environments", as_it_is.__module__):
        text = text.replace(f"{module}:", "trap:")
    (folder / "config.json").write_text(text)
    content = load_checkpoint(folder / "checkpoints")
    save_checkpoint(folder / "checkpoints", 4, content | {"config": json.dumps(json.loads(text))}, keep=1)
    with pytest.raises(ValueError, match=r"`env` must be given again: .* trap:make_levers, which no file holds"):
        load_run(folder, "cpu").evaluate(1)
    with pytest.raises(ValueError, match="`env` must be given again"):
        train(resume=folder, view=False)
    with pytest.raises(ValueError, match=r"`wrappers` must be given again: .* trap:as_it_is"):
        load_run(folder, "cpu", env=lambda: Levers()).evaluate(1)
    with pytest.raises(SystemExit, match="imported"):  # what the user names is imported
        load_run(folder, "cpu", env="trap:make_levers")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (3, "`env` must be a name, a function that returns a gymnasium.Env, a VectorEnv or an Environment, got int"),
        (lambda: 3, "`env` must be a function that returns a gymnasium.Env, got one that returns int"),
        (lambda: vector_of("CartPole-v1"), "got one that returns a VectorEnv, SyncVectorEnv; a vector environment is given"),
        (Bandit(), "`env` must be able to make 2 environments, got a single one, Bandit; pass a function that returns it"),
        (lambda: gymnasium.make("Pendulum-v1"), r"continuous actions are not supported; wrap .*BinActions"),
        ("own_environments:Nothing-v0", "an environment that Gymnasium knows, got 'own_environments:Nothing-v0'"),
    ],
)
def test_refused_environments_leave_no_folder(env: Any, message: str, tiny: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        train(env=env, **tiny | {"runs": tmp_path / "runs"})
    assert not (tmp_path / "runs").exists()


def test_a_factory_by_name(tiny: dict[str, Any]) -> None:
    folder = train(env="own_environments:make_levers", **tiny).folder
    assert RunFolder.open(folder).config.objects.env == "own_environments:make_levers"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": Catch(2), "env_args": {"rows": 4}}, r"`env_args` must be empty for an object, got \['rows'\]"),
        ({"env": Bandit, "env_args": {"vectorization_mode": "fast"}}, "must be one of .*'async', 'sync'.*, got 'fast'"),
        ({"stepz": 3}, "`train` has no setting 'stepz'; did you mean 'steps'"),
        ({"qwertyuiop": 3}, "`train` has no setting 'qwertyuiop'; it has env, env_args"),
        ({"learning_rate": 3}, r"`train` has no setting 'learning_rate'; write optimizer=AdamConfig\(learning_rate=...\)"),
        ({"dense": (3,)}, r"write agent=AgentConfig\(dense=...\)"),
        ({"agent": "mlp"}, "`agent` must be an Agent, a torso, which is a module, or an AgentConfig, got str"),
        ({"rule": 3}, "`rule` must be an UpdateRule, or the name or file of one, got int"),
        ({"rule": "none"}, "got 'none', which is neither"),
    ],
)
def test_refused_settings_leave_no_folder(changes: Any, message: str, tiny: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        train(**tiny | {"runs": tmp_path / "runs"} | changes)
    assert not (tmp_path / "runs").exists()


def test_keywords_of_a_resumed_run(tiny: dict[str, Any]) -> None:
    folder = train(env="CartPole-v1", **tiny).folder
    train(resume=folder, device="cpu", view=False)
    assert RunFolder.open(folder).config.steps == 48, "a run does not grow unasked"
    with pytest.raises(ValueError, match="`seed` must be left out when a run is resumed, only steps, device, speed,"):
        train(resume=folder, seed=3, view=False)


def test_evaluations_during_training(tiny: dict[str, Any]) -> None:
    """They have environments of their own, which a vector environment is not."""
    folder = train(env=Levers, eval_every=24, eval_episodes=2, **tiny).folder
    assert load_run(folder, "cpu", checkpoint="best").num_actions == 6
    assert load_run(train(env=Catch(2), eval_every=24, eval_episodes=2, **tiny).folder, "cpu", checkpoint="best").params
    with pytest.raises(ValueError, match="`eval_every` must be 0 for environments that are one object, SyncVec"):
        train(env=vector_of("own/Levers-v0"), eval_every=24, **tiny)


def test_runs_from_before_objects(tiny: dict[str, Any]) -> None:
    """Configurations without the new fields: the spaces are those of the environment that the id makes."""
    folder = train(env="CartPole-v1", **tiny).folder
    config = json.loads((folder / "config.json").read_text())
    del config["objects"], config["wrappers"]
    (folder / "config.json").write_text(json.dumps(config))
    content = load_checkpoint(folder / "checkpoints")
    save_checkpoint(folder / "checkpoints", 4, content | {"config": json.dumps(config)}, keep=1)
    assert load_run(folder, "cpu").predict(np.zeros(4)) in (0, 1)
    assert train(resume=folder, steps=72, view=False).folder == folder
