"""Meta-gradients: the two implementations agree with each other and with finite differences."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from disco_torch import AdamConfig, Agent, AgentConfig, DiscoUpdateRule, Learner, LearnerState, Rollout, ValueFunction
from disco_torch.discovery import MetaLossWeights, MixedModeMetaGradient, PlainMetaGradient
from disco_torch.layers import LSTMState
from disco_torch.optim import adam_backward, adam_gains, adam_init, adam_update, apply_updates
from disco_torch.training import ValueFunctionConfig, ValueFunctionState
from disco_torch.types import Params, tree_leaves, tree_map, tree_stack

A, T, B, OBS = 3, 5, 2, 4
AGENT = AgentConfig(dense=(8, 6), lstm_size=5, head_mlp_hiddens=(7,))
Case = tuple[Learner, ValueFunction, Params, LearnerState, ValueFunctionState, list[Rollout], Rollout]


def rollout(rows: int, seed: int, *, cuts: bool = False, memory: bool = False) -> Rollout:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(rows, B, *shape, generator=generator, dtype=torch.float64)

    actions = torch.randint(A, (rows, B), generator=generator)
    discounts = (torch.rand(rows, B, generator=generator) > 0.2).double()
    truncations = (torch.rand(rows, B, generator=generator) > 0.8) & (discounts > 0) if cuts else None
    first_state = LSTMState(normal(3)[0], normal(3)[0]) if memory else None
    return Rollout(normal(OBS), actions, normal(), discounts, normal(A), truncations, first_state)


@pytest.fixture
def make_case(tiny_rule: DiscoUpdateRule) -> Callable[..., Case]:
    def make(
        num_updates: int = 3,
        optimizer: AdamConfig | None = None,
        seed: int = 0,
        *,
        cuts: bool = False,
        memory: bool = False,
        burn_in: int = 0,
        epochs: int = 1,
    ) -> Case:
        generator = torch.Generator().manual_seed(seed)
        config = dataclasses.replace(AGENT, core="lstm" if memory else "none", core_size=3)
        agent = Agent(torch.zeros(OBS), A, tiny_rule.outputs(A), config).double()
        learner = Learner(agent, tiny_rule, optimizer or AdamConfig(1e-2), burn_in=burn_in, epochs=epochs)
        value_function = ValueFunction(torch.zeros(OBS), ValueFunctionConfig(dense=(6,)))
        value_function.net.double()
        eta = {name: param.detach() for name, param in tiny_rule.named_parameters()}
        train = [rollout(T + 1, 10 * seed + i, cuts=cuts, memory=memory) for i in range(num_updates)]
        valid = rollout(2 * (T + 1), 10 * seed + 99, cuts=cuts, memory=memory)
        state, value_state = learner.init(generator), value_function.init(generator)
        # Moments that are not zero, as in the middle of a life.
        for warm_up_seed in (77, 78):
            state, _ = learner.update(state, rollout(T + 1, warm_up_seed, memory=memory))
        return learner, value_function, eta, state, value_state, train, valid

    return make


@pytest.mark.parametrize("num_updates", [1, 2, 5])
@pytest.mark.parametrize(
    "optimizer",
    [AdamConfig(1e-2), AdamConfig(3e-2, max_abs_update=0.3), AdamConfig(1e-2, weight_decay=0.1, b1=0.5)],
    ids=["plain", "clip", "decay"],
)
def test_mixed_mode_is_the_plain_gradient(make_case: Callable[..., Case], num_updates: int, optimizer: AdamConfig) -> None:
    learner, value_function, *case = make_case(num_updates, optimizer)
    plain = PlainMetaGradient(learner, value_function)(*case)
    mixed = MixedModeMetaGradient(learner, value_function)(*case)
    for name, expected in plain.grads.items():
        torch.testing.assert_close(mixed.grads[name], expected, rtol=1e-10, atol=1e-13 * float(expected.abs().max() + 1e-3))
    for name, value in plain.logs.items():
        torch.testing.assert_close(mixed.logs[name], value, rtol=1e-12, atol=1e-14)
    for ours, theirs in zip(tree_leaves_of(mixed.learner_state), tree_leaves_of(plain.learner_state), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    assert sum(float(grad.abs().sum()) for grad in plain.grads.values()) > 0


@pytest.mark.parametrize("epochs", [2, 4])
def test_several_gradient_steps_on_the_same_targets_are_differentiated_alike(
    make_case: Callable[..., Case], epochs: int
) -> None:
    learner, value_function, *case = make_case(3, epochs=epochs)
    plain = PlainMetaGradient(learner, value_function)(*case)
    mixed = MixedModeMetaGradient(learner, value_function)(*case)
    for name, expected in plain.grads.items():
        torch.testing.assert_close(mixed.grads[name], expected, rtol=1e-10, atol=1e-13 * float(expected.abs().max() + 1e-3))
    for ours, theirs in zip(tree_leaves_of(mixed.learner_state), tree_leaves_of(plain.learner_state), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    one_step = MixedModeMetaGradient(dataclasses.replace(learner, epochs=1), value_function)(*case)
    assert any(not torch.allclose(one_step.grads[name], grad) for name, grad in mixed.grads.items())


def tree_leaves_of(state: LearnerState) -> list[torch.Tensor]:
    return [*tree_leaves(state.params), *tree_leaves(state.opt_state.mu), *tree_leaves(state.meta_state.target_params)]


def test_time_limits_are_differentiated_alike(make_case: Callable[..., Case]) -> None:
    learner, value_function, *case = make_case(2, cuts=True)
    plain = PlainMetaGradient(learner, value_function)(*case)
    mixed = MixedModeMetaGradient(learner, value_function)(*case)
    for name, expected in plain.grads.items():
        torch.testing.assert_close(mixed.grads[name], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("settings", [{}, {"cuts": True}, {"burn_in": 2}], ids=["ends", "cuts", "burn-in"])
def test_memory_is_differentiated_alike(make_case: Callable[..., Case], settings: dict[str, Any]) -> None:
    learner, value_function, *case = make_case(3, memory=True, **settings)
    plain = PlainMetaGradient(learner, value_function)(*case)
    mixed = MixedModeMetaGradient(learner, value_function)(*case)
    for name, expected in plain.grads.items():
        torch.testing.assert_close(mixed.grads[name], expected, rtol=1e-10, atol=1e-13 * float(expected.abs().max() + 1e-3))
    forgetful = [dataclasses.replace(each, first_state=tree_map(torch.zeros_like, each.first_state)) for each in case[3]]
    other = MixedModeMetaGradient(learner, value_function)(*case[:3], forgetful, case[4])
    assert not torch.allclose(other.grads["meta_net.pi_head.weight"], plain.grads["meta_net.pi_head.weight"])


@pytest.mark.parametrize("start", [{"improvement": 2.0}, {"advantage_push": 1.0}], ids=["improvement", "push"])
def test_a_corrected_improvement_is_differentiated_alike(
    make_case: Callable[..., Case], tiny_rule: DiscoUpdateRule, start: dict[str, float]
) -> None:
    before = PlainMetaGradient(*make_case(2)[:2])(*make_case(2)[2:])
    tiny_rule.config = dataclasses.replace(tiny_rule.config, **start)
    learner, value_function, *case = make_case(2)
    plain = PlainMetaGradient(learner, value_function)(*case)
    mixed = MixedModeMetaGradient(learner, value_function)(*case)
    for name, expected in plain.grads.items():
        torch.testing.assert_close(mixed.grads[name], expected, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(before.grads["meta_net.pi_head.weight"], plain.grads["meta_net.pi_head.weight"])


@pytest.mark.parametrize("implementation", [PlainMetaGradient, MixedModeMetaGradient])
def test_against_finite_differences_of_the_regularisers(
    make_case: Callable[..., Case], implementation: type[PlainMetaGradient]
) -> None:
    """After one update from given states, the target regularisers' gradient is a plain derivative of the meta-loss."""
    learner, value_function, eta, *case = make_case(1, AdamConfig(0.0))  # the agent stays where it is
    weights = MetaLossWeights(target_mean=1.0, target_kl=1.0)
    compute = implementation(learner, value_function, weights)
    grads = compute(eta, *case).grads
    for name in ("meta_net.y_head.bias", "meta_net.pi_head.weight", "meta_net.trajectory_rnn.linear.weight"):
        direction = torch.randn(eta[name].shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        step = 1e-6
        up = compute(eta | {name: eta[name] + step * direction}, *case).logs["meta_loss"]
        down = compute(eta | {name: eta[name] - step * direction}, *case).logs["meta_loss"]
        expected = float((up - down) / (2 * step))
        assert float((grads[name] * direction).sum()) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_weights_of_the_regularisers_count(make_case: Callable[..., Case]) -> None:
    learner, value_function, *case = make_case(2)
    none = MetaLossWeights(0.0, 0.0, 0.0, 0.0)
    base = MixedModeMetaGradient(learner, value_function, none)(*case)
    assert float(base.logs["reg_loss"]) == pytest.approx(0.0, abs=1e-15)
    for field in dataclasses.fields(MetaLossWeights):
        weights = dataclasses.replace(none, **{field.name: 1.0})
        changed = MixedModeMetaGradient(learner, value_function, weights)(*case)
        assert float(changed.logs["reg_loss"]) != 0.0
        assert any(not torch.equal(changed.grads[name], grad) for name, grad in base.grads.items())


def test_agents_can_be_batched(make_case: Callable[..., Case]) -> None:
    """`vmap` over agents gives each agent's own gradient."""
    learner, value_function, eta, *first = make_case(2, seed=1)
    *_, state, value_state, train, valid = make_case(2, seed=2)
    compute = MixedModeMetaGradient(learner, value_function)
    alone = [compute(eta, *first).grads, compute(eta, state, value_state, train, valid).grads]
    stacked = tree_stack([tuple(first), (state, value_state, train, valid)])
    together = torch.func.vmap(lambda *case: compute(eta, *case).grads)(*stacked)
    for name, grads in together.items():
        torch.testing.assert_close(grads, torch.stack([grad[name] for grad in alone]), rtol=1e-9, atol=1e-12)


def test_adam_backward_is_the_derivative_of_adam_update() -> None:
    generator = torch.Generator().manual_seed(0)

    def draw() -> Params:
        return {"w": torch.randn(6, generator=generator, dtype=torch.float64)}

    config = AdamConfig(0.1, max_abs_update=0.5, b1=0.7, weight_decay=0.2)
    params, grads, params_bar, mu_bar = draw(), draw(), draw(), draw()
    state = adam_init(params)
    for _ in range(3):
        _, state = adam_update(draw(), state, params, config)
    leaves = [x.requires_grad_() for x in (params["w"], grads["w"], state.mu["w"])]
    changes, after = adam_update(grads, state, params, config)
    new = apply_updates(params, changes)
    expected = torch.autograd.grad((new["w"] * params_bar["w"] + after.mu["w"] * mu_bar["w"]).sum(), leaves)
    detached = tree_map(torch.Tensor.detach, after)
    grads_bar, mu_before, params_before = adam_backward(params_bar, mu_bar, adam_gains(detached, config), config)
    for ours, theirs in zip((params_before, grads_bar, mu_before), expected, strict=True):
        torch.testing.assert_close(ours["w"], theirs, rtol=1e-13, atol=1e-15)
    assert ((after.mu["w"] / (1 - 0.7**4) / (after.nu["w"] / (1 - 0.999**4)).sqrt()).abs() > 0.5).any()  # the clip is active
