"""An inspection in a few sentences."""

from __future__ import annotations

import math

from disco_torch.inspection.findings import Inspection
from disco_torch.inspection.probes import Probe
from disco_torch.pages import in_digits


def summarize_in_words(found: Inspection) -> list[str]:
    """What stands out, a sentence or two each, with its numbers."""
    lines = [_reads(found), _looks(found), _tells(found), _words(found), _ages(found)]
    return [line for line in lines if line]


def _reads(found: Inspection) -> str:
    own = found.findings[found.rule]
    scale = own.exchange.moved
    parts = []
    for target in [name for name in scale if name != "value"]:
        readings = [reading for reading in own.counterfactuals if target in reading.moved]
        largest = sorted(readings, key=lambda reading: -reading.moved[target].mean)[:2]
        named = " and ".join(f'"{reading.name}" ({in_digits(reading.moved[target].mean)})' for reading in largest)
        known = f"; between two trajectories it differs by {in_digits(scale[target].mean)}"
        parts.append(f"The target of {_the(target)} is moved most by {named}{known}." if named else "")
    return " ".join(part for part in parts if part)


def _the(target: str) -> str:
    return "the policy" if target == "policy" else target


def _looks(found: Inspection) -> str:
    reaches = [reach for reach in found.findings[found.rule].reach if not math.isnan(reach.horizon)]
    wanted = [("reward", "policy"), ("value", "policy"), ("y", "y"), ("z", "z")]
    known = {(reach.quantity, reach.target): reach for reach in reaches}
    parts = [
        f"from {a} to the target of {_the(b)} {known[a, b].horizon:.1f} ({in_digits(known[a, b].largest)})"
        for a, b in wanted
        if (a, b) in known
    ]
    return f"Effective horizons in steps, and the largest change: {', '.join(parts)}." if parts else ""


def _tells(found: Inspection) -> str:
    parts = []
    for future in dict.fromkeys(probe.future for probe in found.probes):
        own = [probe for probe in found.probes if probe.future == future and _known(probe, 1)]
        if own:
            kind = "balanced accuracy" if own[0].is_event else "R²"
            parts.append(f"{future} ({kind}) from " + ", ".join(f"{probe.source} {probe.scores[1]:.2f}" for probe in own))
    return f"One step ahead, probes tell {'; '.join(parts)}." if parts else ""


def _known(probe: Probe, k: int) -> bool:
    return len(probe.scores) > k and not math.isnan(probe.scores[k])


def _words(found: Inspection) -> str:
    parts = []
    for name, each in found.findings.items():
        terms = ", ".join(term.name.partition(":")[0] for term in each.words.selected)
        control = f"; one step off {max(0.0, each.words.shifted):.0%}"
        parts.append(f"{name} {each.words.explained:.0%}" + (f" ({terms}{control})" if terms else ""))
    return f"Variance of the push on the policy that a few terms explain: {', '.join(parts)}."


def _ages(found: Inspection) -> str:
    ages = found.findings[found.rule].ages
    if len(ages) < 2:
        return ""
    parts = ", ".join(f"{name} {moved.mean:.3g}" for name, moved in ages[-1].from_birth.items() if name != "value")
    return f"From a newborn's memory to that after {ages[-1].updates:,} updates the targets move by: {parts}."
