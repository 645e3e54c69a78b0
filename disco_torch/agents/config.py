"""What an agent's network is made of: the parts by name, and their sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from disco_torch.agents.conv_torso import ConvTorso
from disco_torch.agents.convolutions import NETWORKS
from disco_torch.agents.core import LSTMCore, NoMemory
from disco_torch.agents.torso import MLPTorso
from disco_torch.checks import check_least
from disco_torch.layers import Activation
from disco_torch.types import Observations

CORES: dict[str, Callable[[int, AgentConfig], Any]] = {
    "none": lambda features, config: NoMemory(features),
    "lstm": lambda features, config: LSTMCore(features, config.core_size),
}
"""Makes the core of a configuration, given the number of features of the torso; see `NoMemory` for what a core is."""


def _make_conv_torso(name: str, example: Observations, config: AgentConfig) -> ConvTorso:
    return ConvTorso(name, example, config.dense, config.channels, config.channel_axis, config.activation)


TORSOS: dict[str, Callable[[Observations, AgentConfig], Any]] = {
    "mlp": lambda example, config: MLPTorso(example, config.dense, config.observation_scale, config.activation),
    **{name: partial(_make_conv_torso, name) for name in NETWORKS},
}
"""Makes the torso of a configuration: a module of [T, B, ...] observations with `out_features`."""


@dataclass(frozen=True)
class AgentConfig:
    """The parts of the network and their sizes; the defaults are the reference's for Disco103.

    Attributes:
      dense: Sizes of the torso's layers; of a convolutional one, those behind the convolutions.
      lstm_size: Number of hidden units of the action model, which is used if the rule asks for outputs per action.
      head_mlp_hiddens: Sizes of the hidden layers of each head per action.
      head_w_init_std: Initial standard deviation of the heads' weights.
      observation_scale: Factors to multiply the flat observation with, one for all of it or one for each entry; for `mlp`.
      bfloat16: Compute the network's matmuls in bfloat16, on a GPU; parameters, losses and the rule stay in float32.
      torso: Network that reads the observations: `mlp` flattens them and applies dense layers; `board` is a 3x3 convolution
        before them, `impala` IMPALA's residual network, `nature` the network of the Nature DQN; `auto` chooses from the
        observations, see `choose_torso`.
      activation: Activation of the torso's dense layers: `relu` between them, as the reference has it, or `tanh` after each.
      core: Memory of the agent: `lstm`, or `none` for a feed-forward agent.
      core_size: Number of hidden units of the core.
      channels: Channels of each convolution of `board` and `nature`, or of each section of `impala`; by default (16),
        (32, 64, 64) and (16, 32, 32).
      channel_axis: Where the channels of boards and images are: before the sides (`first`) or after them (`last`); `auto`
        takes the smaller one of the first and the last dimension.
    """

    dense: Sequence[int] = (512, 512)
    lstm_size: int = 128
    head_mlp_hiddens: Sequence[int] = (128,)
    head_w_init_std: float | None = 1e-2
    observation_scale: Sequence[float] = ()
    bfloat16: bool = field(default=False, metadata={"later": True})
    torso: Literal["auto", "mlp", "board", "impala", "nature"] = field(default="mlp", metadata={"later": True})
    activation: Activation = field(default="relu", metadata={"later": True})
    core: Literal["none", "lstm"] = field(default="none", metadata={"later": True})
    core_size: int = field(default=128, metadata={"later": True})
    channels: Sequence[int] = field(default=(), metadata={"later": True})
    channel_axis: Literal["auto", "first", "last"] = field(default="auto", metadata={"later": True})

    def __post_init__(self) -> None:
        if not self.dense:
            raise ValueError("`dense` must name at least one layer, got none.")
        for name in ("dense", "head_mlp_hiddens", "channels"):
            if any(size < 1 for size in getattr(self, name)):
                raise ValueError(f"`{name}` must hold sizes of at least 1, got {list(getattr(self, name))}.")
        known = {"torso": ["auto", *TORSOS], "core": [*CORES], "channel_axis": ["auto", "first", "last"]}
        known["activation"] = ["relu", "tanh"]
        for name, names in known.items():
            if getattr(self, name) not in names:
                raise ValueError(f"`{name}` must be one of {names}, got {getattr(self, name)!r}.")
        for name in ("lstm_size", "core_size"):
            check_least(name, getattr(self, name), 1)
        self._check_torso()

    def _check_torso(self) -> None:
        """Raises where a setting is not one of the torso."""
        if self.torso not in ("auto", "mlp") and self.observation_scale:
            raise ValueError(
                f"`observation_scale` must be empty for the torso {self.torso!r}, got {list(self.observation_scale)}; "
                "it scales what `mlp` has flattened."
            )
        if self.torso == "mlp" and self.channels:
            raise ValueError(f"`channels` must be empty for the torso 'mlp', got {list(self.channels)}; choose another one.")
        wanted = NETWORKS[self.torso].num_channels if self.torso in NETWORKS else None
        if self.channels and wanted is not None and len(self.channels) != wanted:
            raise ValueError(
                f"`channels` of {self.torso!r} must be {wanted}, one for each convolution, got {len(self.channels)}."
            )


PAPER_ATARI_AGENT = AgentConfig(
    dense=(768,), lstm_size=1024, head_mlp_hiddens=(1024,), torso="impala", channels=(256, 384, 384, 256)
)
"""The network that the paper evaluates on Atari: four sections, a dense layer of 768 and an action model of 1024."""
