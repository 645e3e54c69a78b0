"""Mistakes that were once there: what users hand in is copied, frozen, loaded, moved, or diverges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import small_config
from torch import nn

from disco_torch import (
    AdamConfig,
    DiscoConfig,
    DiscoTrainer,
    DiscoUpdateRule,
    MetaNetConfig,
    Rollout,
    ValueFunction,
    ValueFunctionConfig,
    collect_rollout,
    evaluate,
    load_run,
    save_rule,
    train,
)
from disco_torch.cli import main
from disco_torch.runs import RunDiverged
from disco_torch.runs.checkpoint import list_checkpoints, load_checkpoint
from disco_torch.training.session import TrainingSession


def small_rule() -> DiscoUpdateRule:
    return DiscoUpdateRule(DiscoConfig(net=MetaNetConfig(prediction_size=6, hidden_size=5), num_bins=5, max_abs_value=3.0))


class OneLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.flat = nn.Linear(2, 4), nn.ModuleDict({"logits": nn.Linear(4, 3), "y": nn.Linear(4, 6)})
        self.per_action = nn.ModuleDict({"z": nn.Linear(4, 18), "q": nn.Linear(4, 15), "aux_pi": nn.Linear(4, 9)})
        self.frozen.requires_grad_(False)

    def forward(self, observations: torch.Tensor, should_reset: Any = None) -> dict[str, torch.Tensor]:
        hidden = torch.tanh(self.frozen(observations))
        out = {name: head(hidden) for name, head in self.flat.items()}
        return out | {name: head(hidden).unflatten(-1, (3, -1)) for name, head in self.per_action.items()}

    def forward_step(self, observations: torch.Tensor, lstm_state: Any) -> tuple[dict[str, torch.Tensor], Any]:
        return {"logits": self.flat["logits"](torch.tanh(self.frozen(observations)))}, lstm_state

    def init_lstm_state(self, batch_size: int, device: Any) -> tuple[()]:
        return ()


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_an_environment_may_reuse_its_buffers(kind: str) -> None:
    observations: Any = np.zeros((1, 2), dtype=np.float32)
    rewards: Any = np.zeros(1, dtype=np.float32)
    if kind == "tensor":
        observations, rewards = torch.from_numpy(observations), torch.from_numpy(rewards)
    count = 0

    def step_fn(actions: Any) -> tuple[Any, Any, Any]:
        nonlocal count
        count += 1
        observations[:] = count
        rewards[:] = count
        return observations, rewards, np.zeros(1, dtype=bool) if kind == "array" else torch.zeros(1, dtype=torch.bool)

    rollout, _, _ = collect_rollout(OneLayer(), step_fn, observations, (), rollout_len=4)
    assert rollout.observations[:, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert rollout.rewards[:, 0].tolist() == [0, 1, 2, 3, 4]


def random_rollout(rows: int = 5, batch: int = 4) -> Rollout:
    actions = torch.randint(3, (rows, batch))
    return Rollout(
        torch.randn(rows, batch, 2), actions, torch.randn(rows, batch), torch.ones(rows, batch), torch.zeros(rows, batch, 3)
    )


def test_frozen_parameters_stay_and_loaded_ones_count() -> None:
    torch.manual_seed(0)
    agent = OneLayer()
    trainer = DiscoTrainer(agent, lr=1e-2, batch_size=4, replay_capacity=8, rule=small_rule())
    frozen, learned = agent.frozen.weight.clone(), agent.flat["logits"].weight.clone()
    trainer.step(random_rollout())
    assert torch.equal(agent.frozen.weight, frozen) and not torch.equal(agent.flat["logits"].weight, learned)
    with torch.no_grad():
        agent.flat["logits"].weight.zero_()  # as if other weights had been loaded
    trainer.step(random_rollout())
    assert 0 < agent.flat["logits"].weight.abs().max() <= 0.0101  # one step of 1e-2 away from what was loaded


def test_the_value_function_learns_nothing_behind_a_time_limit() -> None:
    def values_after(void_reward: float) -> torch.Tensor:
        torch.manual_seed(0)
        function = ValueFunction(torch.zeros(5), ValueFunctionConfig(dense=(8,), aligned=True, learning_rate=1e-2))
        observations = torch.eye(5).unsqueeze(1)  # a state of its own for each row
        rewards, cuts = torch.zeros(5, 1), torch.zeros(5, 1, dtype=torch.bool)
        rewards[3], cuts[2] = void_reward, True  # the step that leaves row 2 leads nowhere
        rollout = Rollout(observations, torch.zeros(5, 1).long(), rewards, torch.ones(5, 1), torch.zeros(5, 1, 2), cuts)
        state = function.init(torch.Generator().manual_seed(0))
        for _ in range(30):
            state, outs, _ = function.update(state, rollout, torch.zeros(5, 1, 2))
        assert outs.value is not None
        return outs.value[:, 0]

    assert float((values_after(10.0) - values_after(0.0)).abs().max()) < 0.5


def test_a_run_that_diverges_stops_and_keeps_what_was_good(tmp_path: Path) -> None:
    config = small_config(tmp_path, optimizer=AdamConfig(learning_rate=1e30), checkpoint_every=1)
    with pytest.raises(
        RunDiverged,
        match=r"the loss must be finite, got nan with learning rate 1e\+30, .* at step \d+; .*from before",
    ):
        train(config, view=False)
    checkpoints = tmp_path / "catch-actor-critic-seed0" / "checkpoints"
    assert list_checkpoints(checkpoints)
    learning = load_checkpoint(checkpoints)["session"]["learning"]
    assert all(torch.isfinite(leaf).all() for leaf in learning.values())


def test_the_last_rollouts_are_in_the_metrics(tmp_path: Path) -> None:
    config = small_config(tmp_path, log_every=7)
    result = train(config, view=False)
    lines = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["steps"] == config.steps and np.isfinite(result.final_return)
    # Lengthened, it is the run that would have been longer from the start.
    train(small_config(tmp_path, log_every=7, steps=2 * config.steps), resume=result.folder, view=False)
    steps = [json.loads(line)["steps"] for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert config.steps not in steps and steps[-1] == 2 * config.steps and steps == sorted(set(steps))


def test_an_agent_is_evaluated_without_its_rule(tmp_path: Path) -> None:
    save_rule(tmp_path / "rule.safetensors", small_rule())
    result = train(small_config(tmp_path, rule=str(tmp_path / "rule.safetensors")), view=False)
    (tmp_path / "rule.safetensors").unlink()
    trained = load_run(result.folder, "cpu")
    stored = load_checkpoint(result.folder / "checkpoints")["session"]["learning"]
    assert all(torch.equal(param, stored[f"learner/params/{name}"]) for name, param in trained.params.items())
    assert len(evaluate(trained.agent, trained.params, trained.make_env(2), 4).returns) == 4


def test_a_checkpoint_of_another_kind_of_device(tmp_path: Path) -> None:
    session = TrainingSession(small_config(tmp_path))
    session.advance()
    state = session.state_dict() | {"device": "cuda", "generator": torch.zeros(16, dtype=torch.uint8)}
    with pytest.warns(UserWarning, match="is of a run on cuda; the run continues on cpu with other random numbers"):
        TrainingSession(small_config(tmp_path)).load_state_dict(state)


def test_evaluate_checks_its_numbers_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(tmp_path / "none"), "--episodes", "0"]) == 2
    assert "`--episodes` and `--num-envs` must be at least 1, got 0 and 10" in capsys.readouterr().err
