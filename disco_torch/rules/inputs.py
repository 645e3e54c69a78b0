"""What a meta-network reads of a rollout: an ordered list of inputs, each a named source and the transforms on it.

`SOURCES` names every tensor that can be read, `TRANSFORMS` every step that can be applied. The names are the
reference's, so that its lists carry over, and they can be written into a rule file. A transform may also be a function of
one tensor; such a list cannot be saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from disco_torch.types import (
    AgentOutput,
    MeanAcrossProcesses,
    UpdateRuleInputs,
    tree_dataclass,
)
from disco_torch.values import select_action, signed_hyperbolic, signed_log


@dataclass(frozen=True)
class TransformConfig:
    """One input: where it is read and what is done to it, in order."""

    source: str
    transforms: Sequence[str | Callable[[Tensor], Tensor]] = ()


@dataclass(frozen=True)
class MetaNetInputOption:
    """All inputs of a meta-network, in order: `base` ones [T, B, ...], `action_conditional` ones [T, B, A, ...]."""

    base: Sequence[TransformConfig]
    action_conditional: Sequence[TransformConfig]


def _output(
    group: Callable[[UpdateRuleInputs], AgentOutput | None], name: str
) -> Callable[[UpdateRuleInputs], Tensor | None]:
    return lambda inputs: (group(inputs) or {}).get(name)


def _scalar(read: Callable[[UpdateRuleInputs], Tensor | None]) -> Callable[[UpdateRuleInputs], Tensor | None]:
    """Gives a scalar quantity a feature dimension of 1."""

    def unsqueezed(inputs: UpdateRuleInputs) -> Tensor | None:
        x = read(inputs)
        return None if x is None else x.unsqueeze(-1)

    return unsqueezed


def _extra(inputs: UpdateRuleInputs) -> dict[str, Any]:
    return inputs.extra_from_rule or {}


def _value(name: str) -> Callable[[UpdateRuleInputs], Tensor | None]:
    return lambda inputs: getattr(inputs.value_out, name, None)


_OUTPUT_NAMES = ("logits", "y", "z", "q", "aux_pi")
_EXTRA_NAMES = ("v_scalar", "adv", "normalized_adv", "q", "qv_adv", "normalized_qv_adv")
_VALUE_NAMES = ("value", "target_value", "rho", "adv", "normalized_adv", "value_target", "td", "normalized_td")

SOURCES: dict[str, Callable[[UpdateRuleInputs], Tensor | None]] = {
    "rewards": _scalar(lambda inputs: inputs.rewards),  # [T, B, 1]
    "is_terminal": _scalar(lambda inputs: inputs.is_terminal.to(inputs.rewards.dtype)),  # [T, B, 1]
    # Outputs of the agent, of the policy that acted, and of the target network: [T+1, B, size] or [T+1, B, A, size].
    **{f"agent_out/{name}": _output(lambda i: i.agent_out, name) for name in _OUTPUT_NAMES},
    **{f"behaviour_agent_out/{name}": _output(lambda i: i.behaviour_agent_out, name) for name in _OUTPUT_NAMES},
    **{f"extra_from_rule/target_out/{name}": _output(lambda i: _extra(i).get("target_out"), name) for name in _OUTPUT_NAMES},
    # Scalar estimates of the rule and of a value function outside of it, with a last dimension of 1.
    **{f"extra_from_rule/{name}": _scalar(_output(_extra, name)) for name in _EXTRA_NAMES},
    **{f"value_out/{name}": _scalar(_value(name)) for name in _VALUE_NAMES},
}


@tree_dataclass
class NormalizerState:
    """Undebiased moments, [1, 1, ...], and how many batches they have taken in."""

    moment1: Tensor
    moment2: Tensor
    count: Tensor


NormalizerStates = dict[str, NormalizerState]


@dataclass
class InputContext:
    """What transforms may use besides their input, the normalisers' states on their way through, and what was computed.

    `shared` holds tensors that every encoder of a meta-network would compute alike, `own` those behind an encoder's own
    networks and normalisers.
    """

    actions: Tensor  # [T, B]
    policy: Tensor  # [T+1, B, A], constant
    y_net: Callable[[Tensor], Tensor]
    z_net: Callable[[Tensor], Tensor]
    normalizers: NormalizerStates
    mean_across_processes: MeanAcrossProcesses | None = None
    new_normalizers: NormalizerStates = field(default_factory=dict)
    shared: dict[str, Tensor] = field(default_factory=dict)
    own: dict[str, Tensor] = field(default_factory=dict)


def _select_a(x: Tensor, context: InputContext) -> Tensor:
    if x.ndim < 3 or x.shape[:3] != (*context.actions.shape, context.policy.shape[2]):
        raise ValueError(
            f"`select_a` needs [T, B, A, ...] with T = {context.actions.shape[0]}, got {list(x.shape)}; "
            "put `drop_last` before it."
        )
    return select_action(x, context.actions)


def _pi_weighted_avg(x: Tensor, context: InputContext) -> Tensor:
    if x.ndim != 4 or x.shape[:3] != context.policy.shape:
        raise ValueError(f"`pi_weighted_avg` needs [T+1, B, A, C], got {list(x.shape)}; put `drop_last` after it.")
    return torch.sum(x * context.policy.unsqueeze(-1), dim=2)


def _at_taken(x: Tensor, context: InputContext) -> Tensor:
    if x.shape[:2] != context.actions.shape or x.ndim != 3:
        raise ValueError(f"`at_taken` needs [T, B, C], got {list(x.shape)}; it makes an input per action of one per step.")
    taken = torch.arange(context.policy.shape[2], device=x.device) == context.actions.unsqueeze(-1)  # [T, B, A]
    return x.unsqueeze(2) * taken.to(x.dtype).unsqueeze(-1)  # [T, B, A, C]


def softmax(x: Tensor) -> Tensor:
    """Over the last dimension, in 32 bits at least."""
    return torch.softmax(x, dim=-1, dtype=torch.promote_types(x.dtype, torch.float32))


def td_pair(x: Tensor) -> Tensor:
    """Rows t and t+1 side by side, so that differences over a step are easy to form, [T+1, B, C] -> [T, B, 2C]."""
    return torch.cat([x[:-1], x[1:]], dim=-1)


NORMALIZER_DECAY = 0.99
NORMALIZER_EPSILON = 1e-6


def _normalize(x: Tensor, context: InputContext, key: str) -> Tensor:
    """Subtracts a running mean and divides by a running deviation, each over time and batch."""
    state = context.normalizers[key]
    moments = torch.stack([torch.mean(x, (0, 1), keepdim=True), torch.mean(torch.square(x), (0, 1), keepdim=True)])
    if context.mean_across_processes is not None:
        moments = context.mean_across_processes(moments)
    state = NormalizerState(
        moment1=NORMALIZER_DECAY * state.moment1 + (1.0 - NORMALIZER_DECAY) * moments[0],
        moment2=NORMALIZER_DECAY * state.moment2 + (1.0 - NORMALIZER_DECAY) * moments[1],
        count=state.count + 1,
    )
    context.new_normalizers[key] = state
    debias = 1.0 / (1.0 - NORMALIZER_DECAY**state.count)
    mean = state.moment1 * debias
    variance = torch.clamp(state.moment2 * debias - torch.square(mean), min=0.0)
    return (x - mean) / (torch.sqrt(variance + 1e-12) + NORMALIZER_EPSILON)


TRANSFORMS: dict[str, Callable[[Tensor, InputContext], Tensor]] = {
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
    "clip": lambda x, _: torch.clamp(x, -2.0, 2.0),
    "masks_to_discounts": lambda x, _: 1.0 - x,
    "y_net": lambda x, context: context.y_net(x),
    "z_net": lambda x, context: context.z_net(x),
}


OWN_STEPS = ("y_net", "z_net", "normalize")


def prefix_key(config: TransformConfig, length: int) -> str:
    """Names an input after its first `length` transforms; equal names are equal tensors, computed once."""
    steps = [step if isinstance(step, str) else _function_name(step) for step in config.transforms[:length]]
    return " ".join([config.source, *steps])


def _function_name(function: Callable[[Tensor], Tensor]) -> str:
    """A name that no other function has; `functools.partial` objects have no `__name__`."""
    return f"{getattr(function, '__name__', type(function).__name__)}@{id(function)}"


def check_inputs(configs: Sequence[TransformConfig]) -> None:
    """Raises at the first source or transform that does not exist."""
    for config in configs:
        if config.source not in SOURCES:
            raise ValueError(f"`source` must be one of {sorted(SOURCES)}, got {config.source!r}.")
        for step in config.transforms:
            if not callable(step) and step != "normalize" and step not in TRANSFORMS:
                known = sorted([*TRANSFORMS, "normalize"])
                raise ValueError(
                    f"`transforms` must be functions or names among {known}, got {step!r} for {config.source!r}."
                )


def normalizer_keys(configs: Sequence[TransformConfig]) -> list[str]:
    return [
        prefix_key(config, i + 1) for config in configs for i, step in enumerate(config.transforms) if step == "normalize"
    ]


def read_inputs(configs: Sequence[TransformConfig], inputs: UpdateRuleInputs, context: InputContext) -> list[Tensor]:
    """The tensors of a list of inputs, in order. Beginnings that inputs share are computed once."""
    return [_begun(config, len(config.transforms), inputs, context) for config in configs]


def _begun(config: TransformConfig, length: int, inputs: UpdateRuleInputs, context: InputContext) -> Tensor:
    """An input after its first `length` transforms."""
    key = prefix_key(config, length)
    cache = context.own if any(step in OWN_STEPS for step in config.transforms[:length]) else context.shared
    if key not in cache:
        if length:
            x = _begun(config, length - 1, inputs, context)
            cache[key] = _apply(config.transforms[length - 1], x, context, key)
        else:
            cache[key] = _source(config.source, inputs)
    return cache[key]


def _source(name: str, inputs: UpdateRuleInputs) -> Tensor:
    source = SOURCES[name](inputs)
    if source is None:
        raise ValueError(
            f"the rule's inputs lack {name!r}, which its meta-network reads; "
            "call `rule.unroll_meta_net`, which computes it, or fill it in UpdateRuleInputs."
        )
    return source


def flat_inputs(
    configs: Sequence[TransformConfig], inputs: UpdateRuleInputs, context: InputContext, prefix: tuple[int, ...]
) -> list[Tensor]:
    """The same, each checked to begin with `prefix`, which is (T, B) or (T, B, A), and flat behind it."""
    tensors = read_inputs(configs, inputs, context)
    for config, x in zip(configs, tensors, strict=True):
        if tuple(x.shape[: len(prefix)]) != prefix:
            raise ValueError(
                f"input {prefix_key(config, len(config.transforms))!r} must be {list(prefix)} and features, "
                f"got {list(x.shape)}; rows are T+1 until `drop_last` or `td_pair`, one of which is used once."
            )
    return [x.reshape(*prefix, -1) for x in tensors]


def _apply(step: str | Callable[[Tensor], Tensor], x: Tensor, context: InputContext, key: str) -> Tensor:
    if step == "normalize":
        return _normalize(x, context, key)
    return TRANSFORMS[step](x, context) if isinstance(step, str) else step(x)


def extended_input_option() -> MetaNetInputOption:
    """Those of Disco103 and three channels an action: the normalised advantage at the taken action, and both policies' logs.

    What a policy gradient is made of is then there from the start, and need not be found as a product of other inputs.
    """
    option = disco_input_option()
    log_policy = ("log_softmax", "stop_grad", "drop_last")
    more = (
        TransformConfig("extra_from_rule/normalized_adv", ("stop_grad", "clip", "at_taken")),
        TransformConfig("agent_out/logits", log_policy),
        TransformConfig("extra_from_rule/target_out/logits", log_policy),
    )
    return MetaNetInputOption(option.base, (*option.action_conditional, *more))


def disco_input_option() -> MetaNetInputOption:
    """The inputs of Disco103: 27 features a step, 9 channels an action with the taken action's mark."""
    policy = ("softmax", "stop_grad", "drop_last")
    y_steps = ("softmax", "y_net", "td_pair")
    z_taken = ("softmax", "z_net", "drop_last", "select_a")
    z_mean = ("softmax", "z_net", "pi_weighted_avg", "td_pair")
    z_max = ("softmax", "z_net", "max_a", "td_pair")
    z_all = ("softmax", "z_net", "drop_last")
    target = "extra_from_rule/target_out"
    return MetaNetInputOption(
        base=(
            TransformConfig("agent_out/logits", (*policy, "select_a")),
            TransformConfig("behaviour_agent_out/logits", (*policy, "select_a")),
            TransformConfig("rewards", ("sign_log",)),
            TransformConfig("is_terminal", ("masks_to_discounts",)),
            TransformConfig("extra_from_rule/v_scalar", ("sign_log", "td_pair", "stop_grad")),
            TransformConfig("extra_from_rule/adv", ("sign_log", "stop_grad")),
            TransformConfig("extra_from_rule/normalized_adv", ("stop_grad",)),
            TransformConfig(f"{target}/logits", (*policy, "select_a")),
            TransformConfig("agent_out/y", y_steps),
            TransformConfig(f"{target}/y", y_steps),
            TransformConfig("agent_out/z", z_taken),
            TransformConfig("agent_out/z", z_mean),
            TransformConfig("agent_out/z", z_max),
            TransformConfig(f"{target}/z", z_taken),
            TransformConfig(f"{target}/z", z_mean),
            TransformConfig(f"{target}/z", z_max),
        ),
        action_conditional=(
            TransformConfig("agent_out/logits", policy),
            TransformConfig("behaviour_agent_out/logits", policy),
            TransformConfig(f"{target}/logits", policy),
            TransformConfig("agent_out/z", z_all),
            TransformConfig(f"{target}/z", z_all),
            TransformConfig("extra_from_rule/q", ("sign_log", "drop_last", "stop_grad")),
            TransformConfig("extra_from_rule/qv_adv", ("sign_log", "drop_last", "stop_grad")),
            TransformConfig("extra_from_rule/normalized_qv_adv", ("drop_last", "stop_grad")),
        ),
    )
