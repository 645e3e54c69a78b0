"""Inputs of a meta-network under the names that files and the reference use for them.

A stored input is a source, such as `agent_out/logits`, and the transforms on it, such as `softmax` and `drop_last`. This is
the only place that knows these names: `TransformConfig` makes a `RuleInput` of them, `stored_form` is its inverse.
Lists of the reference carry over; a transform may also be a function of one tensor, but a file cannot hold that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from disco_torch.rules import RuleInput, RuleView
from disco_torch.rules.inputs import ADVANTAGE_CLIP, INPUTS
from disco_torch.rules.view import NetworkView, present, softmax, td_pair
from disco_torch.values import signed_hyperbolic, signed_log

Transform = str | Callable[[Tensor], Tensor]
NETWORKS: dict[str, Callable[[RuleView], NetworkView]] = {
    "agent_out": lambda view: view.agent,
    "behaviour_agent_out": lambda view: view.behaviour,
    "extra_from_rule/target_out": lambda view: view.target,
}
OUTPUTS = ("logits", "y", "z", "q", "aux_pi")
PER_ACTION_OUTPUTS = ("z", "q", "aux_pi")
ESTIMATES = ("v_scalar", "adv", "normalized_adv", "q", "qv_adv", "normalized_qv_adv")
VALUES = ("value", "target_value", "rho", "adv", "normalized_adv", "value_target", "td", "normalized_td")


def _output(network: str, name: str) -> Callable[[RuleView], Tensor]:
    return lambda view: NETWORKS[network](view).output(name)


def _estimate(name: str) -> Callable[[RuleView], Tensor]:
    return lambda view: view.estimate(name)


def _value(name: str) -> Callable[[RuleView], Tensor]:
    return lambda view: present(getattr(view.inputs.value_out, name, None), f"value_out.{name}").unsqueeze(-1)


SOURCES: dict[str, Callable[[RuleView], Tensor]] = {
    "rewards": lambda view: view.rewards,  # [T, B, 1]
    "is_terminal": lambda view: view.inputs.is_terminal.to(view.inputs.rewards.dtype).unsqueeze(-1),  # [T, B, 1]
    # Outputs of the agent, of the policy that acted, and of the target network: [T+1, B, size] or [T+1, B, A, size].
    **{f"{network}/{name}": _output(network, name) for network in NETWORKS for name in OUTPUTS},
    # Scalar estimates of the rule and of a value function outside of it, with a last dimension of 1.
    **{f"extra_from_rule/{name}": _estimate(name) for name in ESTIMATES},
    **{f"value_out/{name}": _value(name) for name in VALUES},
}


def _select_a(x: Tensor, view: RuleView) -> Tensor:
    if x.ndim < 3 or x.shape[:3] != (*view.actions.shape, view.full_policy.shape[2]):
        raise ValueError(
            f"`select_a` needs [T, B, A, ...] with T = {view.actions.shape[0]}, got {list(x.shape)}; "
            "put `drop_last` before it."
        )
    return view.of_taken(x)


def _pi_weighted_avg(x: Tensor, view: RuleView) -> Tensor:
    if x.ndim != 4 or x.shape[:3] != view.full_policy.shape:
        raise ValueError(f"`pi_weighted_avg` needs [T+1, B, A, C], got {list(x.shape)}; put `drop_last` after it.")
    return view.policy_mean(x)


def _at_taken(x: Tensor, view: RuleView) -> Tensor:
    if x.shape[:2] != view.actions.shape or x.ndim != 3:
        raise ValueError(f"`at_taken` needs [T, B, C], got {list(x.shape)}; it makes an input per action of one per step.")
    return view.at_taken(x)


TRANSFORMS: dict[str, Callable[[Tensor, RuleView], Tensor]] = {
    "identity": lambda x, _: x,
    "softmax": lambda x, _: softmax(x),
    "log_softmax": lambda x, _: torch.log_softmax(x, dim=-1),
    "select_a": _select_a,
    "at_taken": _at_taken,
    "pi_weighted_avg": _pi_weighted_avg,
    "max_a": lambda x, _: torch.amax(x, dim=2),
    "td_pair": lambda x, _: td_pair(x),
    "drop_last": lambda x, _: x[:-1],
    # detached: the input informs the rule, but the meta-gradient must not reach the agent through it.
    "stop_grad": lambda x, _: x.detach(),
    "sign_log": lambda x, _: signed_log(x),
    "sign_hyp": lambda x, _: signed_hyperbolic(x),
    "sign": lambda x, _: torch.sign(x),
    "clip": lambda x, _: torch.clamp(x, -ADVANTAGE_CLIP, ADVANTAGE_CLIP),
    "masks_to_discounts": lambda x, _: 1.0 - x,
    "y_net": lambda x, view: view.y_net(x),
    "z_net": lambda x, view: view.z_net(x),
}
NORMALIZE = "normalize"
"""The one transform with a state."""


@dataclass(frozen=True)
class StoredRead:
    """Reads a source and applies transforms to it, in order."""

    source: str
    transforms: tuple[Transform, ...]

    def __call__(self, view: RuleView) -> Tensor:
        x, done = self._begun(view)
        for i in range(done, len(self.transforms)):
            step = self.transforms[i]
            if step == NORMALIZE:
                x = view.normalize(stored_name(self.source, self.transforms[: i + 1]), x)
            else:
                x = TRANSFORMS[step](x, view) if isinstance(step, str) else step(x)
        return x

    def _begun(self, view: RuleView) -> tuple[Tensor, int]:
        """The source, or its embedding, which all inputs and encoders share; and how many transforms that has applied."""
        network, _, output = self.source.rpartition("/")
        if network in NETWORKS and self.transforms[:2] == ("softmax", f"{output}_net"):
            read = view.y if output == "y" else view.z
            return read(NETWORKS[network](view)), 2
        return SOURCES[self.source](view), 0

    @property
    def needs_action_outputs(self) -> bool:
        network, _, output = self.source.rpartition("/")
        embedded = output == "z" and self.transforms[:2] == ("softmax", "z_net")
        return network in NETWORKS and output in PER_ACTION_OUTPUTS and not embedded


def TransformConfig(source: str, transforms: Sequence[Transform] = ()) -> RuleInput:
    """An input by the reference's names: where it is read and what is done to it, in order."""
    check_stored(source, transforms)
    stored = StoredRead(source, tuple(transforms))
    name = stored_name(source, transforms)
    known = NAMES.get(name)
    return RuleInput(name, stored, stored.needs_action_outputs) if known is None else INPUTS[known]


def check_stored(source: str, transforms: Sequence[Transform]) -> None:
    """Raises at a source or a transform that does not exist."""
    if source not in SOURCES:
        raise ValueError(f"`source` must be one of {sorted(SOURCES)}, got {source!r}.")
    for step in transforms:
        if not callable(step) and step != NORMALIZE and step not in TRANSFORMS:
            known = sorted([*TRANSFORMS, NORMALIZE])
            raise ValueError(f"`transforms` must be functions or names among {known}, got {step!r} for {source!r}.")


def stored_name(source: str, transforms: Sequence[Transform]) -> str:
    """One text for a source and its transforms; a function is named so that no other has its name."""
    steps = [step if isinstance(step, str) else f"{_function_name(step)}@{id(step)}" for step in transforms]
    return " ".join([source, *steps])


def _function_name(function: Callable[[Tensor], Tensor]) -> str:
    return getattr(function, "__name__", type(function).__name__)  # `functools.partial` objects have no `__name__`


def _named(network: str, prefix: str) -> dict[str, str]:
    """The stored names of the inputs that are read of the agent, and in the same way of its target network."""
    of_taken, z = "softmax stop_grad drop_last select_a", "softmax z_net"
    return {
        f"{network}/logits {of_taken}": f"{prefix}policy_of_taken",
        f"{network}/logits softmax stop_grad drop_last": f"{prefix}policy",
        f"{network}/logits log_softmax stop_grad drop_last": f"{prefix}log_policy",
        f"{network}/y softmax y_net td_pair": f"{prefix}y_pair",
        f"{network}/z {z} drop_last select_a": f"{prefix}z_of_taken",
        f"{network}/z {z} pi_weighted_avg td_pair": f"{prefix}z_policy_mean_pair",
        f"{network}/z {z} max_a td_pair": f"{prefix}z_max_pair",
        f"{network}/z {z} drop_last": f"{prefix}z",
    }


NAMES: dict[str, str] = {
    **_named("agent_out", ""),
    **_named("extra_from_rule/target_out", "target_"),
    "behaviour_agent_out/logits softmax stop_grad drop_last select_a": "behaviour_policy_of_taken",
    "behaviour_agent_out/logits softmax stop_grad drop_last": "behaviour_policy",
    "rewards sign_log": "reward",
    "is_terminal masks_to_discounts": "continues",
    "extra_from_rule/v_scalar sign_log td_pair stop_grad": "value_pair",
    "extra_from_rule/adv sign_log stop_grad": "advantage",
    "extra_from_rule/normalized_adv stop_grad": "normalized_advantage",
    "extra_from_rule/normalized_adv stop_grad clip at_taken": "normalized_advantage_at_taken",
    "extra_from_rule/q sign_log drop_last stop_grad": "target_q",
    "extra_from_rule/qv_adv sign_log drop_last stop_grad": "q_advantage",
    "extra_from_rule/normalized_qv_adv drop_last stop_grad": "normalized_q_advantage",
}
"""The stored names of the inputs of `rules.inputs`, and theirs there."""
STORED_NAMES = {name: stored for stored, name in NAMES.items()}


def stored_form(config: RuleInput, where: str) -> dict[str, Any]:
    """What a file holds of an input: source and transforms. Raises at a function, which a file cannot hold."""
    if isinstance(config.read, StoredRead):
        source, transforms = config.read.source, config.read.transforms
        for i, step in enumerate(transforms):
            if callable(step):
                raise ValueError(
                    f"`{where}.transforms[{i}]` is a function ({_function_name(step)}), which a file cannot hold; enter it "
                    "in `weights.stored_inputs.TRANSFORMS` and list it by its name."
                )
        return {"source": source, "transforms": list(transforms)}
    known = INPUTS.get(config.name)
    if known is None or known.read is not config.read:
        raise ValueError(
            f"`{where}` is an input with a custom function ({config.name}), which a file cannot hold; write it with "
            "TransformConfig(source, transforms), whose names a file can hold."
        )
    source, *names = STORED_NAMES[config.name].split(" ")
    return {"source": source, "transforms": names}


def input_from_stored(plain: object, where: str) -> RuleInput:
    """The inverse of `stored_form`."""
    if not isinstance(plain, Mapping) or set(plain) != {"source", "transforms"}:
        found = sorted(map(str, plain)) if isinstance(plain, Mapping) else type(plain).__name__
        raise ValueError(f"`{where}` must hold 'source' and 'transforms', got {found}.")
    source, transforms = plain["source"], plain["transforms"]
    if not isinstance(source, str):
        raise ValueError(f"`{where}.source` must be str, got {source!r}.")
    if not isinstance(transforms, list):
        raise ValueError(f"`{where}.transforms` must be a list, got {type(transforms).__name__}.")
    for i, step in enumerate(transforms):
        if not isinstance(step, str):
            raise ValueError(f"`{where}.transforms[{i}]` must be str, got {step!r}.")
    return TransformConfig(source, transforms)
