"""Names and layouts of the reference's parameter files.

The reference keeps its parameters under Haiku's names, as flat `.npz` archives: `.../w` is [in, out], kernels of its
width-1 convolutions are [1, in, out]. A list of `HaikuLayer`s says which of our layers is which; everything else follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from disco_torch.agents import Agent
from disco_torch.layers import MLP, Linear
from disco_torch.rules import DiscoUpdateRule
from disco_torch.rules.meta_net import ActionNet, InputEncoder
from disco_torch.types import Params
from disco_torch.weights.arrays import checked_tensors
from disco_torch.weights.files import Arrays


@dataclass(frozen=True)
class HaikuLayer:
    name: str
    """Haiku's name of the layer; its arrays are `name/w` and `name/b`."""
    layer: Linear
    is_conv: bool = False


def _numbered(base: str, index: int) -> str:
    return base if index == 0 else f"{base}_{index}"


def _mlp(name: str, mlp: nn.Module) -> list[HaikuLayer]:
    assert isinstance(mlp, MLP)
    return [HaikuLayer(f"{name}/~/linear_{i}", layer) for i, layer in enumerate(mlp.linears())]


def _convs(name: str, net: ActionNet) -> list[HaikuLayer]:
    linears = [layer for layer in net.modules() if isinstance(layer, Linear)]
    return [HaikuLayer(f"{name}/{_numbered('conv1_d', i)}", layer, is_conv=True) for i, layer in enumerate(linears)]


def _encoder(name: str, encoder: InputEncoder) -> list[HaikuLayer]:
    return [
        *_mlp(f"{name}/mlp", encoder.y_net),
        *_mlp(f"{name}/mlp_1", encoder.z_net),
        *_convs(f"{name}/sequential", encoder.policy_net),
    ]


def rule_layers(rule: DiscoUpdateRule) -> list[HaikuLayer]:
    """The layers of a discovered rule."""
    net = rule.meta_net
    heads = [net.state_gate, net.meta_input_head, net.y_head, net.z_head, net.pi_head]
    inner = "lstm/~/meta_lstm/~unroll"
    return [
        *_encoder("lstm", net.encoder),
        HaikuLayer("lstm/lstm/linear", net.trajectory_rnn.linear),
        *[HaikuLayer(f"lstm/{_numbered('linear', i)}", head) for i, head in enumerate(heads)],
        *_convs("lstm/sequential_1", net.policy_target_net),
        *_encoder(inner, net.meta_rnn.encoder),
        *_mlp(f"{inner}/mlp_2", net.meta_rnn.embedding),
        HaikuLayer(f"{inner}/lstm/linear", net.meta_rnn.core.linear),
    ]


def agent_layers(agent: Agent, root: str = "mlp") -> list[HaikuLayer]:
    """The layers of an agent (`root` "mlp") or of a value function's network ("value_fn")."""
    if not isinstance(agent.torso, MLP):
        raise ValueError(
            f"`agent` must have an MLP for a torso, as the reference's has, got {type(agent.torso).__name__}; "
            "use a .safetensors file."
        )
    layers = _mlp(f"{root}/~_embedding_pass/torso", agent.torso)
    for i, head in enumerate(agent.heads.values()):
        layers += _mlp(f"{root}/~_head_pass/{_numbered('torso_head', i)}", head)
    model = agent.action_model
    if model is not None:
        layers.append(HaikuLayer(f"{root}/linear", model.root))
        layers.append(HaikuLayer(f"{root}/action_cond/linear", model.core.linear))
        for i, head in enumerate(model.heads.values()):
            layers += _mlp(f"{root}/{_numbered('mlp', i)}", head)
    return layers


def _names(module: nn.Module, layers: Sequence[HaikuLayer]) -> dict[str, tuple[str, HaikuLayer]]:
    """Haiku array name -> our parameter name and the layer."""
    own = {id(layer): name for name, layer in module.named_modules()}
    table = {}
    for entry in layers:
        table[f"{entry.name}/w"] = (f"{own[id(entry.layer)]}.weight", entry)
        table[f"{entry.name}/b"] = (f"{own[id(entry.layer)]}.bias", entry)
    nameless = {name for name, _ in module.named_parameters()} - {name for name, _ in table.values()}
    if nameless:
        raise ValueError(f"parameter {min(nameless)!r} has no name in Haiku; use a .safetensors file.")
    return table


def to_haiku(module: nn.Module, layers: Sequence[HaikuLayer], params: Params | None = None) -> Arrays:
    """Parameters (the module's own unless given) as arrays under Haiku's names."""
    params = dict(module.named_parameters()) if params is None else params
    arrays = {}
    for haiku_name, (name, entry) in _names(module, layers).items():
        array = params[name].detach().cpu().numpy()
        if haiku_name.endswith("/w"):
            array = array.T[None] if entry.is_conv else array.T
        arrays[haiku_name] = np.ascontiguousarray(array)
    return dict(sorted(arrays.items()))


def from_haiku(module: nn.Module, layers: Sequence[HaikuLayer], arrays: Mapping[str, np.ndarray | Tensor]) -> Params:
    """Parameters of the module's shapes, dtype and device from arrays under Haiku's names.

    Raises at the first array that is missing, unexpected, of another shape, not of floating point, or not finite.
    """
    table = _names(module, layers)
    like = next(module.parameters())
    shapes = {}
    for haiku_name, (name, entry) in table.items():
        shape = tuple(module.get_parameter(name).shape)
        if haiku_name.endswith("/w"):
            shape = (1, *shape[::-1]) if entry.is_conv else shape[::-1]
        shapes[haiku_name] = shape
    params = {}
    for haiku_name, tensor in checked_tensors(arrays, shapes, like.dtype).items():
        if haiku_name.endswith("/w"):
            tensor = tensor.reshape(shapes[haiku_name][-2:]).t().contiguous()
        params[table[haiku_name][0]] = tensor.to(like.device)
    return params
