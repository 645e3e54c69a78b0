"""What a rule is: five methods and a home for its hyper-parameters."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from disco_torch.checks import (
    check_actions,
    check_bool,
    check_finite,
    check_floating,
    check_not_empty,
    check_prefix,
    check_rank,
    check_shape,
)
from disco_torch.types import (
    AgentOutput,
    LearningOutputs,
    Logs,
    MeanAcrossProcesses,
    OutputSpec,
    Params,
    Summarizer,
    Targets,
    UnrollFn,
    UpdateRuleInputs,
    ValueOuts,
)
from disco_torch.values import estimate_q_values, expected_q, importance_weights, select_action

H = TypeVar("H")


def resolve_hyper_params(kind: type[H], given: Mapping[str, float] | H | None) -> H:
    """The typed hyper-parameters of a rule: as given, or the defaults with the entries of a dict laid over them."""
    if isinstance(given, kind):
        return given
    if given is None:
        return kind()
    if not isinstance(given, Mapping):
        raise ValueError(f"`hyper_params` must be a {kind.__name__} or a dict, got {type(given).__name__}.")
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"`hyper_params` has no {unknown[0]!r}; {kind.__name__} knows {known}.")
    return kind(**given)


class UpdateRule(nn.Module):
    """How an agent learns from a rollout. Modules hold the rule's own parameters; states are passed in and returned.

    One update calls `unroll_meta_net` for the targets, then the two losses, whose sum the agent minimises.
    """

    hyper_params_type: ClassVar[type]

    @abstractmethod
    def outputs(self, num_actions: int) -> OutputSpec:
        """What the agent must compute."""

    def summarizer(self) -> Summarizer | None:
        """How `unroll_meta_net` and the losses summarise the outputs of all actions, if a summary is all they need.

        None, the default: they read the outputs themselves. With a summarizer an agent may compute the summary in place of
        the outputs, which are the largest tensors of an update: `agent_summary` of the rule's inputs then holds it, and
        `unroll_fn` returns `LearningOutputs` with one.
        """
        return None

    @abstractmethod
    def init_meta_state(self, agent_params: Params) -> Any:
        """The state of the rule at the beginning of an agent's life."""

    @abstractmethod
    def unroll_meta_net(
        self,
        rollout: UpdateRuleInputs,
        agent_params: Params,
        meta_state: Any,
        unroll_fn: UnrollFn,
        hyper_params: Any = None,
        *,
        rule_params: Params | None = None,
        mean_across_processes: MeanAcrossProcesses | None = None,
    ) -> tuple[Targets, Any]:
        """Targets for a rollout, and the next state.

        Args:
          rollout: `T` steps with the agent's outputs.
          agent_params: the agent's parameters, for rules that keep a slow copy of them.
          meta_state: the rule's state.
          unroll_fn: runs the agent with other parameters, `(params, observations, should_reset) -> outputs`.
          hyper_params: the rule's dataclass, a dict, or None for the defaults.
          rule_params: parameters to use instead of the module's, to differentiate with respect to them.
          mean_across_processes: averages statistics where the batch is split over processes.
        """

    @abstractmethod
    def agent_loss(
        self, rollout: UpdateRuleInputs, meta_out: Targets, hyper_params: Any = None, backprop: bool = False
    ) -> tuple[Tensor, Logs]:
        """The loss of each step, [T, B], that meta-gradients may flow through (with `backprop`), and logs."""

    def agent_loss_no_meta(
        self, rollout: UpdateRuleInputs, meta_out: Targets, hyper_params: Any = None
    ) -> tuple[Tensor, Logs]:
        """A further loss of each step, [T, B], whose targets get no meta-gradient, and logs."""
        return torch.zeros_like(rollout.rewards), {}

    def forward(
        self,
        rollout: UpdateRuleInputs,
        agent_params: Params,
        meta_state: Any,
        unroll_fn: UnrollFn,
        hyper_params: Any = None,
        *,
        backprop: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Any, Logs]:
        """Targets and both losses in one: (loss of each step [T, B], next state, logs).

        Only for meta-gradients or for values: with one graph under the targets and the loss, gradients with respect to the
        agent would leak through the targets when `backprop` is on.
        """
        meta_out, meta_state = self.unroll_meta_net(rollout, agent_params, meta_state, unroll_fn, hyper_params, **kwargs)
        loss, logs = self.agent_loss(rollout, meta_out, hyper_params, backprop)
        loss_no_meta, logs_no_meta = self.agent_loss_no_meta(rollout, meta_out, hyper_params)
        return loss + loss_no_meta, meta_state, logs | logs_no_meta


def taken(rollout: UpdateRuleInputs, name: str) -> Tensor:
    """An output per action at the taken actions, [T, B, size]; gradients flow to the agent."""
    if rollout.taken_out is not None:
        return rollout.taken_out[name]
    return select_action(rollout.agent_out[name][:-1], rollout.actions[:-1])


def retrace_estimates(
    rollout: UpdateRuleInputs, q_values: Tensor, target_q_values: Tensor, discount: float, td_lambda: float
) -> ValueOuts:
    """Retrace estimates from the online and the target network's action values, [T+1, B, A], under the online policy."""
    logits, actions = rollout.agent_out["logits"], rollout.actions[:-1]
    return estimate_q_values(
        expected_q(logits, q_values),
        q_values,
        actions,
        rollout.rewards,
        discount * rollout.continues(),
        importance_weights(logits[:-1], rollout.behaviour_logits()[:-1], actions),
        rollout.lambdas(td_lambda),
        target_values=expected_q(logits, target_q_values),
        target_q_values=target_q_values,
    )


def unrolled(result: Any) -> LearningOutputs:
    """What an `unroll_fn` returned: outputs, alone or in front of a state, perhaps with a summary."""
    if isinstance(result, LearningOutputs):
        return result
    return LearningOutputs(result[0] if isinstance(result, tuple) else result)


def check_rule_inputs(inputs: UpdateRuleInputs) -> None:
    """Raises where the parts of a rollout do not fit together."""
    check_rank("rewards", inputs.rewards, 2, "[T, B]")
    check_floating("rewards", inputs.rewards)
    check_not_empty("rewards", inputs.rewards)
    T, B = inputs.rewards.shape
    check_shape("is_terminal", inputs.is_terminal, (T, B), "it must match `rewards`")
    check_shape("actions", inputs.actions, (T + 1, B), "it needs one row more than `rewards`")
    if inputs.is_truncated is not None:
        check_shape("is_truncated", inputs.is_truncated, (T, B), "it must match `rewards`")
        check_bool("is_truncated", inputs.is_truncated)
    if inputs.resets is not None:
        check_shape("resets", inputs.resets, (T + 1, B), "it needs one row more than `rewards`")
    hint = "outputs need one row more than `rewards`, to bootstrap from"
    for name, out in inputs.agent_out.items():
        check_prefix(f"agent_out['{name}']", out, (T + 1, B), hint)
        check_finite(f"agent_out['{name}']", out)
    if "logits" not in inputs.agent_out:
        raise ValueError(f"`agent_out` must hold 'logits', got {sorted(inputs.agent_out)}.")
    logits = inputs.agent_out["logits"]
    check_rank("agent_out['logits']", logits, 3, "[T+1, B, A]")
    check_actions("actions", inputs.actions, logits.shape[2])
    check_finite("rewards", inputs.rewards)
    if inputs.behaviour_agent_out is not None and "logits" in inputs.behaviour_agent_out:
        behaviour = inputs.behaviour_agent_out["logits"]
        check_shape("behaviour_agent_out['logits']", behaviour, logits.shape, "it must match `agent_out['logits']`")
        check_finite("behaviour_agent_out['logits']", behaviour)


def check_outputs(agent_out: AgentOutput, spec: OutputSpec, taken_out: AgentOutput | None = None) -> None:
    """Raises where the agent's outputs are not those that the rule asks for.

    Those per action may be missing where `taken_out` has them at the taken actions: the losses read no others.
    """
    rows = agent_out["logits"].shape[:2]
    num_actions = spec.flat["logits"]
    if taken_out is not None:
        spec = OutputSpec(spec.flat, {name: size for name, size in spec.per_action.items() if name in agent_out})
    wanted = {name: (*rows, size) for name, size in spec.flat.items()}
    wanted |= {name: (*rows, num_actions, size) for name, size in spec.per_action.items()}
    for name, shape in wanted.items():
        if name not in agent_out:
            raise ValueError(f"`agent_out` must hold {sorted(wanted)}, got {sorted(agent_out)}; {name!r} is missing.")
        check_shape(f"agent_out['{name}']", agent_out[name], shape, "see `rule.outputs(num_actions)` for the sizes")


def check_targets(meta_out: Targets, names: Iterable[str]) -> None:
    """Raises where targets that a loss reads are missing."""
    for name in names:
        if meta_out.get(name) is None:
            raise ValueError(
                f"{name!r} is missing in `meta_out`, got {sorted(meta_out)}; pass what `unroll_meta_net` returned."
            )


def discount_of(rule: UpdateRule, hyper_params: Any) -> float:
    """The discount factor of a rule's returns; 0.99 for one that does not say."""
    of_rule = getattr(getattr(rule, "config", None), "value_discount", None)
    return float(getattr(hyper_params, "discount_factor", 0.99) if of_rule is None else of_rule)
