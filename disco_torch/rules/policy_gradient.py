"""Policy gradient with the advantages of a value function outside of the rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from disco_torch.rules.base import UpdateRule, check_rule_inputs, resolve_hyper_params
from disco_torch.rules.losses import entropy, policy_gradient_loss
from disco_torch.types import (
    Logs,
    MeanAcrossProcesses,
    OutputSpec,
    Params,
    Targets,
    UnrollFn,
    UpdateRuleInputs,
)


@dataclass(frozen=True)
class PolicyGradientHyperParams:
    """Weights of the two losses, and which advantages to use."""

    pg_cost: float = 1.0
    entropy_cost: float = 0.01
    normalize_adv: bool = True


class PolicyGradient(UpdateRule):
    """-log pi(a) A - c_H H(pi), with A from `rollout.value_out`. Williams, "REINFORCE" (1992)."""

    hyper_params_type: ClassVar[type] = PolicyGradientHyperParams

    def outputs(self, num_actions: int) -> OutputSpec:
        return OutputSpec(flat={"logits": num_actions})

    def init_meta_state(self, agent_params: Params) -> dict[str, Any]:
        return {}

    def unroll_meta_net(
        self,
        rollout: UpdateRuleInputs,
        agent_params: Params,
        meta_state: dict[str, Any],
        unroll_fn: UnrollFn,
        hyper_params: Mapping[str, float] | PolicyGradientHyperParams | None = None,
        *,
        rule_params: Params | None = None,
        mean_across_processes: MeanAcrossProcesses | None = None,
    ) -> tuple[Targets, dict[str, Any]]:
        check_rule_inputs(rollout)
        hyper = resolve_hyper_params(PolicyGradientHyperParams, hyper_params)
        if rollout.value_out is None:
            raise ValueError(
                "`value_out` must hold the advantages of a value function, got None; see ValueFunction.estimate."
            )
        name = "normalized_adv" if hyper.normalize_adv else "adv"
        advs = getattr(rollout.value_out, name)
        if advs is None:
            raise ValueError(f"`value_out.{name}` must hold advantages, got None; see ValueFunction.estimate.")
        return {"pi": advs}, meta_state

    def agent_loss(
        self,
        rollout: UpdateRuleInputs,
        meta_out: Targets,
        hyper_params: Mapping[str, float] | PolicyGradientHyperParams | None = None,
        backprop: bool = False,
    ) -> tuple[Tensor, Logs]:
        """[T, B]. Gradients flow to `logits`."""
        hyper = resolve_hyper_params(PolicyGradientHyperParams, hyper_params)
        logits = rollout.agent_out["logits"][:-1]
        pg_loss = policy_gradient_loss(logits, rollout.actions[:-1], meta_out["pi"])
        policy_entropy = entropy(logits)
        with torch.no_grad():
            logs = {"entropy": policy_entropy.mean(), "pg_advs": meta_out["pi"].mean(), "pg_loss": pg_loss.mean()}
        return hyper.pg_cost * pg_loss - hyper.entropy_cost * policy_entropy, logs
