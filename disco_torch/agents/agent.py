"""The agent: a torso, heads for what the rule asks for, and a one-step model of actions.

An `Agent` module holds an architecture and a first set of weights. Learning passes parameters through explicitly:
`agent.unroll(params, ...)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from disco_torch.agents.action_model import ActionModel, Reads
from disco_torch.layers import MLP, init_params, linear_each
from disco_torch.types import (
    AgentOutput,
    Observations,
    OutputSpec,
    Params,
    Rollout,
    tree_leaves,
    tree_map,
)


@dataclass(frozen=True)
class AgentConfig:
    """Sizes of the network; the defaults are the reference's for Disco103.

    Attributes:
      dense: layers of the torso.
      lstm_size: of the action model, used where the rule asks for outputs per action.
      head_mlp_hiddens: hidden layers of each head per action.
      head_w_init_std: initial scale of the heads on the torso.
      observation_scale: factors of the flat observation, one for all of it or one for each entry; none leaves it as it is.
      bfloat16: the network's products in 16 bits, on a GPU; parameters, losses and the rule stay in 32.
    """

    dense: Sequence[int] = (512, 512)
    lstm_size: int = 128
    head_mlp_hiddens: Sequence[int] = (128,)
    head_w_init_std: float | None = 1e-2
    observation_scale: Sequence[float] = ()
    bfloat16: bool = field(default=False, metadata={"later": True})

    def __post_init__(self) -> None:
        if not self.dense:
            raise ValueError("`dense` must name at least one layer, got none.")
        for name in ("dense", "head_mlp_hiddens"):
            if any(size < 1 for size in getattr(self, name)):
                raise ValueError(f"`{name}` must hold sizes of at least 1, got {list(getattr(self, name))}.")
        if self.lstm_size < 1:
            raise ValueError(f"`lstm_size` must be at least 1, got {self.lstm_size}.")


def flatten_observations(observations: Observations, leading: int, dtype: torch.dtype) -> Tensor:
    """All leaves side by side, flat behind their `leading` dimensions; images in bytes become 0 .. 1."""
    flat = []
    for leaf in tree_leaves(observations):
        x = leaf.to(dtype) / 255.0 if leaf.dtype == torch.uint8 else leaf.to(dtype)
        flat.append(x.reshape(*leaf.shape[:leading], -1))
    return flat[0] if len(flat) == 1 else torch.cat(flat, dim=-1)


class MLPTorso(MLP):
    """Flattens, concatenates and scales the observations, then an MLP."""

    scale: Tensor

    def __init__(self, example: Observations, dense: Sequence[int], scale: Sequence[float] = ()) -> None:
        size = flatten_observations(example, 0, torch.float32).numel()
        super().__init__(size, dense)
        if len(scale) not in (0, 1, size):
            raise ValueError(f"`observation_scale` must hold 1 factor or {size}, one for each entry, got {len(scale)}.")
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float32), persistent=False)

    def forward(self, observations: Observations, leading: int = 2) -> Tensor:
        flat = flatten_observations(observations, leading, next(self.parameters()).dtype)
        return super().forward(flat * self.scale if self.scale.numel() else flat)


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
    """Feed-forward agent for any tree of observations and `num_actions` discrete actions.

    Args:
      example: one observation without leading dimensions (its content does not matter).
      num_actions: how many there are.
      outputs: what the rule asks for, `rule.outputs(num_actions)`.
      config: sizes.
    """

    def __init__(
        self, example: Observations, num_actions: int, outputs: OutputSpec, config: AgentConfig | None = None
    ) -> None:
        super().__init__()
        if num_actions < 1:
            raise ValueError(f"`num_actions` must be at least 1, got {num_actions}.")
        if outputs.flat.get("logits", num_actions) != num_actions:
            raise ValueError(
                f"`num_actions` must be that of the outputs, {outputs.flat['logits']}, got {num_actions}; "
                "use `rule.outputs(num_actions)`."
            )
        self.config = config = config or AgentConfig()
        self.num_actions = num_actions
        self.outputs = outputs
        self.observation_shapes = [tuple(leaf.shape) for leaf in tree_leaves(example)]
        self.torso = MLPTorso(example, config.dense, config.observation_scale)
        width = self.torso.out_features
        # Heads in the order of their sorted names, as the reference creates them.
        self.heads = nn.ModuleDict(
            {name: MLP(width, (outputs.flat[name],), stddev=config.head_w_init_std) for name in sorted(outputs.flat)}
        )
        self.action_model = (
            ActionModel(width, num_actions, outputs.per_action, config.lstm_size, config.head_mlp_hiddens)
            if outputs.per_action
            else None
        )

    def init(self, generator: torch.Generator | None = None) -> Params:
        """Fresh parameters; the module's own stay as they are."""
        return init_params(self, generator)

    def initial_state(self, batch_size: int) -> Any:
        """The memory before the first observation; this agent has none."""
        return None

    def embed(self, observations: Observations, should_reset: Tensor | None, state: Any) -> tuple[Tensor, Any]:
        """What the heads read, [T, B, F], and the memory after the last row."""
        self._check(observations)
        return self.torso(observations), state

    def forward(
        self,
        observations: Observations,
        should_reset: Tensor | None = None,
        state: Any = None,
        *,
        outputs: Literal["all", "policy", "learning", "taken"] = "all",
        actions: Tensor | None = None,
        reads: Reads | None = None,
    ) -> Any:
        """Outputs for rows of observations; see `unroll`, `act`, `learning_outputs` and `taken_outputs`."""
        if not self.config.bfloat16:
            return self._outputs(observations, should_reset, state, outputs, actions, reads)
        device = tree_leaves(observations)[0].device.type
        if device != "cuda":
            raise ValueError(f"`bfloat16` must be False on a {device}, got True; it is for GPUs.")
        # Without the cache: what was rounded where nothing is differentiated would be used where something is.
        with torch.autocast(device, torch.bfloat16, cache_enabled=False):
            out, other = self._outputs(observations, should_reset, state, outputs, actions, reads)
        return tree_map(lambda x: x.float() if x.is_floating_point() else x, (out, other))

    def _outputs(
        self,
        observations: Observations,
        should_reset: Tensor | None,
        state: Any,
        outputs: str,
        actions: Tensor | None,
        reads: Reads | None,
    ) -> tuple[AgentOutput, Any]:
        torso, state = self.embed(observations, should_reset, state)
        if outputs == "policy":
            return {"logits": self.heads["logits"](torso)}, state
        heads: Any = self.heads
        roots = [] if self.action_model is None else [self.action_model.root]
        parts = linear_each([*(head[0] for head in heads.values()), *roots], torso)
        out = dict(zip(self.heads, parts, strict=False))
        if self.action_model is None:
            return (out, state) if outputs == "all" else (out, None)
        root = (parts[-1], self.action_model.recurrent_gates(parts[-1]))
        if outputs == "all":
            return out | self.action_model.outputs(*root, reads=reads), state
        if outputs == "learning":
            with torch.no_grad():  # a rule reads all actions, but only the taken ones learn
                out |= self.action_model.outputs(*root, reads=reads)
        assert actions is not None
        cell, recurrent = (x[:-1] for x in root)
        return out, self.action_model.outputs(cell, recurrent, actions[:-1].long())

    def unroll(
        self,
        params: Params,
        observations: Observations,
        should_reset: Tensor | None = None,
        state: Any = None,
        reads: Reads | None = None,
    ) -> tuple[AgentOutput, Any]:
        """Outputs for rows of observations, with the given parameters.

        Args:
          params: of this agent.
          observations: tree of [T, B, ...].
          should_reset: [T, B], rows that begin an episode; for agents with memory.
          state: the memory before the first row.
          reads: what to read of the outputs per action, by head; what it gives takes their place. None: all of them.

        Returns:
          Outputs, [T, B, size] or [T, B, A, size] each, and the memory after the last row.
        """
        return functional_call(self, params, (observations, should_reset, state), {"reads": reads})

    def learning_outputs(
        self, params: Params, rollout: Rollout, should_reset: Tensor, reads: Reads | None = None
    ) -> tuple[AgentOutput, AgentOutput | None]:
        """What one update needs, from one pass: all outputs, and those of the taken actions with a graph.

        Returns:
          All outputs, [T+1, B, ...], those per action (or what `reads` reads of them, see `unroll`) without a graph; and
          the outputs per action at the taken actions, [T, B, size], or None if there are none.
        """
        args = (rollout.observations, should_reset, rollout.first_state)
        return functional_call(self, params, args, {"outputs": "learning", "actions": rollout.actions, "reads": reads})

    def taken_outputs(
        self, params: Params, rollout: Rollout, should_reset: Tensor
    ) -> tuple[AgentOutput, AgentOutput | None]:
        """What the losses alone need: the flat outputs, [T+1, B, ...], and those per action at the taken actions."""
        args = (rollout.observations, should_reset, rollout.first_state)
        return functional_call(self, params, args, {"outputs": "taken", "actions": rollout.actions})

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
          params: of this agent.
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

    def policy(
        self, params: Params, observations: Observations, should_reset: Tensor | None = None, state: Any = None
    ) -> tuple[Tensor, Any]:
        """What `act` samples from: the logits of one row of observations, [B, A], and the memory."""
        rows = tree_map(lambda x: x.unsqueeze(0), observations)  # [1, B, ...]
        resets = None if should_reset is None else should_reset.unsqueeze(0)
        out, state = functional_call(self, params, (rows, resets, state), {"outputs": "policy"})
        return out["logits"][0], state

    def _check(self, observations: Observations) -> None:
        leaves = tree_leaves(observations)
        shapes = [tuple(leaf.shape[2:]) for leaf in leaves]
        if shapes != self.observation_shapes or len({leaf.shape[:2] for leaf in leaves}) != 1:
            raise ValueError(
                f"`observations` must be [T, B, ...] with leaves of shape {[list(s) for s in self.observation_shapes]}, "
                f"got {[list(leaf.shape) for leaf in leaves]}; time and batch come first."
            )
