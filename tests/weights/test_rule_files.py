"""Rules in files: bit for bit in both formats, whole or not at all, and never another rule than the file says."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from limits import run_limited

from disco_torch import weights
from disco_torch.rules import ActorCritic, DiscoConfig, DiscoUpdateRule, MetaNetInputOption
from disco_torch.weights import (
    TransformConfig,
    default_hyper_params,
    load_disco103_weights,
    load_npz,
    load_rule_file,
    read_file,
    save_agent,
    save_npz,
    save_rule,
)
from disco_torch.weights.files import save_safetensors
from disco_torch.weights.haiku import rule_layers, to_haiku


def assert_same_bits(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert sorted(ours) == sorted(theirs)
    for name, array in theirs.items():
        assert ours[name].dtype == array.dtype and ours[name].shape == array.shape, name
        assert np.ascontiguousarray(ours[name]).tobytes() == np.ascontiguousarray(array).tobytes(), name


def state_bits(rule: torch.nn.Module) -> dict[str, bytes]:
    return {name: param.detach().numpy().tobytes() for name, param in rule.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_disco103_comes_back_as_released(disco103_path: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    rule = DiscoUpdateRule().to(dtype)
    load_disco103_weights(rule, str(disco103_path))
    released = load_npz(disco103_path)
    save_rule(tmp_path / "own.npz", rule, dtype=torch.float32)
    assert_same_bits(load_npz(tmp_path / "own.npz"), released)
    save_rule(tmp_path / "as_is.npz", rule)
    wide = {name: array.astype(str(dtype).removeprefix("torch.")) for name, array in released.items()}
    assert_same_bits(load_npz(tmp_path / "as_is.npz"), wide)
    assert sum(array.size for array in released.values()) == 754_778


def test_disco103_through_safetensors(disco103_path: Path, tmp_path: Path) -> None:
    rule = load_rule_file(disco103_path)
    save_rule(tmp_path / "rule.safetensors", rule, provenance={"from": "release"})
    again = load_rule_file(tmp_path / "rule.safetensors")
    assert again.config == DiscoConfig() == rule.config
    assert state_bits(again) == state_bits(rule)
    fresh = DiscoUpdateRule()
    load_disco103_weights(fresh, tmp_path / "rule.safetensors")
    assert_same_bits(to_haiku(fresh, rule_layers(fresh)), load_npz(disco103_path))


def reference_eta(golden: Path) -> dict[str, np.ndarray]:
    arrays = load_npz(golden / "rule_tiny.npz")
    return {name.removeprefix("eta/"): array for name, array in arrays.items() if name.startswith("eta/")}


def test_the_reference_s_own_names_and_layouts(golden: Path, tiny_config: DiscoConfig, tmp_path: Path) -> None:
    eta = reference_eta(golden)
    save_npz(tmp_path / "reference.npz", eta)
    rule = load_rule_file(tmp_path / "reference.npz", config=tiny_config)
    save_rule(tmp_path / "ours.npz", rule)
    assert_same_bits(load_npz(tmp_path / "ours.npz"), eta)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_rule_comes_back_in_its_dtype(tiny_rule: DiscoUpdateRule, tmp_path: Path, suffix: str, dtype: torch.dtype) -> None:
    path = tmp_path / f"rule{suffix}"
    tiny_rule.to(dtype)
    if suffix == ".npz" and dtype == torch.bfloat16:
        with pytest.raises(ValueError, match=r"rule\.npz: an \.npz file cannot hold torch\.bfloat16; give `dtype`"):
            save_rule(path, tiny_rule)
        assert list(tmp_path.iterdir()) == []
        return
    save_rule(path, tiny_rule)
    again = load_rule_file(path, config=tiny_rule.config)
    params = dict(tiny_rule.named_parameters())
    for name, param in again.named_parameters():
        assert param.dtype == dtype and param.requires_grad and torch.equal(param, params[name])
    assert next(load_rule_file(path, config=tiny_rule.config, dtype=torch.float64).parameters()).dtype == torch.float64


def test_the_file_says_what_the_rule_is(tiny_rule: DiscoUpdateRule, tmp_path: Path) -> None:
    save_rule(tmp_path / "rule.safetensors", tiny_rule, provenance={"seed": 3, "steps": [1, 2]})
    again = load_rule_file(tmp_path / "rule.safetensors")
    assert again.config.num_bins == 31 and again.config.net.policy_channels == (5, 2)
    assert again.config.net.input_option == tiny_rule.config.net.input_option
    metadata = read_file(tmp_path / "rule.safetensors").metadata
    assert metadata["kind"] == "rule" and json.loads(metadata["provenance"]) == {"seed": 3, "steps": [1, 2]}


def test_a_file_brings_the_hyper_parameters_of_its_discovery(tiny_rule: DiscoUpdateRule, tmp_path: Path) -> None:
    path = tmp_path / "rule.safetensors"
    save_rule(path, tiny_rule, provenance={"config": {"hyper_params": {"y_cost": 0.25}}})
    assert default_hyper_params(path) == {"y_cost": 0.25}
    save_rule(path, tiny_rule)
    assert default_hyper_params(path) == {}
    save_rule(tmp_path / "rule.npz", tiny_rule)
    assert default_hyper_params(tmp_path / "rule.npz") == {}


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"y_cost": "much"}, "must be finite numbers by name"),
        ({"y_cost": True}, "must be finite numbers by name"),
        ([1.0], "must be finite numbers by name"),
        ({"speed": 1.0}, "has no 'speed'"),
        ({"target_params_coeff": 2.0}, "target_params_coeff"),
    ],
)
def test_hyper_parameters_that_no_rule_has_are_refused(
    tiny_rule: DiscoUpdateRule, tmp_path: Path, stated: Any, message: str
) -> None:
    path = tmp_path / "rule.safetensors"
    save_rule(path, tiny_rule, provenance={"config": {"hyper_params": stated}})
    with pytest.raises(ValueError, match=f"rule.safetensors.*{message}"):
        default_hyper_params(path)


def test_given_parameters_are_saved_instead(tiny_rule: DiscoUpdateRule, tmp_path: Path) -> None:
    params = {name: param.detach() + 1 for name, param in tiny_rule.named_parameters()}
    save_rule(tmp_path / "rule.safetensors", tiny_rule, params=params)
    again = dict(load_rule_file(tmp_path / "rule.safetensors").named_parameters())
    assert all(torch.equal(again[name], param) for name, param in params.items())


def test_loading_draws_no_random_numbers(tiny_rule: DiscoUpdateRule, tmp_path: Path) -> None:
    save_rule(tmp_path / "rule.safetensors", tiny_rule)
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    load_rule_file(tmp_path / "rule.safetensors")
    assert torch.equal(torch.rand(3), wanted)


Arrays = dict[str, np.ndarray]
FIRST = "lstm/linear_4/b"


def without(arrays: Arrays) -> Arrays:
    return {name: array for name, array in arrays.items() if name != FIRST}


def renamed(arrays: Arrays) -> Arrays:
    return {name.replace(FIRST, "lstm/linear_5/b"): array for name, array in arrays.items()}


def replaced(change: Callable[[np.ndarray], Any], name: str = FIRST) -> Callable[[Arrays], Arrays]:
    return lambda arrays: {**arrays, name: change(arrays[name])}


CASES = [
    (without, f"array '{FIRST}' is missing (1 missing, 0 unexpected of 42)"),
    (lambda arrays: {**arrays, "extra": np.zeros(1)}, "array 'extra' is not expected"),
    (renamed, f"array '{FIRST}' is missing and array 'lstm/linear_5/b' is not expected"),
    (replaced(lambda a: a[None]), f"array '{FIRST}' must be [1], got [1, 1]"),
    (replaced(lambda a: a.T, "lstm/linear_2/w"), "array 'lstm/linear_2/w' must be [20, 24], got [24, 20]"),
    (replaced(lambda a: a.astype(int)), f"array '{FIRST}' must be floating point of 16, 32 or 64 bits, got int64"),
    (replaced(lambda a: np.full_like(a, np.nan)), f"array '{FIRST}' must be finite in torch.float32, got 1 values"),
    (replaced(lambda a: np.full(1, 1e300)), f"array '{FIRST}' must be finite in torch.float32, got 1 values"),
    (replaced(lambda a: np.array(["x"])), f"array '{FIRST}' must be floating point"),
    (lambda arrays: {}, "is missing (42 missing"),
]


@pytest.mark.parametrize(("change", "message"), CASES)
def test_a_wrong_npz_is_refused_and_the_rule_stays(
    tiny_rule: DiscoUpdateRule, tmp_path: Path, change: Callable[[Arrays], Arrays], message: str
) -> None:
    other = {name: array + 1 for name, array in to_haiku(tiny_rule, rule_layers(tiny_rule)).items()}
    save_npz(tmp_path / "wrong.npz", change(other))
    before = state_bits(tiny_rule)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "wrong.npz")) + ".*" + re.escape(message)):
        load_disco103_weights(tiny_rule, tmp_path / "wrong.npz")
    assert state_bits(tiny_rule) == before


def resaved(path: Path, tensors: Callable[[Any], Any] = dict, metadata: Callable[[Any], Any] = dict) -> None:
    stored = read_file(path)
    save_safetensors(path, tensors(dict(stored.arrays)), metadata(dict(stored.metadata)))


NATIVE = "meta_net.pi_head.bias"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensors": lambda t: {k: v for k, v in t.items() if k != NATIVE}}, f"array '{NATIVE}' is missing"),
        ({"tensors": lambda t: {**t, NATIVE: torch.zeros(2)}}, rf"array '{NATIVE}' must be \[1\], got \[2\]"),
        ({"tensors": lambda t: {**t, NATIVE: torch.tensor([torch.inf])}}, f"array '{NATIVE}' must be finite"),
        ({"tensors": lambda t: {**t, NATIVE: torch.zeros(1, dtype=torch.int32)}}, f"array '{NATIVE}' must be floating"),
        ({"metadata": lambda m: {}}, "the metadata must hold the rule's configuration under 'config'"),
        ({"metadata": lambda m: {**m, "config": "{"}}, "the metadata's 'config' must be JSON"),
        ({"metadata": lambda m: {**m, "config": "[" * 100_000}}, "the metadata's 'config' must be JSON"),
        ({"metadata": lambda m: {**m, "config": "{}"}}, r"`config\.\w+` is missing"),
        ({"metadata": lambda m: {**m, "kind": "agent"}}, "must hold a rule, got the kind 'agent'"),
        (
            {"metadata": lambda m: {**m, "config": m["config"].replace('"prediction_size": 24', '"prediction_size": 25')}},
            "array 'meta_net.encoder.y_net.0.weight' must be .*; is it another configuration's file",
        ),
    ],
)
def test_a_wrong_safetensors_is_refused(
    tiny_rule: DiscoUpdateRule, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "rule.safetensors"
    save_rule(path, tiny_rule)
    resaved(path, **change)
    with pytest.raises(ValueError, match=re.escape(str(path)) + ".*" + message):
        load_rule_file(path)


def test_a_file_of_another_configuration_is_refused(tiny_rule: DiscoUpdateRule, tmp_path: Path) -> None:
    save_rule(tmp_path / "rule.safetensors", tiny_rule)
    other = DiscoUpdateRule(dataclasses.replace(tiny_rule.config, value_discount=0.5))  # of the same shapes
    message = r"rule\.safetensors: holds a rule of another configuration: `config\.value_discount` is 0\.5 here and 0\.997"
    with pytest.raises(ValueError, match=message):
        load_disco103_weights(other, tmp_path / "rule.safetensors")
    with pytest.raises(ValueError, match=message):
        load_rule_file(tmp_path / "rule.safetensors", config=other.config)


def test_an_npz_without_a_configuration_must_be_of_disco103_s_shapes(tiny_rule: DiscoUpdateRule, tmp_path: Path) -> None:
    save_rule(tmp_path / "rule.npz", tiny_rule)
    with pytest.raises(ValueError, match=r"rule\.npz: array '.*' must be .*; is it another configuration's file"):
        load_rule_file(tmp_path / "rule.npz")


def test_what_cannot_be_loaded_is_not_saved(tiny_rule: DiscoUpdateRule, tmp_path: Path) -> None:
    path = tmp_path / "rule.safetensors"
    save_rule(path, tiny_rule)
    before = path.read_bytes()
    params = {name: param.detach() for name, param in tiny_rule.named_parameters()}
    with pytest.raises(ValueError, match=f"array '{NATIVE}' must be finite"):
        save_rule(path, tiny_rule, params={**params, NATIVE: torch.tensor([torch.nan])})
    with pytest.raises(ValueError, match="`provenance` must be what JSON can hold"):
        save_rule(path, tiny_rule, provenance={"tensor": torch.zeros(1)})
    with pytest.raises(ValueError, match="holds arrays only, no `provenance`"):
        save_rule(tmp_path / "rule.npz", tiny_rule, provenance={"seed": 1})
    with pytest.raises(ValueError, match=r"must end in \.npz or \.safetensors"):
        save_rule(tmp_path / "rule.pt", tiny_rule)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_rule_that_reads_a_function_goes_into_npz_only(tiny_config: DiscoConfig, tmp_path: Path) -> None:
    option = tiny_config.net.input_option
    changed = MetaNetInputOption((*option.base, TransformConfig("rewards", (torch.tanh,))), option.action_conditional)
    config = dataclasses.replace(tiny_config, net=dataclasses.replace(tiny_config.net, input_option=changed))
    rule = DiscoUpdateRule(config)
    with pytest.raises(ValueError, match=r"base\[16\]\.transforms\[0\]` is a function \(tanh\)"):
        save_rule(tmp_path / "rule.safetensors", rule)
    save_rule(tmp_path / "rule.npz", rule)
    assert state_bits(load_rule_file(tmp_path / "rule.npz", config=config)) == state_bits(rule)


def test_rules_without_weights_and_agents_are_no_rule_files(tiny_rule: Any, agent: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`rule` must be a DiscoUpdateRule, got ActorCritic"):
        save_rule(tmp_path / "rule.npz", ActorCritic())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`rule` must be a DiscoUpdateRule, got ActorCritic"):
        load_disco103_weights(ActorCritic(), tmp_path / "rule.npz")  # type: ignore[arg-type]
    save_agent(tmp_path / "agent.safetensors", agent)
    with pytest.raises(ValueError, match=r"agent\.safetensors: must hold a rule, got the kind 'agent'"):
        load_disco103_weights(tiny_rule, tmp_path / "agent.safetensors")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_no_damage_does_more_than_raise(tiny_rule: DiscoUpdateRule, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rule{suffix}"
    save_rule(path, tiny_rule)
    content, rng = path.read_bytes(), np.random.default_rng(0)
    messages, changed = [], False
    for _ in range(60):
        damaged = bytearray(content)
        for position in rng.integers(len(content), size=3):
            damaged[position] = rng.integers(256)
        path.write_bytes(damaged)
        before = state_bits(tiny_rule)
        try:
            load_disco103_weights(tiny_rule, path)
        except ValueError as error:
            messages.append(str(error))
            changed = changed or state_bits(tiny_rule) != before
    assert not changed and all(message.startswith(str(path)) for message in messages)
    assert len(messages) > 50  # both have checksums; some bytes of a zip archive do not matter


def huge(*path: str, value: Any) -> Callable[[Any], Any]:
    """Changes an entry of the configuration in the metadata of a rule file; the checksum is made right again."""

    def change(metadata: dict[str, str]) -> dict[str, str]:
        plain = json.loads(metadata["config"])
        inner = plain
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        return {**metadata, "config": json.dumps(plain)}

    return change


STEPS = [{"source": "rewards", "transforms": ["sign_log"] * 3000}]
ABSURD = [
    (huge("net", "hidden_size", value=20_000), "is it another configuration's file"),
    (huge("net", "prediction_size", value=10**9), "is it another configuration's file"),
    (huge("net", "hidden_size", value=10**12), "`config` must describe a rule that can be built"),
    (huge("net", "meta_rnn", "hidden_size", value=2**62), "`config` must describe a rule that can be built"),
    (
        huge("net", "hidden_size", value=10**400),
        "`config.net.hidden_size` must be an integer of at most 64 bits",
    ),
    (huge("value_discount", value=10**400), "`config.value_discount` must be an integer of at most 64 bits, got one of"),
    (huge("num_bins", value=10**10), "`config.num_bins` must lie in 1 .. 100000, got 10000000000"),
    (huge("num_bins", value=-3), "`config.num_bins` must lie in 1 .. 100000, got -3"),
    (huge("max_abs_value", value=float("nan")), "`config.max_abs_value` must be finite, got nan"),
    (huge("moving_average_eps", value=float("inf")), "`config.moving_average_eps` must be finite, got inf"),
    (huge("moving_average_eps", value=-1.0), "`config.moving_average_eps` must lie in"),
    (huge("net", "input_option", "base", value=STEPS), "transforms` must have at most 256 entries, got 3000"),
    (huge("net", "policy_channels", value=[1] * 300), "`config.net.policy_channels` must have at most 256 entries, got 300"),
]


def test_a_configuration_is_compared_with_the_arrays_before_anything_is_allocated(
    tiny_rule: DiscoUpdateRule, tmp_path: Path
) -> None:
    paths = []
    for i, (change, _) in enumerate(ABSURD):
        paths.append(tmp_path / f"{i}.safetensors")
        save_rule(paths[-1], tiny_rule)
        resaved(paths[-1], metadata=change)
    code = """
for path in sys.argv[1:]:
    try:
        disco_torch.weights.load_rule_file(path)
    except ValueError as error:
        print(error)
"""
    lines = run_limited(code, *paths, more_bytes=2**27).splitlines()
    assert len(lines) == len(ABSURD)
    for line, path, (_, message) in zip(lines, paths, ABSURD, strict=True):
        assert line.startswith(f"{path}: ") and message in line


def test_an_npz_unpacks_to_what_the_rule_needs_at_most(tiny_rule: DiscoUpdateRule, tmp_path: Path) -> None:
    save_npz(tmp_path / "bomb.npz", {"x": np.zeros(2**24, np.float32)})  # 64 MB, in 64 kB
    assert (tmp_path / "bomb.npz").stat().st_size < 2**17
    for load in (
        lambda path: load_rule_file(path),
        lambda path: load_rule_file(path, config=tiny_rule.config),
        lambda path: load_disco103_weights(tiny_rule, path),
    ):
        with pytest.raises(
            ValueError,
            match=r"bomb\.npz: the archive .*unpack to 67108992 bytes, more than the .* or another network's file",
        ):
            load(tmp_path / "bomb.npz")
    save_rule(tmp_path / "wide.npz", tiny_rule.double())  # the widest type that is stored
    load_rule_file(tmp_path / "wide.npz", config=tiny_rule.config)


@pytest.mark.parametrize("name", ["birch"])
def test_the_shipped_rules_have_a_checksum(name: str, tmp_path: Path) -> None:
    shipped = Path(weights.__file__).with_name(f"{name}.safetensors")
    content = bytearray(shipped.read_bytes())
    load_rule_file(shipped)
    content[-1] ^= 1
    (tmp_path / "damaged.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="its content does not have the checksum that it was written with"):
        load_rule_file(tmp_path / "damaged.safetensors")
