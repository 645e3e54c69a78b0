"""`DiscoTrainer`: the loop of the quick start, with a network and an environment that know nothing of this package."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import assert_same
from torch import Tensor, nn

from disco_torch import (
    ActorCritic,
    ActorCriticConfig,
    DiscoConfig,
    DiscoTrainer,
    DiscoUpdateRule,
    UpdateRule,
    collect_rollout,
    load_disco103_weights,
)
from disco_torch.data import memory_resets
from disco_torch.layers import LSTM, LSTMState
from disco_torch.types import Rollout

OBS, ACTIONS = 6, 3


class ToyEnv:
    """A cell to point at: reward 1 for the action that the observation shows; episodes of 5 steps."""

    def __init__(self, num_envs: int, seed: int = 0) -> None:
        self.num_envs, self.random = num_envs, np.random.default_rng(seed)
        self.now = np.zeros(num_envs, int)
        self.wanted = self.random.integers(ACTIONS, size=num_envs)

    def obs(self) -> np.ndarray:
        shown = np.zeros((self.num_envs, OBS))
        shown[np.arange(self.num_envs), self.wanted] = 1.0
        shown[:, ACTIONS] = self.now / 5
        return shown

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rewards = (actions == self.wanted).astype(np.float64)
        self.now += 1
        dones = self.now == 5
        self.now[dones] = 0
        self.wanted = self.random.integers(ACTIONS, size=self.num_envs)
        return rewards, dones


class ToyAgent(nn.Module):
    """One hidden layer, and a memory as LSTMs have it."""

    def __init__(self, sizes: dict[str, int], num_actions: int = ACTIONS, returns_state: bool = False) -> None:
        super().__init__()
        self.num_actions, self.returns_state = num_actions, returns_state
        self.body = nn.Linear(OBS, 16)
        self.heads = nn.ModuleDict({name: nn.Linear(16, size) for name, size in sizes.items()})

    def forward(self, observations: Tensor, should_reset: Tensor | None = None) -> Any:
        hidden = torch.relu(self.body(observations))
        out = {}
        for name, head in self.heads.items():
            per_action = name not in ("logits", "y", "v")
            out[name] = head(hidden).unflatten(-1, (self.num_actions, -1)) if per_action else head(hidden)
        return (out, should_reset) if self.returns_state else out

    def forward_step(self, observations: Tensor, lstm_state: Any) -> tuple[dict[str, Tensor], Any]:
        out = {"logits": self.heads["logits"](torch.relu(self.body(observations)))}
        return out, tuple(part + 1 for part in lstm_state)

    def init_lstm_state(self, batch_size: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
        return torch.zeros(batch_size, 4, device=device), torch.zeros(batch_size, 4, device=device)


def sizes_of(rule: UpdateRule) -> dict[str, int]:
    """The widths of the layers that give what a rule asks for."""
    spec = rule.outputs(ACTIONS)
    return dict(spec.flat) | {name: ACTIONS * size for name, size in spec.per_action.items()}


@pytest.fixture
def rule(tiny_config: DiscoConfig, randomize: Callable[..., None]) -> DiscoUpdateRule:
    rule = DiscoUpdateRule(tiny_config)
    randomize(rule)
    return rule


def agent_for(rule: UpdateRule, **kwargs: Any) -> ToyAgent:
    torch.manual_seed(0)
    return ToyAgent(sizes_of(rule), **kwargs)


def learn(trainer: DiscoTrainer, agent: Any, steps: int, rollout_len: int, num_envs: int = 2) -> list[dict[str, float]]:
    """The loop of the quick start."""
    device = torch.device("cpu")
    env = ToyEnv(num_envs=num_envs)
    obs = env.obs()
    lstm_state = agent.init_lstm_state(env.num_envs, device)

    def step_fn(actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rewards, dones = env.step(actions)
        return env.obs(), rewards, dones

    history = []
    for _ in range(steps):
        rollout, obs, lstm_state = collect_rollout(agent, step_fn, obs, lstm_state, rollout_len=rollout_len, device=device)
        history.append(trainer.step(rollout))
    return history


@pytest.mark.parametrize("returns_state", [False, True])
def test_the_loop_of_the_quick_start(rule: DiscoUpdateRule, returns_state: bool) -> None:
    agent = agent_for(rule, returns_state=returns_state)
    identities, before = [id(param) for param in agent.parameters()], [p.detach().clone() for p in agent.parameters()]
    trainer = DiscoTrainer(agent, device="cpu", rule=rule, batch_size=6, replay_ratio=2)
    history = learn(trainer, agent, steps=6, rollout_len=5)
    assert all(type(value) is float for logs in history for value in logs.values())
    assert [logs["updates"] for logs in history] == [0.0, 0.0, 2.0, 2.0, 2.0, 2.0]  # 2, 4, then 6 trajectories
    assert all(math.isnan(logs["total_loss"]) for logs in history[:2])
    assert all(math.isfinite(value) for logs in history[2:] for value in logs.values())
    assert [id(param) for param in agent.parameters()] == identities  # changed in place
    assert all(not torch.equal(old, new) for old, new in zip(before, agent.parameters(), strict=True))
    assert all(torch.equal(trainer.state.params[name], param) for name, param in agent.named_parameters())


def test_the_released_rule_is_found(disco103_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISCO_TORCH_DISCO103", str(disco103_path))
    agent = agent_for(DiscoUpdateRule())
    assert agent.heads["y"].out_features == 600
    trainer = DiscoTrainer(agent, device=torch.device("cpu"))
    history = learn(trainer, agent, steps=32, rollout_len=29)  # the 32nd rollout of 2 fills a batch of 64
    assert all(math.isnan(logs["total_loss"]) for logs in history[:-1])
    assert math.isfinite(history[-1]["total_loss"]) and history[-1]["updates"] == 1.0


def test_the_rule_in_a_given_file(disco103_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DISCO_TORCH_CACHE", str(tmp_path))
    monkeypatch.delenv("DISCO_TORCH_DISCO103", raising=False)
    trainer = DiscoTrainer(agent_for(DiscoUpdateRule()), weights_path=disco103_path)
    released = DiscoUpdateRule()
    load_disco103_weights(released, disco103_path)
    assert_same(dict(trainer.rule.state_dict()), dict(released.state_dict()))
    assert list(tmp_path.iterdir()) == []


def test_it_learns() -> None:
    rule = ActorCritic()
    agent = agent_for(rule)
    # Settings that learn with each of 8 seeds; with a learning rate of 0.02 most policies collapse.
    trainer = DiscoTrainer(agent, rule=rule, lr=0.005, batch_size=16, replay_capacity=16, replay_ratio=2)
    learn(trainer, agent, steps=200, rollout_len=10, num_envs=4)
    shown = torch.eye(OBS)[:ACTIONS]
    policy = agent.forward_step(shown, ())[0]["logits"].softmax(-1)
    assert policy.diagonal().min() > 0.6  # 1/3 before


def rollouts_of(agent: Any, count: int, rollout_len: int = 5) -> list[Rollout]:
    env, generator = ToyEnv(2), torch.Generator().manual_seed(3)
    obs, state = env.obs(), agent.init_lstm_state(2, "cpu")

    def step_fn(actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rewards, dones = env.step(actions)
        return env.obs(), rewards, dones

    rollouts = []
    for _ in range(count):
        rollout, obs, state = collect_rollout(agent, step_fn, obs, state, rollout_len, generator=generator)
        rollouts.append(rollout)
    return rollouts


@pytest.mark.parametrize("before", [1, 5])
def test_a_state_goes_on_to_the_last_bit(rule: DiscoUpdateRule, before: int, tmp_path: Path) -> None:
    """Also from a moment before the replay holds a batch."""
    agent = agent_for(rule)
    rollouts = rollouts_of(agent, 9)
    trainer = DiscoTrainer(agent, rule=rule, batch_size=6, replay_capacity=8, seed=1)
    for rollout in rollouts[:before]:
        trainer.step(rollout)
    torch.save(trainer.state_dict(), tmp_path / "trainer.pt")

    other = ToyAgent(sizes_of(rule))  # other parameters, another seed
    again = DiscoTrainer(other, rule=rule, batch_size=6, replay_capacity=8, seed=2)
    again.load_state_dict(torch.load(tmp_path / "trainer.pt", weights_only=True))
    assert_same(dict(agent.state_dict()), dict(other.state_dict()))
    assert_same(trainer.state_dict(), again.state_dict())  # also before the first rollout tells the shapes
    for rollout in rollouts[before:]:
        ours, theirs = trainer.step(rollout), again.step(rollout)
        assert ours.keys() == theirs.keys() and ours["updates"] == theirs["updates"]
        assert math.isnan(ours["total_loss"]) or ours == theirs
    assert_same(trainer.state_dict(), again.state_dict())
    assert_same(dict(agent.state_dict()), dict(other.state_dict()))


def test_the_seed_decides_the_draws(rule: DiscoUpdateRule) -> None:
    losses = []
    for seed in (1, 1, 2):
        agent = agent_for(rule)
        trainer = DiscoTrainer(agent, rule=rule, batch_size=4, seed=seed)
        losses.append([trainer.step(rollout)["total_loss"] for rollout in rollouts_of(agent_for(rule), 4)][1:])
    assert losses[0] == losses[1] != losses[2]


def test_hyper_parameters_reach_the_rule(rule: DiscoUpdateRule) -> None:
    def loss(**kwargs: Any) -> float:
        trainer = DiscoTrainer(agent_for(rule), rule=rule, batch_size=2, **kwargs)
        return trainer.step(rollouts_of(agent_for(rule), 1)[0])["total_loss"]

    assert loss(hyper_params={"pi_cost": 2.0}) != loss() == loss(hyper_params={})
    with pytest.raises(ValueError, match="`hyper_params` has no 'pie_cost'"):
        loss(hyper_params={"pie_cost": 2.0})


@pytest.mark.parametrize("method", ["forward", "forward_step", "init_lstm_state"])
def test_an_agent_must_have_its_methods(rule: DiscoUpdateRule, method: str) -> None:
    methods = {"forward": ToyAgent.forward, "forward_step": ToyAgent.forward_step}
    methods["init_lstm_state"] = ToyAgent.init_lstm_state
    del methods[method]
    half: Any = type("Half", (nn.Module,), methods)()
    half.weight = nn.Parameter(torch.zeros(1))
    with pytest.raises(ValueError, match=f"`agent` must have a method `{method}`, got Half without one"):
        DiscoTrainer(half, rule=rule)


@pytest.mark.parametrize("name", ["y", "z", "q", "aux_pi"])
def test_outputs_of_other_sizes_are_named(rule: DiscoUpdateRule, name: str) -> None:
    sizes = sizes_of(rule)
    sizes[name] += 1 if name == "y" else ACTIONS
    agent = ToyAgent(sizes)
    trainer = DiscoTrainer(agent, rule=rule, batch_size=2)
    with pytest.raises(ValueError, match=rf"`agent_out\['{name}'\]` must be \[6, 2, .*see `rule\.outputs"):
        trainer.step(rollouts_of(agent, 1)[0])


def test_a_missing_output_is_named(rule: DiscoUpdateRule) -> None:
    sizes = sizes_of(rule)
    del sizes["aux_pi"]
    agent = ToyAgent(sizes)
    with pytest.raises(ValueError, match="'aux_pi' is missing"):
        DiscoTrainer(agent, rule=rule, batch_size=2).step(rollouts_of(agent, 1)[0])


def test_wrong_settings_and_rollouts_are_named(rule: DiscoUpdateRule) -> None:
    agent = agent_for(rule)
    for wrong in ({"replay_ratio": 0}, {"batch_size": 0}, {"replay_capacity": 5, "batch_size": 6}):
        with pytest.raises(ValueError, match="`replay_capacity` at least `batch_size`, got"):
            DiscoTrainer(agent, rule=rule, **wrong)
    trainer = DiscoTrainer(agent, rule=rule, batch_size=2)
    trainer.step(rollouts_of(agent, 1, rollout_len=5)[0])
    with pytest.raises(ValueError, match="`rollout` must have 6 rows, got 5; collect rollouts of one length"):
        trainer.step(rollouts_of(agent, 1, rollout_len=4)[0])
    broken = rollouts_of(agent, 1)[0]
    broken.discounts = broken.discounts[:-1]
    with pytest.raises(ValueError, match=r"`discounts` must be \[6, 2\], got \[5, 2\]"):
        trainer.step(broken)


class RecurrentAgent(ToyAgent):
    """An LSTM before the head, which learns from the memory that it acted with."""

    def __init__(self, sizes: dict[str, int]) -> None:
        super().__init__(sizes)
        self.body = nn.Linear(OBS, 4)
        self.core = LSTM(4, 16)

    def forward(self, observations: Tensor, should_reset: Tensor, lstm_state: Any) -> Any:
        rows = []
        for row, reset in zip(observations, should_reset, strict=True):
            keeps = (~reset.bool()).float().unsqueeze(-1)
            state = self.core(self.body(row), LSTMState(*(keeps * part for part in lstm_state)))
            lstm_state = (state.hidden, state.cell)
            rows.append(self.heads["logits"](state.hidden))
        return {"logits": torch.stack(rows), "v": torch.zeros(*observations.shape[:2], 1)}

    def forward_step(self, observations: Tensor, lstm_state: Any) -> tuple[dict[str, Tensor], Any]:
        state = self.core(self.body(observations), LSTMState(*lstm_state))
        return {"logits": self.heads["logits"](state.hidden)}, (state.hidden, state.cell)

    def init_lstm_state(self, batch_size: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
        return torch.zeros(batch_size, 16, device=device), torch.zeros(batch_size, 16, device=device)


def test_a_recurrent_agent_learns_from_the_memory_that_it_acted_with() -> None:
    rule = ActorCritic(ActorCriticConfig(num_bins=1, nonlinear_value_transform=False))
    torch.manual_seed(0)
    agent = RecurrentAgent({"logits": ACTIONS})
    rollouts = rollouts_of(agent, 4, rollout_len=7)  # episodes take 5 steps
    trainer = DiscoTrainer(agent, rule=rule, batch_size=8, lr=0.01)
    for rollout in rollouts:
        assert rollout.first_state is not None
        out = agent(rollout.observations, memory_resets(rollout), rollout.first_state)
        torch.testing.assert_close(out["logits"], rollout.behaviour_logits)
    before = agent.core.linear.weight.detach().clone()
    assert [trainer.step(rollout)["updates"] for rollout in rollouts] == [0.0, 0.0, 0.0, 1.0]
    assert trainer.replay is not None
    drawn = trainer.replay.sample(8, num_fresh=8)
    assert drawn.first_state[0].shape == (8, 16) and drawn.first_state[1].any()
    assert not torch.equal(agent.core.linear.weight, before)
    again = DiscoTrainer(RecurrentAgent({"logits": ACTIONS}), rule=rule, batch_size=8)
    again.load_state_dict(trainer.state_dict())
    assert again.step(rollouts[0]) == trainer.step(rollouts[0])


def test_memory_that_an_agent_does_not_take_is_not_stored(rule: DiscoUpdateRule) -> None:
    agent = agent_for(rule)
    trainer = DiscoTrainer(agent, rule=rule, batch_size=2)
    (rollout,) = rollouts_of(agent, 1)
    assert rollout.first_state is not None and trainer.step(rollout)["updates"] == 1.0
    assert trainer.replay is not None and trainer.replay.sample(1).first_state is None
