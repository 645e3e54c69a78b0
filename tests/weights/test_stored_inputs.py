"""Inputs by the reference's names: every transform against numpy, the running normaliser, lists that do not fit, files."""

from __future__ import annotations

import dataclasses
import functools
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from disco_torch.layers import MLP
from disco_torch.rules import (
    MetaNetConfig,
    MetaNetInputOption,
    RuleInput,
    RuleView,
    disco_input_option,
    extended_input_option,
)
from disco_torch.rules.encoder import InputEncoder
from disco_torch.rules.inputs import INPUTS
from disco_torch.rules.view import NormalizerState, RolloutView, td_pair
from disco_torch.types import OutputSpec, UpdateRuleInputs, ValueOuts
from disco_torch.weights import TransformConfig
from disco_torch.weights.stored_inputs import (
    NAMES,
    SOURCES,
    TRANSFORMS,
    StoredRead,
    input_from_stored,
    stored_form,
    stored_name,
)

T, B, A, Y, V = 6, 3, 4, 5, 7
SPEC = OutputSpec(flat={"logits": A, "y": Y}, per_action={"z": Y, "aux_pi": A, "q": V})


@pytest.fixture
def inputs(make_inputs: Callable[..., UpdateRuleInputs]) -> UpdateRuleInputs:
    """Inputs with a value function's estimates too, so that every source is there."""
    rows, steps = torch.randn(T + 1, B).double(), torch.randn(T, B).double()
    value_out = ValueOuts(rows, rows, steps, steps, steps, steps, steps, steps)
    return dataclasses.replace(make_inputs(SPEC, T, B), value_out=value_out)


def net(factor: float, size: int) -> MLP:
    """An embedding that is easy to compute by hand: some of its inputs, times a factor."""
    mlp = MLP(Y, (size,)).double().requires_grad_(False)
    mlp[0].weight.copy_(factor * torch.eye(size, Y))
    return mlp


def make_view(inputs: UpdateRuleInputs, normalizers: Any = None, mean: Any = None) -> RuleView:
    return RuleView(RolloutView(inputs, [net(3.0, 2)], [net(5.0, 1)]), 0, normalizers, mean)


def stored(source: str, *transforms: Any) -> RuleInput:
    """Such an input composed of its parts, also where `rules.inputs` has it under a name of its own."""
    read = StoredRead(source, transforms)
    return RuleInput(stored_name(source, transforms), read, read.needs_action_outputs)


def read(inputs: UpdateRuleInputs, source: str, *transforms: Any) -> Tensor:
    return stored(source, *transforms).read(make_view(inputs))


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


@pytest.mark.parametrize("option", [disco_input_option(), extended_input_option()], ids=["disco", "extended"])
def test_inputs_with_names_are_their_stored_forms(tiny_rule, make_inputs, option: MetaNetInputOption) -> None:
    """Every input of `rules.inputs` equals, to the bit, what the reference's source and transforms compute."""
    inputs, encoder = make_inputs(tiny_rule.outputs(A)), tiny_rule.meta_net.double().encoder
    for config in option.all:
        plain = stored_form(config, "config")
        composed = stored(plain["source"], *plain["transforms"])
        views = [RuleView(RolloutView(inputs, [encoder.y_net], [encoder.z_net])) for _ in range(2)]
        assert torch.equal(config.read(views[0]), composed.read(views[1])), config.name
        assert config.needs_action_outputs == composed.needs_action_outputs is False
        assert TransformConfig(plain["source"], plain["transforms"]) is config
        assert input_from_stored(plain, "config") is config


def test_every_input_has_one_stored_name() -> None:
    assert sorted(NAMES.values()) == sorted(INPUTS)
    assert {pickle.loads(pickle.dumps(each)) for each in INPUTS.values()} == set(INPUTS.values())


def test_what_needs_the_outputs_of_all_actions() -> None:
    assert TransformConfig("agent_out/q", ("drop_last",)).needs_action_outputs
    assert TransformConfig("extra_from_rule/target_out/z", ("softmax", "drop_last")).needs_action_outputs
    assert not TransformConfig("agent_out/z", ("softmax", "z_net", "max_a", "drop_last")).needs_action_outputs
    assert not TransformConfig("extra_from_rule/q", ("drop_last",)).needs_action_outputs
    assert RuleInput("mine", lambda view: view.rewards).needs_action_outputs  # nobody knows what it reads


def test_an_input_with_its_own_function_cannot_be_stored() -> None:
    with pytest.raises(ValueError, match=r"`config` is an input with a custom function \(mine\).*TransformConfig"):
        stored_form(RuleInput("mine", lambda view: view.rewards), "config")
    with pytest.raises(ValueError, match=r"`config` must hold 'source' and 'transforms', got \['name'\]"):
        input_from_stored({"name": "mine"}, "config")
    with pytest.raises(ValueError, match=r"`config.transforms\[0\]` must be str, got 3"):
        input_from_stored({"source": "rewards", "transforms": [3]}, "config")


def test_embeddings_are_computed_once_for_all_inputs(inputs: UpdateRuleInputs) -> None:
    view = make_view(inputs)
    whole, part = (stored("agent_out/z", "softmax", "z_net", *more).read(view) for more in ((), ("drop_last",)))
    assert whole is view.z(view.agent) and part.data_ptr() == whole.data_ptr()
    torch.testing.assert_close(whole, 5.0 * torch.softmax(inputs.agent_out["z"], -1)[..., :1])


def numpy_normalize(moments: np.ndarray | None, x: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The n-th call: moments of the batch over time and batch, decayed by 0.99, debiased."""
    batch = np.stack([x.mean((0, 1), keepdims=True), (x**2).mean((0, 1), keepdims=True)])
    moments = (0.0 if moments is None else 0.99 * moments) + 0.01 * batch
    mean, square = moments / (1.0 - 0.99**n)
    return (x - mean) / (np.sqrt(np.maximum(square - mean**2, 0.0) + 1e-12) + 1e-6), moments


def fresh_normalizers(config: RuleInput) -> dict[str, NormalizerState]:
    zero = torch.zeros((), dtype=torch.float64)
    return {config.name: NormalizerState(zero, zero, zero)}


def test_normaliser_against_numpy_over_three_calls(make_inputs: Callable[..., UpdateRuleInputs]) -> None:
    config = TransformConfig("agent_out/z", ("drop_last", "normalize"))
    states, moments = fresh_normalizers(config), None
    for n in (1, 2, 3):
        inputs = make_inputs(SPEC, T, B, seed=n)
        view = make_view(inputs, states)
        got = config.read(view)
        want, moments = numpy_normalize(moments, inputs.agent_out["z"][:-1].numpy(), n)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-10, atol=1e-10)
        states = view.new_normalizers
    (state,) = states.values()
    assert state.moment1.shape == (1, 1, A, Y) and int(state.count) == 3


def test_normaliser_against_the_reference(inputs: UpdateRuleInputs) -> None:
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
        view = make_view(inputs, states)
        got = view.normalize(config.name, batch)
        np.testing.assert_allclose(got.flatten()[:4].numpy(), want, rtol=1e-12)
        states = view.new_normalizers


def test_normaliser_with_the_mean_across_processes(make_inputs: Callable[..., UpdateRuleInputs]) -> None:
    config = TransformConfig("rewards", ("normalize",))
    inputs = make_inputs(SPEC, T, 4)
    whole = config.read(make_view(inputs, fresh_normalizers(config)))
    other = inputs.rewards[:, 2:, None]
    theirs = torch.stack([other.mean((0, 1), keepdim=True), other.square().mean((0, 1), keepdim=True)])
    half = dataclasses.replace(inputs, rewards=inputs.rewards[:, :2])
    view = make_view(half, fresh_normalizers(config), lambda mine: (mine + theirs) / 2.0)
    torch.testing.assert_close(config.read(view), whole[:, :2], rtol=1e-12, atol=1e-12)


def test_disco103_reads_27_features_and_9_channels(inputs: UpdateRuleInputs) -> None:
    option = disco_input_option()
    encoder = InputEncoder(option, Y, V, (16, 1), (16, 2)).double()
    view = RuleView(RolloutView(inputs, [encoder.y_net], [encoder.z_net]))
    features, channels = encoder.read(view)
    assert features.shape == (T, B, 23) and channels.shape == (T, B, A, 9) and view.new_normalizers == {}
    embedded, embeddings = encoder(view)
    assert embedded.shape == (T, B, 27) == (T, B, encoder.out_features) and embeddings.shape == (T, B, A, 2)
    marks = torch.nn.functional.one_hot(inputs.actions[:-1], A).double()
    assert torch.equal(channels[..., -1], marks)


def test_td_pair_puts_rows_side_by_side() -> None:
    x = torch.arange(3.0).reshape(3, 1, 1)
    assert td_pair(x).flatten(1).tolist() == [[0.0, 1.0], [1.0, 2.0]]


POLICY = TransformConfig("agent_out/logits", ("drop_last",))


def build(base: list[RuleInput], per_action: list[RuleInput] | None = None) -> InputEncoder:
    option = MetaNetInputOption(base, [POLICY] if per_action is None else per_action)
    return InputEncoder(option, Y, V, (4, 1), (4, 2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TransformConfig("reward"), r"`source` must be one of \[.*'rewards'.*\], got 'reward'"),
        (
            lambda: TransformConfig("rewards", ("sign", "log")),
            r"`transforms` must be functions or names among \[.*'normalize'.*\], got 'log' for 'rewards'",
        ),
        (
            lambda: MetaNetConfig(input_option=MetaNetInputOption(["rewards"], [POLICY])),
            r"`input_option` must hold inputs, got 'rewards'; write RuleInput\(name, function of a view\), or Transform",
        ),
        (
            lambda: MetaNetConfig(input_option=MetaNetInputOption([POLICY], [])),
            r"`input_option.action_conditional` must hold at least one input",
        ),
        (
            lambda: build([POLICY]),
            r"the inputs give \(2, 2\) features with 2 actions and \(3, 2\) with 3; reduce over actions with .*`select_a`",
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
def test_inputs_with_another_number_of_rows(config: RuleInput) -> None:
    prediction_size = 6  # 3 rows of 6 also are 2 rows of 9
    with pytest.raises(ValueError, match="`drop_last`"):
        InputEncoder(MetaNetInputOption([config], [POLICY]), prediction_size, V, (4, 1), (4, 2))


def test_select_a_of_what_has_no_actions() -> None:
    with pytest.raises(ValueError, match=r"`select_a` needs \[T, B, A, ...\]"):
        build([TransformConfig("rewards", ("select_a",))])


@pytest.mark.parametrize(
    ("source", "name", "change"),
    [
        ("value_out/adv", "value_out.adv", {"value_out": None}),
        ("extra_from_rule/adv", "extra_from_rule.adv", {"extra_from_rule": None}),
        ("extra_from_rule/target_out/y", "target_out['y']", {"extra_from_rule": {}}),
        ("behaviour_agent_out/logits", "behaviour_agent_out['logits']", {"behaviour_agent_out": None}),
        ("agent_out/y", "agent_out['y']", {"agent_out": {"logits": torch.zeros(T + 1, B, A).double()}}),
    ],
)
def test_missing_sources(inputs: UpdateRuleInputs, source: str, name: str, change: dict[str, Any]) -> None:
    inputs = dataclasses.replace(inputs, **change)
    with pytest.raises(
        ValueError, match=rf"inputs lack `{re.escape(name)}`, which its meta-network reads; .*fill it in UpdateRule"
    ):
        read(inputs, source)
