"""What a rule reads: how far its targets move when something in a rollout had been otherwise, and by how much per change."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from disco_torch.analysis import Interval, mean_interval
from disco_torch.inspection.case import Moves, RuleCase, half_distance
from disco_torch.inspection.edits import read_rule_inputs, with_estimates, with_rule_inputs
from disco_torch.inspection.quantities import OUTSIDE_ADVANTAGE, QUANTITIES, present
from disco_torch.types import ValueOuts, tree_map

STEP = 0.05
"""Size of a finite difference, in standard deviations of the input."""
ROUNDING = 1e-6
"""Standard deviation, as a share of the largest number, up to which an input is constant but for rounding."""
DIRECTIONS = 4
"""Number of random directions in which an input of several numbers is changed."""


@dataclass(frozen=True)
class Reading:
    """How far the targets move with one change of what a rule reads.

    Attributes:
      name: what was changed.
      moved: mean over the counted steps for each target, with its 95% interval over trajectories.
      skipped: why there is nothing to change, in a sentence; then `moved` is empty.
    """

    name: str
    moved: dict[str, Interval]
    skipped: str = ""


@dataclass(frozen=True)
class Counterfactual:
    """A change of a case, and what is said where a case cannot be changed so."""

    name: str
    change: Callable[[RuleCase], RuleCase | None]
    without: str = "this agent and rule have none"


def measure_counterfactuals(case: RuleCase) -> list[Reading]:
    """How far each target moves when the rollout had been otherwise; see `COUNTERFACTUALS`."""
    found = []
    for each in COUNTERFACTUALS:
        changed = each.change(case)
        if changed is None:
            found.append(Reading(each.name, {}, f"Skipped: {each.without}."))
        else:
            found.append(Reading(each.name, summarize(case.moves(changed), case.counted)))
    return found


def summarize(moves: Moves, counted: Tensor) -> dict[str, Interval]:
    """The mean of [T, B] over the counted steps of each trajectory, over trajectories, with its 95% interval."""
    weights = counted.to(torch.float64)
    lasting = weights.sum(0) > 0  # trajectories of which anything counts
    means = {name: (x.double() * weights).sum(0)[lasting] / weights.sum(0)[lasting] for name, x in moves.items()}
    return {name: mean_interval(x.cpu().numpy()) for name, x in means.items()}


def _zero_estimates(*names: str) -> Callable[[RuleCase], RuleCase | None]:
    def change(values: ValueOuts) -> ValueOuts:
        return dataclasses.replace(values, **{name: torch.zeros_like(getattr(values, name)) for name in names})

    return lambda case: with_estimates(case, change)


def _no_advantage(case: RuleCase) -> RuleCase | None:
    outside = OUTSIDE_ADVANTAGE.get(case)
    if outside is not None:
        return OUTSIDE_ADVANTAGE.put(case, torch.zeros_like(outside))
    return _zero_estimates("adv", "normalized_adv")(case)


def _target_is_current(case: RuleCase) -> RuleCase | None:
    return None if case.target_out is None else dataclasses.replace(case, target_out=case.inputs.agent_out)


def _behaviour_is_current(case: RuleCase) -> RuleCase:
    return case.with_inputs(behaviour_agent_out={"logits": case.inputs.agent_out["logits"]})


def _flat(name: str) -> Callable[[RuleCase], RuleCase | None]:
    """An output of the agent and its slow copy that says nothing: all of its logits are 0."""

    def change(case: RuleCase) -> RuleCase | None:
        if name not in case.inputs.agent_out:
            return None
        changed = case.with_output(name, torch.zeros_like(case.inputs.agent_out[name]))
        slow = (case.target_out or {}).get(name)
        return changed if slow is None else changed.with_target_output(name, torch.zeros_like(slow))

    return change


def _uniform_policy(case: RuleCase) -> RuleCase:
    return case.with_output("logits", torch.zeros_like(case.inputs.agent_out["logits"]))


def _rewards(value: float) -> Callable[[RuleCase], RuleCase]:
    return lambda case: case.with_inputs(rewards=torch.full_like(case.inputs.rewards, value))


def _forced_end(case: RuleCase) -> RuleCase:
    return case.with_inputs(is_terminal=torch.ones_like(case.inputs.is_terminal))


COUNTERFACTUALS = (
    Counterfactual("no reward", _rewards(0.0)),
    Counterfactual("reward +1", _rewards(1.0)),
    Counterfactual("reward -1", _rewards(-1.0)),
    Counterfactual("forced end", _forced_end),
    Counterfactual("no advantage", _no_advantage, "the rule computes its advantages inside and reads none"),
    Counterfactual(
        "no q",
        _zero_estimates("target_q_value", "qv_adv", "normalized_qv_adv"),
        "the rule reads no action values apart from its advantages",
    ),
    Counterfactual("target = current", _target_is_current, "the rule keeps no slow copy of the agent"),
    Counterfactual("behaviour = current", _behaviour_is_current),
    Counterfactual("uniform policy", _uniform_policy),
    Counterfactual("zero y", _flat("y"), "the agent has no prediction y"),
    Counterfactual("zero z", _flat("z"), "the agent has no prediction z"),
)
"""Changes of a whole rollout: every reward, every end, every estimate or every output at once."""


def measure_exchange(case: RuleCase) -> Reading:
    """How far the targets of a step are from those of another trajectory at the same time: the scale of all other moves."""
    exchanged = case.pushes_towards(tree_map(lambda x: x.roll(1, dims=1), case.targets))
    moved = {name: half_distance(exchanged[name], push) for name, push in case.pushes.items()}
    return Reading("targets of another trajectory", summarize(moved, case.counted))


@dataclass(frozen=True)
class Sensitivities:
    """How far the targets move for each standard deviation of an input, by finite differences.

    Attributes:
      quantities: for what any rule may read of a rollout, with all that follows from it: a reward also changes advantages.
      rule_inputs: for the inputs of a meta-network, each by itself; empty for a rule without one.
    """

    quantities: list[Reading]
    rule_inputs: list[Reading]


def measure_sensitivities(case: RuleCase, seed: int = 0) -> Sensitivities:
    """The sensitivity of each target to each input, in every step at once.

        s = mean over steps of ||push(x + h sigma d) - push(x - h sigma d)||_1 / (4 h)

    with sigma the input's standard deviation over the rollout, d a vector of random signs that is the same in all steps, and
    h = `STEP`; several directions for an input of several numbers. Not by gradients: rules stop those of many inputs.
    """
    generator = torch.Generator().manual_seed(seed)
    quantities = []
    for each in present(QUANTITIES, case):
        x = each.get(case)
        assert x is not None
        quantities.append(_sensitivity(case, each.name, x, partial(each.shifted, case), generator))
    rule_inputs = []
    for name, x in read_rule_inputs(case).items():
        rule_inputs.append(_sensitivity(case, name, x, partial(_shifted_input, case, name), generator))
    return Sensitivities(quantities, rule_inputs)


def _shifted_input(case: RuleCase, name: str, amount: Tensor) -> RuleCase:
    shifted = with_rule_inputs(case, lambda each, x: x + amount if each == name else x)
    assert shifted is not None
    return shifted


def _sensitivity(
    case: RuleCase, name: str, x: Tensor, shifted: Callable[[Tensor], RuleCase], generator: torch.Generator
) -> Reading:
    """One input x [T, B, ...] or [T+1, B, ...], which `shifted` returns the case with another amount of."""
    deviation = x.std()
    if not deviation > ROUNDING * x.abs().max():
        return Reading(name, {}, "Skipped: it is constant in these rollouts.")
    moved: list[Moves] = []
    for _ in range(DIRECTIONS if x[0, 0].numel() > 1 else 1):
        signs = 2.0 * torch.randint(2, x.shape[2:], generator=generator).to(x) - 1.0
        up, down = (case.pushes_towards(shifted(h * deviation * signs).targets) for h in (STEP, -STEP))
        moved.append({key: half_distance(up[key], down[key]) / (2.0 * STEP) for key in up})
    return Reading(name, summarize({key: torch.stack([x[key] for x in moved]).mean(0) for key in moved[0]}, case.counted))
