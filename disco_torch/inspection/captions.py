"""What each figure shows, and how to read it."""

from __future__ import annotations

from typing import NamedTuple


class Caption(NamedTuple):
    """A title and two sentences."""

    title: str
    text: str


def _caption(title: str, text: str) -> Caption:
    return Caption(title, " ".join(text.split()))


CAPTIONS = {
    "traces": _caption(
        "Traces of episodes",
        """Rewards as the rule sees them (scaled, where the run scales them), the agent's value, the confidence (negative
        entropy, in nats) of its policy and of y, and the push of each rule on the policy (minus the gradient of the loss
        by the logits), along recorded episodes, whose ends are dotted. A push above 0 makes an action more probable: the
        line is the taken action, the band spans the others.""",
    ),
    "counterfactuals": _caption(
        "What it reads: counterfactuals",
        """How far each target moves when every reward, end, estimate or prediction of the rollouts had been otherwise,
        in total variation distance, 0 to 1 (for rules without target distributions: half the L1 distance of two
        pushes). Colours compare within a column, and the first row is the scale: how far the targets of two
        trajectories differ.""",
    ),
    "sensitivities": _caption(
        "What it reads: sensitivities",
        """How far each target moves for one standard deviation of what a rule may read, by finite differences and with
        all that follows from it, as advantages follow from rewards. A 0 is what the rule does not read, a dash what
        is constant in these rollouts, and "slow" is what the slow copy of the agent says.""",
    ),
    "rule_inputs": _caption(
        "What the meta-network reads",
        """The same for the inputs of the meta-network, each changed by itself. A large number says that a target leans
        on the input in these rollouts, not that no other input could take its place.""",
    ),
    "horizon": _caption(
        "How far it looks",
        """What the targets of step t do when, k steps later in the same episode, a reward or a value rises or falls by 1
        or a prediction becomes that of another step; thin lines are single trajectories. Changes are shares of their
        largest, which is in the table, and the effective horizon is 1 + the mean of k weighted by the change: for
        actor-critic on its own data and a long rollout, 1 / (1 - discount x lambda).""",
    ),
    "probes": _caption(
        "What predictions mean",
        """How well small networks tell, from one output of the agent, the policy entropy, large rewards and returns (of
        ten steps) of the steps ahead, on trajectories that they have not seen, and how confident (negative entropy)
        the agent is before large rewards. R² is 1 for a sure prediction and 0 for none, and accuracy is balanced, so
        that chance is 0.5.""",
    ),
    "words": _caption(
        "In words",
        """The share of the variance of the push on the policy that each term explains by itself, on trajectories that it
        was not fitted to. Terms in full colour were selected one after the other, and the number is what they explain
        together up to there.""",
    ),
    "lifetime": _caption(
        "Over a lifetime",
        """Targets for the same rollouts and the same agent, made with the rule's lifetime memory of several ages: their
        distance to those with a newborn's memory, to those with the last memory, and to the agent's predictions (the
        size of the push). A flat line says that the rule does not care how old an agent is.""",
    ),
}
"""By the name of the figure."""
