"""`--import MODULE` and the current folder: what a user's module registers is known to every command."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from disco_torch import ActorCritic, list_rules, load_rule, register_env, register_rule
from disco_torch.cli import main
from disco_torch.discovery.presets import PRESETS
from disco_torch.envs import FAMILIES, Catch, Chain, make_env, registered
from disco_torch.runs.checkpoint import load_checkpoint
from disco_torch.weights import registry

SMALL = ["--rule", "actor-critic", "--device", "cpu", "--agent.dense", "8", "--rollout-length", "6", "--batch-size", "4"]
SMALL += ["--num-envs", "2", "--replay-capacity", "8", "--steps", "48", "--no-tensorboard"]
MODULE = '''
import gymnasium
from disco_torch import DiscoverConfig, ActorCritic, register_env, register_rule
from disco_torch.discovery import PRESETS
from disco_torch.discovery.config import GroupConfig, HabitatConfig
from disco_torch.envs import Catch, Chain

class Line(gymnasium.Env):
    """Three steps to the right end."""
    observation_space = gymnasium.spaces.Discrete(4)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        self.place = 0
        return 0, {}
    def step(self, action):
        self.place += 1
        return self.place, float(action), self.place == 3, False, {}

register_env("line", Line)

@register_env("tensor-catch")
class OwnCatch(Catch):
    pass

@register_env("own-chain")
class OwnChain(Chain):
    pass

@register_rule("own-rule", hyper_params={"entropy_cost": 0.05})
class OwnRule(ActorCritic):
    """A rule of my own."""

def wrap(env):
    return gymnasium.wrappers.TimeLimit(env, 2)

habitats = (HabitatConfig("own-chain"),)
PRESETS["mine"] = ("for tests", DiscoverConfig(groups=(GroupConfig(habitats),), window=1))
'''


@pytest.fixture(autouse=True)
def _own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder with a module, which nothing but the command line makes importable."""
    (tmp_path / "my_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(registered, "IMPORTED", set())
    kept = [(table, dict(table)) for table in (FAMILIES, registered.ENVIRONMENTS, registry.REGISTRY, PRESETS)]
    yield
    for table, content in kept:
        table.clear()
        table.update(content)  # type: ignore[arg-type]
    sys.modules.pop("my_module", None)


def steps_of(folder: Path) -> int:
    return load_checkpoint(folder / "checkpoints")["session"]["counters"]["steps"]


def forget(*names: str) -> None:
    """As if this were another process."""
    for name in names:
        registered.ENVIRONMENTS.pop(name, None)
    registered.IMPORTED.clear()
    sys.modules.pop("my_module", None)


def test_a_registered_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Trained, evaluated and resumed, each in a process of its own."""
    assert main(["train", "--env", "line", *SMALL]) == 2
    assert "an environment that Gymnasium knows, got 'line'" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    assert main(["train", "--import", "my_module", "--env", "line", *SMALL]) == 0
    folder = tmp_path / "runs" / "line-actor-critic-seed0"
    hint = "evaluate it with `disco-torch evaluate runs/line-actor-critic-seed0 --import my_module`"
    assert hint in capsys.readouterr().out.replace("\n", "")
    forget("line")
    assert main(["evaluate", str(folder), "--episodes", "2"]) == 2
    forget("line")
    assert main(["evaluate", str(folder), "--episodes", "2", "--import=my_module"]) == 0
    forget("line")
    assert main(["train", "--resume", str(folder), "--import", "my_module", "--steps", "72"]) == 0
    assert steps_of(folder) == 72
    assert json.loads((folder / "config.json").read_text())["objects"]["env_kind"] == ""


def test_a_registered_environment_of_tensors_and_a_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [option if option != "actor-critic" else "own-rule" for option in SMALL]
    assert main(["train", "--import", "my_module", "--env", "tensor-catch", "--env-args", "rows", "4", *options]) == 0
    folder = tmp_path / "runs" / "tensor-catch-own-rule-seed0"
    config = json.loads((folder / "config.json").read_text())
    assert config["hyper_params"] == {"entropy_cost": 0.05} and config["env_args"] == {"rows": 4}
    assert main(["evaluate", str(folder), "--episodes", "2", "--record", "catch.gif"]) == 0
    capsys.readouterr()
    assert main(["rules"]) == 0
    output = capsys.readouterr().out
    assert "own-rule" in output and "A rule of my own." in output and "unknown" in output
    assert main(["train", "--env", "tensor-catch", "--env-args", "height", "4", *SMALL]) == 2
    assert "`tensor-catch` cannot be made with ['height']" in capsys.readouterr().err


def test_a_factory_that_the_command_line_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--env", "my_module:Line", "--wrappers", "my_module:wrap", *SMALL]) == 0
    folder = tmp_path / "runs" / "Line-actor-critic-seed0"
    hint = "evaluate it with `disco-torch evaluate runs/Line-actor-critic-seed0 --import my_module`"
    assert hint in capsys.readouterr().out.replace("\n", " ")
    forget()
    assert main(["evaluate", str(folder), "--episodes", "2"]) == 2
    assert "or on the command line --import my_module" in capsys.readouterr().err and "my_module" not in sys.modules
    assert main(["evaluate", str(folder), "--episodes", "2", "--import", "my_module"]) == 0
    assert "2" in capsys.readouterr().out
    assert main(["train", "--resume", str(folder), "--steps", "72", "--import", "my_module"]) == 0
    assert steps_of(folder) == 72


def test_a_registered_family_is_discovered_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--device", "cpu", "--meta-updates", "1", "--num-envs", "2", "--batch-size", "2", "--rollout-length", "4"]
    sizes += ["--valid-length", "4", "--speed", "plain", "--no-tensorboard"]
    assert main(["discover", "--import", "my_module", "--preset", "mine", *sizes]) == 0
    config = json.loads((tmp_path / "runs" / "discovery-seed0" / "config.json").read_text())
    assert config["groups"][0]["habitats"][0]["env"] == "own-chain"
    assert (tmp_path / "runs" / "discovery-seed0" / "rules" / "rule-000001.safetensors").is_file()
    assert main(["discover", "--import", "my_module", "--preset", "mine", *sizes, "--minutes", "1e-9"]) == 0
    hint = "stopped; resume with `disco-torch discover --resume runs/discovery-seed0-2 --import my_module`"
    assert hint in capsys.readouterr().out.replace("\n", "")


def test_a_registered_rule_has_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "own-rule"]) == 2
    assert "which is neither; one of your own is known once the module" in capsys.readouterr().err
    assert main(["rules", "own-rule", "--import", "my_module"]) == 0
    assert "A rule of my own." in capsys.readouterr().out


def test_modules_that_are_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--import", "no_module"]) == 2
    assert "No module named 'no_module'" in capsys.readouterr().err


class Step(gymnasium.Env):
    observation_space = spaces.Discrete(1)
    action_space = spaces.Discrete(2)


def test_names_of_environments() -> None:
    assert register_env("step", Step) is Step and register_env("step", Step) is Step, "again, as a notebook does"
    assert make_env("step", 2).name == "step"
    assert register_env("step-2", lambda: Step()) is not None and make_env("step-2", 2).num_envs == 2
    for name in ("", "catch", "chain", "CartPole-v1", "a:b", "step"):
        with pytest.raises(ValueError, match=f"`name` must be a new name without a colon, got '{name}'"):
            register_env(name, Catch)
    with pytest.raises(ValueError, match="`env` must be a class or a function that makes an environment, got Chain"):
        register_env("mine", Chain(1))


def test_names_of_rules() -> None:
    register_rule("mine", ActorCritic, description="Mine.")
    assert isinstance(load_rule("mine"), ActorCritic)
    assert [entry.description for entry in list_rules() if entry.name == "mine"] == ["Mine."]
    register_rule("mine", ActorCritic)
    register_rule("none", lambda: 3)
    with pytest.raises(ValueError, match="the rule 'none' must be an UpdateRule, got int"):
        load_rule("none")
    for name in ("", "birch", "mine"):
        with pytest.raises(ValueError, match=f"`name` must be a new name, got '{name}'; choose another one"):
            register_rule(name, lambda: ActorCritic())
    with pytest.raises(ValueError, match=r"`rule` must be a class of UpdateRule or a function that returns one, got Actor"):
        register_rule("made", ActorCritic())
