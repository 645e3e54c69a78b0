"""The meta-loss: how well an agent does after it has learned with a rule, and regularisers of the rule's targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from disco_torch.data import executed_mean
from disco_torch.rules import categorical_kl, entropy, policy_gradient_loss
from disco_torch.types import AgentOutput, Logs, Rollout, Targets, ValueOuts
from disco_torch.values import select_action


@dataclass(frozen=True)
class MetaLossWeights:
    """Weights of the regularisers; the defaults are the released notebook's."""

    policy_entropy: float = 1e-2
    """Weight of the policy's entropy, a bonus."""
    prediction_entropy: float = 1e-3
    """Weight of the entropy of the predictions y and z, a bonus."""
    target_mean: float = 1e-3
    """Weight of the squared means of the targets, a penalty."""
    target_kl: float = 1e-2
    """Weight of the KL divergence between the target network's policy and the policy target, a penalty."""


def validation_loss(
    valid: Rollout, agent_out: AgentOutput, value_out: ValueOuts, weights: MetaLossWeights
) -> tuple[Tensor, Logs]:
    """How the final agent does on a validation rollout, with a bonus for entropy of its policy and predictions.

        L = mean(-log pi(a) A) - w_H mean H(pi) - w_p (mean H(y) + mean H(z(a)))

    Args:
      valid: [T+1, B] rows.
      agent_out: the final agent's outputs on them; gradients flow here, through all its updates, to the rule.
      value_out: normalised advantages on them, constants.
      weights: weights of the regularisers.

    Returns:
      A scalar and its parts.
    """
    logits, actions = agent_out["logits"][:-1], valid.actions[:-1]
    assert value_out.normalized_adv is not None and value_out.adv is not None
    assert value_out.value is not None and value_out.rho is not None
    pg_loss = executed_mean(policy_gradient_loss(logits, actions, value_out.normalized_adv), valid)
    policy_entropy = entropy(logits).mean()
    z_taken = select_action(agent_out["z"][:-1], actions)
    prediction_entropy = entropy(agent_out["y"]).mean() + entropy(z_taken).mean()
    loss = pg_loss - weights.policy_entropy * policy_entropy - weights.prediction_entropy * prediction_entropy
    logs = {
        "pg_loss": pg_loss,
        "entropy": policy_entropy,
        "prediction_entropy": prediction_entropy,
        "adv": value_out.adv.mean(),
        "normalized_adv": value_out.normalized_adv.mean(),
        "value": value_out.value.mean(),
        "val_importance_weight": torch.clamp(value_out.rho, max=1.0).mean(),
    }
    return loss, {name: value.detach() for name, value in logs.items()}


def target_regularizer(targets: Targets, weights: MetaLossWeights) -> tuple[Tensor, Logs]:
    """The regulariser of the targets of one inner update; the meta-loss has its mean over the updates.

    R = w_m sum_{pi, y, z} (mean target)^2 + w_k mean KL(pi_target-network || pi^)

    Gradients flow to the targets.
    """
    means = torch.stack([targets[name].mean() for name in ("pi", "y", "z")])
    target_mean = torch.square(means).sum()
    # detached: the target network's policy is where the policy target should stay near to.
    target_kl = categorical_kl(targets["target_out"]["logits"][:-1].detach(), targets["pi"]).mean()
    logs = {"target_mean": target_mean.detach(), "target_kl": target_kl.detach()}
    return weights.target_mean * target_mean + weights.target_kl * target_kl, logs


def meta_logs(validation: Tensor, validation_logs: Logs, regularizers: Tensor, regularizer_logs: Sequence[Logs]) -> Logs:
    """The logs of a whole meta-loss from those of its parts; `regularizers` is their mean over the updates."""
    logs = dict(validation_logs)
    for name in regularizer_logs[0]:
        logs[name] = torch.stack([part[name] for part in regularizer_logs]).mean()
    meta_loss = (validation + regularizers).detach()
    return logs | {"meta_loss": meta_loss, "reg_loss": meta_loss - logs["pg_loss"]}
