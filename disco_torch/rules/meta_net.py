"""The meta-network: from a rollout to targets for the agent's policy and predictions.

An encoder that does not depend on the order of actions, an LSTM that reads each trajectory backwards (so that targets can
bootstrap), a gate from a second LSTM that lives as long as the agent does, and linear heads. Oh et al., "Discovering
state-of-the-art reinforcement learning algorithms", Nature 648 (2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from disco_torch.kernels import reversed_hiddens
from disco_torch.layers import LSTM, MLP, Linear, LSTMState, linear_each, mlp_each
from disco_torch.rules.base import check_rule_inputs
from disco_torch.rules.encoder import ActionNet, InputEncoder
from disco_torch.rules.inputs import MetaNetInputOption, RuleInput, disco_input_option
from disco_torch.rules.view import NormalizerStates, RolloutView, RuleView
from disco_torch.types import MeanAcrossProcesses, Targets, UpdateRuleInputs, tree_dataclass


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
        for each in self.input_option.all:
            if not isinstance(each, RuleInput):
                raise ValueError(
                    f"`input_option` must hold inputs, got {each!r}; write RuleInput(name, function of a view), or "
                    "TransformConfig(source, transforms) with the reference's names."
                )
        if not self.input_option.action_conditional:
            raise ValueError(
                "`input_option.action_conditional` must hold at least one input: the policy target is made of them."
            )


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
            config.input_option, config.prediction_size, num_bins, sizes.pred_embedding_size, sizes.policy_channels
        )
        width = self.encoder.out_features + 1 + self.encoder.y_net.out_features
        self.embedding = MLP(width, sizes.embedding_size)
        self.core = LSTM(self.embedding.out_features, sizes.hidden_size)

    def forward(
        self, view: RuleView, targets: Targets, state: LSTMState, mean_across_processes: MeanAcrossProcesses | None
    ) -> LSTMState:
        features, _ = self.encoder(view)
        y_embedding = self.encoder.y_net(torch.softmax(targets["y"], dim=-1))
        x = self.embedding(torch.cat([features, targets["meta_input_emb"], y_embedding], dim=-1))  # [T, B, E]
        average = x.mean(dim=(0, 1))  # [E]
        if mean_across_processes is not None:
            average = mean_across_processes(average)
        return self.core(average, state)


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

    @property
    def needs_action_outputs(self) -> bool:
        """Whether any input reads the outputs of all actions themselves, and not only a summary of them."""
        return any(each.needs_action_outputs for each in self.config.input_option.all)

    def embed_z(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Both encoders' embeddings of predictions z, [..., Y] -> [..., E] each, for a summary of all actions."""
        dtype = self.state_gate.weight.dtype
        own, lifetime = mlp_each([self.encoder.z_net, self.meta_rnn.encoder.z_net], torch.softmax(z, dim=-1, dtype=dtype))
        return own, lifetime

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
        encoders = (self.encoder, self.meta_rnn.encoder)
        shared = RolloutView(inputs, [each.y_net for each in encoders], [each.z_net for each in encoders])
        view = RuleView(shared, 0, state.normalizers["net"], mean_across_processes)
        features, embeddings = self.encoder(view)
        x = reversed_hiddens(self.trajectory_rnn, features, inputs.should_reset_mask_bwd[:-1])
        # Contiguous, [T, B, H]: with agents batched by vmap the next layers are then one matmul, forward and backward.
        x = (x * self.state_gate(state.hidden)).contiguous()
        net = self.policy_target_net
        y, z, meta_input, from_state = linear_each([self.y_head, self.z_head, self.meta_input_head, net.state_affine()], x)
        pi = self.pi_head(net(embeddings, from_state)).squeeze(-1)  # [T, B, A]
        targets: Targets = {"pi": pi, "y": y, "z": z, "meta_input_emb": meta_input}
        lifetime_view = RuleView(shared, 1, state.normalizers["meta_rnn"], mean_across_processes)
        rnn = self.meta_rnn(lifetime_view, targets, LSTMState(state.hidden, state.cell), mean_across_processes)
        normalizers = {"net": view.new_normalizers, "meta_rnn": lifetime_view.new_normalizers}
        return targets, MetaRNNState(rnn.hidden, rnn.cell, normalizers)
