"""The agent: torso -> core -> heads and action model.

An `Agent` module holds an architecture and a first set of weights. Learning passes parameters through explicitly:
`agent.unroll(params, ...)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from disco_torch.agents.action_model import ActionModel, Root
from disco_torch.agents.config import CORES, TORSOS, AgentConfig
from disco_torch.agents.heads import Heads
from disco_torch.agents.own_torso import OwnTorso
from disco_torch.agents.torso_choice import choose_torso
from disco_torch.layers import init_params, linear_each
from disco_torch.types import (
    AgentOutput,
    LearningOutputs,
    Observations,
    OutputSpec,
    Params,
    Rollout,
    Summarizer,
    tree_leaves,
    tree_map,
)


def sample_actions(logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draws from the softmax of the logits, [..., A] -> [...], by the Gumbel-max trick."""
    uniform = torch.rand(logits.shape, generator=generator, device=logits.device, dtype=logits.dtype)
    return actions_from(logits, uniform)


def actions_from(logits: Tensor, uniforms: Tensor) -> Tensor:
    """The same draw from given uniform numbers, [..., A] each -> [...]."""
    # Open at 0, so that both logarithms are finite.
    noise = -torch.log(-torch.log(uniforms.clamp_min(torch.finfo(uniforms.dtype).tiny)))
    return torch.argmax(logits + noise, dim=-1)


class Agent(nn.Module):
    """An agent for any tree of observations and `num_actions` discrete actions.

    Args:
      example: one observation without leading dimensions (its content does not matter).
      num_actions: how many there are.
      outputs: what the rule asks for, `rule.outputs(num_actions)`.
      config: parts and sizes; a torso of `auto` is chosen by `choose_torso`.
      torso: a module `f(observations) -> [T, B, F]` in place of the configuration's; see `OwnTorso`.
    """

    def __init__(
        self,
        example: Observations,
        num_actions: int,
        outputs: OutputSpec,
        config: AgentConfig | None = None,
        *,
        torso: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if num_actions < 1:
            raise ValueError(f"`num_actions` must be at least 1, got {num_actions}.")
        if outputs.flat.get("logits", num_actions) != num_actions:
            raise ValueError(
                f"`num_actions` must be that of the outputs, {outputs.flat['logits']}, got {num_actions}; "
                "use `rule.outputs(num_actions)`."
            )
        config = config or AgentConfig()
        self.config = config = choose_torso(config, example) if torso is None else config
        self.num_actions = num_actions
        self.outputs = outputs
        self.observation_shapes = [tuple(leaf.shape) for leaf in tree_leaves(example)]
        self.torso = TORSOS[config.torso](example, config) if torso is None else OwnTorso(torso, example)
        self.core = CORES[config.core](self.torso.out_features, config)
        features = self.core.out_features
        self.heads = Heads(features, outputs.flat, config.head_w_init_std)
        self.action_model = (
            ActionModel(features, num_actions, outputs.per_action, config.lstm_size, config.head_mlp_hiddens)
            if outputs.per_action
            else None
        )

    def init(self, generator: torch.Generator | None = None) -> Params:
        """Fresh parameters; the module's own stay as they are."""
        return init_params(self, generator)

    def initial_state(self, batch_size: int) -> Any:
        """The memory before the first observation, a tree of [B, ...], or None for an agent without one."""
        return self.core.initial_state(batch_size)

    # What an agent computes, each a method with the parameters as an argument.

    def unroll(
        self, params: Params, observations: Observations, should_reset: Tensor | None = None, state: Any = None
    ) -> tuple[AgentOutput, Any]:
        """All outputs for rows of observations.

        Args:
          params: parameters of this agent.
          observations: tree of [T, B, ...].
          should_reset: [T, B], rows that begin an episode, before which the memory is reset; None for no such rows.
          state: the memory before the first row, `initial_state` or what an earlier call returned; None for an empty one.

        Returns:
          Outputs, [T, B, size] or [T, B, A, size] each, and the memory after the last row.
        """
        return self._with(params, self._unroll, observations, should_reset, state)

    def summarized_outputs(
        self,
        params: Params,
        observations: Observations,
        should_reset: Tensor | None,
        state: Any,
        summarizer: Summarizer | None,
    ) -> LearningOutputs:
        """The outputs of the state, and a summary of those of all actions; without a summarizer, all outputs."""
        return self._with(params, self._summarized, observations, should_reset, state, summarizer)

    def learning_outputs(
        self, params: Params, rollout: Rollout, should_reset: Tensor, summarizer: Summarizer | None = None
    ) -> LearningOutputs:
        """What one update needs, from one forward pass.

        Returns:
          The outputs of the state and those of the taken actions, through which gradients flow; and, without a graph, the
          outputs of all actions or, with a summarizer, their summary.
        """
        return self._with(params, self._learning, rollout, should_reset, summarizer)

    def taken_outputs(self, params: Params, rollout: Rollout, should_reset: Tensor) -> LearningOutputs:
        """What the losses alone need: the outputs of the state, and those per action at the taken actions."""
        return self._with(params, self._taken, rollout, should_reset)

    def policy(
        self, params: Params, observations: Observations, should_reset: Tensor | None = None, state: Any = None
    ) -> tuple[Tensor, Any]:
        """What `act` samples from: the logits of one row of observations, [B, A], and the memory."""
        rows = tree_map(lambda x: x.unsqueeze(0), observations)  # [1, B, ...]
        resets = None if should_reset is None else should_reset.unsqueeze(0)
        logits, state = self._with(params, self._policy, rows, resets, state)
        return logits[0], state

    def act(
        self,
        params: Params,
        observations: Observations,
        generator: torch.Generator | None = None,
        should_reset: Tensor | None = None,
        state: Any = None,
    ) -> tuple[Tensor, Tensor, Any]:
        """Samples actions from the softmax policy.

        Args:
          params: parameters of this agent.
          observations: tree of [B, ...].
          generator: the source of randomness, on the observations' device.
          should_reset: [B], which observations begin an episode.
          state: the memory.

        Returns:
          Actions [B], the logits they came from [B, A], and the memory.
        """
        with torch.no_grad():
            logits, state = self.policy(params, observations, should_reset, state)
            return sample_actions(logits, generator), logits, state

    def forward(self, *args: Any, compute: Callable[..., Any] | None = None) -> Any:
        """`unroll` with the module's own parameters, or another of the methods below; see `_with`."""
        compute = self._unroll if compute is None else compute
        if not self.config.bfloat16:
            return compute(*args)
        device = next(self.parameters()).device.type
        if device != "cuda":
            raise ValueError(f"`bfloat16` must be False on a {device}, got True; it is for GPUs.")
        # Without the cache: a weight that was rounded where nothing is differentiated would be used where something is.
        with torch.autocast(device, torch.bfloat16, cache_enabled=False):
            result = compute(*args)
        return tree_map(lambda x: x.float() if x.is_floating_point() else x, result)

    def _with(self, params: Params, compute: Callable[..., Any], *args: Any) -> Any:
        """Calls a method of this module with other parameters than its own."""
        return functional_call(self, params, args, {"compute": compute})

    def embed(self, observations: Observations, should_reset: Tensor | None, state: Any) -> tuple[Tensor, Any]:
        """What the heads read, [T, B, F], and the memory after the last row."""
        self._check(observations)
        return self.core(self.torso(observations), should_reset, state)

    def _embed_and_read(
        self, observations: Observations, should_reset: Tensor | None, state: Any
    ) -> tuple[AgentOutput, Root | None, Any]:
        """The outputs of the state, the root of the action model, and the memory; heads and root are one matmul on a GPU."""
        features, state = self.embed(observations, should_reset, state)
        roots = [] if self.action_model is None else [self.action_model.root]
        parts = linear_each([*self.heads.linears(), *roots], features)
        outputs = dict(zip(self.heads, parts, strict=False))
        return outputs, None if self.action_model is None else self.action_model.roots(parts[-1]), state

    def _policy(self, observations: Observations, should_reset: Tensor | None, state: Any) -> tuple[Tensor, Any]:
        features, state = self.embed(observations, should_reset, state)
        return self.heads["logits"](features), state

    def _unroll(
        self, observations: Observations, should_reset: Tensor | None = None, state: Any = None
    ) -> tuple[AgentOutput, Any]:
        outputs, root, state = self._embed_and_read(observations, should_reset, state)
        if self.action_model is not None and root is not None:
            outputs |= self.action_model.of_all(root)
        return outputs, state

    def _summarized(
        self, observations: Observations, should_reset: Tensor | None, state: Any, summarizer: Summarizer | None
    ) -> LearningOutputs:
        outputs, root, _ = self._embed_and_read(observations, should_reset, state)
        return self._of_all_actions(outputs, root, summarizer)

    def _learning(self, rollout: Rollout, should_reset: Tensor, summarizer: Summarizer | None) -> LearningOutputs:
        outputs, root, _ = self._embed_and_read(rollout.observations, should_reset, rollout.first_state)
        with torch.no_grad():  # a rule reads all actions, but only the taken ones learn
            learning = self._of_all_actions(outputs, root, summarizer)
        learning.taken = self._of_taken_actions(root, rollout)
        return learning

    def _taken(self, rollout: Rollout, should_reset: Tensor) -> LearningOutputs:
        outputs, root, _ = self._embed_and_read(rollout.observations, should_reset, rollout.first_state)
        return LearningOutputs(outputs, taken=self._of_taken_actions(root, rollout))

    def _of_all_actions(self, outputs: AgentOutput, root: Root | None, summarizer: Summarizer | None) -> LearningOutputs:
        if self.action_model is None or root is None:
            return LearningOutputs(outputs)
        if summarizer is not None:
            return LearningOutputs(outputs, summary=self.action_model.summary_of_all(root, summarizer))
        return LearningOutputs(outputs | self.action_model.of_all(root))

    def _of_taken_actions(self, root: Root | None, rollout: Rollout) -> AgentOutput | None:
        if self.action_model is None or root is None:
            return None
        return self.action_model.of_taken(Root(*(x[:-1] for x in root)), rollout.actions[:-1].long())

    def _check(self, observations: Observations) -> None:
        leaves = tree_leaves(observations)
        shapes = [tuple(leaf.shape[2:]) for leaf in leaves]
        if shapes != self.observation_shapes or len({leaf.shape[:2] for leaf in leaves}) != 1:
            raise ValueError(
                f"`observations` must be [T, B, ...] with leaves of shape {[list(s) for s in self.observation_shapes]}, "
                f"got {[list(leaf.shape) for leaf in leaves]}; time and batch come first."
            )
