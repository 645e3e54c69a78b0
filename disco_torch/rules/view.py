"""A rollout as a meta-network reads it: three networks' outputs, estimates and rewards, each quantity computed once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from disco_torch.layers import MLP, mlp_each
from disco_torch.types import (
    ActionSummary,
    AgentOutput,
    MeanAcrossProcesses,
    RuleEstimates,
    UpdateRuleInputs,
    tree_dataclass,
)
from disco_torch.values import select_action

NORMALIZER_DECAY = 0.99
NORMALIZER_EPSILON = 1e-6


@tree_dataclass
class NormalizerState:
    """Undebiased moments, [1, 1, ...], and the number of batches that they have seen."""

    moment1: Tensor
    moment2: Tensor
    count: Tensor


NormalizerStates = dict[str, NormalizerState]


class NetworkView:
    """The outputs of one network along a rollout, as inputs read them. Each quantity is computed once.

    Args:
      name: for messages: `agent_out`, `behaviour_agent_out` or `target_out`.
      outputs: [T+1, B, ...] each, or None.
      summary: of its outputs of all actions, or None to compute what is read of them.
      y_nets, z_nets: the embeddings of each encoder of the meta-network.
    """

    def __init__(
        self,
        name: str,
        outputs: AgentOutput | None,
        summary: ActionSummary | None,
        y_nets: Sequence[MLP],
        z_nets: Sequence[MLP],
    ) -> None:
        self.name, self.outputs, self.summary = name, outputs or {}, summary
        self._y_nets, self._z_nets = y_nets, z_nets

    def output(self, name: str) -> Tensor:
        """An output by its name, [T+1, B, size] or [T+1, B, A, size]."""
        return present(self.outputs.get(name), f"{self.name}['{name}']")

    @cached_property
    def policy(self) -> Tensor:
        """[T, B, A], a constant: it informs the rule, and gets no meta-gradient through it."""
        return softmax(self.output("logits")).detach()[:-1]

    @cached_property
    def log_policy(self) -> Tensor:
        """[T, B, A], a constant as `policy` is."""
        return torch.log_softmax(self.output("logits"), dim=-1).detach()[:-1]

    @cached_property
    def y_embeddings(self) -> list[Tensor]:
        """[T+1, B, E] of each encoder; their first layers are one matmul where that is faster."""
        return list(mlp_each(self._y_nets, softmax(self.output("y"))))

    @cached_property
    def z_embeddings(self) -> list[Tensor]:
        """[T+1, B, A, E] of each encoder."""
        if self.summary is not None:
            return [self.summary.z_embeddings, self.summary.lifetime_z_embeddings]
        return list(mlp_each(self._z_nets, softmax(self.output("z"))))


class RolloutView:
    """A rollout under three networks: the learning agent, its slow-moving target, and the policy that acted."""

    def __init__(self, inputs: UpdateRuleInputs, y_nets: Sequence[MLP], z_nets: Sequence[MLP]) -> None:
        self.inputs, self.y_nets, self.z_nets = inputs, y_nets, z_nets
        nets = (y_nets, z_nets)
        estimates = inputs.extra_from_rule or RuleEstimates()
        self.agent = NetworkView("agent_out", inputs.agent_out, inputs.agent_summary, *nets)
        self.behaviour = NetworkView("behaviour_agent_out", inputs.behaviour_agent_out, None, *nets)
        self.target = NetworkView("target_out", estimates.target_out, estimates.target_summary, *nets)

    @cached_property
    def full_policy(self) -> Tensor:
        """[T+1, B, A], a constant: the policy weighs the inputs, it is not to be changed through them."""
        return torch.softmax(self.inputs.agent_out["logits"], dim=-1).detach()


class RuleView:
    """What an input is a function of: a rollout as one encoder of the meta-network sees it.

    Attributes:
      inputs: all that the rule was given.
      agent, target, behaviour: the three networks' outputs.
      actions: [T, B], the taken ones.
      y_net, z_net: the encoder's own embeddings of predictions, [..., Y] -> [..., E].
    """

    def __init__(
        self,
        rollout: RolloutView,
        encoder: int = 0,
        normalizers: NormalizerStates | None = None,
        mean_across_processes: MeanAcrossProcesses | None = None,
    ) -> None:
        self.inputs, self._rollout, self._encoder = rollout.inputs, rollout, encoder
        self.agent, self.target, self.behaviour = rollout.agent, rollout.target, rollout.behaviour
        self.y_net, self.z_net = rollout.y_nets[encoder], rollout.z_nets[encoder]
        self.actions = rollout.inputs.actions[:-1]
        self._normalizers, self._mean = normalizers, mean_across_processes
        self.new_normalizers: NormalizerStates = {}

    @property
    def full_policy(self) -> Tensor:
        """The learning agent's policy in all rows, [T+1, B, A], a constant."""
        return self._rollout.full_policy

    @property
    def rewards(self) -> Tensor:
        """[T, B, 1]."""
        return self.inputs.rewards.unsqueeze(-1)

    @property
    def continues(self) -> Tensor:
        """[T, B, 1]: 0 where a step ended the episode, else 1."""
        return self.inputs.continues().unsqueeze(-1)

    def estimate(self, name: str) -> Tensor:
        """A field of `RuleEstimates` with a last dimension of 1."""
        return present(getattr(self.inputs.extra_from_rule, name, None), f"extra_from_rule.{name}").unsqueeze(-1)

    def y(self, network: NetworkView) -> Tensor:
        """A network's prediction y as this encoder embeds it, [T+1, B, E]."""
        return network.y_embeddings[self._encoder]

    def z(self, network: NetworkView) -> Tensor:
        """A network's predictions z of all actions as this encoder embeds them, [T+1, B, A, E]."""
        return network.z_embeddings[self._encoder]

    def of_taken(self, x: Tensor) -> Tensor:
        """Of the taken actions: [T, B, A, ...] -> [T, B, ...]."""
        return select_action(x, self.actions)

    def at_taken(self, x: Tensor) -> Tensor:
        """An input per action of one per step: [T, B, C] at the taken action and 0 elsewhere, [T, B, A, C]."""
        taken = torch.arange(self.full_policy.shape[2], device=x.device) == self.actions.unsqueeze(-1)  # [T, B, A]
        return x.unsqueeze(2) * taken.to(x.dtype).unsqueeze(-1)

    def policy_mean(self, x: Tensor) -> Tensor:
        """The mean over actions under the learning agent's policy: [T+1, B, A, C] -> [T+1, B, C]."""
        return torch.sum(x * self.full_policy.unsqueeze(-1), dim=2)

    def normalize(self, name: str, x: Tensor) -> Tensor:
        """Subtracts a running mean and divides by a running deviation, each over time and batch.

        `name` is where the rule's state keeps the running moments; one for each input that is normalised.
        """
        zero = x.new_zeros(())
        state = NormalizerState(zero, zero, zero) if self._normalizers is None else self._normalizers[name]
        moments = torch.stack([torch.mean(x, (0, 1), keepdim=True), torch.mean(torch.square(x), (0, 1), keepdim=True)])
        if self._mean is not None:
            moments = self._mean(moments)
        state = NormalizerState(
            moment1=NORMALIZER_DECAY * state.moment1 + (1.0 - NORMALIZER_DECAY) * moments[0],
            moment2=NORMALIZER_DECAY * state.moment2 + (1.0 - NORMALIZER_DECAY) * moments[1],
            count=state.count + 1,
        )
        self.new_normalizers[name] = state
        debias = 1.0 / (1.0 - NORMALIZER_DECAY**state.count)
        mean = state.moment1 * debias
        variance = torch.clamp(state.moment2 * debias - torch.square(mean), min=0.0)
        return (x - mean) / (torch.sqrt(variance + 1e-12) + NORMALIZER_EPSILON)


def present(x: Tensor | None, name: str) -> Tensor:
    """Raises where the rule's inputs lack what the meta-network reads."""
    if x is None:
        raise ValueError(
            f"the rule's inputs lack `{name}`, which its meta-network reads; "
            "call `rule.unroll_meta_net`, which computes it, or fill it in UpdateRuleInputs."
        )
    return x


def softmax(x: Tensor) -> Tensor:
    """Over the last dimension, in 32 bits at least."""
    return torch.softmax(x, dim=-1, dtype=torch.promote_types(x.dtype, torch.float32))


def td_pair(x: Tensor) -> Tensor:
    """Rows t and t+1 side by side, so that differences over a step are easy to form, [T+1, B, C] -> [T, B, 2C]."""
    return torch.cat([x[:-1], x[1:]], dim=-1)
