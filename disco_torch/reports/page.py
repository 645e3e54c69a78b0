"""The page of a report."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from disco_torch.pages import Figure, data_uri, html_list, html_paragraph, panel_svg, render_page
from disco_torch.reports.captions import FEW_RUNS, SECTION_TEXTS, SECTION_TITLES
from disco_torch.reports.figures import colors_of, curves_figure, discovery_figure, scores_figure
from disco_torch.reports.runs import DiscoveryRun, ReportedRun, TrainingRun
from disco_torch.reports.scores import GroupScores, group_scores
from disco_torch.reports.snapshots import find_snapshots
from disco_torch.reports.tables import (
    all_settings,
    discovery_table,
    final_returns_table,
    improvement_tables,
    number,
    scores_table,
    settings_table,
    snapshots_table,
    systems_table,
    training_table,
    with_interval,
)

STYLE = Path(__file__).with_name("report.css")
MAX_RECORDING_BYTES = 4 * 2**20
"""Largest recording that a page holds."""
WATCHED = {
    "entropy": "policy entropy, nats",
    "prediction_entropy": "entropy of the predictions, nats",
    "meta_grad_norm": "norm of the meta-gradient",
    "meta_up_norm": "norm of the rule's update",
    "meta_loss": "meta-loss",
    "target_kl": "KL to the policy targets",
    "lives": "lives begun",
}
"""Metrics of a discovery to look at, and their titles."""


def render_report(training: Sequence[TrainingRun], discoveries: Sequence[DiscoveryRun]) -> str:
    """The text of the page."""
    every: list[ReportedRun[Any]] = [*training, *discoveries]
    groups = group_scores(training)
    sections = {
        **_training_sections(training, groups),
        **_discovery_sections(discoveries, groups),
        "settings": _settings(training, discoveries),
        "runs": _runs(training, discoveries),
        "systems": systems_table(every),
    }
    shown = {name: sections[name] for name in SECTION_TITLES if sections.get(name)}
    links = "".join(f'<li><a href="#{name}">{html.escape(SECTION_TITLES[name])}</a></li>' for name in shown)
    parts = [f"<nav><ul>{links}</ul></nav>", "<h2>In short</h2>", html_list(_in_short(groups, discoveries))]
    notes = [f"{run.name}: {problem.rstrip('.')}." for run in every for problem in run.problems]
    parts += [f'<h3>To be noted</h3><div class="faint">{html_list(notes)}</div>'] if notes else []
    parts += [f'<h2 id="{name}">{html.escape(SECTION_TITLES[name])}</h2>{text}' for name, text in shown.items()]
    return render_page(title_of(training, discoveries), parts, style=STYLE.read_text())


def title_of(training: Sequence[TrainingRun], discoveries: Sequence[DiscoveryRun]) -> str:
    """What is on the page, in numbers."""
    kinds = ((training, "training run", "training runs"), (discoveries, "discovery", "discoveries"))
    return "Report on " + " and ".join(f"{len(own)} {one if len(own) == 1 else many}" for own, one, many in kinds if own)


def _in_short(groups: Sequence[GroupScores], discoveries: Sequence[DiscoveryRun]) -> list[str]:
    """The best group of each environment, and how far each discovery is."""
    lines = []
    for task in dict.fromkeys(group.task for group in groups):
        own = [group for group in groups if group.task == task]
        known = [(group, group.iqm) for group in own if group.iqm is not None]
        if not known:
            lines.append(f"{task}: no run has a final return yet.")
            continue
        best, iqm = max(((group, iqm) for group, iqm in known), key=lambda pair: pair[1].mean)
        which = f"highest of {len(own)} groups with" if len(own) > 1 else "with"
        runs = "1 run" if len(best.scores) == 1 else f"{len(best.scores)} runs"
        lines.append(
            f"{task}: final return (IQM) {with_interval(iqm, len(best.scores) == 1)}, {which} {best.label} ({runs})."
        )
    for run in discoveries:
        last = [f"{name} {number(run.curve(f'return/{name}')[1][-1])}" for name in families_of([run])]
        returns = f"; last mean returns: {', '.join(last)}" if last else ""
        lines.append(
            f"{run.name}: {run.reached():,} of {run.length:,} meta-updates, {run.reached('lives'):,} lives{returns}."
        )
    return lines


def _training_sections(runs: Sequence[TrainingRun], groups: Sequence[GroupScores]) -> dict[str, str]:
    colors = colors_of([run.label for run in runs])
    curves = _figure(curves_figure("curves", "return", runs, colors), _legend(runs, colors, "return"))
    evaluations = curves_figure("evaluations", "eval_return", runs, colors)
    entropy = curves_figure("entropy", "entropy", runs, colors, "policy entropy, nats")
    loss = curves_figure("loss", "total_loss", runs, colors, "loss")
    scores = _figure(scores_figure(groups, colors))
    few = f" {FEW_RUNS}" if any(len(group.scores) < 5 for group in groups) else ""
    improvement = "".join(f"<h3>On {html.escape(title)}</h3>{table}" for title, table in improvement_tables(groups))
    contents = {
        "curves": curves,
        "evaluations": _figure(evaluations, _legend(runs, colors, "eval_return")),
        "scores": scores + scores_table(groups) if scores else "",
        "improvement": improvement,
        "learning": _figure(Figure("learning", [*entropy.panels, *loss.panels]), _legend(runs, colors, "total_loss")),
    }
    notes = {"scores": few, "improvement": few}
    found = {
        name: html_paragraph(SECTION_TEXTS[name] + notes.get(name, "")) + content
        for name, content in contents.items()
        if content
    }
    return found | {"recordings": _recordings(runs)}


def families_of(runs: Sequence[DiscoveryRun]) -> list[str]:
    """The families of environments that a return is known of, in the order of the metrics."""
    names = dict.fromkeys(name for run in runs for line in run.lines for name in line if name.startswith("return/"))
    return [name.removeprefix("return/") for name in names if any(run.curve(name)[0] for run in runs)]


def _discovery_sections(runs: Sequence[DiscoveryRun], groups: Sequence[GroupScores]) -> dict[str, str]:
    colors = colors_of([run.label for run in runs])
    legend, families = _legend(runs, colors, "steps"), families_of(runs)
    returns = discovery_figure("families", {f"return/{name}": name for name in families}, runs, colors)
    watched = discovery_figure("watch", WATCHED, runs, colors, is_log=lambda name: name.endswith("norm"))
    snapshots = find_snapshots(runs, groups)
    contents = {
        "families": _figure(returns, legend) + (final_returns_table(runs, families) if returns.panels else ""),
        "watch": _figure(watched, legend),
        "snapshots": snapshots_table(snapshots) if snapshots else "",
    }
    return {name: html_paragraph(SECTION_TEXTS[name]) + content for name, content in contents.items() if content}


def _legend(runs: Sequence[ReportedRun[Any]], colors: dict[str, str], metric: str) -> str:
    """The groups that have a metric, and their colours."""
    shown = {run.label: colors[run.label] for run in runs if run.curve(metric)[0]}
    items = "".join(f'<li><i style="background:{color}"></i>{html.escape(name)}</li>' for name, color in shown.items())
    return f'<ul class="legend">{items}</ul>' if items else ""


def _figure(figure: Figure, legend: str = "") -> str:
    panels = "".join(f'<div class="panel">{panel_svg(panel)}</div>' for panel in figure.panels)
    return f'{legend}<div class="panels">{panels}</div>' if panels else ""


def _settings(training: Sequence[TrainingRun], discoveries: Sequence[DiscoveryRun]) -> str:
    parts = []
    for runs, title in ((training, "Training"), (discoveries, "Discovery")):
        if not runs:
            continue
        heading = f"<h3>{title}</h3>" if training and discoveries else ""
        differing = settings_table(runs)
        said = "Only what differs between runs." if differing else "The settings do not differ between runs."
        whole = "".join(
            f"<details><summary>All settings: {html.escape(name)}</summary>{table}</details>"
            for name, table in all_settings(runs)
        )
        parts.append(heading + html_paragraph(said) + differing + whole)
    return "".join(parts)


def _runs(training: Sequence[TrainingRun], discoveries: Sequence[DiscoveryRun]) -> str:
    return (training_table(training) if training else "") + (discovery_table(discoveries) if discoveries else "")


def _recordings(runs: Sequence[ReportedRun[Any]]) -> str:
    """The recordings in the folders of runs, in the page itself; those that are too large are named."""
    figures, left_out = [], []
    for run in runs:
        for path in run.recordings:
            content = path.read_bytes()
            if len(content) > MAX_RECORDING_BYTES or not content.startswith((b"GIF87a", b"GIF89a")):
                why = "is no GIF" if len(content) <= MAX_RECORDING_BYTES else f"has {len(content) / 2**20:.1f} MiB"
                left_out.append(f"{run.name}/{path.name} {why} and is left out")
                continue
            caption = html.escape(f"{run.name}: {path.relative_to(run.folder.path)}")
            image = f'<img src="{data_uri(content, "image/gif")}" alt="recording {caption}">'
            figures.append(f"<figure>{image}<figcaption>{caption}</figcaption></figure>")
    shown = f'<div class="recordings">{"".join(figures)}</div>' if figures else ""
    return shown + (html_list(left_out) if left_out else "")
