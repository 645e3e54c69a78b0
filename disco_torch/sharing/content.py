"""What is shared of a rule or a run: files of data in a folder, without paths of the machine that they come from."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from disco_torch.discovery.folder import DiscoveryFolder
from disco_torch.reports import read_runs
from disco_torch.reports.runs import DiscoveryRun, TrainingRun, open_folder
from disco_torch.rules import DiscoUpdateRule
from disco_torch.runs.folder import write_json
from disco_torch.runs.system import package_version
from disco_torch.sharing.card import Card, Score
from disco_torch.sharing.command import train_command
from disco_torch.training import TrainConfig
from disco_torch.training.agent_export import export_agent
from disco_torch.weights import load_rule, save_rule
from disco_torch.weights.configuration import config_to_plain
from disco_torch.weights.files import read_file
from disco_torch.weights.hub import AGENT_FILE, RULE_FILE
from disco_torch.weights.parameters import plain_metadata
from disco_torch.weights.registry import REGISTRY

MAX_RECORDING_BYTES = 16 * 2**20
INSTALL = "It needs the Python package disco-torch with its extra `hub`."


def write_content(what: Path | str, repository: str, folder: Path) -> Card:
    """Writes the files to share of a rule, a training run or a discovery into a folder, and returns their card."""
    if Path(what).is_dir():
        opened = open_folder(Path(what))
        (training, discoveries) = read_runs([what])
        if isinstance(opened, DiscoveryFolder):
            return _discovery(discoveries[0], repository, folder)
        return _training(training[0], repository, folder)
    if str(what) not in REGISTRY and not Path(what).is_file():
        raise ValueError(
            f"`what` must be the folder of a run, or the name or file of a discovered rule, got {str(what)!r}, which is "
            f"none on this machine; rules with names are {sorted(REGISTRY)}."
        )
    return _rule(str(what), repository, folder)


def _rule(name: str, repository: str, folder: Path) -> Card:
    provenance = _write_rule(name, folder)
    shown = name if name in REGISTRY else Path(name).stem
    return _rule_card(shown, provenance, repository)


def _write_rule(name: str, folder: Path) -> dict[str, Any]:
    """Writes `rule.safetensors` with what is known of its provenance, and that by itself, too; returns it."""
    rule = load_rule(name)
    if not isinstance(rule, DiscoUpdateRule):
        raise ValueError(f"`what` must be a discovered rule, got {name!r}, which has no weights to share.")
    entry = REGISTRY.get(name)
    path = Path(name) if entry is None else entry.locate() if entry.locate is not None else None
    known = plain_metadata(read_file(path), "provenance") if path is not None and path.suffix == ".safetensors" else None
    provenance = without_paths(known) if isinstance(known, Mapping) else {}
    save_rule(folder / RULE_FILE, rule, provenance=provenance)
    write_json(folder / "provenance.json", provenance)
    return provenance


def _rule_card(name: str, provenance: Mapping[str, Any], repository: str) -> Card:
    text = [
        "An update rule for reinforcement learning, discovered by meta-gradients: a network that says what an agent should "
        "learn from a rollout, in place of a loss that people wrote.",
        INSTALL,
        _code_block("sh", f"disco-torch train --env CartPole-v1 --rule hf:{repository}"),
        _code_block("python", f'from disco_torch import load_rule\n\nrule = load_rule("hf:{repository}")'),
    ]
    facts = {
        str(label).replace("_", " "): str(value)
        for label, value in provenance.items()
        if value is not None and not isinstance(value, Mapping | list)
    }
    return Card(repository, f"{name}: an update rule", _tags("update-rule", "meta-learning"), text, facts)


def _discovery(run: DiscoveryRun, repository: str, folder: Path) -> Card:
    snapshots = sorted((run.folder.path / "rules").glob("rule-*.safetensors"))
    if not snapshots:
        raise ValueError(f"`what` must have a snapshot in its folder rules, got {run.folder.path}; let it run for longer.")
    provenance = _write_rule(str(snapshots[-1]), folder)
    _write_run(run, folder, without_paths(run.folder.plain_config()))
    card = _rule_card(run.name, provenance, repository)
    returns = {
        f"last mean return, {name.removeprefix('return/')}": f"{value:.4g}"
        for name, value in (run.lines[-1] if run.lines else {}).items()
        if name.startswith("return/")
    }
    return replace(card, facts={**card.facts, **returns})


def _training(run: TrainingRun, repository: str, folder: Path) -> Card:
    """The newest agent of a run; where its rule is a file, that as well."""
    config, session = run.folder.config, run.folder.load_checkpoint()["session"]
    system = run.summary.get("system")
    provenance = {"made_by": "disco-torch train", "version": package_version(), "run": run.name, **session["counters"]}
    provenance["system"] = system if isinstance(system, Mapping) else {}
    rule = config.rule
    if rule not in REGISTRY and Path(rule).is_file():
        with tempfile.TemporaryDirectory() as place:  # the rule has a provenance of its own, in its file
            _write_rule(rule, Path(place))
            shutil.copyfile(Path(place) / RULE_FILE, folder / RULE_FILE)
        rule = f"hf:{repository}"
    export_agent(session, folder / AGENT_FILE, provenance)
    write_json(folder / "provenance.json", provenance)
    _write_run(run, folder, without_paths(run.folder.plain_config()) | {"rule": rule})
    recordings = [path for path in run.recordings if path.stat().st_size <= MAX_RECORDING_BYTES]
    if recordings:
        shutil.copyfile(recordings[-1], folder / "episode.gif")
    facts = {"steps": f"{run.reached():,}", "state": run.status, "seed": str(config.seed)}
    facts |= {str(key): str(value) for key, value in provenance["system"].items() if value is not None}
    name = config.rule if config.rule in REGISTRY else Path(config.rule).stem
    tags = _tags(config.env, "deep-reinforcement-learning")
    score = _score(run.task, [numbers[0] for numbers in session["recent"]])
    return Card(
        repository, f"{name} on {run.task}", tags, _agent_text(config, rule, repository), facts, score, bool(recordings)
    )


def _score(env: str, returns: Sequence[float]) -> Score | None:
    if not returns or not np.isfinite(returns).all():
        return None
    return Score(env, float(np.mean(returns)), float(np.std(returns)), len(returns), "last episodes of training")


def _agent_text(config: TrainConfig, rule: str, repository: str) -> list[str]:
    """How to use an agent, and how to train it again."""
    lines = ["from disco_torch import load_run", "", f'run = load_run("hf:{repository}")']
    lines.append("print(run.evaluate(episodes=100).interval)  # mean return and its 95% interval")
    objects = config.objects
    if objects.env_kind or objects.agent or objects.rule or config.wrappers:
        again = "The run was given objects of Python code, which are not in this repository; pass them again to `load_run`."
    else:
        again = "Train it again:\n\n" + _code_block("sh", train_command(config, rule))
    return [
        f"An agent that learned with the update rule `{rule}`.",
        INSTALL,
        _code_block("python", "\n".join(lines)),
        _code_block("sh", f"disco-torch evaluate hf:{repository} --record episode.gif"),
        again,
    ]


def _write_run(run: TrainingRun | DiscoveryRun, folder: Path, config: Mapping[str, Any]) -> None:
    """Configuration, metrics and summary of a run."""
    write_json(folder / "config.json", dict(config))
    if run.folder.metrics.is_file():
        shutil.copyfile(run.folder.metrics, folder / "metrics.jsonl")
    if run.summary:
        write_json(folder / "summary.json", dict(run.summary))


def without_paths(plain: Any, name: str = "") -> Any:
    """Plain data in which absolute paths are the names of their files, and `runs` is a folder here."""
    if isinstance(plain, Mapping):
        return {key: without_paths(value, str(key)) for key, value in plain.items()}
    if isinstance(plain, list):
        return [without_paths(value) for value in plain]
    if name == "runs" and isinstance(plain, str):
        return "runs"
    return Path(plain).name if isinstance(plain, str) and Path(plain).is_absolute() else config_to_plain(plain)


def _tags(*more: str) -> list[str]:
    return list(dict.fromkeys(["reinforcement-learning", "disco-torch", "DiscoRL", *more]))


def _code_block(language: str, code: str) -> str:
    return f"```{language}\n{code}\n```"
