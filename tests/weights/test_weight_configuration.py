"""Configurations as plain data: every one comes back, and what cannot be written says so."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from disco_torch.agents import AgentConfig
from disco_torch.rules import DiscoConfig, MetaNetConfig, MetaNetInputOption, MetaRNNConfig
from disco_torch.weights import TransformConfig
from disco_torch.weights.configuration import check_plain, config_from_plain, config_to_plain, first_difference, flat_config
from disco_torch.weights.stored_inputs import SOURCES, TRANSFORMS

sizes = st.lists(st.integers(1, 9), min_size=1, max_size=3)
scales = st.none() | st.floats(0, 2)
inputs = st.lists(
    st.builds(
        TransformConfig,
        source=st.sampled_from(sorted(SOURCES)),
        transforms=st.lists(st.sampled_from([*sorted(TRANSFORMS), "normalize"]), max_size=4),
    ),
    min_size=1,
    max_size=4,
)
configs = st.builds(
    DiscoConfig,
    net=st.builds(
        MetaNetConfig,
        prediction_size=st.integers(1, 700),
        hidden_size=st.integers(1, 700),
        embedding_size=sizes,
        policy_target_channels=sizes,
        policy_channels=sizes,
        output_stddev=scales,
        aux_stddev=scales,
        policy_target_stddev=scales,
        state_stddev=scales,
        meta_rnn=st.builds(
            MetaRNNConfig,
            policy_channels=sizes,
            embedding_size=sizes,
            pred_embedding_size=sizes,
            hidden_size=st.integers(1, 700),
        ),
        input_option=st.builds(MetaNetInputOption, base=inputs, action_conditional=inputs),
    ),
    value_discount=st.floats(0, 1),
    num_bins=st.integers(2, 700),
    max_abs_value=st.floats(1, 1e6) | st.integers(1, 500),
    moving_average_decay=st.floats(0, 1),
    moving_average_eps=st.floats(1e-12, 1),
)


def through_json(config: DiscoConfig) -> DiscoConfig:
    return config_from_plain(DiscoConfig, json.loads(json.dumps(config_to_plain(config))))


def with_tuples(value: Any) -> Any:
    """The same configuration with every list as a tuple."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: with_tuples(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return tuple(with_tuples(item) for item in value) if isinstance(value, list | tuple) else value


@settings(max_examples=100, deadline=None)
@given(configs)
def test_every_configuration_comes_back(config: DiscoConfig) -> None:
    assert through_json(config) == with_tuples(config)
    assert through_json(through_json(config)) == through_json(config)


def test_the_default_is_disco103_and_comes_back() -> None:
    assert through_json(DiscoConfig()) == DiscoConfig()


def test_numpy_numbers_become_plain_ones() -> None:
    config = DiscoConfig(num_bins=np.int64(31), max_abs_value=np.float32(0.1))  # type: ignore[arg-type]
    assert through_json(config) == config


def test_a_function_cannot_be_written_and_is_named() -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    option = MetaNetInputOption(
        base=(TransformConfig("rewards"), TransformConfig("rewards", ("sign_log", doubled))),
        action_conditional=(TransformConfig("agent_out/logits", ("drop_last",)),),
    )
    message = r"`config\.net\.input_option\.base\[1\]\.transforms\[1\]` is a function \(doubled\).*TRANSFORMS"
    with pytest.raises(ValueError, match=message):
        config_to_plain(DiscoConfig(net=MetaNetConfig(input_option=option)))
    with pytest.raises(ValueError, match="`config` must be numbers, texts or sequences of them, got Tensor"):
        config_to_plain(torch.zeros(1))


def changed(*path: str | int, value: Any) -> Any:
    plain = json.loads(json.dumps(config_to_plain(DiscoConfig())))
    inner = plain
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return plain


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ([], "`config` must be the fields of a DiscoConfig, got list"),
        (changed("net", value=3), "`config.net` must be the fields of a MetaNetConfig, got int"),
        (changed("net", "size", value=3), r"`config\.net\.size` is not known; was the file written by another version"),
        (changed("net", "hidden_size", value="256"), r"`config\.net\.hidden_size` must be int, got '256'"),
        (changed("net", "hidden_size", value=True), r"`config\.net\.hidden_size` must be int, got True"),
        (changed("net", "policy_channels", value=3), r"`config\.net\.policy_channels` must be a list, got int"),
        (changed("net", "policy_channels", value=["3"]), r"`config\.net\.policy_channels\[0\]` must be int, got '3'"),
        (changed("net", "meta_rnn", "hidden_size", value=None), r"hidden_size` must be int, got None"),
        (changed("net", "input_option", "base", 0, "source", value="reward"), "`source` must be one of .*, got 'reward'"),
        (changed("value_discount", value=1.5), "`value_discount` must lie in"),
    ],
)
def test_a_wrong_configuration_is_refused_at_its_field(plain: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_from_plain(DiscoConfig, plain)


def test_a_missing_field_takes_no_default() -> None:
    plain = config_to_plain(DiscoConfig())
    del plain["value_discount"]
    with pytest.raises(ValueError, match=r"`config\.value_discount` is missing"):
        config_from_plain(DiscoConfig, plain)


def test_a_field_that_came_later_has_its_default_in_files_from_before() -> None:
    plain = config_to_plain(AgentConfig(dense=(3,)))
    assert plain.pop("bfloat16") is False
    assert config_to_plain(config_from_plain(AgentConfig, plain)) == plain | {"bfloat16": False}
    assert config_from_plain(AgentConfig, plain | {"bfloat16": True}).bfloat16


def test_differences_are_found() -> None:
    ours = config_to_plain(DiscoConfig())
    assert first_difference(ours, ours) is None
    assert first_difference(ours, changed("num_bins", value=7)) == "`config.num_bins` is 601 here and 7 in the file"
    option = changed("net", "input_option", "base", value=[])
    assert "`config.net.input_option.base[0].source` is 'agent_out/logits' here and 'absent'" in str(
        first_difference(ours, option)
    )
    assert flat_config({"a": [1, 2], "b": [{"c": None}]}, "x") == {"x.a": [1, 2], "x.b[0].c": None}


def nested(depth: int) -> Any:
    plain: Any = 1
    for _ in range(depth):
        plain = [plain]
    return plain


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        (nested(33), "`config` must have at most 32 levels and 10000 values, got more"),
        (nested(100_000), "`config` must have at most 32 levels and 10000 values, got more"),
        ({str(i): [0] * 200 for i in range(60)}, "`config` must have at most 32 levels and 10000 values, got more"),
        ({"a": [0] * 257}, r"`config\.a` must have at most 256 entries, got 257"),
        ({str(i): 0 for i in range(257)}, "`config` must have at most 256 entries, got 257"),
        ({"a": [{"b": 2**63}]}, r"`config\.a\[0\]\.b` must be an integer of at most 64 bits, got one of 64 bits"),
        ({"a": -(10**400)}, r"`config\.a` must be an integer of at most 64 bits, got one of 1329 bits"),
        ({"a": float("nan")}, r"`config\.a` must be finite, got nan"),
        ([1.0, float("-inf")], r"`config\[1\]` must be finite, got -inf"),
    ],
)
def test_plain_data_that_no_configuration_is_as_large_as(plain: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_plain(plain)


def test_plain_data_within_the_limits() -> None:
    check_plain(nested(32))
    check_plain({"a": [0] * 256, "b": 2**63 - 1, "c": 1e308, "d": None, "e": True, "f": "text" * 10_000})
    check_plain(config_to_plain(DiscoConfig()))
