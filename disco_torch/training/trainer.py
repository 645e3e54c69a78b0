"""`DiscoTrainer`: learning with a discovered rule for any module in any environment, one call a rollout."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from disco_torch.data import Replay
from disco_torch.data.alignment import check_rollout
from disco_torch.optim import AdamConfig
from disco_torch.rules import DiscoHyperParams, DiscoUpdateRule, UpdateRule, resolve_hyper_params
from disco_torch.runs import pack, unpack
from disco_torch.training.update import Learner
from disco_torch.types import AgentOutput, LearningOutputs, Observations, Params, Rollout, Summarizer, tree_map
from disco_torch.weights import load_disco103_weights


class ModuleAgent:
    """Any module with `forward(observations, should_reset) -> outputs`, as learning needs it.

    One whose `forward` has a third parameter, `lstm_state`, is given the memory before the first row.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.takes_memory = "lstm_state" in inspect.signature(module.forward).parameters

    def init(self, generator: torch.Generator | None = None) -> Params:
        """The parameters that are to be learned; frozen ones stay in the module."""
        trainable = {name: param for name, param in self.module.named_parameters() if param.requires_grad}
        return {name: param.detach().clone() for name, param in trainable.items()}

    def unroll(
        self, params: Params, observations: Observations, should_reset: Tensor | None = None, state: Any = None
    ) -> tuple[AgentOutput, Any]:
        memory = {"lstm_state": state} if self.takes_memory else {}
        out = functional_call(self.module, params, (observations, should_reset), memory)
        return (out[0] if isinstance(out, tuple) else out), state

    def summarized_outputs(
        self,
        params: Params,
        observations: Observations,
        should_reset: Tensor | None,
        state: Any,
        summarizer: Summarizer | None,
    ) -> LearningOutputs:
        """All outputs: a module computes those of all actions at once, and the rule summarises them."""
        return LearningOutputs(self.unroll(params, observations, should_reset, state)[0])

    def learning_outputs(
        self, params: Params, rollout: Rollout, should_reset: Tensor, summarizer: Summarizer | None = None
    ) -> LearningOutputs:
        return self.summarized_outputs(params, rollout.observations, should_reset, rollout.first_state, summarizer)

    def taken_outputs(self, params: Params, rollout: Rollout, should_reset: Tensor) -> LearningOutputs:
        return self.learning_outputs(params, rollout, should_reset)


class DiscoTrainer:
    """Replay, updates, target network and the rule's state, behind one method.

    Args:
      agent: a module with `forward(observations [T, B, ...], should_reset [T, B])` returning a dict of `logits` [T, B, A],
        `y` [T, B, Y], `z` [T, B, A, Y], `q` [T, B, A, V] and `aux_pi` [T, B, A, A]; `forward_step(observations [B, ...],
        lstm_state)` returning outputs and memory; and `init_lstm_state(batch_size, device)`. A recurrent one takes the
        memory before the first row, too: `forward(observations, should_reset, lstm_state)`; without that parameter it learns
        from trajectories that all begin with an empty memory. Its parameters are changed in place.
      device: to learn on; the agent's unless given.
      lr: learning rate.
      hyper_params: changes to `DiscoHyperParams`.
      replay_capacity: trajectories to keep.
      batch_size: trajectories an update learns from; there is no update before as many are stored.
      replay_ratio: updates a call of `step`.
      weights_path: of the rule's weights; Disco103's are found or downloaded unless given.
      rule: another rule than Disco103; `weights_path` is then not used.
      seed: of the draws from the replay.
    """

    def __init__(
        self,
        agent: nn.Module,
        *,
        device: torch.device | str | None = None,
        lr: float = 0.01,
        hyper_params: Mapping[str, float] | DiscoHyperParams | None = None,
        replay_capacity: int = 1024,
        batch_size: int = 64,
        replay_ratio: int = 1,
        weights_path: str | Path | None = None,
        rule: UpdateRule | None = None,
        seed: int = 0,
    ) -> None:
        for method in ("forward", "forward_step", "init_lstm_state"):
            given = getattr(agent, method, None)
            # `nn.Module` itself has a `forward`, which does nothing but raise.
            if not callable(given) or getattr(given, "__func__", None) is nn.Module.forward:
                raise ValueError(f"`agent` must have a method `{method}`, got {type(agent).__name__} without one.")
        if replay_ratio < 1 or batch_size < 1 or replay_capacity < batch_size:
            raise ValueError(
                "`replay_ratio` and `batch_size` must be at least 1 and `replay_capacity` at least `batch_size`, "
                f"got {replay_ratio}, {batch_size} and {replay_capacity}."
            )
        self.device = next(agent.parameters()).device if device is None else torch.device(device)
        self.agent = agent.to(self.device)
        if rule is None:
            rule = DiscoUpdateRule()
            load_disco103_weights(rule, weights_path)
        self.rule = rule.to(self.device)
        hyper = resolve_hyper_params(self.rule.hyper_params_type, hyper_params)
        own = ModuleAgent(self.agent)
        self.learner = Learner(own, self.rule, AdamConfig(learning_rate=lr), hyper)
        self._takes_memory = own.takes_memory
        self.state = self.learner.init()
        self.batch_size, self.replay_ratio, self.replay_capacity = batch_size, replay_ratio, replay_capacity
        self.replay: Replay | None = None
        self._stored_replay: dict[str, Any] | None = None  # loaded, until a rollout tells the shapes
        self.generator = torch.Generator(self.device).manual_seed(seed)

    def step(self, rollout: Rollout) -> dict[str, float]:
        """Stores a rollout of [T+1, B] rows, from `collect_rollout`, and learns from the replay.

        Returns:
          The logs of the last update, `total_loss` among them, and `updates`, how many there were. Before the replay holds
          a batch there is none, and `total_loss` is NaN.
        """
        check_rollout(rollout)
        if not self._takes_memory:
            rollout = dataclasses.replace(rollout, first_state=None)
        replay = self._replay_for(rollout)
        replay.add(rollout)
        if len(replay) < self.batch_size:
            return {"total_loss": float("nan"), "updates": 0.0}
        self.state.params = self.learner.agent.init()  # as they are now: the module may have been loaded or changed
        for _ in range(self.replay_ratio):
            self.state, logs = self.learner.update(self.state, replay.sample(self.batch_size, self.generator))
        self._write_params()
        return {name: float(value) for name, value in logs.items()} | {"updates": float(self.replay_ratio)}

    def _replay_for(self, rollout: Rollout) -> Replay:
        if self.replay is None:
            rows, num_actions = rollout.rewards.shape[0], rollout.behaviour_logits.shape[2]
            example = tree_map(lambda x: torch.zeros_like(x[0, 0]), rollout.observations)
            memory = tree_map(lambda x: torch.zeros_like(x[0]), rollout.first_state)
            self.replay = Replay(self.replay_capacity, rows, example, num_actions, self.device, memory)
            if self._stored_replay is not None:
                self.replay.load_state_dict(self._stored_replay)
                self._stored_replay = None
        return self.replay

    def _write_params(self) -> None:
        with torch.no_grad():
            for name, value in self.state.params.items():
                self.agent.get_parameter(name).copy_(value)

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes: the agent, the optimiser, the rule's state, the replay and the draws."""
        return {
            "learner": pack(self.state),
            "replay": self._stored_replay if self.replay is None else self.replay.state_dict(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a `state_dict`; the replay is filled when the first rollout tells its shapes."""
        self.state = unpack(state["learner"], self.state, "learner")
        self.generator.set_state(state["generator"])
        self._write_params()
        self.replay = None
        self._stored_replay = state["replay"]
