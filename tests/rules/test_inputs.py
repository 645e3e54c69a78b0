"""What a meta-network reads: every transform against numpy, the running normaliser, and lists that do not fit."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from disco_torch.rules import (
    MetaNetConfig,
    MetaNetInputOption,
    TransformConfig,
    disco_input_option,
)
from disco_torch.rules.inputs import (
    SOURCES,
    TRANSFORMS,
    InputContext,
    NormalizerState,
    check_inputs,
    normalizer_keys,
    read_inputs,
    td_pair,
)
from disco_torch.rules.meta_net import InputEncoder
from disco_torch.types import OutputSpec, UpdateRuleInputs, ValueOuts

T, B, A, Y, V = 6, 3, 4, 5, 7
SPEC = OutputSpec(flat={"logits": A, "y": Y}, per_action={"z": Y, "aux_pi": A, "q": V})


@pytest.fixture
def inputs(make_inputs: Callable[..., UpdateRuleInputs]) -> UpdateRuleInputs:
    """Inputs with a value function's estimates too, so that every source is there."""
    rows, steps = torch.randn(T + 1, B).double(), torch.randn(T, B).double()
    value_out = ValueOuts(rows, rows, steps, steps, steps, steps, steps, steps)
    return dataclasses.replace(make_inputs(SPEC, T, B), value_out=value_out)


def make_context(inputs: UpdateRuleInputs, **changes: Any) -> InputContext:
    policy = torch.softmax(inputs.agent_out["logits"], -1)
    nets = {"y_net": lambda x: 3.0 * x[..., :2], "z_net": lambda x: 5.0 * x[..., :1]}
    return InputContext(inputs.actions[:-1], policy, **({"normalizers": {}} | nets | changes))


def read(inputs: UpdateRuleInputs, source: str, *transforms: Any, context: InputContext | None = None) -> Tensor:
    config = TransformConfig(source, transforms)
    return read_inputs([config], inputs, context or make_context(inputs))[0]


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@dataclasses.dataclass(frozen=True)
class Case:
    """A transform, the source and the steps before it, and what it does to their array."""

    source: str
    want: Callable[[np.ndarray, UpdateRuleInputs], np.ndarray]
    before: tuple[str, ...] = ()


def taken(x: np.ndarray, inputs: UpdateRuleInputs) -> np.ndarray:
    actions = inputs.actions.numpy()
    return np.stack([[x[t, b, actions[t, b]] for b in range(B)] for t in range(T)])


def policy_mean(x: np.ndarray, inputs: UpdateRuleInputs) -> np.ndarray:
    return np.einsum("tbac,tba->tbc", x, softmax(inputs.agent_out["logits"].numpy()))


def at_taken(x: np.ndarray, inputs: UpdateRuleInputs) -> np.ndarray:
    """[T, B, C] -> [T, B, A, C]."""
    num_actions = inputs.agent_out["logits"].shape[-1]
    return x[:, :, None] * np.eye(num_actions)[inputs.actions[:-1].numpy()][..., None]


CASES: dict[str, Case] = {
    "identity": Case("rewards", lambda x, _: x),
    "softmax": Case("agent_out/y", lambda x, _: softmax(x)),
    "log_softmax": Case("agent_out/y", lambda x, _: np.log(softmax(x))),
    "at_taken": Case("rewards", at_taken),
    "select_a": Case("agent_out/z", taken, ("drop_last",)),
    "pi_weighted_avg": Case("agent_out/z", policy_mean),
    "max_a": Case("agent_out/z", lambda x, _: x.max(axis=2)),
    "td_pair": Case("agent_out/y", lambda x, _: np.concatenate([x[:-1], x[1:]], -1)),
    "drop_last": Case("agent_out/y", lambda x, _: x[:-1]),
    "stop_grad": Case("agent_out/y", lambda x, _: x),
    "sign_log": Case("rewards", lambda x, _: np.sign(x) * np.log1p(np.abs(x))),
    "sign_hyp": Case("rewards", lambda x, _: np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 1e-3 * x),
    "sign": Case("rewards", lambda x, _: np.sign(x)),
    "clip": Case("rewards", lambda x, _: np.clip(x, -2.0, 2.0)),
    "masks_to_discounts": Case("is_terminal", lambda x, _: 1.0 - x),
    "y_net": Case("agent_out/y", lambda x, _: 3.0 * x[..., :2]),
    "z_net": Case("agent_out/z", lambda x, _: 5.0 * x[..., :1]),
}


def test_every_transform_has_a_case() -> None:
    assert CASES.keys() == TRANSFORMS.keys()


@pytest.mark.parametrize("name", CASES)
def test_transform_against_numpy(inputs: UpdateRuleInputs, name: str) -> None:
    inputs = dataclasses.replace(inputs, rewards=3.0 * inputs.rewards)  # beyond the clip
    case = CASES[name]
    x = read(inputs, case.source, *case.before)
    got = read(inputs, case.source, *case.before, name)
    np.testing.assert_allclose(got.numpy(), case.want(x.numpy(), inputs), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(read(inputs, case.source, *case.before).numpy(), x.numpy())  # nothing in place


def test_a_function_may_be_a_transform(inputs: UpdateRuleInputs) -> None:
    torch.testing.assert_close(read(inputs, "rewards", "sign", lambda x: x + 1.0), torch.sign(inputs.rewards[..., None]) + 1)


def test_a_partial_may_be_a_transform(inputs: UpdateRuleInputs) -> None:
    got = read(inputs, "rewards", functools.partial(torch.clamp, min=0.0))
    torch.testing.assert_close(got, inputs.rewards[..., None].clamp(min=0.0))


def test_stop_grad_stops_the_gradient(inputs: UpdateRuleInputs) -> None:
    y = inputs.agent_out["y"].requires_grad_()
    assert not read(inputs, "agent_out/y", "softmax", "stop_grad").requires_grad
    (gradient,) = torch.autograd.grad(read(inputs, "agent_out/y", "softmax").square().sum(), y)
    assert (gradient != 0).any()


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_has_time_first_and_a_feature_dimension(inputs: UpdateRuleInputs, source: str) -> None:
    x = read(inputs, source)
    assert x.shape[0] in (T, T + 1) and x.shape[1] == B and x.ndim in (3, 4)
    assert x.is_floating_point()


def test_shared_beginnings_are_computed_once(inputs: UpdateRuleInputs) -> None:
    calls = []
    context = make_context(inputs, z_net=lambda x: calls.append(1) or x[..., :1])
    start = ("softmax", "z_net")
    configs = [TransformConfig("agent_out/z", (*start, "max_a")), TransformConfig("agent_out/z", (*start, "drop_last"))]
    got = read_inputs(configs, inputs, context)
    assert len(calls) == 1 and [x.shape[0] for x in got] == [T + 1, T]


def test_encoders_share_what_lies_before_their_own_networks(inputs: UpdateRuleInputs) -> None:
    steps = ("softmax", "z_net", "max_a", "drop_last")
    first, second = make_context(inputs), make_context(inputs, z_net=lambda x: -x[..., :1])
    second.shared = first.shared
    configs = [TransformConfig("agent_out/z", steps), TransformConfig("rewards", ("sign_log",))]
    (z1, r1), (z2, r2) = (read_inputs(configs, inputs, context) for context in (first, second))
    assert r1 is r2 and not torch.equal(z1, z2)
    fresh = make_context(inputs, z_net=lambda x: -x[..., :1])
    assert torch.equal(z2, read_inputs(configs, inputs, fresh)[0])


def numpy_normalize(moments: np.ndarray | None, x: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The n-th call: moments of the batch over time and batch, decayed by 0.99, debiased."""
    batch = np.stack([x.mean((0, 1), keepdims=True), (x**2).mean((0, 1), keepdims=True)])
    moments = (0.0 if moments is None else 0.99 * moments) + 0.01 * batch
    mean, square = moments / (1.0 - 0.99**n)
    return (x - mean) / (np.sqrt(np.maximum(square - mean**2, 0.0) + 1e-12) + 1e-6), moments


def fresh_normalizers(*configs: TransformConfig) -> dict[str, NormalizerState]:
    zero = torch.zeros((), dtype=torch.float64)
    return {key: NormalizerState(zero, zero, zero) for key in normalizer_keys(configs)}


def test_normaliser_against_numpy_over_three_calls(make_inputs: Callable[..., UpdateRuleInputs]) -> None:
    config = TransformConfig("agent_out/z", ("drop_last", "normalize"))
    states, moments = fresh_normalizers(config), None
    for n in (1, 2, 3):
        inputs = make_inputs(SPEC, T, B, seed=n)
        context = make_context(inputs, normalizers=states)
        got = read_inputs([config], inputs, context)[0]
        want, moments = numpy_normalize(moments, inputs.agent_out["z"][:-1].numpy(), n)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-10, atol=1e-10)
        states = context.new_normalizers
    (state,) = states.values()
    assert state.moment1.shape == (1, 1, A, Y) and int(state.count) == 3


def test_normaliser_against_the_reference() -> None:
    """What the reference's own module (EmaNorm, decay 0.99, in float64) gives for the third of three batches."""
    config = TransformConfig("rewards", ("normalize",))
    wanted = {
        0: [-1.3522461218515147, -0.8783095513681163, -0.3380615304628786, 0.29276985045603876],
        1: [-1.7168876346216586, -0.7662025011250485, 0.0766065348781323, 1.1751148173753405],
        2: [-2.0366991275613553, -0.6751121803863273, 0.4128104877058929, -1.0831870502834033],
    }
    states = fresh_normalizers(config)
    for i, want in wanted.items():
        batch = torch.as_tensor((np.arange(12.0).reshape(3, 2, 2) * (i + 1) % 7) - 2.0 * i)
        # What a context already holds is not read again, so the batch can stand in for the source.
        context = InputContext(torch.zeros(3, 2).long(), batch, abs, abs, states, shared={"rewards": batch})
        got = read_inputs([config], None, context)[0]  # type: ignore[arg-type]
        np.testing.assert_allclose(got.flatten()[:4].numpy(), want, rtol=1e-12)
        states = context.new_normalizers


def test_normaliser_with_the_mean_across_processes(make_inputs: Callable[..., UpdateRuleInputs]) -> None:
    config = TransformConfig("rewards", ("normalize",))
    inputs = make_inputs(SPEC, T, 4)
    whole = read_inputs([config], inputs, make_context(inputs, normalizers=fresh_normalizers(config)))[0]
    other = inputs.rewards[:, 2:, None]
    theirs = torch.stack([other.mean((0, 1), keepdim=True), other.square().mean((0, 1), keepdim=True)])
    half = dataclasses.replace(inputs, rewards=inputs.rewards[:, :2])
    context = make_context(
        half, normalizers=fresh_normalizers(config), mean_across_processes=lambda mine: (mine + theirs) / 2.0
    )
    torch.testing.assert_close(read_inputs([config], half, context)[0], whole[:, :2], rtol=1e-12, atol=1e-12)


def test_disco103_reads_27_features_and_9_channels(inputs: UpdateRuleInputs) -> None:
    option = disco_input_option()
    encoder = InputEncoder(option, Y, V, (16, 1), (16, 2)).double()
    features, channels, normalizers = encoder.read(inputs, {}, None, {})
    assert features.shape == (T, B, 23) and channels.shape == (T, B, A, 9) and normalizers == {}
    embedded, embeddings, _ = encoder(inputs, {}, None, {})
    assert embedded.shape == (T, B, 27) == (T, B, encoder.out_features) and embeddings.shape == (T, B, A, 2)
    marks = torch.nn.functional.one_hot(inputs.actions[:-1], A).double()
    assert torch.equal(channels[..., -1], marks)


def test_td_pair_puts_rows_side_by_side() -> None:
    x = torch.arange(3.0).reshape(3, 1, 1)
    assert td_pair(x).flatten(1).tolist() == [[0.0, 1.0], [1.0, 2.0]]


POLICY = TransformConfig("agent_out/logits", ("drop_last",))


def build(base: list[TransformConfig], per_action: list[TransformConfig] | None = None) -> InputEncoder:
    option = MetaNetInputOption(base, [POLICY] if per_action is None else per_action)
    return InputEncoder(option, Y, V, (4, 1), (4, 2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: check_inputs([TransformConfig("reward")]), r"`source` must be one of \[.*'rewards'.*\], got 'reward'"),
        (
            lambda: check_inputs([TransformConfig("rewards", ("sign", "log"))]),
            r"`transforms` must be functions or names among \[.*'normalize'.*\], got 'log' for 'rewards'",
        ),
        (
            lambda: MetaNetConfig(input_option=MetaNetInputOption([TransformConfig("x")], [POLICY])),
            r"`source` must be one of",
        ),
        (
            lambda: MetaNetConfig(input_option=MetaNetInputOption([POLICY], [])),
            r"`input_option.action_conditional` must hold at least one input",
        ),
        (
            lambda: build([POLICY]),
            r"the inputs give \(2, 2\) features with 2 actions and \(3, 2\) with 3; reduce over actions with `select_a`",
        ),
        (lambda: build([TransformConfig("agent_out/z", ("drop_last",))]), r"features with 2 actions .* reduce over actions"),
        (
            lambda: build([TransformConfig("rewards")], [TransformConfig("agent_out/aux_pi", ("drop_last",))]),
            r"the inputs give \(1, 3\) features with 2 actions and \(1, 4\) with 3; reduce",
        ),
        (
            lambda: build([TransformConfig("agent_out/z", ("select_a",))]),
            r"`select_a` needs \[T, B, A, ...\] with T = 2, got \[3, 1, 2, 5\]; put `drop_last` before it",
        ),
        (
            lambda: build([TransformConfig("agent_out/z", ("drop_last", "pi_weighted_avg"))]),
            r"`pi_weighted_avg` needs \[T\+1, B, A, C\], got \[2, 1, 2, 5\]; put `drop_last` after it",
        ),
    ],
)
def test_lists_that_do_not_fit(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    "config",
    [TransformConfig("agent_out/y", ("softmax",)), TransformConfig("extra_from_rule/v_scalar", ("td_pair", "drop_last"))],
    ids=["a row too many", "a row too few"],
)
def test_inputs_with_another_number_of_rows(config: TransformConfig) -> None:
    prediction_size = 6  # 3 rows of 6 also are 2 rows of 9
    with pytest.raises(ValueError, match="`drop_last`"):
        InputEncoder(MetaNetInputOption([config], [POLICY]), prediction_size, V, (4, 1), (4, 2))


def test_select_a_of_what_has_no_actions() -> None:
    with pytest.raises(ValueError, match=r"`select_a` needs \[T, B, A, ...\]"):
        build([TransformConfig("rewards", ("select_a",))])


@pytest.mark.parametrize(
    ("source", "change"),
    [
        ("value_out/adv", {"value_out": None}),
        ("extra_from_rule/adv", {"extra_from_rule": None}),
        ("extra_from_rule/target_out/y", {"extra_from_rule": {}}),
        ("behaviour_agent_out/logits", {"behaviour_agent_out": None}),
        ("agent_out/y", {"agent_out": {"logits": torch.zeros(T + 1, B, A).double()}}),
    ],
)
def test_missing_sources(inputs: UpdateRuleInputs, source: str, change: dict[str, Any]) -> None:
    inputs = dataclasses.replace(inputs, **change)
    with pytest.raises(ValueError, match=rf"inputs lack '{source}', which its meta-network reads; .*fill it in UpdateRule"):
        read(inputs, source)
