"""The meta-loss: how well an agent does after it has learned with a rule, and what keeps the rule's targets in bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from disco_torch.rules import categorical_kl, entropy, policy_gradient_loss
from disco_torch.types import AgentOutput, Logs, Rollout, Targets, ValueOuts
from disco_torch.values import select_action


@dataclass(frozen=True)
class MetaLossWeights:
    """Weights of the regularisers; the defaults are the released notebook's."""

    policy_entropy: float = 1e-2
    prediction_entropy: float = 1e-3
    target_mean: float = 1e-3
    target_kl: float = 1e-2


def meta_loss(
    valid: Rollout,
    agent_out: AgentOutput,
    value_out: ValueOuts,
    targets: Sequence[Targets],
    weights: MetaLossWeights,
) -> tuple[Tensor, Logs]:
    """Policy-gradient loss of the final agent on a validation rollout, plus regularisers.

        L = mean(-log pi(a) A) - w_H mean H(pi) - w_p (mean H(y) + mean H(z(a)))
            + w_m sum_{pi, y, z} mean_n (mean target_n)^2 + w_k mean KL(pi_target-network || pi^)

    Args:
      valid: [T+1, B] rows.
      agent_out: the final agent's outputs on them; gradients flow here, through all its updates, to the rule.
      value_out: normalised advantages on them, constants.
      targets: the rule's targets in each inner update.
      weights: of the regularisers.

    Returns:
      A scalar and its parts.
    """
    logits, actions = agent_out["logits"][:-1], valid.actions[:-1]
    assert value_out.normalized_adv is not None and value_out.adv is not None
    assert value_out.value is not None and value_out.rho is not None
    pg_loss = policy_gradient_loss(logits, actions, value_out.normalized_adv).mean()
    policy_entropy = entropy(logits).mean()
    z_taken = select_action(agent_out["z"][:-1], actions)
    prediction_entropy = entropy(agent_out["y"]).mean() + entropy(z_taken).mean()
    means = [torch.stack([target[name].mean() for target in targets]) for name in ("pi", "y", "z")]  # [N] each
    mean_penalty = torch.stack([torch.square(mean).mean() for mean in means]).sum()
    # detached: the target network's policy is where the policy target should stay near to.
    kls = [categorical_kl(target["target_out"]["logits"][:-1].detach(), target["pi"]).mean() for target in targets]
    target_kl = torch.stack(kls).mean()
    reg_loss = (
        -weights.policy_entropy * policy_entropy
        - weights.prediction_entropy * prediction_entropy
        + weights.target_mean * mean_penalty
        + weights.target_kl * target_kl
    )
    loss = pg_loss + reg_loss
    logs = {
        "meta_loss": loss,
        "pg_loss": pg_loss,
        "reg_loss": reg_loss,
        "entropy": policy_entropy,
        "prediction_entropy": prediction_entropy,
        "target_mean": mean_penalty,
        "target_kl": target_kl,
        "adv": value_out.adv.mean(),
        "normalized_adv": value_out.normalized_adv.mean(),
        "value": value_out.value.mean(),
        "val_importance_weight": torch.clamp(value_out.rho, max=1.0).mean(),
    }
    return loss, {name: value.detach() for name, value in logs.items()}
