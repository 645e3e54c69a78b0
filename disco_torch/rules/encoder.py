"""From a list of inputs to features of each step and an embedding of each action, whatever the number of actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from disco_torch.layers import MLP, Affine, Linear
from disco_torch.rules.inputs import MetaNetInputOption, flat_inputs
from disco_torch.rules.view import NormalizerState, NormalizerStates, RolloutView, RuleView
from disco_torch.types import RuleEstimates, UpdateRuleInputs, ValueOuts
from disco_torch.values import select_action


class ActionBlock(nn.Module):
    """A layer over actions that commutes with their order: each sees itself and the mean of all.

        out_a = relu(W [s; x_a; s; mean_a x] + b)

    The state's part `s`, the same for all actions, is multiplied once for all of them.
    """

    def __init__(self, channels: int, out_channels: int, state_size: int = 0) -> None:
        super().__init__()
        self.state_size = state_size
        self.linear = Linear(2 * (state_size + channels), out_channels)

    def state_affine(self) -> Affine:
        """What the state is multiplied with, and the bias: [..., S] -> [..., out]."""
        own, mean = self.linear.weight.chunk(2, dim=1)  # [out, S + C] each
        return Affine(own[:, : self.state_size] + mean[:, : self.state_size], self.linear.bias)

    def forward(self, x: Tensor, from_state: Tensor | None = None) -> Tensor:
        """[T, B, A, C], and [T, B, out] that `state_affine` gives if there is a state -> [T, B, A, out]."""
        weights = [part[:, self.state_size :] for part in self.linear.weight.chunk(2, dim=1)]  # [out, C] each
        # The mean after the matmul, not before it: one matmul instead of two.
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

    def state_affine(self) -> Affine:
        first: Any = self[0]
        return first.state_affine()

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
    ) -> None:
        super().__init__()
        self.option = option
        self.y_net = MLP(prediction_size, embedding_size)
        self.z_net = MLP(prediction_size, embedding_size)
        features, channels, self._normalized = self._dry_run(prediction_size, num_bins)
        self.policy_net = ActionNet(channels, policy_channels)
        self.out_features = features + 2 * self.policy_net.out_channels

    def initial_normalizers(self) -> NormalizerStates:
        zero = next(self.parameters()).new_zeros(())
        return {name: NormalizerState(zero, zero, zero) for name in self._normalized}

    def read(self, view: RuleView) -> tuple[Tensor, Tensor]:
        """The features, [T, B, F], and the action channels, [T, B, A, C], before any embedding of actions."""
        T, B = view.actions.shape
        num_actions = view.full_policy.shape[2]
        base = flat_inputs(self.option.base, view, (T, B))
        per_action = flat_inputs(self.option.action_conditional, view, (T, B, num_actions))
        taken = torch.arange(num_actions, device=view.actions.device) == view.actions.unsqueeze(-1)  # [T, B, A]
        channels = [*per_action, taken.to(view.full_policy.dtype).unsqueeze(-1)]
        return torch.cat(base, dim=-1), torch.cat(channels, dim=-1)

    def forward(self, view: RuleView) -> tuple[Tensor, Tensor]:
        """Features with the mean and the taken action's embedding, [T, B, out], and all embeddings, [T, B, A, C]."""
        features, channels = self.read(view)
        embeddings = self.policy_net(channels)
        taken = select_action(embeddings, view.actions)
        return torch.cat([features, embeddings.mean(dim=2), taken], dim=-1), embeddings

    def _dry_run(self, prediction_size: int, num_bins: int) -> tuple[int, int, list[str]]:
        """How many features and channels the inputs have, and which they normalise, found by reading zeros."""
        counts, normalized = [], []
        for num_actions in (2, 3):
            with torch.no_grad():
                zeros = zero_inputs(num_actions, prediction_size, num_bins)
                view = RuleView(RolloutView(zeros, [self.y_net], [self.z_net]))
                features, channels = self.read(view)
            counts.append((features.shape[-1], channels.shape[-1]))
            normalized = list(view.new_normalizers)
        if counts[0] != counts[1]:
            raise ValueError(
                f"the inputs give {counts[0]} features with 2 actions and {counts[1]} with 3; reduce over actions with "
                "`view.of_taken` (`select_a`), `view.policy_mean` (`pi_weighted_avg`) or a maximum (`max_a`)."
            )
        return *counts[0], normalized


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
    extra = RuleEstimates(rows, steps, steps, per_action, per_action, per_action, out)
    value_out = ValueOuts(rows, rows, steps, steps, steps, steps, steps, steps)
    actions = torch.zeros(T + 1, B, dtype=torch.long)
    return UpdateRuleInputs(rows, actions, steps, steps.bool(), out, out, value_out, extra)
