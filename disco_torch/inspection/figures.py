"""The figures of an inspection."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from disco_torch.analysis import Interval
from disco_torch.inspection.counterfactuals import Reading
from disco_torch.inspection.findings import Inspection
from disco_torch.inspection.horizon import Reach
from disco_torch.inspection.lifetime import Age
from disco_torch.inspection.probes import Approach, Probe
from disco_torch.inspection.traces import Trace
from disco_torch.inspection.words import InWords
from disco_torch.pages import INK, LINES, NOTHING, Figure, Panel, add_legend, in_digits, widen_range

SHOWN_TRAJECTORIES = 16
"""Number of single trajectories in the figure of horizons."""
COLORS = dict(zip(("policy", "y", "z", "value"), LINES, strict=False))
"""Colours of targets and of what they are targets for, in all figures."""
LEAST_RANGE = 0.02
"""Least range of an axis of confidences, in nats: what changes less is drawn as next to constant."""
LEAST_R2 = -0.25
"""R^2 below which a probe is drawn at the edge."""


def make_figures(found: Inspection) -> list[Figure]:
    """All figures that there is something for, in the order of the page."""
    makers = (_traces, _counterfactuals, _sensitivities, _rule_inputs, _reach, _probes, _words, _lifetime)
    return [figure for make in makers if (figure := make(found)).panels]


def _traces(found: Inspection) -> Figure:
    own = found.findings[found.rule].trace
    others = {name: each.trace for name, each in found.findings.items() if name != found.rule}
    rows = 3 + (own.y_confidence is not None)
    panels = [Panel("Along the episodes", partial(_draw_trace, own), rows + 0.75, rows, fixed_sides=True)]
    if others:
        draw = partial(_draw_pushes, others)
        panels.append(Panel("Push on the policy by other rules", draw, len(others) + 0.75, len(others), fixed_sides=True))
    return Figure("traces", panels)


def _draw_trace(trace: Trace, axes: list[Any]) -> None:
    steps = np.arange(len(trace.actions))
    first, policy, *middle, last = axes
    if trace.values is not None:
        first.plot(steps, trace.values.cpu().numpy(), color=COLORS["value"], label="value")
    first.bar(steps, trace.rewards.cpu().numpy(), color=INK, width=0.6, label="reward")
    first.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, fontsize=7.5, borderaxespad=0.0)
    policy.plot(steps, trace.policy_confidence.cpu().numpy(), color=COLORS["policy"])
    policy.set_ylabel("conf. policy")
    if trace.y_confidence is not None:
        middle[0].plot(steps, trace.y_confidence.cpu().numpy(), color=COLORS["y"])
        middle[0].set_ylabel("conf. y")
    for each in (policy, *middle):
        widen_range(each, LEAST_RANGE)
    _draw_push(last, trace)
    last.set(ylabel="push", xlabel="step")
    first.set_ylabel("reward")
    for each in axes:
        _mark_ends(each, trace)


def _draw_pushes(traces: dict[str, Trace], axes: list[Any]) -> None:
    for each, (name, trace) in zip(axes, traces.items(), strict=True):
        _draw_push(each, trace)
        each.set_ylabel(name, fontsize=7.5)
        _mark_ends(each, trace)
    axes[-1].set_xlabel("step")


def _draw_push(axes: Any, trace: Trace) -> None:
    push, taken = trace.push.cpu().numpy(), trace.actions.cpu().numpy()[:, None]
    steps = np.arange(len(push))
    others = np.ma.masked_array(push, np.arange(push.shape[1]) == taken)
    if push.shape[1] > 1:
        low, high = others.min(axis=1).filled(), others.max(axis=1).filled()
        axes.fill_between(steps, low, high, color=COLORS["policy"], alpha=0.3, linewidth=0)
    axes.plot(steps, np.take_along_axis(push, taken, axis=1)[:, 0], color=COLORS["policy"], marker=".", markersize=3)
    margin = 0.08 * max(float(np.ptp(push)), 1e-6)
    axes.set_ylim(push.min() - margin, push.max() + margin)


def _mark_ends(axes: Any, trace: Trace) -> None:
    for step in trace.ends.nonzero()[:, 0].tolist():
        axes.axvline(step + 0.5, color=INK, linestyle=":", linewidth=0.7, alpha=0.6)
    axes.set_xlim(-0.5, len(trace.actions) - 0.5)
    axes.yaxis.set_label_coords(-0.15, 0.5)


def _counterfactuals(found: Inspection) -> Figure:
    readings = {name: [each.exchange, *each.counterfactuals] for name, each in found.findings.items()}
    asked = {reading.name for own in readings.values() for reading in own if reading.moved}  # of any rule on the page
    shown = {name: [reading for reading in own if reading.name in asked] for name, own in readings.items()}
    return Figure("counterfactuals", [_heat_panel(name, own) for name, own in shown.items()])


def _sensitivities(found: Inspection) -> Figure:
    return Figure(
        "sensitivities", [_heat_panel(name, each.sensitivities.quantities) for name, each in found.findings.items()]
    )


def _rule_inputs(found: Inspection) -> Figure:
    readings = {name: each.sensitivities.rule_inputs for name, each in found.findings.items()}
    return Figure("rule_inputs", [_heat_panel(name, own) for name, own in readings.items() if own])


def _heat_panel(title: str, readings: Sequence[Reading]) -> Panel:
    return Panel(title, partial(_draw_heat, readings), 0.2 * len(readings) + 0.55)


def _draw_heat(readings: Sequence[Reading], axes: list[Any]) -> None:
    """Cells with numbers; the opacity is the share of the largest number of the column."""
    (each,) = axes
    targets = list(dict.fromkeys(name for reading in readings for name in reading.moved))
    largest = {name: max(reading.moved[name].mean for reading in readings if name in reading.moved) for name in targets}
    for row, reading in enumerate(readings):
        for column, name in enumerate(targets):
            moved = reading.moved.get(name)
            if moved is not None and largest[name] > 0:
                shade = 0.75 * moved.mean / largest[name]
                each.bar(column, 0.92, 0.94, row - 0.46, color=COLORS[name], alpha=shade, linewidth=0)
            each.text(column, row, NOTHING if moved is None else in_digits(moved.mean), ha="center", va="center", fontsize=8)
    each.set_xticks(range(len(targets)), targets)
    each.set_yticks(range(len(readings)), [reading.name for reading in readings])
    each.set(xlim=(-0.5, max(1, len(targets)) - 0.5), ylim=(len(readings) - 0.5, -0.5))
    each.tick_params(length=0)
    each.grid(False)
    each.spines[:].set_visible(False)


def _reach(found: Inspection) -> Figure:
    panels = []
    for name, each in found.findings.items():
        for quantity in dict.fromkeys(reach.quantity for reach in each.reach):
            own = [reach for reach in each.reach if reach.quantity == quantity and reach.is_shown]
            if own:
                panels.append(Panel(f"{name}: {quantity} at t+k", partial(_draw_reach, own)))
    return Figure("horizon", panels)


def _draw_reach(reaches: Sequence[Reach], axes: list[Any]) -> None:
    (each,) = axes
    for reach in reaches:
        mean = reach.mean.cpu().numpy()
        scale = np.nanmax(mean)
        if reach.target == reach.quantity or (reach.quantity == "reward" and reach.target == "policy"):
            for line in reach.trajectories[:SHOWN_TRAJECTORIES].cpu().numpy():
                each.plot(line / scale, color=COLORS[reach.target], alpha=0.25, linewidth=0.6)
        label = f"{reach.target} (horizon {reach.horizon:.1f})"
        each.plot(mean / scale, color=COLORS[reach.target], label=label, marker=".", markersize=4)
    each.set(xlabel="k, steps ahead", ylabel="change, share of largest", ylim=(-0.03, 1.15))
    known = max(int(np.isfinite(reach.mean.cpu().numpy()).nonzero()[0][-1]) for reach in reaches)
    each.set_xlim(-0.3, max(1, known) + 0.3)
    add_legend(each, columns=2)
    each.set_yticks([0.0, 0.5, 1.0])


def _probes(found: Inspection) -> Figure:
    futures = list(dict.fromkeys(probe.future for probe in found.probes))
    known = {future: [probe for probe in found.probes if probe.future == future] for future in futures}
    shown = {future: own for future, own in known.items() if any(not math.isnan(x) for probe in own for x in probe.scores)}
    panels = [Panel(future, partial(_draw_probes, own), 2.9) for future, own in shown.items()]
    approach = [each for each in found.approach if any(not math.isnan(x) for x in each.before)]
    if approach:
        panels.append(Panel("confidence before a large reward", partial(_draw_approach, approach), 2.9))
    return Figure("probes", panels)


def _draw_probes(probes: Sequence[Probe], axes: list[Any]) -> None:
    (each,) = axes
    for probe in probes:
        floor = 0.4 if probe.is_event else LEAST_R2
        each.plot(np.maximum(probe.scores, floor), color=COLORS[probe.source], label=probe.source, marker=".", markersize=4)
    is_event = probes[0].is_event
    each.axhline(0.5 if is_event else 0.0, color=INK, linestyle=":", linewidth=0.8)
    each.set(xlabel="k, steps ahead", ylabel="balanced accuracy" if is_event else "R²")
    each.set_ylim((0.38, 1.0) if is_event else (LEAST_R2 - 0.03, 1.0))
    add_legend(each)
    each.set_yticks([0.5, 0.75, 1.0] if is_event else [0.0, 0.5, 1.0])


def _draw_approach(approach: Sequence[Approach], axes: list[Any]) -> None:
    (each,) = axes
    for own in approach:
        rise = np.array(own.before) - own.mean
        each.plot(-np.arange(len(rise)), rise, color=COLORS[own.name], label=own.name, marker=".", markersize=4)
    each.axhline(0.0, color=INK, linestyle=":", linewidth=0.8)
    each.set(xlabel="steps before the reward", ylabel="above its mean, nats")
    add_legend(each)


def _words(found: Inspection) -> Figure:
    terms = {name: each.words for name, each in found.findings.items()}
    return Figure(
        "words",
        [Panel(name, partial(_draw_words, own), 0.21 * len(own.alone) + 0.85) for name, own in terms.items() if own.alone],
    )


def _draw_words(words: InWords, axes: list[Any]) -> None:
    (each,) = axes
    names = sorted(words.alone, key=lambda name: words.alone[name])
    selected = {term.name: (i, term) for i, term in enumerate(words.selected, start=1)}
    for row, name in enumerate(names):
        share = max(0.0, words.alone[name])
        each.barh(row, share, 0.75, color=COLORS["policy"], alpha=1.0 if name in selected else 0.3)
        if name in selected:
            number, term = selected[name]
            each.text(share + 0.02, row, f"{number}. {term.explained:.0%}", va="center", fontsize=8)
    each.set_yticks(range(len(names)), names)
    each.set(xlim=(0, 1.32), xlabel="share of variance explained alone")
    each.grid(axis="y", visible=False)
    each.set_xticks([0, 0.25, 0.5, 0.75, 1.0])


def _lifetime(found: Inspection) -> Figure:
    kinds: dict[str, Callable[[Age], dict[str, Interval]]] = {
        "distance to newborn memory": lambda age: age.from_birth,
        "distance to last memory": lambda age: age.from_last,
        "size of the push": lambda age: age.pushes,
    }
    ages = {name: each.ages for name, each in found.findings.items() if each.ages}
    return Figure(
        "lifetime",
        [
            Panel(f"{name}: {title}", partial(_draw_ages, own, read, name == found.rule))
            for name, own in ages.items()
            for title, read in kinds.items()
        ],
    )


def _draw_ages(ages: Sequence[Age], read: Callable[[Age], dict[str, Interval]], is_life: bool, axes: list[Any]) -> None:
    (each,) = axes
    updates = [age.updates for age in ages]
    for target in read(ages[0]):
        own = [read(age)[target] for age in ages]
        each.plot(updates, [x.mean for x in own], color=COLORS[target], label=target, marker=".", markersize=3)
        each.fill_between(updates, [x.low for x in own], [x.high for x in own], color=COLORS[target], alpha=0.2, linewidth=0)
    each.set_xscale("symlog", linthresh=max(1, updates[1] if len(updates) > 1 else 1))
    each.set(xlabel="updates" if is_life else "times that the rollouts were seen", ylabel="distance")
    each.set_ylim(bottom=min(0.0, each.get_ylim()[0]))
    add_legend(each)
