"""Several gradient steps on the same targets: which steps each of them sees, and that one of them is the plain update."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import assert_same, last_state, metrics_of, small_config
from torch import Tensor

from disco_torch.agents import Agent, AgentConfig
from disco_torch.data import rule_inputs
from disco_torch.layers import LSTMState
from disco_torch.optim import AdamConfig, global_norm
from disco_torch.rules import PPO, ActorCritic, DiscoUpdateRule, DoublyRobust, PolicyGradient
from disco_torch.training import Learner, LearnerState, train
from disco_torch.training.minibatches import StepTable, draw_orders, make_table, minibatches_of
from disco_torch.training.session import TrainingSession
from disco_torch.types import Rollout, ValueOuts, tree_leaves, tree_map

MakeRollout = Callable[..., Rollout]
CONFIG = AgentConfig(dense=(8, 6), lstm_size=4, head_mlp_hiddens=(5,), head_w_init_std=None)
RECURRENT = dataclasses.replace(CONFIG, core="lstm", core_size=5)
STEPS: dict[str, Any] = {"rule": "ppo", "batch_size": 0, "replay_capacity": 0, "replayed_share": 0.0}
STEPS |= {"epochs": 3, "minibatches": 4, "max_gradient_norm": 0.5}


def make_learner(rule: Any, config: AgentConfig = CONFIG, **settings: Any) -> Learner:
    agent = Agent(torch.zeros(10), 4, rule.outputs(4), config).double()
    return Learner(agent, rule, AdamConfig(learning_rate=1e-2), **settings)


def start(learner: Learner) -> LearnerState:
    return learner.init(torch.Generator().manual_seed(0))


def with_memory(rollout: Rollout, config: AgentConfig) -> Rollout:
    """The rollout with a memory before it, for an agent that has one."""
    if config.core == "none":
        return rollout
    drawn = torch.rand(2, rollout.rewards.shape[1], config.core_size, generator=torch.Generator().manual_seed(5)).double()
    return dataclasses.replace(rollout, first_state=LSTMState(*drawn))


def rules(tiny_rule: DiscoUpdateRule) -> dict[str, Any]:
    return {"ppo": PPO(), "actor-critic": ActorCritic(), "policy-gradient": PolicyGradient(), "disco": tiny_rule}


@pytest.mark.parametrize("name", ["ppo", "actor-critic", "policy-gradient", "disco"])
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("config", [CONFIG, RECURRENT])
def test_one_epoch_in_one_part_is_the_plain_update(
    name: str, cut: bool, config: AgentConfig, tiny_rule: DiscoUpdateRule, make_rollout: MakeRollout
) -> None:
    learner = make_learner(rules(tiny_rule)[name], config, max_gradient_norm=0.1)
    rollout, state = with_memory(make_rollout(), config), start(learner)
    if cut:
        rollout = dataclasses.replace(rollout, truncations=rollout.actions == 3, executed=rollout.actions != 3)
    value_out = ValueOuts(normalized_adv=rollout.rewards[1:]) if name == "policy-gradient" else None
    want, want_logs = learner.update(state, rollout, value_out=value_out)
    prepared, table = learner.prepare(state, rollout, value_out=value_out)
    assert_same(prepared.params, state.params)
    got, logs = learner.gradient_steps(prepared, table, learner.minibatch_step)
    for ours, theirs in zip(tree_leaves(as_list(got)), tree_leaves(as_list(want)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(logs["total_loss"], want_logs["total_loss"])
    assert set(logs) == set(want_logs)


def as_list(state: LearnerState) -> list[Tensor]:
    return [x for x in torch.utils._pytree.tree_leaves(state) if isinstance(x, Tensor)]


def numbered(T: int = 5, B: int = 3) -> StepTable:
    """A table whose step t of trajectory b has the reward 10 t + b, between observations 10 t + b and 10 (t + 1) + b."""
    rows = (10.0 * torch.arange(T + 1)[:, None] + torch.arange(B)).double()
    rollout = Rollout(rows[..., None], rows.long(), rows - 10.0, torch.ones_like(rows), rows[..., None].expand(-1, -1, 60))
    outputs = {"logits": torch.zeros(T + 1, B, 60).double()}
    return make_table(rule_inputs(rollout, outputs), {"of_steps": rows[:-1], "of_rows": rows})


def test_a_line_of_the_table_is_a_step_and_the_rows_around_it() -> None:
    table = numbered()
    rewards = table.inputs.rewards
    assert table.num_lines == 15 and rewards.shape == (15, 1) and len(set(rewards.flatten().tolist())) == 15
    assert_same(table.inputs.observations, torch.stack([rewards, rewards + 10.0], dim=1))
    assert_same(table.targets["of_steps"], rewards)
    assert_same(table.targets["of_rows"], torch.cat([rewards, rewards + 10.0], dim=1))
    assert table.inputs.loss_mask is not None and table.inputs.loss_mask.shape == (15, 1)


@pytest.mark.parametrize("number", [1, 2, 4, 7, 15])
def test_each_step_is_in_one_minibatch_of_an_epoch(number: int) -> None:
    table = numbered()
    for order in draw_orders(2, 15, torch.Generator().manual_seed(0), "cpu"):
        parts = minibatches_of(table, order, number)
        sizes = [part.num_lines for part in parts]
        assert len(parts) == number and sum(sizes) == 15 and max(sizes) - min(sizes) <= 1
        rewards = torch.cat([part.inputs.rewards for part in parts])
        assert_same(rewards.sort(dim=0).values, table.inputs.rewards.sort(dim=0).values)
        for part in parts:  # what belongs together stays together
            assert_same(part.targets["of_steps"], part.inputs.rewards)
        if number > 1:
            assert not torch.equal(rewards, table.inputs.rewards)


def test_with_memory_a_minibatch_is_whole_trajectories(make_rollout: MakeRollout) -> None:
    """Each part's gradient is that of an update on its trajectories alone."""
    learner, rollout = make_learner(ActorCritic(), RECURRENT), with_memory(make_rollout(), RECURRENT)
    state, table = learner.prepare(start(learner), rollout)
    order = torch.tensor([2, 0, 1])
    parts = minibatches_of(table, order, 3)
    assert [part.num_lines for part in parts] == [1, 1, 1]
    for part, b in zip(parts, order.tolist(), strict=True):
        rows = dataclasses.replace(rollout, first_state=None)
        memory = tree_map(lambda x, b=b: x[b : b + 1], rollout.first_state)
        alone = dataclasses.replace(tree_map(lambda x, b=b: x[:, b : b + 1], rows), first_state=memory)
        got, _ = learner.minibatch_step(state, part)
        want, _ = learner.update(state, alone)
        torch.testing.assert_close(got.params["core.lstm.linear.weight"], want.params["core.lstm.linear.weight"])
        assert not torch.equal(got.params["core.lstm.linear.weight"], state.params["core.lstm.linear.weight"])


def test_orders_are_random_and_repeatable() -> None:
    first, again = (draw_orders(3, 50, torch.Generator().manual_seed(4), "cpu") for _ in range(2))
    assert_same(first, again)
    assert first.shape == (3, 50) and not torch.equal(first[0], first[1])


def ppo_step_by_hand(learner: Learner, state: LearnerState, rollout: Rollout) -> list[Tensor]:
    """The gradient of PPO's loss of a rollout in plain PyTorch."""
    params = {name: x.clone().requires_grad_() for name, x in state.params.items()}
    out, _ = learner.agent.unroll(params, rollout.observations)
    values, T = out["v"].squeeze(-1), rollout.rewards.shape[0] - 1
    log_pi, log_mu = (
        torch.distributions.Categorical(logits=x[:-1]).log_prob(rollout.actions[:-1])
        for x in (out["logits"], rollout.behaviour_logits)
    )
    ratio = (log_pi - log_mu).exp()
    weights = ratio.detach().clamp(max=1.0)
    advs, following = torch.zeros(T, rollout.rewards.shape[1], dtype=torch.float64), 0.0
    for t in reversed(range(T)):
        going = 0.99 * rollout.discounts[t + 1]
        advs[t] = (rollout.rewards[t + 1] + going * (values[t + 1] + 0.95 * following) - values[t]).detach()
        following = weights[t] * advs[t]
    counts = rollout.discounts[:-1] > 0
    normalized = (advs - advs[counts].mean()) / advs[counts].std(correction=0)
    surrogate = torch.min(ratio * normalized, ratio.clamp(0.8, 1.2) * normalized)
    error = (weights * advs + values[:-1].detach() - values[:-1]) ** 2
    return list(torch.autograd.grad((0.5 * error - surrogate)[counts].mean(), list(params.values())))


@pytest.mark.parametrize("bound", [0.0, 0.05])
def test_a_gradient_step_of_ppo_against_plain_autograd(make_rollout: MakeRollout, bound: float) -> None:
    learner = make_learner(PPO(), max_gradient_norm=bound)
    state, rollout = start(learner), make_rollout()
    after, logs = learner.update(state, rollout)
    gradient = ppo_step_by_hand(learner, state, rollout)
    norm = global_norm(dict(zip(state.params, gradient, strict=True)))
    torch.testing.assert_close(logs["global_gradient_norm"], norm)
    assert float(norm) > 0.1  # so that the bound of 0.05 is one
    factor = bound / (norm + 1e-6) if bound else 1.0
    for got, want in zip(after.opt_state.mu.values(), gradient, strict=True):
        torch.testing.assert_close(got, 0.1 * factor * want, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("settings", [{}, {"epochs": 2, "minibatches": 3}])
def test_steps_that_do_not_count_move_nothing(make_rollout: MakeRollout, settings: dict[str, int]) -> None:
    learner = make_learner(PPO(), **settings)
    state, rollout = start(learner), make_rollout(ends=())
    truncations, discounts = torch.zeros(7, 3, dtype=torch.bool), rollout.discounts.clone()
    truncations[2, 0], discounts[4, 1], discounts[5, 1] = True, 0.0, 0.0  # a time limit; an end, and a row of a reset
    executed = torch.ones_like(truncations)
    executed[2, 0] = executed[4, 1] = False
    rollout = dataclasses.replace(rollout, truncations=truncations, discounts=discounts, executed=executed)
    other = tree_map(torch.clone, rollout)
    for t, b in ((2, 0), (4, 1)):
        other.actions[t, b] = (other.actions[t, b] + 1) % 4
        other.behaviour_logits[t, b] += torch.arange(4.0)
        other.rewards[t + 1, b] += 100.0
    other.observations[4, 1] += 3.0  # nothing bootstraps from the last observation of an episode that ended
    results = [learner.update(state, each, generator=torch.Generator().manual_seed(1))[0] for each in (rollout, other)]
    assert_same(as_list(results[0]), as_list(results[1]))
    other.rewards[2, 0] += 1.0
    counted, _ = learner.update(state, other, generator=torch.Generator().manual_seed(1))
    assert not torch.equal(counted.params["torso.0.weight"], results[0].params["torso.0.weight"])


def test_targets_are_computed_once(tiny_rule: DiscoUpdateRule, make_rollout: MakeRollout) -> None:
    learner, once = make_learner(tiny_rule, epochs=2, minibatches=3), make_learner(tiny_rule)
    state, rollout = start(learner), make_rollout()
    after, logs = learner.update(state, rollout, generator=torch.Generator().manual_seed(0))
    want, _ = once.update(state, rollout)
    assert int(after.opt_state.count) == 6 and int(want.opt_state.count) == 1
    assert_same(as_list(after.meta_state), as_list(want.meta_state))  # the rule has seen one rollout
    assert all(x.isfinite() for x in logs.values()) and not any(x.requires_grad for x in as_list(after))


@pytest.mark.parametrize("name", ["disco", "doubly-robust", "actor-critic"])
def test_many_gradient_steps_bring_values_to_their_targets(
    name: str, tiny_rule: DiscoUpdateRule, make_rollout: MakeRollout
) -> None:
    """Targets that were the present value and the first error would run ahead of the value for ever."""
    rule: Any = DoublyRobust() if name == "doubly-robust" else rules(tiny_rule)[name]
    learner, rollout = make_learner(rule, epochs=300), make_rollout()
    before = start(learner)
    _, table = learner.prepare(before, rollout)
    after, _ = learner.update(before, rollout, generator=torch.Generator().manual_seed(0))
    _, moved = learner.prepare(after, rollout)

    names = ("value_target", "tds") if name == "actor-critic" else ("q_target", "q_td")

    def values(table: StepTable) -> Tensor:
        target, error = (table.targets[each][:, 0] for each in names)
        return target - error

    goal = table.targets[names[0]][:, 0]
    mask = table.inputs.loss_mask
    counts = torch.ones_like(goal, dtype=torch.bool) if mask is None else mask[:, 0] > 0
    first, last = ((values(each) - goal)[counts].abs().mean() for each in (table, moved))
    assert last < 0.5 * first


def test_logs_are_means_over_the_gradient_steps(make_rollout: MakeRollout) -> None:
    learner = make_learner(PPO(), epochs=2, minibatches=2)
    seen: list[Tensor] = []
    state, table = learner.prepare(start(learner), make_rollout())

    def step(state: LearnerState, part: StepTable) -> tuple[LearnerState, dict[str, Tensor]]:
        state, logs = learner.minibatch_step(state, part)
        seen.append(logs["total_loss"])
        return state, logs

    _, logs = learner.gradient_steps(state, table, step, torch.Generator().manual_seed(0))
    assert len(seen) == 4
    torch.testing.assert_close(logs["total_loss"], torch.stack(seen).mean())


def test_a_traced_session_is_the_plain_one(tmp_path: Path) -> None:
    sessions = [TrainingSession(small_config(tmp_path, speed=speed, **STEPS)) for speed in ("plain", "traced")]
    for _ in range(5):
        for session in sessions:
            session.advance()
    plain, traced = ({n: x.double() for n, x in each.learner_state.params.items()} for each in sessions)
    for name, x in plain.items():
        torch.testing.assert_close(traced[name], x, rtol=1e-4, atol=1e-6)
    assert int(sessions[1].learner_state.opt_state.count) == 5 * 12 and sessions[1].counters.updates == 5
    assert len(sessions[1]._recorded_update._step._recordings) == 4  # 10 steps in parts of 2 and 3, with all logs or without


@pytest.mark.parametrize("speed", ["plain", "traced"])
def test_a_run_that_is_resumed_is_the_run_that_was_not_stopped(tmp_path: Path, speed: str) -> None:
    config = small_config(tmp_path, speed=speed, **STEPS)
    whole = train(config, view=False).folder
    half = train(dataclasses.replace(config, steps=60, name="half"), view=False).folder
    train(dataclasses.replace(config, steps=120), resume=half, view=False)
    assert_same(last_state(half), last_state(whole))
    assert metrics_of(half) == metrics_of(whole)


def test_mistakes(make_rollout: MakeRollout) -> None:
    learner = make_learner(PPO(), minibatches=19)
    with pytest.raises(ValueError, match=r"`minibatches` must be at most the number of steps of a batch, 18, got 19; use l"):
        learner.update(start(learner), make_rollout())
    table = dataclasses.replace(numbered(), memory=torch.zeros(15, 1))
    with pytest.raises(ValueError, match=r"at most the number of trajectories of a batch, 15, got 19; use larger"):
        minibatches_of(table, torch.arange(15), 19)
    with pytest.raises(ValueError, match=r"`epochs` must be at least 1, got 0"):
        make_learner(PPO(), epochs=0)
    with pytest.raises(ValueError, match=r"`minibatches` must be at least 1, got 0"):
        make_learner(PPO(), minibatches=0)
    with pytest.raises(
        ValueError, match=r"`max_gradient_norm` must be finite and not negative, got -0.5; 0 leaves gradient"
    ):
        make_learner(PPO(), max_gradient_norm=-0.5)
    inputs = rule_inputs(make_rollout(), {"logits": torch.zeros(7, 3, 4).double()})
    with pytest.raises(
        ValueError, match=r"must be \[T, B, ...\] or \[T\+1, B, ...\] with T = 6 and B = 3 .* got \[6\]; set"
    ):
        make_table(inputs, {"mean": torch.zeros(6)})


def test_it_teaches_cartpole(tmp_path: Path) -> None:
    result = train(env="CartPole-v1", rule="ppo", steps=30_000, device="cpu", tensorboard=False, runs=tmp_path, view=False)
    assert result.metrics[0]["interval_return"] < 60 and result.metrics[-1]["interval_return"] > 150
