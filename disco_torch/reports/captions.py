"""What each section of a report is called, and how to read it."""

from __future__ import annotations

SECTION_TITLES = {
    "curves": "Learning curves",
    "evaluations": "Evaluations during training",
    "scores": "Final scores",
    "improvement": "Probability of improvement",
    "learning": "Entropy and loss",
    "recordings": "Recordings",
    "families": "Discovery: returns by family",
    "watch": "Discovery: what to watch",
    "snapshots": "Discovery: snapshots",
    "settings": "Settings",
    "runs": "Runs",
    "systems": "Systems and versions",
}
"""Sections in the order of the page, by their anchors."""
FEW_RUNS = "With fewer than five runs intervals are too narrow."


def _joined(text: str) -> str:
    return " ".join(text.split())


SECTION_TEXTS = {
    "curves": _joined(
        """Mean return of the last 100 episodes of training: the mean over seeds and its 95% bootstrap interval, over the
        steps that all seeds have. Runs that are not finished are thin dashed lines by themselves."""
    ),
    "evaluations": "Mean return of whole episodes in environments of their own, over training.",
    "scores": _joined(
        """Mean return of the last 100 episodes of training of each complete run. IQM is the interquartile mean, the mean of
        the middle half of the runs, with its 95% bootstrap interval over seeds; dots are single runs."""
    ),
    "improvement": _joined(
        """How likely a run of the row is better than one of the column; ties count half. Intervals are 95% bootstrap
        intervals over seeds."""
    ),
    "learning": "Entropy of the policy, and the loss of the last update, over training.",
    "families": _joined(
        """Mean return of the episodes that agents of a family ended between two lines of metrics. Agents of all ages are in
        it: where lives are short, it stays low although the rule gets better."""
    ),
    "watch": _joined(
        """Means over agents. A policy entropy that falls to 0 at once, or norms that keep growing, say that a rule
        diverges."""
    ),
    "snapshots": _joined(
        """Rules that the discoveries have written. Where training runs of this report learned with one, the final returns
        of these fresh agents stand beside it: IQM [95% interval] (number of runs)."""
    ),
}
"""By the anchor of the section."""
