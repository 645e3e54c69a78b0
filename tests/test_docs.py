"""The code in README and docs runs as it is printed."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.run import get_args_parser

from disco_torch import (
    AdamConfig,
    Agent,
    AgentConfig,
    DiscoUpdateRule,
    DiscoverConfig,
    Learner,
    Replay,
    ValueFunction,
    ValueFunctionConfig,
    collect,
    init_actor,
)
from disco_torch.analysis import ACHIEVEMENTS
from disco_torch.cli import imports, main, parse
from disco_torch.discovery import PRESETS as DISCOVERIES
from disco_torch.discovery import MetaLossWeights
from disco_torch.envs import PACKAGES, Catch, registered
from disco_torch.inspection import probes
from disco_torch.weights import registry

ROOT = Path(__file__).parents[1]


def blocks(path: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), flags=re.S)


def test_the_first_lines_of_the_readme(disco103_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISCO_TORCH_DISCO103", str(disco103_path))
    namespace: dict[str, object] = {}
    code = blocks("README.md")[1]
    assert len(code.strip().splitlines()) <= 12
    exec(code.replace("range(1000)", "range(2)"), namespace)
    assert float(namespace["logs"]["total_loss"]) > 0  # type: ignore[index]


@pytest.mark.parametrize("page", ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_every_command_has_the_options_that_there_are(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that resume a run need the folder that they name."""
    monkeypatch.setattr(imports, "import_modules", lambda names: None)  # they are the reader's own
    text = (ROOT / page).read_text().replace("\\\n", " ")
    code = "\n".join(re.findall(r"^(?:```\w*\n.*?^```$| {4}disco-torch .*?\n)", text, flags=re.M | re.S))
    for line in re.findall(r"^(?: {4})?disco-torch (.*)$", code, flags=re.M):
        command = shlex.split(line, comments=True)
        if "--resume" not in command:
            parse(command)


def test_the_readme_from_training_to_acting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, namespace = blocks("README.md")[0], dict[str, Any]()
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    for steps, fewer in (("100_000", "1280"), ("200_000", "1536"), ("episodes=100", "episodes=10")):
        assert steps in code
        code = code.replace(steps, fewer)
    exec(code, namespace)
    assert namespace["env"].action_space.contains(namespace["action"]) and namespace["over"]
    assert '"finished": true' in (namespace["result"].folder / "summary.json").read_text()


def test_the_rule_of_a_page_learns_catch() -> None:
    namespace: dict[str, object] = {}
    exec(blocks("docs/rules.md")[1], namespace)
    rule = namespace["Reinforce"]()  # type: ignore[operator]
    env, generator = Catch(16, rows=4, columns=3), torch.Generator().manual_seed(0)
    agent = Agent(env.observation_example, 3, rule.outputs(3))
    learner, replay = Learner(agent, rule), Replay(16, 10, env.observation_example, 3)
    state, actor = learner.init(generator), init_actor(agent, env, generator)
    caught = []
    for _ in range(250):
        rollout, actor, episodes = collect(agent, state.params, env, actor, 10, generator)
        replay.add(rollout)
        state, _ = learner.update(state, replay.sample(16, generator, num_fresh=16))
        caught.append((episodes.returns[episodes.ends] > 0).float().mean())
    # A paddle that does not move catches 1 ball in 3.
    assert float(torch.stack(caught[-50:]).mean()) > 0.6


def test_the_input_of_a_page_is_read_by_the_rule() -> None:
    namespace: dict[str, Any] = {"seen": []}
    exec(blocks("docs/rules.md")[0].replace("view.rewards", "seen.append(view) or view.rewards"), namespace)
    rule, env, generator = namespace["rule"], Catch(2, rows=4, columns=3), torch.Generator().manual_seed(0)
    agent = Agent(env.observation_example, 3, rule.outputs(3), AgentConfig((8,), 4, (4,)))
    learner, actor = Learner(agent, rule), init_actor(agent, env, generator)
    state = learner.init(generator)
    rollout, *_ = collect(agent, state.params, env, actor, 4, generator)
    namespace["seen"].clear()
    _, logs = learner.update(state, rollout)
    assert namespace["seen"] and torch.isfinite(logs["total_loss"])


def test_the_population_of_a_page_is_discovered_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    exec(blocks("docs/discovery.md")[0], namespace)
    result = namespace["result"]
    assert result.rule == Path("runs/discovery-seed0/rules/rule-000002.safetensors") and result.rule.is_file()
    assert set(result.final_returns) == {"catch", "chain", "grid"}
    # The folder is the one that is drawn there.
    drawn = re.findall(r"^      (\S+?)/? +\S", (ROOT / "docs/discovery.md").read_text(), flags=re.M)
    assert len(drawn) >= 5
    for name in drawn:
        assert (result.folder / name.rstrip(",")).exists()


def test_the_environments_of_a_page_are_discovered_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    exec(blocks("docs/discovery.md")[1], namespace)
    assert namespace["result"].rule.is_file() and "CartPole-v1" in namespace["result"].final_returns


def test_the_meta_gradient_of_a_page() -> None:
    env, rule, generator = Catch(2, rows=4, columns=3), DiscoUpdateRule(), torch.Generator().manual_seed(0)
    agent = Agent(env.observation_example, 3, rule.outputs(3), AgentConfig((8,), 4, (4,)))
    learner, values = Learner(agent, rule), ValueFunction(env.observation_example)
    state, actor = learner.init(generator), init_actor(agent, env, generator)
    rollout, *_ = collect(agent, state.params, env, actor, 4, generator)
    namespace: dict[str, Any] = {"env": env, "rule": rule, "learner": learner, "learner_state": state}
    namespace |= {"value_state": values.init(generator), "train_rollouts": [rollout] * 2, "valid_rollout": rollout}
    exec(blocks("docs/discovery.md")[2], namespace)
    assert namespace["result"].grads.keys() == dict(rule.named_parameters()).keys()


def test_the_loops_of_a_page_are_the_presets() -> None:
    names = {"AdamConfig": AdamConfig, "ValueFunctionConfig": ValueFunctionConfig, "MetaLossWeights": MetaLossWeights}
    text = (ROOT / "docs/discovery.md").read_text()
    rows = re.findall(r"^\| `(\w+)` " + 5 * r"\| `([^`]*)`[^|]*" + r"\|$", text, flags=re.M)
    columns = [{row[0]: eval(row[i], names) for row in rows} for i in (1, 2, 3, 4, 5)]
    assert len(rows) == 18
    for column, preset in zip(columns, ("cpu", "notebook", "birch", "paper-loop"), strict=False):
        config = DISCOVERIES[preset][1]
        assert column == {name: getattr(config, name) for name in column}
    paper = DiscoverConfig(**columns[4])
    assert (paper.num_fresh, paper.num_parallel_envs, paper.updates_per_meta_update) == (10, 48, 1)


def test_the_results_of_the_readme_are_printed_by_its_script(tmp_path: Path) -> None:
    """From what commands printed before, without running any; a row without all of its runs is left out."""
    greedy = "│ sampled │ 100 │ 0.5 │ 0 to 1 │ 7 │\n│ greedy  │ 100 │ {} │ 0.9 to 1 │ 7 │"
    printed = {f"catch-birch seed {seed}": greedy.format(value) for seed, value in enumerate((1, 0.98, 1, -0.5))}
    printed["cartpole-birch seed 0"] = greedy.format(500)
    printed["memory"] = "updates agents plain ms\n     20      1  23.38 24.73     10.33   2350.47    581.89      0.25"
    results, readme = tmp_path / "results.json", tmp_path / "README.md"
    content = {"commit": "0123abc", "threads": 1, "machine": "a CPU", "date": "2026-01-01", "printed": printed}
    results.write_text(json.dumps(content))
    readme.write_text((ROOT / "README.md").read_text())
    command = [sys.executable, str(ROOT / "benchmarks/readme_table.py"), "--results", str(results), "--finished"]
    table = subprocess.run([*command, "--readme", str(readme)], check=True, capture_output=True, text=True).stdout.strip()
    assert [line.split(" | ")[1] for line in table.splitlines()[2:-2]] == [
        "mean return 1, 0.98, 1, -0.5",
        "582 MiB instead of 2350 (0.25 of it)",
    ]
    assert table.splitlines()[-1] == "Commit 0123abc, 2026-01-01, a CPU, 1 thread(s)."
    assert f"<!-- results -->\n{table}\n<!-- end of results -->" in readme.read_text()


def test_what_a_user_brings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All snippets of the page, one after the other, with fewer steps."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registered, "ENVIRONMENTS", registered.ENVIRONMENTS.copy())
    monkeypatch.setattr(registry, "REGISTRY", registry.REGISTRY.copy())
    namespace: dict[str, Any] = {"__name__": "my_module"}
    snippets = blocks("docs/your_own.md")
    assert len(snippets) == 7
    for code in snippets:
        for steps, fewer in (("steps=200_000", 1280), ("steps=20_000", 1280), ("steps=30_000", 1536)):
            code = code.replace(steps, f"steps={fewer}")
        exec(code, namespace)
    assert namespace["action"].shape == () and namespace["run"].num_actions == 2
    runs = [
        "CartPole-v1-ppo-replay-seed0",
        "CartPole-v1-ppo-replay-seed0-2",
        "Pendulum-v1-ppo-replay-seed0",
        "catch-ActorCritic-seed0",
    ]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == runs
    assert "short-cartpole" in registered.ENVIRONMENTS and "my-actor-critic" in registry.REGISTRY


def test_what_is_found_in_a_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The snippet of the page with fewer steps; its commands have the options that there are, and its figures are small."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(probes, "EPOCHS", 1)
    (code,) = blocks("docs/inspecting.md")
    assert code.count("steps=20_000") == 2
    exec(code.replace("steps=20_000", "steps=2_048"), {})
    printed = capsys.readouterr().out
    assert "policy gradient: A (e_a - pi)\n" in printed and "reward policy " in printed
    assert (tmp_path / "page.html").is_file() and (tmp_path / "page" / "numbers.json").is_file()
    text = (ROOT / "docs/inspecting.md").read_text().replace("\\\n", " ")
    commands = [shlex.split(line, comments=True) for line in re.findall(r"^disco-torch (.*)$", text, flags=re.M)]
    assert [command[0] for command in commands] == [*["inspect"] * 3, *["train", "inspect"] * 3]
    for command in commands:
        parse(command)
    assert sum(path.stat().st_size for path in (ROOT / "docs/inspecting").iterdir()) < 600_000


def test_the_report_of_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The snippet with fewer steps; its commands have the options that there are."""
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("docs/reports.md")
    assert "steps=50_000" in code
    exec(code.replace("steps=50_000", "steps=2_560"), {})
    assert "catch ppo Interval(mean=" in capsys.readouterr().out and (tmp_path / "report.html").is_file()
    text = (ROOT / "docs/reports.md").read_text()
    for command in re.findall(r"^disco-torch (.*)$", text, flags=re.M):
        parse(shlex.split(command, comments=True))


def test_the_environments_of_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands have the options that there are, and the scores are computed."""
    text = (ROOT / "docs/environments.md").read_text()
    commands = re.findall(r"^disco-torch (.*sokoban.*|.*/.*)$", text, flags=re.M)
    assert len(commands) == 13
    for command in commands:
        parse(shlex.split(command, comments=True))
    installs = re.findall(r"^\| `(\w+)/[^|]*\| `(pip install [^`]*)` \|", text, flags=re.M)
    assert dict(installs) == {name: package.install for name, package in PACKAGES.items()}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "achievements").mkdir()
    line = {f"achievement_{name}": int(name == "collect_wood") for name in ACHIEVEMENTS}
    (tmp_path / "achievements" / "stats.jsonl").write_text(json.dumps(line))
    for block in blocks("docs/environments.md")[1:3]:
        exec(block, {})
    printed = capsys.readouterr().out
    assert "'pong': array(" in printed and "collect_wood in 100% of the episodes\n0.4" in printed


def test_the_commands_of_the_page_on_many_gpus() -> None:
    text = (ROOT / "docs/many_gpus.md").read_text().replace("\\\n", "")
    started = [shlex.split(line, comments=True) for line in re.findall(r"^torchrun (.*)$", text, flags=re.M)]
    assert len(started) == 4
    in_script = [f"train {options}" for options in re.findall(r"run=\((.*?)\)", text)]
    commands = [words[words.index("disco_torch") + 1 :] for words in started] + list(map(shlex.split, in_script))
    new = [command for command in commands if "--resume" not in command]  # the others need the folder that they name
    assert len(commands) == 6 and [type(parse(command)).__name__ for command in new] == [
        "Train",
        "Discover",
        "Train",
        "Train",
    ]
    for words in started:  # the launcher knows its options
        assert get_args_parser().parse_args(words).module


def test_the_commands_of_the_page_on_sharing() -> None:
    commands = re.findall(r"^disco-torch (.*)$", (ROOT / "docs/sharing.md").read_text(), flags=re.M)
    parsed = [parse(shlex.split(command, comments=True)) for command in commands]
    assert [type(each).__name__ for each in parsed] == ["Push", "Push", "Push", "Train", "Evaluate", "Report"]


def test_the_comparison_of_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The snippet with few steps and one seed; the options of its command line, and its subset, are those there are."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs/comparing.md").read_text()
    (code,) = blocks("docs/comparing.md")
    for much, less in (("100_000", "1536"), ("50_000", "1056"), ("range(5)", "[0]"), ("processes=8", "processes=2")):
        assert much in code
        code = code.replace(much, less)
    exec(code, {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert "6/6 " in printed and "| CartPole, 1536 | " in printed and "birch (optimizer.learning_rate 0.001)" in printed
    assert (tmp_path / "comparison.png").is_file() and len((tmp_path / "comparison.jsonl").read_text().splitlines()) == 6
    command = shlex.split(re.findall(r"```sh\ndisco-torch (.*?)```", text, flags=re.S)[0].replace("\\\n", " "))
    assert main([*command[: command.index("--figure")], "--table-only"]) == 0
    assert "no finished run of these tasks in comparison.jsonl" in capsys.readouterr().out
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    suite = importlib.import_module("suite")
    assert f"is {len(suite.choose('quick', None))} of the tasks" in text and f"on {len(suite.SUITE)} tasks" in text
