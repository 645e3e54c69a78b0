"""The meta-network: from a rollout to targets for the agent's policy and predictions.

An encoder that does not care for the order of actions, an LSTM that reads each trajectory backwards (so that targets can
bootstrap), a gate from a second LSTM that lives as long as the agent does, and linear heads. Oh et al., "Discovering
state-of-the-art reinforcement learning algorithms", Nature 648 (2025).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from disco_torch.kernels import reversed_hiddens
from disco_torch.layers import LSTM, MLP, Affine, Linear, LSTMState, linear_each, mlp_each
from disco_torch.rules.base import check_rule_inputs
from disco_torch.rules.inputs import (
    SOURCES,
    InputContext,
    MetaNetInputOption,
    NormalizerState,
    NormalizerStates,
    check_inputs,
    disco_input_option,
    flat_inputs,
    normalizer_keys,
    prefix_key,
    softmax,
)
from disco_torch.types import (
    AgentOutput,
    MeanAcrossProcesses,
    Targets,
    UpdateRuleInputs,
    ValueOuts,
    tree_dataclass,
)
from disco_torch.values import select_action


@dataclass(frozen=True)
class MetaRNNConfig:
    """Sizes of the LSTM that lives as long as the agent."""

    policy_channels: Sequence[int] = (16, 2)
    embedding_size: Sequence[int] = (16,)
    pred_embedding_size: Sequence[int] = (16, 1)
    hidden_size: int = 128

    def __post_init__(self) -> None:
        check_sizes(self, ("hidden_size",), ("policy_channels", "embedding_size", "pred_embedding_size"))


def check_sizes(config: object, sizes: Sequence[str], layers: Sequence[str]) -> None:
    """Raises at the first size of a configuration that is less than 1, or list of layers that is empty."""
    for name in sizes:
        if getattr(config, name) < 1:
            raise ValueError(f"`{name}` must be at least 1, got {getattr(config, name)}.")
    for name in layers:
        if not getattr(config, name):
            raise ValueError(f"`{name}` must name at least one layer, got {getattr(config, name)}.")
        if any(size < 1 for size in getattr(config, name)):
            raise ValueError(f"`{name}` must hold layers of at least 1, got {getattr(config, name)}.")


@dataclass(frozen=True)
class MetaNetConfig:
    """Sizes and initial scales of a meta-network; the defaults are Disco103's."""

    prediction_size: int = 600
    hidden_size: int = 256
    embedding_size: Sequence[int] = (16, 1)
    policy_target_channels: Sequence[int] = (16,)
    policy_channels: Sequence[int] = (16, 2)
    output_stddev: float | None = 0.3
    aux_stddev: float | None = 0.3
    policy_target_stddev: float | None = 0.3
    state_stddev: float | None = 1.0
    meta_rnn: MetaRNNConfig = field(default_factory=MetaRNNConfig)
    input_option: MetaNetInputOption = field(default_factory=disco_input_option)

    def __post_init__(self) -> None:
        layers = ("embedding_size", "policy_channels", "policy_target_channels")
        check_sizes(self, ("prediction_size", "hidden_size"), layers)
        check_inputs([*self.input_option.base, *self.input_option.action_conditional])
        if not self.input_option.action_conditional:
            raise ValueError(
                "`input_option.action_conditional` must hold at least one input: the policy target is made of them."
            )


READ_Z, READ_Z_META_RNN, READ_Z_MEAN = "read/z_embedding", "read/z_embedding_meta_rnn", "read/z_mean"
"""What `MetaNet.z_reader` gives, under names that no head of an agent has."""


class ActionBlock(nn.Module):
    """A layer over actions that commutes with their order: each sees itself and the mean of all.

        out_a = relu(W [s; x_a; s; mean_a x] + b)

    The state's part `s`, the same for all actions, is multiplied once for all of them.
    """

    def __init__(self, channels: int, out_channels: int, state_size: int = 0) -> None:
        super().__init__()
        self.state_size = state_size
        self.linear = Linear(2 * (state_size + channels), out_channels)

    def of_state(self) -> Affine:
        """What the state is multiplied with, and the bias: [..., S] -> [..., out]."""
        own, mean = self.linear.weight.chunk(2, dim=1)  # [out, S + C] each
        return Affine(own[:, : self.state_size] + mean[:, : self.state_size], self.linear.bias)

    def forward(self, x: Tensor, from_state: Tensor | None = None) -> Tensor:
        """[T, B, A, C], and [T, B, out] that `of_state` gives if there is a state -> [T, B, A, out]."""
        weights = [part[:, self.state_size :] for part in self.linear.weight.chunk(2, dim=1)]  # [out, C] each
        # The mean after the product, not before it: one product instead of two.
        own, mean = nn.functional.linear(x, torch.cat(weights)).chunk(2, dim=-1)
        shared = mean.mean(dim=2) + (self.linear.bias if from_state is None else from_state)  # [T, B, out]
        return torch.relu(own + shared.unsqueeze(2))


class ActionNet(nn.ModuleList):
    """A stack of `ActionBlock`s; the first may read a state, see there."""

    def __init__(self, channels: int, sizes: Sequence[int], state_size: int = 0) -> None:
        blocks = []
        for i, size in enumerate(sizes):
            blocks.append(ActionBlock(channels, size, state_size if i == 0 else 0))
            channels = size
        super().__init__(blocks)
        self.out_channels = channels

    def of_state(self) -> Affine:
        first: Any = self[0]
        return first.of_state()

    def forward(self, x: Tensor, from_state: Tensor | None = None) -> Tensor:
        for i, block in enumerate(self):
            x = block(x, from_state if i == 0 else None)
        return x


class InputEncoder(nn.Module):
    """Reads the listed inputs and lays them side by side: features of each step and an embedding of each action."""

    def __init__(
        self,
        option: MetaNetInputOption,
        prediction_size: int,
        num_bins: int,
        embedding_size: Sequence[int],
        policy_channels: Sequence[int],
        z_name: str = READ_Z,
    ) -> None:
        super().__init__()
        self.option, self.z_name = option, z_name
        self.y_net = MLP(prediction_size, embedding_size)
        self.z_net = MLP(prediction_size, embedding_size)
        features, channels = self._count_features(prediction_size, num_bins)
        self.policy_net = ActionNet(channels, policy_channels)
        self.out_features = features + 2 * self.policy_net.out_channels

    def initial_normalizers(self) -> NormalizerStates:
        zero = next(self.parameters()).new_zeros(())
        keys = normalizer_keys([*self.option.base, *self.option.action_conditional])
        return {key: NormalizerState(zero, zero, zero) for key in keys}

    def read(
        self,
        inputs: UpdateRuleInputs,
        normalizers: NormalizerStates,
        mean: MeanAcrossProcesses | None,
        shared: dict[str, Tensor],
        own: dict[str, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, NormalizerStates]:
        """The features, [T, B, F], and the action channels, [T, B, A, C], before any embedding of actions."""
        T, B = inputs.is_terminal.shape
        logits = inputs.agent_out["logits"]
        num_actions, actions = logits.shape[2], inputs.actions[:-1]
        context = InputContext(
            actions=actions,
            # detached: the policy weighs the inputs, it is not to be changed through them.
            policy=torch.softmax(logits, dim=-1).detach(),
            y_net=self.y_net,
            z_net=self.z_net,
            normalizers=normalizers,
            mean_across_processes=mean,
            shared=shared,
            own=own or {},
        )
        base = flat_inputs(self.option.base, inputs, context, (T, B))
        per_action = flat_inputs(self.option.action_conditional, inputs, context, (T, B, num_actions))
        taken = torch.arange(num_actions, device=actions.device) == actions.unsqueeze(-1)  # [T, B, A]
        channels = [*per_action, taken.to(logits.dtype).unsqueeze(-1)]
        return torch.cat(base, dim=-1), torch.cat(channels, dim=-1), context.new_normalizers

    def forward(
        self,
        inputs: UpdateRuleInputs,
        normalizers: NormalizerStates,
        mean: MeanAcrossProcesses | None,
        shared: dict[str, Tensor],
        own: dict[str, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, NormalizerStates]:
        """Features with the mean and the taken action's embedding, [T, B, out], and all embeddings, [T, B, A, C]."""
        features, channels, normalizers = self.read(inputs, normalizers, mean, shared, own)
        embeddings = self.policy_net(channels)
        taken = select_action(embeddings, inputs.actions[:-1])
        return torch.cat([features, embeddings.mean(dim=2), taken], dim=-1), embeddings, normalizers

    def _count_features(self, prediction_size: int, num_bins: int) -> tuple[int, int]:
        """How many features the inputs have, found by reading zeros; it must not depend on the number of actions."""
        counts = []
        for num_actions in (2, 3):
            with torch.no_grad():
                zeros = zero_inputs(num_actions, prediction_size, num_bins)
                features, channels, _ = self.read(zeros, self.initial_normalizers(), None, {})
            counts.append((features.shape[-1], channels.shape[-1]))
        if counts[0] != counts[1]:
            raise ValueError(
                f"the inputs give {counts[0]} features with 2 actions and {counts[1]} with 3; reduce over actions with "
                "`select_a`, `pi_weighted_avg` or `max_a`."
            )
        return counts[0]


Z_INPUTS = {(group, "softmax", "z_net") for group in ("agent_out", "extra_from_rule/target_out")}
"""Where z is read and how it begins; all of it can be read beforehand."""


def embedded_z(inputs: UpdateRuleInputs, name: str) -> dict[str, Tensor]:
    """The inputs that `MetaNet.z_reader` has read already, by their keys."""
    outs = (inputs.agent_out, (inputs.extra_from_rule or {}).get("target_out", {}))
    groups = ("agent_out", "extra_from_rule/target_out")
    return {f"{group}/z softmax z_net": out[name] for group, out in zip(groups, outs, strict=True) if name in out}


def embed_together(
    encoders: Sequence[InputEncoder], inputs: UpdateRuleInputs, shared: dict[str, Tensor]
) -> list[dict[str, Tensor]]:
    """Each encoder's embeddings of y and z, by their keys; of all encoders together, since they read the same."""
    embedded = [embedded_z(inputs, encoder.z_name) for encoder in encoders]
    option = encoders[0].option
    for config in (*option.base, *option.action_conditional):
        key, source, net = prefix_key(config, 2), SOURCES[config.source](inputs), tuple(config.transforms[:2])
        if net not in (("softmax", "y_net"), ("softmax", "z_net")) or key in embedded[0] or source is None:
            continue
        x = shared[prefix_key(config, 1)] = softmax(source)
        nets = [encoder.y_net if net[1] == "y_net" else encoder.z_net for encoder in encoders]
        for own, out in zip(embedded, mlp_each(nets, x), strict=True):
            own[key] = out
    return embedded


def zero_inputs(num_actions: int, prediction_size: int, num_bins: int, T: int = 2, B: int = 1) -> UpdateRuleInputs:
    """Inputs of the right shapes and no content, to find sizes with."""
    A, Y, V = num_actions, prediction_size, num_bins
    out = {
        "logits": torch.zeros(T + 1, B, A),
        "y": torch.zeros(T + 1, B, Y),
        "z": torch.zeros(T + 1, B, A, Y),
        "q": torch.zeros(T + 1, B, A, V),
        "aux_pi": torch.zeros(T + 1, B, A, A),
    }
    rows, steps, per_action = torch.zeros(T + 1, B), torch.zeros(T, B), torch.zeros(T + 1, B, A)
    extra: dict[str, Any] = {"v_scalar": rows, "adv": steps, "normalized_adv": steps}
    extra |= {"q": per_action, "qv_adv": per_action, "normalized_qv_adv": per_action, "target_out": out}
    value_out = ValueOuts(rows, rows, steps, steps, steps, steps, steps, steps)
    actions = torch.zeros(T + 1, B, dtype=torch.long)
    return UpdateRuleInputs(rows, actions, steps, steps.bool(), out, out, value_out, extra)


@tree_dataclass
class MetaRNNState:
    """State of the lifetime LSTM, [H] each, and of the input normalisers, if the inputs have any."""

    hidden: Tensor
    cell: Tensor
    normalizers: dict[str, NormalizerStates]


class MetaRNN(nn.Module):
    """The lifetime LSTM: reads the mean over a batch of rollouts and their targets, once an update."""

    def __init__(self, config: MetaNetConfig, num_bins: int) -> None:
        super().__init__()
        sizes = config.meta_rnn
        self.encoder = InputEncoder(
            config.input_option,
            config.prediction_size,
            num_bins,
            sizes.pred_embedding_size,
            sizes.policy_channels,
            READ_Z_META_RNN,
        )
        width = self.encoder.out_features + 1 + self.encoder.y_net.out_features
        self.embedding = MLP(width, sizes.embedding_size)
        self.core = LSTM(self.embedding.out_features, sizes.hidden_size)

    def forward(
        self,
        inputs: UpdateRuleInputs,
        targets: Targets,
        state: MetaRNNState,
        mean: MeanAcrossProcesses | None,
        shared: dict[str, Tensor],
        own: dict[str, Tensor] | None = None,
    ) -> tuple[LSTMState, NormalizerStates]:
        features, _, normalizers = self.encoder(inputs, state.normalizers["meta_rnn"], mean, shared, own)
        y_embedding = self.encoder.y_net(torch.softmax(targets["y"], dim=-1))
        x = self.embedding(torch.cat([features, targets["meta_input_emb"], y_embedding], dim=-1))  # [T, B, E]
        average = x.mean(dim=(0, 1))  # [E]
        if mean is not None:
            average = mean(average)
        return self.core(average, LSTMState(state.hidden, state.cell)), normalizers


class MetaNet(nn.Module):
    """The whole meta-network."""

    def __init__(self, config: MetaNetConfig | None = None, num_bins: int = 601) -> None:
        super().__init__()
        self.config = config = config or MetaNetConfig()
        self.encoder = InputEncoder(
            config.input_option, config.prediction_size, num_bins, config.embedding_size, config.policy_channels
        )
        self.trajectory_rnn = LSTM(self.encoder.out_features, config.hidden_size)
        self.meta_rnn = MetaRNN(config, num_bins)
        self.state_gate = Linear(config.meta_rnn.hidden_size, config.hidden_size, stddev=config.state_stddev)
        self.meta_input_head = Linear(config.hidden_size, 1, stddev=config.output_stddev)
        self.y_head = Linear(config.hidden_size, config.prediction_size, stddev=config.aux_stddev)
        self.z_head = Linear(config.hidden_size, config.prediction_size, stddev=config.aux_stddev)
        self.policy_target_net = ActionNet(
            self.encoder.policy_net.out_channels, config.policy_target_channels, config.hidden_size
        )
        self.pi_head = Linear(self.policy_target_net.out_channels, 1, stddev=config.policy_target_stddev)

    def initial_meta_rnn_state(self) -> MetaRNNState:
        """The state at the beginning of an agent's life: zeros."""
        zeros = self.meta_rnn.core.initial_state()
        normalizers = {
            "net": self.encoder.initial_normalizers(),
            "meta_rnn": self.meta_rnn.encoder.initial_normalizers(),
        }
        return MetaRNNState(zeros.hidden, zeros.cell, normalizers)

    def reads_z_alone(self) -> bool:
        """Whether its inputs read no output per action but z, and that through `z_net`."""
        option = self.config.input_option
        per_action = [
            x for x in (*option.base, *option.action_conditional) if x.source.endswith(("/z", "_out/q", "/aux_pi"))
        ]
        return all((x.source.removesuffix("/z"), *x.transforms[:2]) in Z_INPUTS for x in per_action)

    def z_reader(self) -> Callable[[Tensor], AgentOutput]:
        """What is read of z, [..., Y]: both encoders' embeddings of it, and its mean."""
        encoders = (self.encoder, self.meta_rnn.encoder)
        dtype = self.state_gate.weight.dtype

        def read(z: Tensor) -> AgentOutput:
            embedded = mlp_each([encoder.z_net for encoder in encoders], torch.softmax(z, dim=-1, dtype=dtype))
            out = {encoder.z_name: x for encoder, x in zip(encoders, embedded, strict=True)}
            return out | {READ_Z_MEAN: z.mean(dim=-1, dtype=dtype)}

        return read

    def forward(
        self, inputs: UpdateRuleInputs, state: MetaRNNState, mean_across_processes: MeanAcrossProcesses | None = None
    ) -> tuple[Targets, MetaRNNState]:
        """Targets for a rollout.

        Args:
          inputs: `T` steps; `extra_from_rule` and `behaviour_agent_out` filled where the list of inputs reads them.
          state: of this agent's life so far.
          mean_across_processes: averages the lifetime LSTM's input where a batch is split over processes.

        Returns:
          Logits `pi` [T, B, A], `y` and `z` [T, B, Y], and `meta_input_emb` [T, B, 1]; and the next state. Gradients flow
          to the parameters and to the inputs that the list does not stop.
        """
        check_rule_inputs(inputs)
        shared: dict[str, Tensor] = {}
        own, rnn_own = embed_together((self.encoder, self.meta_rnn.encoder), inputs, shared)
        normalizers = state.normalizers["net"]
        features, embeddings, normalizers = self.encoder(inputs, normalizers, mean_across_processes, shared, own)
        x = reversed_hiddens(self.trajectory_rnn, features, inputs.should_reset_mask_bwd[:-1])
        # [T, B, H], in order of memory: of many agents, too, the next is one product then, and the same in both directions.
        x = (x * self.state_gate(state.hidden)).contiguous()
        net = self.policy_target_net
        y, z, meta_input, from_state = linear_each([self.y_head, self.z_head, self.meta_input_head, net.of_state()], x)
        pi = self.pi_head(net(embeddings, from_state)).squeeze(-1)  # [T, B, A]
        targets: Targets = {"pi": pi, "y": y, "z": z, "meta_input_emb": meta_input}
        rnn, rnn_normalizers = self.meta_rnn(inputs, targets, state, mean_across_processes, shared, rnn_own)
        new_normalizers = {"net": normalizers, "meta_rnn": rnn_normalizers}
        return targets, MetaRNNState(rnn.hidden, rnn.cell, new_normalizers)
