"""Convolutional torsos: what they compute, where channels lie, which leaves they read, and their derivatives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from disco_torch.agents import PAPER_ATARI_AGENT, Agent, AgentConfig, ConvTorso
from disco_torch.agents.conv_torso import planes_of, to_planes
from disco_torch.agents.convolutions import BoardNetwork, ImpalaNetwork, NatureNetwork
from disco_torch.layers import Conv2d, init_params
from disco_torch.rules import ActorCritic, DiscoUpdateRule
from disco_torch.types import Params
from disco_torch.weights import load_agent, save_agent

OUTPUTS = ActorCritic().outputs(3)
IMAGE = torch.zeros(4, 40, 36, dtype=torch.uint8)
BOARD = torch.zeros(5, 6, 2, dtype=torch.bool)
SMALL = {"board": (), "impala": (3, 2), "nature": (3, 4, 5)}


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_agent(example: Any, torso: Any = "board", **settings: Any) -> Agent:
    settings = {"dense": (7, 6), "channels": SMALL.get(torso, ())} | settings
    config = AgentConfig(torso=torso, **settings)
    return Agent(example, 3, OUTPUTS, config).double()


def random_bytes(*shape: int) -> Tensor:
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(1)).to(torch.uint8)


def convolved(x: Tensor, conv: nn.Conv2d, stride: int = 1, padding: int = 0) -> Tensor:
    """A convolution of [C, H, W], number by number."""
    weight, bias = conv.weight.detach(), conv.bias
    assert bias is not None
    x = nn.functional.pad(x, (padding,) * 4)
    size = weight.shape[-1]
    height, width = ((side - size) // stride + 1 for side in x.shape[1:])
    out = x.new_zeros(len(weight), height, width)
    for c in range(len(weight)):
        for i in range(height):
            for j in range(width):
                patch = x[:, i * stride : i * stride + size, j * stride : j * stride + size]
                out[c, i, j] = (patch * weight[c]).sum() + bias[c].detach()
    return out


def pooled(x: Tensor) -> Tensor:
    """The largest of 3x3 numbers around every other one, of [C, H, W]; outside there is nothing."""
    rows, columns = (range(0, side, 2) for side in x.shape[1:])
    largest = [[x[:, max(i - 1, 0) : i + 2, max(j - 1, 0) : j + 2].amax((1, 2)) for j in columns] for i in rows]
    return torch.stack([torch.stack(row, -1) for row in largest], -2)


def randomized(module: nn.Module) -> Any:
    module.double()
    for i, param in enumerate(module.parameters()):
        param.data = 0.5 * draw(*param.shape, seed=i)
    return module


def test_a_board_is_convolved_keeps_its_sides_and_goes_through_relu() -> None:
    network, x = randomized(BoardNetwork((2, 4, 3), (3,))), draw(2, 4, 3)
    want = convolved(x, network[0], padding=1).clamp(min=0.0)
    torch.testing.assert_close(network(x[None])[0], want.flatten())
    assert network.out_features == 3 * 4 * 3 and BoardNetwork((1, 5, 5)).out_features == 16 * 25
    assert BoardNetwork((1, 5, 5), (4, 8)).out_features == 8 * 25


def test_impala_is_convolutions_pooling_and_two_residual_blocks_a_section() -> None:
    network, x = randomized(ImpalaNetwork((2, 5, 8), (3, 2))), draw(2, 5, 8)
    want, layers = x, list(network)
    for section in (layers[:4], layers[4:8]):
        want = pooled(convolved(want, section[0], padding=1))
        for block in section[2:]:
            inner = convolved(want.clamp(min=0.0), block.first, padding=1).clamp(min=0.0)
            want = want + convolved(inner, block.second, padding=1)
    assert want.shape == (2, 2, 2)
    torch.testing.assert_close(network(x[None])[0], want.clamp(min=0.0).flatten())
    assert network.out_features == 8


def test_nature_is_three_strided_convolutions() -> None:
    network, x = randomized(NatureNetwork((1, 36, 40), (2, 3, 2))), draw(1, 36, 40)
    want = x
    for conv, stride in ((network[0], 4), (network[2], 2), (network[4], 1)):
        want = convolved(want, conv, stride).clamp(min=0.0)
    assert want.shape == (2, 1, 1)
    torch.testing.assert_close(network(x[None])[0], want.flatten())


def test_the_sizes_of_the_papers() -> None:
    assert NatureNetwork((4, 84, 84)).out_features == 64 * 7 * 7  # 3136
    assert ImpalaNetwork((3, 72, 96)).out_features == 32 * 9 * 12  # 3456, figure 3 of IMPALA has 72x96
    with torch.device("meta"):
        agent = Agent(torch.zeros(4, 84, 84, dtype=torch.uint8), 18, DiscoUpdateRule().outputs(18), PAPER_ATARI_AGENT)
    shapes = [tuple(layer.weight.shape[:2]) for layer in agent.torso.networks["0"] if isinstance(layer, Conv2d)]
    assert shapes == [(256, 4), (384, 256), (384, 384), (256, 384)]
    assert agent.torso.dense[0].weight.shape == (768, 256 * 6 * 6)
    assert agent.action_model is not None and agent.action_model.core.hidden_size == 1024
    assert agent.action_model.heads["q"][0].weight.shape == (1024, 1024)


@pytest.mark.parametrize(
    ("shape", "axis", "want"),
    [
        ((8, 8), "auto", (1, 8, 8, True)),
        ((10, 10, 4), "auto", (4, 10, 10, False)),
        ((10, 10, 10), "auto", (10, 10, 10, False)),
        ((7, 7, 3), "auto", (3, 7, 7, False)),
        ((4, 84, 84), "auto", (4, 84, 84, True)),
        ((2, 5, 7), "auto", (2, 5, 7, True)),
        ((2, 5, 7), "last", (7, 2, 5, False)),
        ((10, 10, 4), "first", (10, 10, 4, True)),
        ((4, 64, 48, 3), "auto", (12, 64, 48, False)),
        ((4, 3, 64, 48), "auto", (12, 64, 48, True)),
        ((6,), "auto", None),
        ((), "auto", None),
        ((2, 2, 2, 2, 2), "auto", None),
    ],
)
def test_where_the_channels_are(shape: tuple[int, ...], axis: Any, want: Any) -> None:
    assert planes_of(shape, axis) == want


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 2), (2, 4, 6), (3, 4, 6, 2), (3, 2, 4, 6)])
def test_channels_come_first_for_the_network(shape: tuple[int, ...]) -> None:
    x, planes = random_bytes(5, *shape), planes_of(shape)
    assert planes is not None
    got = to_planes(x, planes, torch.float64)
    assert got.shape == (5, *planes.sizes) and got.dtype == torch.float64
    for c in range(planes.channels):
        frame = x.reshape(5, -1, *shape[-3:]) if len(shape) > 2 else x[:, None, None]
        each = planes.channels // frame.shape[1]
        of_frame = frame[:, c // each]
        want = of_frame[:, c % each] if planes.channels_first else of_frame[..., c % each]
        torch.testing.assert_close(got[:, c], want.double() / 255.0)


def test_numbers_and_bits_are_not_divided() -> None:
    planes = planes_of((3, 3))
    assert planes is not None
    for x in (torch.ones(1, 3, 3, dtype=torch.bool), torch.ones(1, 3, 3, dtype=torch.int64), torch.ones(1, 3, 3)):
        assert (to_planes(x, planes, torch.float32) == 1.0).all()


@pytest.mark.parametrize("torso", ["board", "impala", "nature"])
def test_each_row_is_read_by_itself_and_position_matters(torso: Any) -> None:
    agent, x = make_agent(IMAGE, torso), random_bytes(3, 2, *IMAGE.shape)
    whole = agent(x)[0]["logits"]
    assert whole.shape == (3, 2, 3)
    torch.testing.assert_close(whole[2:, 1:], agent(x[2:, 1:])[0]["logits"])
    assert not torch.allclose(agent(x.roll(5, -1))[0]["logits"], whole)


@pytest.mark.parametrize("torso", ["mlp", "board", "impala", "nature"])
def test_features_of_tanh_are_bounded_and_have_both_signs(torso: Any) -> None:
    example = torch.zeros(IMAGE.shape) if torso == "mlp" else IMAGE
    agent, x = make_agent(example, torso, activation="tanh", dense=(64,)), random_bytes(3, 2, *IMAGE.shape)
    features = agent.torso(x.double() if torso == "mlp" else x)
    assert features.abs().max() <= 1.0 and features.min() < 0.0 < features.max()
    with pytest.raises(ValueError, match=r"`activation` must be one of \['relu', 'tanh'\], got 'gelu'"):
        make_agent(example, torso, activation="gelu")


def test_trees_mix_images_boards_and_vectors() -> None:
    example = {"sound": torch.zeros(5), "view": IMAGE, "map": BOARD, "score": torch.zeros(()), "bits": torch.zeros(2, 2)}
    agent = make_agent(example, "impala", channels=(3, 2, 2))
    networks = agent.torso.networks  # in the order of the sorted names: bits, map, score, sound, view
    assert {name: type(network) for name, network in networks.items()} == {"1": BoardNetwork, "4": ImpalaNetwork}
    observations = {
        "view": random_bytes(3, 2, *IMAGE.shape),
        "map": random_bytes(3, 2, *BOARD.shape) > 127,
        "sound": draw(3, 2, 5),
        "score": draw(3, 2),
        "bits": draw(3, 2, 2, 2),
    }
    planes = {name: planes_of(observations[name].shape[2:]) for name in ("view", "map")}
    read = [
        observations["bits"].flatten(2),
        networks["1"](to_planes(observations["map"].flatten(0, 1), planes["map"], torch.float64)).unflatten(0, (3, 2)),
        observations["score"].unsqueeze(-1),
        observations["sound"],
        networks["4"](to_planes(observations["view"].flatten(0, 1), planes["view"], torch.float64)).unflatten(0, (3, 2)),
    ]
    want = agent.torso.dense(torch.cat(read, -1)).clamp(min=0.0)
    torch.testing.assert_close(agent.torso(observations), want)


def test_what_follows_the_dense_layers() -> None:
    """A ReLU, as in IMPALA and the DQN; none behind a board, as in the torso without convolutions."""
    x = random_bytes(3, 2, *IMAGE.shape)
    lowest = {name: make_agent(IMAGE, name).torso(x).min().item() for name in SMALL}
    assert lowest["impala"] == lowest["nature"] == 0.0 > lowest["board"]


@pytest.mark.parametrize("torso", ["board", "impala", "nature"])
def test_gradients_reach_every_weight(torso: Any) -> None:
    agent, x = make_agent(IMAGE, torso), random_bytes(3, 2, *IMAGE.shape)
    agent(x)[0]["logits"].square().sum().backward()
    for name, param in agent.torso.named_parameters():
        assert param.grad is not None and bool((param.grad != 0).any()), name


@pytest.mark.parametrize("torso", ["board", "impala", "nature"])
def test_second_derivatives_in_both_modes_agree_for_a_population(torso: Any) -> None:
    """What discovery needs: forward mode over backward mode, batched over agents, is backward over backward."""
    agent, x = make_agent(IMAGE, torso), random_bytes(3, 2, *IMAGE.shape)
    population = [agent.init(torch.Generator().manual_seed(i)) for i in range(2)]
    directions = {name: draw(*param.shape, seed=3) for name, param in population[0].items()}

    def loss(params: Params) -> Tensor:
        return functional_call(agent, params, (x,))[0]["logits"].square().sum()

    def mixed(params: Params) -> Params:
        return jvp(grad(loss), (params,), (directions,))[1]

    def plain(params: Params) -> Params:
        return grad(lambda p: torch.stack([(g * directions[name]).sum() for name, g in grad(loss)(p).items()]).sum())(params)

    together = vmap(mixed)({name: torch.stack([params[name] for params in population]) for name in directions})
    for i, params in enumerate(population):
        for name, want in plain(params).items():
            torch.testing.assert_close(together[name][i], want, rtol=1e-10, atol=1e-12)


def test_initial_weights() -> None:
    layer = Conv2d(4, 64, 3)
    params = init_params(layer, torch.Generator().manual_seed(0))
    std = 36**-0.5
    assert params["weight"].abs().max() <= 2.0 * std and (params["bias"] == 0).all()
    assert float(params["weight"].std()) == pytest.approx(0.8796 * std, rel=0.05)
    assert torch.equal(params["weight"], init_params(layer, torch.Generator().manual_seed(0))["weight"])
    agent = make_agent(BOARD)
    first, other = (agent.init(torch.Generator().manual_seed(i)) for i in range(2))
    assert not torch.equal(first["torso.networks.0.0.weight"], other["torso.networks.0.0.weight"])


@pytest.mark.parametrize("torso", ["board", "impala", "nature"])
def test_agents_are_saved_and_loaded(torso: Any, tmp_path: Path) -> None:
    agent, path = make_agent(IMAGE, torso), tmp_path / "agent.safetensors"
    params = agent.init(torch.Generator().manual_seed(3))
    save_agent(path, agent, params)
    loaded = load_agent(path, make_agent(IMAGE, torso))
    assert loaded.keys() == params.keys() and all(torch.equal(loaded[name], params[name]) for name in params)
    with pytest.raises(ValueError, match="`agent` must have an MLP for a torso, as the reference's has, got ConvTorso; use"):
        save_agent(tmp_path / "agent.npz", agent)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: make_agent(torch.zeros(8, 40), "impala", channels=(4, 4, 4, 4)),
            r"`torso` 'impala' must have an image or board whose sides are at least 16, got observations of \[\[8, 40\]\]; "
            r"use the torso `board` or `mlp`, or set `channel_axis` if the channels were taken for a side",
        ),
        (lambda: make_agent(torch.zeros(35, 84), "nature"), "'nature' must have .* whose sides are at least 36"),
        (lambda: make_agent(torch.zeros(4), "board"), r"'board' must .* at least 3, got .*\[\[4\]\]; use the torso `mlp`"),
        (lambda: make_agent(torch.zeros(3, 0, 3), "board"), r"at least 3, got observations of \[\[3, 0, 3\]\]"),
        (lambda: AgentConfig(torso="board", channels=(0,)), r"`channels` must hold sizes of at least 1, got \[0\]"),
        (lambda: AgentConfig(torso="mlp", channels=(8,)), r"`channels` must be empty for the torso 'mlp', got \[8\]"),
        (
            lambda: AgentConfig(torso="nature", channels=(8, 8)),
            "`channels` of 'nature' must be 3, one for each convolution, got 2",
        ),
        (
            lambda: AgentConfig(torso="impala", observation_scale=(0.5,)),
            r"`observation_scale` must be empty for the torso 'impala', got \[0.5\]; it scales what `mlp` has flattened",
        ),
        (
            lambda: AgentConfig(channel_axis="middle"),  # type: ignore[arg-type]
            r"`channel_axis` must be one of \['auto', 'first', 'last'\], got 'middle'",
        ),
    ],
)
def test_bad_input(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_the_channel_axis_can_be_set() -> None:
    with pytest.raises(ValueError, match="if the channels were taken for a side"):
        ConvTorso("nature", torch.zeros(20, 40, 45), (4,), axis="last")
    assert ConvTorso("nature", torch.zeros(20, 40, 45), (4,), axis="first").planes == [(20, 40, 45, True)]
