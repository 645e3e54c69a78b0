"""A rule in words: its push on the policy as a sum of a few terms that people write, by forward selection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from disco_torch.checks import check_shape
from disco_torch.inspection.case import RuleCase
from disco_torch.rules import discount_of, entropy
from disco_torch.rules.base import retrace_estimates
from disco_torch.rules.improvement import advantages_of_all
from disco_torch.values import estimate_values, importance_weights

LEAST_GAIN = 0.01
"""Share of variance that a further term must explain of held-out trajectories."""
RESAMPLES = 20
"""Number of times that the selection is repeated with a random half of the trajectories."""
FOLDS = 5
CLIP_RANGE = 0.2
"""Of the clipped surrogate: how far pi/mu may leave 1 in the direction of the advantage before PPO stops pushing."""


@dataclass(frozen=True)
class Selected:
    """A term of a rule in words.

    Attributes:
      name: of the term.
      coefficient: in the sum of all selected terms.
      explained: share of the variance of held-out trajectories that the terms up to this one explain together.
      alone: share that it explains by itself.
      stability: share of random halves of the trajectories from which it is selected.
    """

    name: str
    coefficient: float
    explained: float
    alone: float
    stability: float


@dataclass(frozen=True)
class InWords:
    """A push as a sum of terms.

    Attributes:
      selected: the terms in the order in which they were selected.
      alone: share of variance that each candidate explains by itself, on held-out trajectories.
      size: root mean square of the push, over actions and steps.
      shifted: share of variance that the same terms explain, fitted anew, when they are those of the step after: a control.
    """

    selected: list[Selected]
    alone: dict[str, float]
    size: float
    shifted: float

    @property
    def explained(self) -> float:
        """Share of variance that all selected terms explain."""
        return self.selected[-1].explained if self.selected else 0.0


def candidate_terms(case: RuleCase) -> dict[str, Tensor]:
    """The terms that a push on the policy may be made of, [T, B, A] each; all sum to 0 over actions, as the push does.

    Those of the taken action are multiples of e_a - pi, the gradient of log pi(a) by the logits. Advantages are Retrace's,
    or V-trace's where the agent has no action values, with the rule's own discount and lambda.
    """
    inputs, logits = case.inputs, case.inputs.agent_out["logits"][:-1]
    policy = torch.softmax(logits, dim=-1)
    taken = torch.nn.functional.one_hot(inputs.actions[:-1].long(), policy.shape[-1]).to(policy) - policy  # [T, B, A]
    terms = {
        "taken action: e_a - pi": taken,
        "reward: r (e_a - pi)": inputs.rewards.unsqueeze(-1) * taken,
        "entropy: grad H(pi)": -policy * (torch.log_softmax(logits, dim=-1) + entropy(logits).unsqueeze(-1)),
        "uniform policy: 1/A - pi": 1.0 / policy.shape[-1] - policy,
    }
    if inputs.behaviour_agent_out is not None:
        terms["behaviour policy: mu - pi"] = torch.softmax(inputs.behaviour_logits()[:-1], dim=-1) - policy
    if case.target_out is not None:
        slow = torch.softmax(case.target_out["logits"][:-1], dim=-1)
        terms["lagged policy: pi' - pi"] = slow - policy
    return terms | _value_terms(case, policy, taken)


def _value_terms(case: RuleCase, policy: Tensor, taken: Tensor) -> dict[str, Tensor]:
    """Those of advantages and values; none where the agent has no values and none came from outside."""
    inputs, outside, values = case.inputs, case.inputs.value_out, case.values
    if outside is not None and outside.normalized_adv is not None:
        return {"policy gradient: A (e_a - pi)": outside.normalized_adv.unsqueeze(-1) * taken}
    if values is None:
        return {}
    discount, lambda_ = discount_of(case.rule, case.hyper_params), lambda_of(case.hyper_params)
    terms = {"value: v (e_a - pi)": values[:-1].unsqueeze(-1) * taken}
    q = case.action_values
    weights = importance_weights(inputs.agent_out["logits"][:-1], inputs.behaviour_logits()[:-1], inputs.actions[:-1])
    if q is None:
        outs = estimate_values(values, inputs.rewards, discount * inputs.continues(), weights, inputs.lambdas(lambda_))
        assert outs.adv is not None
        ratio_adv = weights.clamp(min=1.0) * outs.adv  # V-trace's advantages have the factor min(pi/mu, 1) already
    else:
        slow = None if case.target_out is None else case.target_out.get("q")
        outs = retrace_estimates(inputs, q, q if slow is None else case.encoding.to_scalar(slow), discount, lambda_)
        assert outs.qv_adv is not None and outs.adv is not None
        signs = advantages_of_all(outs.qv_adv[:-1], outs.adv, inputs.actions[:-1]).sign()  # [T, B, A]
        terms["all actions: pi (q - v)"] = policy * outs.qv_adv[:-1]
        terms["signs: pi (sgn A - mean)"] = policy * (signs - (policy * signs).sum(-1, keepdim=True))
        greedy = torch.nn.functional.one_hot(q[:-1].argmax(-1), policy.shape[-1]).to(policy)
        terms["greedy action: argmax q - pi"] = greedy - policy
        ratio_adv = weights * outs.adv
    terms["policy gradient: A (e_a - pi)"] = outs.adv.unsqueeze(-1) * taken
    terms["taken sign: sgn(A) (e_a - pi)"] = outs.adv.sign().unsqueeze(-1) * taken
    surrogate = ratio_adv.unsqueeze(-1) * taken
    beyond = torch.where(outs.adv > 0.0, weights > 1.0 + CLIP_RANGE, weights < 1.0 - CLIP_RANGE)
    terms["surrogate: pi/mu A (e_a - pi)"] = surrogate
    terms["clipped surrogate: as in PPO"] = torch.where(beyond.unsqueeze(-1), 0.0, surrogate)
    return terms


def lambda_of(hyper_params: object) -> float:
    """The trace parameter among a rule's hyper-parameters, whatever its name; 0.95 for a rule that has none."""
    return float(next((value for name, value in vars(hyper_params).items() if name.endswith("lambda")), 0.95))


def in_words(push: Tensor, terms: Mapping[str, Tensor], counted: Tensor, seed: int = 0) -> InWords:
    """Selects terms for a push, one after the other, as long as the share of variance explained rises by 1%.

    At each turn that term is added which, with a least-squares fit of all terms so far, explains most of trajectories that
    the fit has not seen (five folds). There is no constant: no push means no term.

    Args:
      push: [T, B, A].
      terms: name -> [T, B, A].
      counted: [T, B] bool, the steps to fit.
      seed: random seed of folds and resamples.
    """
    for name, term in terms.items():
        check_shape(f"terms[{name!r}]", term, push.shape, "each term is a push on the policy")
    moments = _moments(push, list(terms.values()), counted)
    rng = np.random.default_rng(seed)
    names, B = list(terms), push.shape[1]
    folds = rng.permutation(B) % FOLDS
    order, explained = _select(moments, folds)
    halves = [rng.permutation(B)[: (B + 1) // 2] for _ in range(RESAMPLES)]
    resampled = [_select(moments[half], np.arange(len(half)) % FOLDS)[0] for half in halves]
    alone = {name: _held_out(moments, [i], folds) for i, name in enumerate(names)}
    coefficients = _fit(moments.sum(0), order)
    selected = [
        Selected(
            names[i],
            float(coefficients[j]),
            explained[j],
            alone[names[i]],
            sum(i in other for other in resampled) / RESAMPLES,
        )
        for j, i in enumerate(order)
    ]
    size = float(push[counted].square().mean().sqrt()) if counted.any() else 0.0
    both = counted[:-1] & counted[1:]
    later = _moments(push[:-1], [term[1:] for term in terms.values()], both)
    return InWords(selected, alone, size, _held_out(later, order, folds))


def _moments(push: Tensor, terms: list[Tensor], counted: Tensor) -> np.ndarray:
    """Products of all terms and, last, the push, summed over each trajectory: [B, terms + 1, terms + 1]."""
    columns = torch.stack([*terms, push], dim=-1).double() * counted[..., None, None]  # [T, B, A, terms + 1]
    return torch.einsum("tbai,tbaj->bij", columns, columns).cpu().numpy()


def _fit(moments: np.ndarray, chosen: list[int]) -> np.ndarray:
    """Least-squares coefficients of the chosen terms, from moments [terms + 1, terms + 1]."""
    return np.linalg.lstsq(moments[np.ix_(chosen, chosen)], moments[chosen, -1], rcond=1e-10)[0]


def _held_out(moments: np.ndarray, chosen: list[int], folds: np.ndarray) -> float:
    """Share of the push's mean square that the chosen terms explain in trajectories that they were not fitted to."""
    unexplained = 0.0
    for fold in range(FOLDS):
        held_out = moments[folds == fold].sum(0)
        w = np.append(_fit(moments[folds != fold].sum(0), chosen), -1.0)
        unexplained += float(w @ held_out[np.ix_([*chosen, -1], [*chosen, -1])] @ w)
    total = float(moments[:, -1, -1].sum())
    return 1.0 - unexplained / total if total > 0.0 else 0.0


def _select(moments: np.ndarray, folds: np.ndarray) -> tuple[list[int], list[float]]:
    """The terms in the order of their selection, and what is explained after each."""
    chosen: list[int] = []
    explained: list[float] = []
    while len(chosen) < moments.shape[1] - 1:
        rest = [i for i in range(moments.shape[1] - 1) if i not in chosen]
        scores = [_held_out(moments, [*chosen, i], folds) for i in rest]
        best = int(np.argmax(scores))
        if scores[best] < (explained[-1] if explained else 0.0) + LEAST_GAIN:
            break
        chosen.append(rest[best])
        explained.append(scores[best])
    return chosen, explained
