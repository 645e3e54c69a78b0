"""Rules and runs on a Hugging Face Hub: pushed, named and loaded, against a small one on the loopback address."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from local_hub import LocalHub

from disco_torch import (
    AdamConfig,
    AgentConfig,
    InputConfig,
    TrainConfig,
    load_rule,
    load_run,
    make_report,
    push_to_hub,
    train,
)
from disco_torch.cli import main, parse
from disco_torch.cli.train import Train
from disco_torch.data import NormalizedAgent
from disco_torch.discovery import DiscoverConfig, discover
from disco_torch.discovery.config import GroupConfig, HabitatConfig
from disco_torch.rules import DiscoConfig, DiscoUpdateRule
from disco_torch.runs import checked_config
from disco_torch.sharing import train_command
from disco_torch.sharing.content import without_paths
from disco_torch.training.evaluation import record
from disco_torch.weights import hub as hub_names
from disco_torch.weights import save_rule
from disco_torch.weights.files import save_safetensors

SMALL: dict[str, Any] = {
    "env_args": {"rows": 4, "columns": 3},
    "device": "cpu",
    "steps": 240,
    "num_envs": 2,
    "rollout_length": 6,
    "batch_size": 4,
    "updates_per_rollout": 1,
    "replay_capacity": 8,
    "agent": AgentConfig(dense=(8,), lstm_size=8, head_mlp_hiddens=(8,)),
    "optimizer": AdamConfig(learning_rate=1e-2),
    "inputs": InputConfig(observations="auto", rewards="normalized"),
    "tensorboard": False,
}
NAMES = "huggingface_hub"


@dataclass
class Served:
    hub: LocalHub
    stack: ExitStack

    def files(self, name: str) -> dict[str, bytes]:
        return self.hub.repositories[name][-1][1]


def forget_the_library() -> None:
    """It reads its variables when it is imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == NAMES]:
        del sys.modules[name]
    logging.getLogger(NAMES).handlers.clear()  # which hold the stderr of another test


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A Hub that the library talks to; with an empty cache."""
    pytest.importorskip(NAMES, reason="huggingface_hub is not installed")
    hub = LocalHub()
    with ExitStack() as stack:
        address = stack.enter_context(hub.serving())
        variables = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "cache"), "HF_TOKEN": "hf_test"}
        for name, value in (variables | {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_XET": "1"}).items():
            monkeypatch.setenv(name, value)
        for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE", "HUGGINGFACE_HUB_CACHE"):
            monkeypatch.delenv(name, raising=False)
        forget_the_library()
        yield Served(hub, stack)
    forget_the_library()


@pytest.fixture
def rule_file(tiny_config: DiscoConfig, randomize: Any, tmp_path: Path) -> Path:
    rule = DiscoUpdateRule(tiny_config)
    randomize(rule)
    path = tmp_path / "rules" / "tiny.safetensors"
    save_rule(
        path, rule, provenance={"made_by": "a test", "config": {"runs": str(tmp_path), "start": "/home/me/a.safetensors"}}
    )
    return path


def small_run(tmp_path: Path, **changes: Any) -> Path:
    return train(view=False, runs=tmp_path / "runs", **(SMALL | {"rule": "actor-critic"} | changes)).folder


def front_matter(card: bytes) -> dict[str, Any]:
    """The metadata of a card; its lines are JSON behind a name."""
    lines = card.decode().split("---\n")[1].splitlines()
    return {line.partition(": ")[0]: json.loads(line.partition(": ")[2]) for line in lines}


def test_a_rule_goes_and_comes_back(served: Served, rule_file: Path, tmp_path: Path) -> None:
    name = push_to_hub(str(rule_file), "lab/tiny", private=True)
    assert name == f"hf:lab/tiny@{served.hub.repositories['lab/tiny'][-1][0]}" and served.hub.private["lab/tiny"]
    assert sorted(served.files("lab/tiny")) == ["README.md", "provenance.json", "rule.safetensors"]
    assert str(tmp_path).encode() not in b"".join(served.files("lab/tiny").values())
    assert b"/home/me" not in b"".join(served.files("lab/tiny").values())
    ours, theirs = load_rule(rule_file), load_rule("hf:lab/tiny")
    assert isinstance(theirs, DiscoUpdateRule)
    torch.testing.assert_close(dict(theirs.named_parameters()), dict(ours.named_parameters()), rtol=0, atol=0)
    meta = front_matter(served.files("lab/tiny")["README.md"])
    assert (meta["library_name"], meta["pipeline_tag"]) == ("disco-torch", "reinforcement-learning")
    assert {"reinforcement-learning", "update-rule"} <= set(meta["tags"]) and "model-index" not in meta


def test_the_page_of_a_rule_says_how_to_name_it(served: Served, rule_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    push_to_hub(rule_file, "lab/tiny")
    assert main(["rules", "hf:lab/tiny"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("hf:lab/tiny") and "disco-torch train --rule hf:lab/tiny\n" in printed


def test_a_revision_is_pinned(served: Served, rule_file: Path, tmp_path: Path) -> None:
    first = push_to_hub(str(rule_file), "lab/tiny")
    rule = load_rule(rule_file)
    with torch.no_grad():
        next(rule.parameters()).add_(1.0)
    save_rule(rule_file, rule)
    second = push_to_hub(str(rule_file), "lab/tiny")
    weights = [next(load_rule(name).parameters()) for name in (first, second, "hf:lab/tiny")]
    torch.testing.assert_close(weights[0] + 1.0, weights[1])
    assert torch.equal(weights[1], weights[2])
    # A run stores the commit.
    run = small_run(tmp_path, rule="hf:lab/tiny")
    assert json.loads((run / "config.json").read_text())["rule"] == second and run.name == "catch-tiny-seed0"


def test_an_agent_goes_and_comes_back(served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = small_run(tmp_path, agent=AgentConfig(dense=(8,), lstm_size=8, head_mlp_hiddens=(8,), core="lstm", core_size=4))
    record(load_run(run, "cpu"), run / "episode.gif")
    assert main(["push", str(run), "--to", "lab/agent"]) == 0
    assert "pushed; it is hf:lab/agent@" in capsys.readouterr().out
    files = served.files("lab/agent")
    names = [
        "README.md",
        "agent.safetensors",
        "config.json",
        "episode.gif",
        "metrics.jsonl",
        "provenance.json",
        "summary.json",
    ]
    assert sorted(files) == names and str(tmp_path).encode() not in b"".join(files.values())
    ours, theirs = load_run(run, "cpu", seed=3), load_run("hf:lab/agent", "cpu", seed=3)
    assert ours.params.keys() == theirs.params.keys()
    assert all(torch.equal(ours.params[key], theirs.params[key]) for key in ours.params)
    assert ours.evaluate(20).returns == theirs.evaluate(20).returns
    observations = np.random.default_rng(0).normal(size=(5, *ours.observation_space.shape)).astype(np.float32)  # type: ignore[misc]
    assert np.array_equal(ours.predict(observations), theirs.predict(observations))
    assert main(["evaluate", "hf:lab/agent", "--episodes", "5", "--record", str(tmp_path / "x.gif")]) == 0
    assert (tmp_path / "x.gif").is_file()
    with pytest.raises(
        ValueError, match="`checkpoint` must be 'newest' for hf:lab/agent, which holds one agent, got 'best'"
    ):
        load_run("hf:lab/agent", checkpoint="best")
    report = make_report([run, "hf:lab/agent"], tmp_path / "report.html")
    assert len({run.score for run in report.training}) == 1 and "base64" in report.path.read_text()
    assert main(["plot", "hf:lab/agent", "--out", str(tmp_path / "curves.png")]) == 0


def test_the_statistics_of_its_inputs_go_with_an_agent(served: Served, tmp_path: Path) -> None:
    run = small_run(tmp_path, env="CartPole-v1", env_args={})
    push_to_hub(run, "lab/agent")
    ours, theirs = load_run(run, "cpu"), load_run("hf:lab/agent", "cpu")
    assert isinstance(theirs.agent, NormalizedAgent) and isinstance(ours.agent, NormalizedAgent)
    assert ours.evaluate(5).returns == theirs.evaluate(5).returns
    stats = [name for name in safetensors.torch.load(served.files("lab/agent")["agent.safetensors"]) if "inputs/" in name]
    assert any("observations" in name for name in stats)


def test_the_card_of_an_agent(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run(tmp_path)
    push_to_hub(run, "lab/agent")
    card = served.files("lab/agent")["README.md"]
    (index,) = front_matter(card)["model-index"]
    (result,) = index["results"]
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert index["name"] == "agent" and result["dataset"]["name"] == "catch rows 4 columns 3"
    assert result["metrics"][0]["type"] == "mean_reward"
    mean, deviation = map(float, result["metrics"][0]["value"].split(" +/- "))
    assert mean == pytest.approx(last["return"], abs=0.006)
    assert deviation == pytest.approx(np.sqrt(1 - last["return"] ** 2), abs=0.006)  # returns are -1 and 1
    hub = pytest.importorskip(NAMES)
    data = hub.ModelCard(card.decode()).data
    assert data.library_name == "disco-torch" and data.eval_results[0].metric_type == "mean_reward"
    # The command makes the same run.
    (command,) = re.findall(r"^disco-torch (train .*)$", card.decode(), flags=re.M)
    assert_repeats(run, parse(shlex.split(command)))


def assert_repeats(run: Path, command: Any) -> None:
    assert isinstance(command, Train)
    again = train(command.config, view=False, runs=run.parent.parent / "again", device="cpu", tensorboard=False).folder
    plain, own = (json.loads((folder / "config.json").read_text()) for folder in (again, run))
    for name in ("runs", "name"):
        del plain[name], own[name]
    assert plain == own
    last, first = (json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1]) for folder in (again, run))
    assert last["total_loss"] == first["total_loss"]


@pytest.mark.parametrize(
    "changes",
    [
        {"first_steps": False, "target_return": -0.5, "eval_every": 100},
        {"rule": "ppo", "hyper_params": {"entropy_cost": 0.02}, "schedule": "cosine"},
        {"agent": AgentConfig(dense=(16, 8), core="lstm", core_size=4), "env_args": {}, "burn_in": 2},
    ],
)
def test_the_command_that_repeats_a_run(changes: dict[str, Any]) -> None:
    config = TrainConfig(**(SMALL | {"rule": "actor-critic"} | changes))
    command = parse(shlex.split(train_command(config, config.rule))[1:])
    assert isinstance(command, Train)
    free = {
        "tensorboard": False,
        "device": "cpu",
        "log_every": config.log_every,
        "checkpoint_every": config.checkpoint_every,
    }
    assert checked_config(TrainConfig(**(vars(command.config) | free))) == checked_config(config)


def test_the_rule_of_a_run_goes_with_it(served: Served, rule_file: Path, tmp_path: Path) -> None:
    push_to_hub(small_run(tmp_path, rule=str(rule_file)), "lab/agent")
    assert json.loads(served.files("lab/agent")["config.json"])["rule"] == "hf:lab/agent"
    assert isinstance(load_rule("hf:lab/agent"), DiscoUpdateRule)


def test_a_discovery_is_a_rule_and_a_run(served: Served, tiny_config: DiscoConfig, tmp_path: Path) -> None:
    group = GroupConfig((HabitatConfig("catch", {"rows": 4, "columns": 3}),), SMALL["agent"])
    config = DiscoverConfig((group,), tiny_config, meta_updates=2, num_envs=4, batch_size=4, log_every=1, speed="plain")
    found = discover(dataclasses.replace(config, device="cpu", runs=tmp_path / "runs", tensorboard=False), view=False)
    push_to_hub(found.folder, "lab/found")
    assert str(tmp_path).encode() not in b"".join(served.files("lab/found").values())
    torch.testing.assert_close(load_rule("hf:lab/found").state_dict(), load_rule(found.rule).state_dict(), rtol=0, atol=0)
    assert b"last mean return, catch" in served.files("lab/found")["README.md"]
    report = make_report(["hf:lab/found"], tmp_path / "report.html")
    assert report.discoveries[0].is_complete and report.discoveries[0].reached("lives") == 1
    again = dataclasses.replace(config, start="hf:lab/found", device="cpu", runs=tmp_path / "runs", tensorboard=False)
    folder = discover(again, view=False).folder
    assert json.loads((folder / "config.json").read_text())["start"].startswith("hf:lab/found@")


def test_without_a_network_the_cache_is_used(served: Served, tmp_path: Path) -> None:
    name = push_to_hub(small_run(tmp_path), "lab/agent")
    expected = load_run("hf:lab/agent", "cpu").evaluate(10).returns
    served.stack.close()
    for again in ("hf:lab/agent", name):
        assert load_run(again, "cpu").evaluate(10).returns == expected
    with pytest.raises(
        FileNotFoundError, match="`name_or_path` could not be loaded from the Hugging Face Hub, got hf:lab/other"
    ):
        load_rule("hf:lab/other")


def test_nothing_that_is_downloaded_runs_code(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a module that a configuration names, nor a pickle beside it."""
    (tmp_path / "evil_module.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    push_to_hub(small_run(tmp_path), "lab/agent")
    config = json.loads(served.files("lab/agent")["config.json"])
    evil = json.dumps(config | {"env": "evil_module:Env-v0", "wrappers": []}).encode()
    served.hub.commit("lab/agent", {"config.json": evil, "checkpoints/checkpoint-000000001.pt": b"a pickle", "evil.py": b""})
    run = load_run("hf:lab/agent", "cpu")  # to act needs no environment
    with pytest.raises(ValueError, match=r"`env` must not name a module that is not imported, got 'evil_module:Env-v0'"):
        run.evaluate(5)
    with pytest.raises(ValueError, match="if you trust evil_module, import it first"):
        run.recording_env()
    assert load_run("hf:lab/agent", "cpu", env="catch").make_env(1, rows=4, columns=3).num_envs == 1
    assert "evil_module" not in sys.modules
    fetched = {
        Path(path.partition("resolve/")[2]).name for path in served.hub.asked if path.startswith("GET") and "resolve" in path
    }
    assert "checkpoint-000000001.pt" not in fetched and "evil.py" not in fetched and "agent.safetensors" in fetched


@pytest.mark.parametrize("damage", ["bytes", "kind", "shape", "outputs", "names"])
def test_a_damaged_agent_is_refused(served: Served, tmp_path: Path, damage: str) -> None:
    push_to_hub(small_run(tmp_path), "lab/agent")
    content = served.files("lab/agent")["agent.safetensors"]
    path = tmp_path / "agent.safetensors"
    path.write_bytes(content)
    tensors = safetensors.torch.load(content)
    with safetensors.safe_open(path, framework="pt") as file:
        metadata = {name: text for name, text in file.metadata().items() if name != "sha256"}
    first = next(name for name in tensors if name.startswith("learner/params/"))
    if damage == "bytes":
        content = content[:-4] + bytes(4)
    elif damage == "kind":
        metadata["kind"] = "rule"
    elif damage == "outputs":
        metadata["config"] = metadata["config"].replace('"flat": {', '"flat": {"more": 1000000000, ')
    elif damage == "shape":
        tensors[first] = torch.zeros(1, 2, 3, 4)
    else:
        tensors["learner/params/more"] = torch.zeros(3)
    if damage != "bytes":
        save_safetensors(path, tensors, metadata)
        content = path.read_bytes()
    served.hub.commit("lab/agent", {"agent.safetensors": content})
    with pytest.raises(ValueError, match=r"agent\.safetensors|checkpoint"):
        load_run("hf:lab/agent", "cpu")


def test_what_is_not_there(served: Served, rule_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    push_to_hub(small_run(tmp_path), "lab/agent")
    push_to_hub(str(rule_file), "lab/rule")
    for args, message in (
        (["train", "--rule", "hf:lab/agent"], "`rule` must be a repository with a rule.safetensors, got hf:lab/agent"),
        (
            ["train", "--rule", "hf:lab/rule@none"],
            "`rule` could not be loaded from the Hugging Face Hub, got hf:lab/rule@none",
        ),
        (["train", "--rule", "hf:rule"], "`rule` must be hf:ORG/NAME or hf:ORG/NAME@REVISION"),
        (["train", "--resume", "hf:lab/agent"], "`resume` must be a folder on this machine, got hf:lab/agent"),
        (["evaluate", "hf:lab/rule"], "`run` must be the folder of a run, with a config.json in it"),
        (["evaluate", "hf:lab/none"], "`run` could not be loaded from the Hugging Face Hub, got hf:lab/none"),
        (["inspect", "actor-critic", "--run", "hf:lab/agent"], "`run` must be a folder on this machine"),
        (["push", "actor-critic", "--to", "lab/x"], "`what` must be a discovered rule, got 'actor-critic'"),
        (["push", "hf:lab/rule", "--to", "lab/x"], "`what` must be the folder of a run, or the name or file"),
        (["push", str(tmp_path), "--to", "lab/x"], "`runs` must be folders of runs"),
        (["push", str(rule_file), "--to", "x"], "`to` must be hf:ORG/NAME"),
        (["push", str(rule_file), "--to", "lab/x@main"], "`to` must be ORG/NAME, without a revision"),
    ):
        assert main(args) == 2, args
        error = capsys.readouterr().err
        last = error.strip().splitlines()[-1]  # the library may have said something before
        assert message in last and last.startswith("disco-torch: ") and "Traceback" not in error, error
    assert set(served.hub.repositories) == {"lab/agent", "lab/rule"}
    served.stack.close()
    with pytest.raises(OSError, match="`to` could not be written, got lab/x"):
        push_to_hub(str(rule_file), "lab/x")


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, NAMES, None)  # as if it were not installed
    for args in (["train", "--rule", "hf:lab/rule"], ["evaluate", "hf:lab/run"], ["push", "birch", "--to", "lab/x"]):
        assert main(args) == 2
        assert "needs the package huggingface_hub, which is not installed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["hf:", "hf:a", "hf:a/b/c", "hf:../b", "hf:a/..", "hf:a/b@", "hf:a/b@../c", "hf:a b/c", "hf:/a/b"]
)
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ValueError, match="`name` must be hf:ORG/NAME"):
        hub_names.parse_hub_name(name)


def test_names() -> None:
    assert hub_names.parse_hub_name("hf:lab/my-rule_2.1@v1.0/x") == hub_names.HubName("lab/my-rule_2.1", "v1.0/x")
    assert hub_names.parse_hub_name("hf:lab/x").revision is None
    plain = {"runs": "/a/b", "rule": "/a/b/c.safetensors", "nested": [{"start": "rel/x", "n": 1}]}
    assert without_paths(plain) == {"runs": "runs", "rule": "c.safetensors", "nested": [{"start": "rel/x", "n": 1}]}
