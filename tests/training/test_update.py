"""One update of an agent: the reference's numbers, targets that are constants, and an update split over processes."""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from disco_torch.agents import Agent, AgentConfig
from disco_torch.checks import checking
from disco_torch.data import loss_mask, masked_mean, memory_resets, rule_inputs
from disco_torch.optim import AdamConfig, adam_init, adam_update, apply_updates
from disco_torch.rules import ActorCritic, DiscoConfig, DiscoUpdateRule, PolicyGradient
from disco_torch.training import Learner, LearnerState
from disco_torch.types import LearningOutputs, Params, Rollout, ValueOuts, tree_map
from disco_torch.weights.haiku import agent_layers, from_haiku, rule_layers

MakeRollout = Callable[..., Rollout]
CONFIG = AgentConfig(dense=(8, 6), lstm_size=4, head_mlp_hiddens=(5,), head_w_init_std=None)


def make_learner(rule: Any, **kwargs: Any) -> Learner:
    agent = Agent(torch.zeros(10), 4, rule.outputs(4), CONFIG).double()
    return Learner(agent, rule, AdamConfig(learning_rate=1e-2), **kwargs)


@pytest.fixture
def learner(tiny_rule: DiscoUpdateRule) -> Learner:
    return make_learner(tiny_rule)


@pytest.fixture
def state(learner: Learner) -> LearnerState:
    """In the middle of a life: the target parameters differ from the agent's."""
    state = learner.init(torch.Generator().manual_seed(0))
    slow = {name: 0.9 * x for name, x in state.params.items()}
    return dataclasses.replace(state, meta_state=dataclasses.replace(state.meta_state, target_params=slow))


def assert_trees_equal(got: Any, want: Any, tolerance: float = 1e-9) -> None:
    for ours, theirs in zip(tree_leaves(got), tree_leaves(want), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def group(data: Any, prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): data[name] for name in data.files if name.startswith(prefix)}


def golden_learner(data: Any, config: dict[str, Any], rule: Any, learning_rate: float, hyper: dict) -> Learner:
    sizes = config["agent"]
    agent_config = AgentConfig(sizes["dense"], sizes["lstm_size"], sizes["head_mlp_hiddens"])
    agent = Agent(torch.zeros(sizes["observation_size"]), config["A"], rule.outputs(config["A"]), agent_config).double()
    return Learner(agent, rule, AdamConfig(learning_rate, sizes["max_abs_update"]), hyper)


def replay(learner: Learner, state: LearnerState, data: Any, steps: int) -> LearnerState:
    """Updates on the file's rollouts, comparing the logs of each."""
    for step in range(steps):
        arrays = group(data, f"step{step}_in/")
        rollout = Rollout(**{f.name: torch.as_tensor(arrays[f.name]) for f in dataclasses.fields(Rollout)[:5]})
        state, logs = learner.update(state, rollout)
        for name, want in group(data, f"step{step}_log/").items():
            np.testing.assert_allclose(logs[name].numpy(), want, rtol=1e-9, atol=1e-9, err_msg=f"step {step}: {name}")
    return state


def assert_params(learner: Learner, got: Params, data: Any, prefix: str) -> None:
    want = from_haiku(learner.agent, agent_layers(learner.agent), group(data, prefix))
    assert got.keys() == want.keys()
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=1e-9, atol=1e-9)


def test_five_updates_with_the_disco_rule_against_the_reference(
    golden: Path, golden_config: dict[str, Any], tiny_config: DiscoConfig
) -> None:
    data = np.load(golden / "learner_tiny.npz")
    rule = DiscoUpdateRule(tiny_config).double()
    rule.load_state_dict(from_haiku(rule, rule_layers(rule), group(data, "eta/")))
    hyper = golden_config["hyper_params"]
    learner = golden_learner(data, golden_config, rule, golden_config["agent"]["learning_rate"], hyper)
    params = from_haiku(learner.agent, agent_layers(learner.agent), group(data, "theta0/"))
    state = learner.init(params=params)
    slow = {name: 0.95 * x for name, x in params.items()}
    state = dataclasses.replace(state, meta_state=dataclasses.replace(state.meta_state, target_params=slow))
    state = replay(learner, state, data, 5)
    found = {"theta5/": state.params, "target5/": state.meta_state.target_params}
    found |= {"mu5/": state.opt_state.mu, "nu5/": state.opt_state.nu}
    for prefix, got in found.items():
        assert_params(learner, got, data, prefix)


def test_three_updates_with_actor_critic_against_the_reference(golden: Path, golden_config: dict[str, Any]) -> None:
    data = np.load(golden / "actor_critic.npz")
    config = golden_config["actor_critic"]
    learner = golden_learner(data, golden_config, ActorCritic(), config["learning_rate"], config["hyper_params"])
    params = from_haiku(learner.agent, agent_layers(learner.agent), group(data, "theta0/"))
    state = replay(learner, learner.init(params=params), data, 3)
    assert_params(learner, state.params, data, "theta3/")


def step_by_hand(learner: Learner, state: LearnerState, rollout: Rollout, leak: bool = False) -> dict[str, Tensor]:
    """The gradient of the summed losses by plain autograd; with `leak`, through the targets as well."""
    params = {name: x.clone().requires_grad_() for name, x in state.params.items()}
    resets = memory_resets(rollout)
    inputs = rule_inputs(rollout, learner.agent.unroll(params, rollout.observations, resets)[0])
    targets, _ = learner.rule.unroll_meta_net(inputs, params, state.meta_state, learner.agent.unroll)
    if not leak:
        targets = tree_map(lambda x: x.detach(), targets)
    loss = learner.rule.agent_loss(inputs, targets, backprop=True)[0] + learner.rule.agent_loss_no_meta(inputs, targets)[0]
    total = masked_mean(loss, loss_mask(rollout))
    return dict(zip(params, torch.autograd.grad(total, list(params.values())), strict=True))


def test_the_gradient_is_that_of_constant_targets(learner: Learner, state: LearnerState, make_rollout: MakeRollout) -> None:
    rollout = make_rollout()
    grads, leaked = (step_by_hand(learner, state, rollout, leak) for leak in (False, True))
    changes, opt_state = adam_update(grads, state.opt_state, state.params, learner.optimizer)
    rule_params = {name: x.detach() for name, x in learner.rule.named_parameters()}
    updated = [learner.update(state, rollout)[0], learner.differentiable_update(state, rollout, rule_params)[0]]
    for after in updated:
        assert_trees_equal(after.opt_state.mu, opt_state.mu)
        assert_trees_equal(after.params, apply_updates(state.params, changes))
        wrong = max(float((after.opt_state.mu[name] - 0.1 * g).abs().max()) for name, g in leaked.items())
        assert wrong > 1e-6  # the leak would have shown


def test_targets_are_constants_even_of_a_rule_that_leaves_that_to_the_learner(
    tiny_rule: DiscoUpdateRule, make_rollout: MakeRollout
) -> None:
    class Careless(DiscoUpdateRule):
        def agent_loss(self, rollout: Any, meta_out: Any, hyper_params: Any = None, backprop: bool = False) -> Any:
            return super().agent_loss(rollout, meta_out, hyper_params, backprop=True)

    careless = Careless(tiny_rule.config).double()
    careless.load_state_dict(tiny_rule.state_dict())
    learners = [make_learner(tiny_rule), make_learner(careless)]
    params = learners[0].agent.init(torch.Generator().manual_seed(0))
    want, got = (learner.update(learner.init(params=params), make_rollout())[0] for learner in learners)
    assert_trees_equal(got, want)


def test_an_update_from_a_summary_is_one_from_all_outputs(
    learner: Learner, state: LearnerState, make_rollout: MakeRollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States, logs and, since Adam's first moment is a tenth of it, every gradient."""
    assert learner.rule.summarizer() is not None
    summarized, logs = learner.update(state, make_rollout())
    monkeypatch.setattr(learner.rule, "summarizer", lambda: None)
    kept, kept_logs = learner.update(state, make_rollout())
    assert_trees_equal(summarized, kept, 1e-12)
    assert_trees_equal(logs, kept_logs, 1e-12)
    assert all((mu != 0).any() for mu in summarized.opt_state.mu.values())


def test_the_loss_is_averaged_over_the_steps_that_count(
    learner: Learner, state: LearnerState, make_rollout: MakeRollout
) -> None:
    rollout = make_rollout(ends=((2, 0), (2, 1), (4, 2)))
    inputs = rule_inputs(rollout, learner.agent.unroll(state.params, rollout.observations)[0])
    loss, _, _ = learner.rule(inputs, state.params, state.meta_state, learner.agent.unroll)
    counted = torch.ones(6, 3, dtype=torch.bool)
    counted[2, 0] = counted[2, 1] = counted[4, 2] = False
    _, logs = learner.update(state, rollout)
    torch.testing.assert_close(logs["total_loss"], loss[counted].mean().detach(), rtol=1e-7, atol=0)
    assert not torch.allclose(logs["total_loss"], loss.mean())


def test_target_parameters_are_from_before_the_update(
    learner: Learner, state: LearnerState, make_rollout: MakeRollout
) -> None:
    after, _ = learner.update(state, make_rollout())
    for name, slow in after.meta_state.target_params.items():
        want = 0.9 * state.meta_state.target_params[name] + 0.1 * state.params[name]
        torch.testing.assert_close(slow, want)
        assert not torch.allclose(after.params[name], state.params[name])


def test_nothing_in_the_result_carries_a_graph_and_the_state_before_is_left_alone(
    learner: Learner, state: LearnerState, make_rollout: MakeRollout
) -> None:
    before = tree_map(lambda x: x.clone(), state)
    after, logs = learner.update(state, make_rollout())
    assert not any(x.requires_grad for x in tree_leaves((after, logs)))
    assert_trees_equal(state, before, 0)
    assert all(torch.isfinite(x) for x in logs.values())
    assert {"total_loss", "pi_loss", "q_loss", "global_gradient_norm", "global_update_norm"} <= logs.keys()


def test_a_given_learning_rate_scales_the_update(learner: Learner, state: LearnerState, make_rollout: MakeRollout) -> None:
    rollout = make_rollout()
    once, _ = learner.update(state, rollout)
    twice, _ = learner.update(state, rollout, learning_rate=2e-2)
    for name, start in state.params.items():
        torch.testing.assert_close(twice.params[name] - start, 2.0 * (once.params[name] - start))


def test_a_differentiable_update_is_a_function_of_the_rule(
    learner: Learner, state: LearnerState, make_rollout: MakeRollout
) -> None:
    rule_params = {name: x.detach().clone().requires_grad_() for name, x in learner.rule.named_parameters()}
    after, _, targets, _ = learner.differentiable_update(state, make_rollout(), rule_params)
    plain, _ = learner.update(state, make_rollout())
    assert_trees_equal(tree_map(lambda x: x.detach(), after.params), plain.params)
    assert targets["pi"].requires_grad
    loss = sum((x.square().sum() for x in after.params.values()), torch.zeros(()))
    gradients = torch.autograd.grad(loss, list(rule_params.values()), allow_unused=True)
    reached = {name for name, g in zip(rule_params, gradients, strict=True) if g is not None and (g != 0).any()}
    assert {"meta_net.pi_head.weight", "meta_net.y_head.weight", "meta_net.encoder.y_net.0.weight"} <= reached


def test_a_differentiable_update_of_several_gradient_steps(
    learner: Learner, state: LearnerState, make_rollout: MakeRollout
) -> None:
    """The same as `update`, but for the policy whose prediction the agent learns, which is left out here."""
    several = dataclasses.replace(learner, epochs=3, hyper_params={"aux_policy_cost": 0.0})
    rule_params = {name: x.detach() for name, x in learner.rule.named_parameters()}
    states, logs, _, _ = several.differentiable_steps(state, make_rollout(), rule_params)
    want, want_logs = several.update(state, make_rollout())
    assert len(states) == 3 and int(states[-1].opt_state.count) == int(state.opt_state.count) + 3
    assert_trees_equal(states[-1].params, want.params)
    torch.testing.assert_close(logs["total_loss"], want_logs["total_loss"])


@pytest.mark.parametrize("settings", [{"minibatches": 2}, {"max_gradient_norm": 0.5}])
def test_a_differentiable_update_knows_no_minibatches(
    learner: Learner, state: LearnerState, make_rollout: MakeRollout, settings: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="`minibatches` must be 1 and `max_gradient_norm` 0 in a differentiable update"):
        dataclasses.replace(learner, **settings).differentiable_update(state, make_rollout(), {})


def in_two_processes(work: Callable[[int, Callable[[Tensor], Tensor]], Any]) -> list[Any]:
    """Runs `work(rank, mean)` twice at once; `mean` waits for both and returns the mean of what they gave."""
    barrier, given, results = threading.Barrier(2, timeout=30), [torch.zeros(())] * 2, [None, None]

    def run(rank: int) -> None:
        def mean(x: Tensor) -> Tensor:
            given[rank] = x
            barrier.wait()
            result = (given[0] + given[1]) / 2.0
            barrier.wait()
            return result

        try:
            results[rank] = work(rank, mean)
        except BaseException:
            barrier.abort()
            raise

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("kind", ["disco", "actor_critic"])
def test_halves_of_a_batch_in_two_processes_are_the_whole_batch_in_one(
    tiny_rule: DiscoUpdateRule, make_rollout: MakeRollout, kind: str
) -> None:
    learner = make_learner(tiny_rule if kind == "disco" else ActorCritic())
    state = learner.init(torch.Generator().manual_seed(0))
    rollout = make_rollout(B=4, ends=((2, 0), (3, 3)))  # as many counted steps in each half
    halves = [tree_map(lambda x, part=part: x[:, part], rollout) for part in (slice(0, 2), slice(2, 4))]
    want, _ = learner.update(state, rollout)
    # Processes share nothing: functional calls put parameters into a module for their duration.
    learners = [copy.deepcopy(learner) for _ in range(2)]
    results = in_two_processes(lambda rank, mean: learners[rank].update(state, halves[rank], mean_across_processes=mean)[0])
    for got in results:
        assert_trees_equal(got, want)
    alone, _ = learner.update(state, halves[0])
    assert not torch.allclose(alone.params["torso.0.weight"], want.params["torso.0.weight"])


def test_init_from_a_generator_and_from_given_parameters(learner: Learner) -> None:
    first, again = (learner.init(torch.Generator().manual_seed(3)) for _ in range(2))
    assert_trees_equal(first, again, 0)
    params = {name: x + 1.0 for name, x in first.params.items()}
    given = learner.init(params=params)
    assert_trees_equal(given.params, params, 0)
    assert_trees_equal(given.meta_state.target_params, params, 0)
    assert_trees_equal(given.opt_state, adam_init(params), 0)


def test_policy_gradient_learns_from_given_advantages(make_rollout: MakeRollout) -> None:
    learner = make_learner(PolicyGradient(), hyper_params={"entropy_cost": 0.0})
    state = learner.init(torch.Generator().manual_seed(0))
    rollout = make_rollout(ends=())
    value_out = ValueOuts(normalized_adv=torch.ones(6, 3, dtype=torch.float64))

    def taken(params: Params) -> Tensor:
        logits = learner.agent.unroll(params, rollout.observations)[0]["logits"][:-1]
        return torch.log_softmax(logits, -1).gather(-1, rollout.actions[:-1, :, None]).mean()

    after, _ = learner.update(state, rollout, value_out=value_out)
    assert taken(after.params) > taken(state.params)


def test_time_limits_pass_through_the_update(learner: Learner, state: LearnerState, make_rollout: MakeRollout) -> None:
    rollout = make_rollout(ends=())
    cut = torch.zeros(7, 3, dtype=torch.bool)
    cut[3] = True
    plain, _ = learner.update(state, rollout)
    after, logs = learner.update(state, dataclasses.replace(rollout, truncations=cut))
    assert torch.isfinite(logs["total_loss"])
    assert not torch.allclose(after.params["torso.0.weight"], plain.params["torso.0.weight"])
    none, _ = learner.update(state, dataclasses.replace(rollout, truncations=torch.zeros_like(cut)))
    assert_trees_equal(none, plain)


def test_update_works_with_values_checked(learner: Learner, state: LearnerState, make_rollout: MakeRollout) -> None:
    rollout = make_rollout()
    with checking():
        after, _ = learner.update(state, rollout)
    assert_trees_equal(after, learner.update(state, rollout)[0], 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: {"rewards": r.rewards[1:]}, r"`discounts` must be \[6, 3\], got \[7, 3\]; every part of a rollout has"),
        (lambda r: {"rewards": r.rewards.long()}, r"`rewards` must be floating point, got torch.int64"),
        (lambda r: {"rewards": r.rewards / 0.0}, r"`rewards` must be finite, got -?inf at \[0, 0\]"),
        (lambda r: {"actions": r.actions + 4}, r"`actions` must lie in 0 \.\. 3"),
        (lambda r: {"observations": r.observations[..., 1:]}, r"`observations` must be \[T, B, ...\] with leaves of shape"),
        (
            lambda r: {"behaviour_logits": r.behaviour_logits.repeat(1, 1, 2)},
            r"`behaviour_agent_out\['logits'\]` must be \[7, 3, 4\], got \[7, 3, 8\]; it must match `agent_out\['logits'\]`",
        ),
    ],
)
def test_bad_rollouts(learner: Learner, make_rollout: MakeRollout, change: Callable, message: str) -> None:
    rollout = make_rollout()
    state = learner.init(torch.Generator().manual_seed(0))
    with checking(), pytest.raises(ValueError, match=message):
        learner.update(state, dataclasses.replace(rollout, **change(rollout)))


def test_unknown_hyper_parameters(tiny_rule: DiscoUpdateRule, make_rollout: MakeRollout) -> None:
    learner = make_learner(tiny_rule, hyper_params={"learning_rate": 1.0})
    with pytest.raises(ValueError, match=r"`hyper_params` has no 'learning_rate'; DiscoHyperParams knows"):
        learner.update(learner.init(), make_rollout())


def test_an_agent_need_not_summarize(learner: Learner, state: LearnerState, make_rollout: MakeRollout) -> None:
    class Keeping(Agent):
        """Returns all outputs, whatever it is asked for."""

        def summarized_outputs(self, params, observations, should_reset, state, summarizer):  # type: ignore[no-untyped-def]
            return LearningOutputs(self.unroll(params, observations, should_reset, state)[0])

        def learning_outputs(self, params, rollout, should_reset, summarizer=None):  # type: ignore[no-untyped-def]
            return self.summarized_outputs(params, rollout.observations, should_reset, None, summarizer)

    keeping = copy.copy(learner.agent)
    keeping.__class__ = Keeping  # the same network
    rollout = make_rollout()
    after, _ = dataclasses.replace(learner, agent=keeping).update(state, rollout)
    assert_trees_equal(after, learner.update(state, rollout)[0], 1e-12)
