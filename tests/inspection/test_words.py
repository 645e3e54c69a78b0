"""A rule in words: on actor-critic, the advantage and the entropy, with their weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from known_cases import actor_critic_case, disco_case, own_rewards_case, ppo_case

from disco_torch.inspection import candidate_terms, in_words
from disco_torch.inspection.words import lambda_of
from disco_torch.rules import ActorCriticHyperParams, DiscoUpdateRule, PolicyGradientHyperParams, PPOHyperParams
from disco_torch.types import UpdateRuleInputs

MakeInputs = Callable[..., UpdateRuleInputs]
ADVANTAGE, ENTROPY = "policy gradient: A (e_a - pi)", "entropy: grad H(pi)"


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_actor_critic_is_its_advantage_and_its_entropy(make_inputs: MakeInputs, seed: int) -> None:
    case = actor_critic_case(make_inputs, T=20, B=20, pg_cost=0.7, entropy_cost=2.0)
    found = in_words(case.pushes["policy"], candidate_terms(case), case.counted, seed)
    assert [term.name for term in found.selected] == [ADVANTAGE, ENTROPY]
    assert [term.coefficient for term in found.selected] == pytest.approx([0.7, 2.0])
    assert found.explained == pytest.approx(1.0)
    assert [term.stability for term in found.selected] == [1.0, 1.0]
    assert found.selected[0].explained == pytest.approx(found.alone[ADVANTAGE])
    assert abs(found.shifted) < 0.05  # the terms of the next step say nothing
    assert found.size == pytest.approx(float(case.pushes["policy"].square().mean().sqrt()))


def test_ppo_is_its_clipped_surrogate(make_inputs: MakeInputs) -> None:
    found = {}
    for clip_range in (0.2, 1e9):
        case = ppo_case(make_inputs, T=20, B=20, clip_range=clip_range)
        found[clip_range] = in_words(case.pushes["policy"], candidate_terms(case), case.counted)
        assert found[clip_range].selected[0].stability == 1.0
    assert found[0.2].selected[0].name.startswith("clipped surrogate") and found[0.2].selected[0].explained > 0.95
    assert found[1e9].selected[0].name.startswith("surrogate") and found[1e9].selected[0].explained > 0.95
    # What is left is the mean of the advantages, which PPO subtracts.
    assert found[1e9].alone[ADVANTAGE] < found[1e9].selected[0].explained


def test_a_rule_of_rewards(make_inputs: MakeInputs) -> None:
    case = own_rewards_case(make_inputs, T=10, B=20)
    found = in_words(case.pushes["policy"], candidate_terms(case), case.counted)
    assert [term.name for term in found.selected] == ["reward: r (e_a - pi)"]
    assert found.selected[0].coefficient == pytest.approx(1.0)


def test_noise_is_not_put_in_words(make_inputs: MakeInputs) -> None:
    case = actor_critic_case(make_inputs, T=20, B=20)
    push = torch.randn(case.pushes["policy"].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = in_words(push - push.mean(-1, keepdim=True), candidate_terms(case), case.counted)
    assert found.selected == [] and found.explained == 0.0 and max(found.alone.values()) < 0.01


def test_only_counted_steps_are_fitted(make_inputs: MakeInputs) -> None:
    case = own_rewards_case(make_inputs, T=10, B=20)
    counted = torch.zeros_like(case.counted)
    counted[:5] = True
    push = case.pushes["policy"].clone()
    push[5:] = 100.0
    assert in_words(push, candidate_terms(case), counted).explained == pytest.approx(1.0)
    assert in_words(push, candidate_terms(case), torch.zeros_like(counted)).selected == []


def test_terms_are_pushes_on_a_policy(tiny_rule: DiscoUpdateRule, make_inputs: MakeInputs) -> None:
    case = disco_case(tiny_rule, make_inputs)
    terms = candidate_terms(case)
    assert len(terms) == 14 and "lagged policy: pi' - pi" in terms and "greedy action: argmax q - pi" in terms
    for name, term in terms.items():
        assert term.shape == case.pushes["policy"].shape, name
        assert float(term.sum(-1).abs().max()) < 1e-9, name
    assert float(case.pushes["policy"].sum(-1).abs().max()) < 1e-9
    with pytest.raises(ValueError, match=r"`terms\['short'\]` must be"):
        in_words(case.pushes["policy"], {"short": terms[ENTROPY][1:]}, case.counted)


def test_the_lambda_of_a_rule() -> None:
    assert lambda_of(ActorCriticHyperParams(vtrace_lambda=0.3)) == 0.3
    assert lambda_of(PPOHyperParams(gae_lambda=0.6)) == 0.6
    assert lambda_of(PolicyGradientHyperParams()) == 0.95
