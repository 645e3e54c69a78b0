"""Model cards: what a repository on the Hugging Face Hub says about itself, to readers and to the Hub's lists."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Score:
    """A mean return.

    Attributes:
      env: environment with its arguments.
      mean, deviation: over episodes.
      episodes: number of them.
      what: which episodes they are.
    """

    env: str
    mean: float
    deviation: float
    episodes: int
    what: str


@dataclass(frozen=True)
class Card:
    """What is known about what is shared.

    Attributes:
      repository: ORG/NAME.
      title: one line.
      tags: for the Hub's lists.
      text: paragraphs of Markdown.
      facts: a label and a value each.
      score: mean return, where it is known.
      has_recording: whether an episode.gif is beside it.
    """

    repository: str
    title: str
    tags: Sequence[str]
    text: Sequence[str]
    facts: Mapping[str, str] = field(default_factory=dict)
    score: Score | None = None
    has_recording: bool = False


def render_card(card: Card) -> str:
    """The README.md of a repository: metadata in YAML, then Markdown."""
    parts = ["---", *_yaml(_metadata(card)), "---", "", f"# {_plain(card.title)}", ""]
    if card.has_recording:
        parts += ["![an episode](episode.gif)", ""]
    if card.score is not None:
        score = card.score
        value = _plus_minus(score)
        parts += [f"Mean return on {_code(score.env)}: **{value}** (standard deviation), {score.episodes} {score.what}.", ""]
    for paragraph in card.text:
        parts += [paragraph, ""]
    if card.facts:
        parts += ["| | |", "|---|---|", *(f"| {label} | {_cell(value)} |" for label, value in card.facts.items()), ""]
    return "\n".join(parts)


def _metadata(card: Card) -> dict[str, Any]:
    found: dict[str, Any] = {
        "library_name": "disco-torch",
        "pipeline_tag": "reinforcement-learning",
        "tags": list(card.tags),
    }
    if card.score is not None and math.isfinite(card.score.mean):
        task = {"type": "reinforcement-learning", "name": "reinforcement-learning"}
        metric = {"type": "mean_reward", "name": "mean_reward", "value": _plus_minus(card.score), "verified": False}
        data = {"name": card.score.env, "type": card.score.env}
        name = card.repository.partition("/")[2]
        found["model-index"] = [{"name": name, "results": [{"task": task, "dataset": data, "metrics": [metric]}]}]
    return found


def _yaml(metadata: Mapping[str, Any]) -> list[str]:
    """A line for each entry. JSON is YAML, so that no text needs quotes of another kind."""
    return [f"{name}: {json.dumps(value)}" for name, value in metadata.items()]


def _plus_minus(score: Score) -> str:
    return f"{score.mean:.2f} +/- {score.deviation:.2f}"


def _plain(text: str) -> str:
    """A text in which nothing is Markdown or HTML."""
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>#|$" else letter for letter in " ".join(text.split()))


def _code(text: str) -> str:
    return f"`{' '.join(text.replace('`', '').split())}`"


def _cell(text: str) -> str:
    return _code(text.replace("|", "/")) if text else ""
