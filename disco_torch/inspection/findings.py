"""All that is found out about a rule, on an agent that has learned with it, in one result."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from disco_torch.inspection.case import RuleCase
from disco_torch.inspection.counterfactuals import (
    Reading,
    Sensitivities,
    measure_counterfactuals,
    measure_exchange,
    measure_sensitivities,
)
from disco_torch.inspection.edits import watching
from disco_torch.inspection.horizon import LEAST_CHANGE, Reach, measure_reach
from disco_torch.inspection.lifetime import NO_MEMORY, Age, lifetime_memory, measure_lifetime
from disco_torch.inspection.peers import peers_of
from disco_torch.inspection.probes import FOLDS, Approach, Probe, make_futures, measure_approach, measure_probes
from disco_torch.inspection.subject import MAX_ROWS, TRAJECTORIES, Subject, first_rows
from disco_torch.inspection.traces import Trace, trace_of
from disco_torch.inspection.words import InWords, candidate_terms, in_words
from disco_torch.rules import discount_of, entropy
from disco_torch.values import select_action

TRACE_ROWS = 49
"""Number of rows of the recorded episodes."""
PROBE_ROWS = 161
"""Number of rows of the rollout that probes learn from."""


@dataclass(frozen=True)
class RuleFindings:
    """What was found out about one rule, on the agent that has learned with the rule that is looked at.

    Attributes:
      trace: along recorded episodes.
      exchange: how far targets of two trajectories differ, the scale of the moves below.
      counterfactuals: moves when the rollout had been otherwise.
      sensitivities: moves for each standard deviation of an input.
      reach: moves by changes k steps ahead.
      words: the push on the policy as a sum of terms.
      ages: targets with the lifetime memory of several ages; empty for a rule without one.
    """

    trace: Trace
    exchange: Reading
    counterfactuals: list[Reading]
    sensitivities: Sensitivities
    reach: list[Reach]
    words: InWords
    ages: list[Age]


@dataclass(frozen=True)
class Inspection:
    """All findings.

    Attributes:
      rule: name of the rule that is looked at.
      env: name of the environment.
      facts: about the agent and its data: updates, steps, mean return, sizes of the data.
      findings: of the rule and of those beside it, by name, the rule first.
      probes: what the agent's outputs tell of the future.
      approach: confidence (negative entropy in nats) of y, z and policy before large rewards.
      frames: pictures of the recorded episodes, one for each step and one for the last row; none where nothing is drawn.
      skipped: what could not be looked at, each in a sentence, by section.
    """

    rule: str
    env: str
    facts: dict[str, Any]
    findings: dict[str, RuleFindings]
    probes: list[Probe]
    approach: list[Approach]
    frames: list[np.ndarray] = field(repr=False)
    skipped: dict[str, list[str]] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """All numbers as JSON can hold them; NaN is None."""
        return {each.name: to_plain(getattr(self, each.name)) for each in dataclasses.fields(self) if each.name != "frames"}


def to_plain(x: Any) -> Any:
    """Dataclasses, tensors and containers as dicts, lists and numbers of six digits; NaN is None."""
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return {each.name: to_plain(getattr(x, each.name)) for each in dataclasses.fields(x)}
    if isinstance(x, Tensor):
        return to_plain(x.tolist())
    if isinstance(x, dict):
        return {str(key): to_plain(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [to_plain(value) for value in x]
    if isinstance(x, float):
        return float(f"{x:.6g}") if math.isfinite(x) else None
    return x


def inspect_subject(subject: Subject, *, seed: int = 0, say: Callable[[str], None] = print) -> Inspection:
    """Looks into the rule of an agent that has learned.

    Args:
      subject: the agent, see `train_subject` and `load_subject`.
      seed: random seed of data, probes and random weights.
      say: is told what is being looked at.
    """
    session = subject.session
    new, learned = subject.new_rollout(PROBE_ROWS, TRAJECTORIES, seed), subject.learned_rollout(seed)
    is_new = learned is None
    if learned is None:
        learned = first_rows(new, min(session.config.rollout_length, MAX_ROWS))
    recorded, frames = subject.recorded_rollout(TRACE_ROWS, seed)
    case, seen = subject.case(learned), subject.case(recorded)
    say(f"looking at {subject.rule}")
    findings = {subject.rule: look_into(case, seen, subject.memories, seed)}
    for peer in peers_of(case, seed):
        say(f"looking at {peer.name}")
        watched = watching(peer.case(case))
        memories = {i: lifetime_memory(each.meta_state) for i, each in enumerate(watched)}
        own = watched[-1]
        findings[peer.name] = look_into(own, peer.case(seen, own.meta_state), memories, seed)
    say("probing what predictions tell")
    probes, approach = probe_agent(subject.case(new), seed)
    found = Inspection(subject.rule, session.env.name, _facts(subject, case), findings, probes, approach, frames)
    return dataclasses.replace(found, skipped=_skipped(found, is_new))


def _facts(subject: Subject, case: RuleCase) -> dict[str, Any]:
    session, logits = subject.session, case.inputs.agent_out["logits"][:-1]
    return {
        "updates": session.counters.updates,
        "environment steps": session.counters.steps,
        "mean return of the last episodes": subject.mean_return,
        "seed": session.config.seed,
        "steps of a rollout": case.inputs.rewards.shape[0],
        "trajectories": case.inputs.rewards.shape[1],
        "actions": session.env.num_actions,
        "discount factor": discount_of(case.rule, case.hyper_params),
        "policy entropy": float(entropy(logits)[case.counted].mean()),
    }


def _skipped(found: Inspection, is_new: bool) -> dict[str, list[str]]:
    """What could not be looked at, by figure."""
    without = [name for name, each in found.findings.items() if not each.ages]
    blind = [name for name, each in found.findings.items() if all(math.isnan(reach.horizon) for reach in each.reach)]
    faint = [
        f"{name} by {quantity}"
        for name, each in found.findings.items()
        for quantity in dict.fromkeys(reach.quantity for reach in each.reach)
        if name not in blind and not any(reach.is_shown for reach in each.reach if reach.quantity == quantity)
    ]
    unread = f"Skipped for {', '.join(blind)}: no reward, value or prediction ahead moves its targets." if blind else ""
    unmoved = f"Not drawn, since no target moves by {LEAST_CHANGE:g}: {', '.join(faint)}." if faint else ""
    sentences = {
        "traces": "" if found.frames else f"{found.env} draws no pictures.",
        "counterfactuals": "The run has no replay: these are new rollouts, whose behaviour policy is the current one."
        if is_new
        else "",
        "horizon": f"{unread} {unmoved}",
        "probes": "" if found.probes else f"Skipped: probes need {FOLDS} parallel environments, one for each fold.",
        "lifetime": f"Skipped for {', '.join(without)}: {NO_MEMORY}." if without else "",
    }
    return {name: [sentence.strip()] for name, sentence in sentences.items() if sentence.strip()}


def look_into(case: RuleCase, recorded: RuleCase, memories: Mapping[int, Any], seed: int = 0) -> RuleFindings:
    """All findings about one rule.

    Args:
      case: its rule on the rollouts to look at.
      recorded: the same on the recorded episodes.
      memories: number of updates -> lifetime memory; None or nothing for a rule without one.
      seed: random seed.
    """
    known = {updates: memory for updates, memory in memories.items() if memory is not None}
    return RuleFindings(
        trace=trace_of(recorded),
        exchange=measure_exchange(case),
        counterfactuals=measure_counterfactuals(case),
        sensitivities=measure_sensitivities(case, seed),
        reach=measure_reach(case, seed),
        words=in_words(case.pushes["policy"], candidate_terms(case), case.counted, seed),
        ages=measure_lifetime(case, known) if known else [],
    )


def probe_agent(case: RuleCase, seed: int = 0) -> tuple[list[Probe], list[Approach]]:
    """Probes from y, z of the taken action, policy and value, as far as the agent has them, and what confidence does before
    large rewards; nothing where trajectories are fewer than folds.
    """
    out = {name: x[:-1] for name, x in case.inputs.agent_out.items()}
    if case.inputs.rewards.shape[1] < FOLDS:
        return [], []
    if "z" in out:
        out["z"] = select_action(out["z"], case.inputs.actions[:-1])
    named = {"y": out.get("y"), "z": out.get("z"), "policy": out["logits"]}
    sources = {name: torch.log_softmax(x, dim=-1) for name, x in named.items() if x is not None}
    confidence = {name: -entropy(x) for name, x in sources.items()}
    if case.values is not None:
        sources["value"] = case.values[:-1].unsqueeze(-1)
    ends = case.inputs.should_reset_mask_bwd[:-1].bool()
    discount = discount_of(case.rule, case.hyper_params)
    futures = make_futures(case.inputs.rewards, ends, -confidence["policy"], discount)
    event = next(future for future in futures if future.is_event)
    return measure_probes(sources, futures, seed), measure_approach(confidence, event)
