"""What a meta-network reads of a rollout: an ordered list of inputs, each a name and a function of a `RuleView`.

An input per step gives [T, B, ...], one per action [T, B, A, ...]; dimensions after the leading ones are flattened.
To write your own, give a name and a function:

    RuleInput("clipped_reward", lambda view: view.rewards.clamp(-1.0, 1.0))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from disco_torch.rules.view import RuleView, td_pair
from disco_torch.values import signed_log

ADVANTAGE_CLIP = 2.0


@dataclass(frozen=True)
class RuleInput:
    """One input of a meta-network. Inputs of the same name are the same input.

    Attributes:
      name: unique among all inputs.
      read: computes it, [T, B, ...] or [T, B, A, ...].
      needs_action_outputs: whether it reads the outputs of all actions themselves (`z`, `q`, `aux_pi`), and not only what an
        `ActionSummary` holds of them. If any input does, agents keep these outputs, which are large.
    """

    name: str
    read: Callable[[RuleView], Tensor] = field(compare=False)
    needs_action_outputs: bool = field(default=True, compare=False)

    def __reduce__(self) -> Any:
        """Inputs of this module are pickled by their names, since most of their functions are lambdas."""
        known = INPUTS.get(self.name)
        if known is not None and known.read is self.read:
            return input_by_name, (self.name,)
        return RuleInput, (self.name, self.read, self.needs_action_outputs)


@dataclass(frozen=True)
class MetaNetInputOption:
    """All inputs of a meta-network, in order: `base` ones [T, B, ...], `action_conditional` ones [T, B, A, ...]."""

    base: Sequence[RuleInput]
    action_conditional: Sequence[RuleInput]

    @property
    def all(self) -> tuple[RuleInput, ...]:
        return (*self.base, *self.action_conditional)


def flat_inputs(configs: Sequence[RuleInput], view: RuleView, leading: tuple[int, ...]) -> list[Tensor]:
    """The tensors of a list of inputs, in order: of shape [*leading, features], `leading` being (T, B) or (T, B, A)."""
    tensors = []
    for config in configs:
        x = config.read(view)
        if tuple(x.shape[: len(leading)]) != leading:
            raise ValueError(
                f"input {config.name!r} must be {list(leading)} and features, got {list(x.shape)}; outputs have T+1 rows: "
                "`x[:-1]` (`drop_last`) or `td_pair`, used once, makes them T."
            )
        tensors.append(x.reshape(*leading, -1))
    return tensors


def _summary_input(name: str, read: Callable[[RuleView], Tensor]) -> RuleInput:
    """An input that reads of all actions no more than a summary holds."""
    return RuleInput(name, read, needs_action_outputs=False)


PER_STEP = (
    _summary_input("policy_of_taken", lambda v: v.of_taken(v.agent.policy)),
    _summary_input("behaviour_policy_of_taken", lambda v: v.of_taken(v.behaviour.policy)),
    _summary_input("reward", lambda v: signed_log(v.rewards)),
    _summary_input("continues", lambda v: v.continues),
    _summary_input("value_pair", lambda v: td_pair(signed_log(v.estimate("v_scalar"))).detach()),
    _summary_input("advantage", lambda v: signed_log(v.estimate("adv")).detach()),
    _summary_input("normalized_advantage", lambda v: v.estimate("normalized_adv").detach()),
    _summary_input("target_policy_of_taken", lambda v: v.of_taken(v.target.policy)),
    _summary_input("y_pair", lambda v: td_pair(v.y(v.agent))),
    _summary_input("target_y_pair", lambda v: td_pair(v.y(v.target))),
    _summary_input("z_of_taken", lambda v: v.of_taken(v.z(v.agent)[:-1])),
    _summary_input("z_policy_mean_pair", lambda v: td_pair(v.policy_mean(v.z(v.agent)))),
    _summary_input("z_max_pair", lambda v: td_pair(torch.amax(v.z(v.agent), dim=2))),
    _summary_input("target_z_of_taken", lambda v: v.of_taken(v.z(v.target)[:-1])),
    _summary_input("target_z_policy_mean_pair", lambda v: td_pair(v.policy_mean(v.z(v.target)))),
    _summary_input("target_z_max_pair", lambda v: td_pair(torch.amax(v.z(v.target), dim=2))),
)
"""The inputs of Disco103 that describe a step."""

PER_ACTION = (
    _summary_input("policy", lambda v: v.agent.policy),
    _summary_input("behaviour_policy", lambda v: v.behaviour.policy),
    _summary_input("target_policy", lambda v: v.target.policy),
    _summary_input("z", lambda v: v.z(v.agent)[:-1]),
    _summary_input("target_z", lambda v: v.z(v.target)[:-1]),
    _summary_input("target_q", lambda v: signed_log(v.estimate("q"))[:-1].detach()),
    _summary_input("q_advantage", lambda v: signed_log(v.estimate("qv_adv"))[:-1].detach()),
    _summary_input("normalized_q_advantage", lambda v: v.estimate("normalized_qv_adv")[:-1].detach()),
)
"""Those that describe an action."""

MORE_PER_ACTION = (
    _summary_input(
        "normalized_advantage_at_taken",
        lambda v: v.at_taken(v.estimate("normalized_adv").detach().clamp(-ADVANTAGE_CLIP, ADVANTAGE_CLIP)),
    ),
    _summary_input("log_policy", lambda v: v.agent.log_policy),
    _summary_input("target_log_policy", lambda v: v.target.log_policy),
)
"""What a policy gradient is made of, so that it need not be composed of other inputs."""

INPUTS = {each.name: each for each in (*PER_STEP, *PER_ACTION, *MORE_PER_ACTION)}
"""All inputs of this module by name."""


def input_by_name(name: str) -> RuleInput:
    return INPUTS[name]


def disco_input_option() -> MetaNetInputOption:
    """The inputs of Disco103: 27 features a step, 9 channels an action with the taken action's mark."""
    return MetaNetInputOption(PER_STEP, PER_ACTION)


def extended_input_option() -> MetaNetInputOption:
    """Those of Disco103, and three channels an action: the normalised advantage of the taken one, and both log-policies."""
    return MetaNetInputOption(PER_STEP, (*PER_ACTION, *MORE_PER_ACTION))
