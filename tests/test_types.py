"""The dataclasses that travel: as trees, and the masks and weights that rollouts derive."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from disco_torch.types import (
    EmaState,
    OutputSpec,
    Rollout,
    UpdateRuleInputs,
    ValueOuts,
    flatten_tree,
    tree_dataclass,
    tree_items,
    tree_leaves,
    tree_map,
    tree_stack,
    unflatten_tree,
)

SPEC = OutputSpec(flat={"logits": 3})


def test_tree_dataclasses_are_trees_of_their_fields() -> None:
    state = EmaState(torch.ones(()), torch.zeros(()), torch.full((), 2.0))
    doubled = tree_map(lambda x: 2 * x, {"state": state, "name": "kept"})
    assert isinstance(doubled["state"], EmaState) and doubled["name"] == "kept"
    assert [float(x) for x in pytree.tree_leaves(doubled["state"])] == [2.0, 0.0, 4.0]
    assert float(state.moment1) == 1.0


def test_tree_map_leaves_what_is_missing() -> None:
    outs = tree_map(lambda x: x + 1, ValueOuts(value=torch.zeros(2, 1)))
    assert outs.value is not None and outs.value.tolist() == [[1.0], [1.0]] and outs.q_value is None


def test_fields_that_are_none_are_no_leaves() -> None:
    leaves, spec = pytree.tree_flatten(ValueOuts(adv=torch.ones(1), td=torch.zeros(1)))
    assert [float(leaf) for leaf in leaves] == [1.0, 0.0]
    again = pytree.tree_unflatten(leaves, spec)
    assert isinstance(again, ValueOuts) and again.adv is leaves[0] and again.td is leaves[1] and again.value is None


def test_tree_stack_puts_equal_trees_along_a_new_dimension() -> None:
    trees = [{"x": ValueOuts(adv=torch.full((2,), float(i)))} for i in range(3)]
    stacked = tree_stack(trees)["x"]
    assert stacked.adv is not None and stacked.adv.tolist() == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]] and stacked.td is None


def test_function_transforms_see_tree_dataclasses() -> None:
    @tree_dataclass
    class Pair:
        first: Tensor
        second: Tensor

    pairs = Pair(torch.arange(3.0), torch.ones(3))
    summed = torch.func.vmap(lambda pair: Pair(pair.first + pair.second, pair.first))(pairs)
    assert summed.first.tolist() == [1.0, 2.0, 3.0]
    gradient = torch.func.grad(lambda pair: (pair.first * pair.second).sum())(pairs)
    assert gradient.second.tolist() == [0.0, 1.0, 2.0]


def test_a_function_of_equal_trees_meets_their_tensors_alone() -> None:
    one, two = ({"x": [torch.full((2,), x), 7], "nothing": None} for x in (1.0, 2.0))
    assert tree_map(lambda a, b: (a + 10 * b).tolist(), one, two) == {"x": [[21.0, 21.0], 7], "nothing": None}
    with pytest.raises(ValueError, match="mismatch"):
        tree_map(lambda a, b: a + b, one, {"x": [torch.ones(2)], "nothing": None})


def test_tree_leaves_are_in_the_order_of_sorted_keys() -> None:
    a, b, c, d = (torch.full((), float(i)) for i in range(4))
    tree = {"z": d, "a": [a, (b,)], "m": {"k": c}}
    assert [float(leaf) for leaf in tree_leaves(tree)] == [0.0, 1.0, 2.0, 3.0]
    assert tree_leaves(a)[0] is a


def test_observations_that_are_no_tensors() -> None:
    with pytest.raises(ValueError, match=r"`observations` must be tensors.*got float; convert arrays with torch.as_tensor"):
        tree_leaves({"x": 1.0})


def test_reset_masks_follow_the_terminal_steps(make_inputs: Callable[..., UpdateRuleInputs]) -> None:
    inputs = make_inputs(SPEC, T=3, B=1, terminals=((1, 0),))
    assert inputs.should_reset_mask_fwd.flatten().tolist() == [False, False, True, False]
    assert inputs.should_reset_mask_bwd.flatten().tolist() == [False, True, False, False]
    assert inputs.continues().flatten().tolist() == [1.0, 0.0, 1.0]
    assert inputs.continues().dtype == inputs.rewards.dtype
    assert inputs.lambdas(0.9) == 0.9


def test_reset_masks_with_resets_and_truncations(make_inputs: Callable[..., UpdateRuleInputs]) -> None:
    inputs = make_inputs(SPEC, T=3, B=1, terminals=((0, 0),))
    cut = torch.tensor([[False], [True], [False]])
    resets = torch.tensor([[True], [True], [False], [True]])
    inputs = dataclasses.replace(inputs, is_truncated=cut, resets=resets)
    assert inputs.should_reset_mask_fwd is resets
    assert inputs.should_reset_mask_bwd.flatten().tolist() == [True, True, False, False]
    assert inputs.continues().flatten().tolist() == [0.0, 1.0, 1.0]  # a time limit is not an end
    lambdas = inputs.lambdas(0.9)
    assert isinstance(lambdas, Tensor) and lambdas.flatten().tolist() == [0.9, 0.0, 0.9]


def test_ends_may_be_numbers(make_inputs: Callable[..., UpdateRuleInputs]) -> None:
    inputs = make_inputs(SPEC)
    numbers = dataclasses.replace(inputs, is_terminal=inputs.is_terminal.double())
    assert torch.equal(numbers.continues(), inputs.continues())
    assert torch.equal(numbers.should_reset_mask_bwd.bool(), inputs.should_reset_mask_bwd)
    assert torch.equal(numbers.should_reset_mask_fwd.bool(), inputs.should_reset_mask_fwd)
    cut = torch.zeros_like(inputs.is_terminal)
    cut[1] = True
    masks = [dataclasses.replace(x, is_truncated=cut).should_reset_mask_bwd for x in (inputs, numbers)]
    assert torch.equal(masks[0], masks[1])


@pytest.mark.parametrize("behaviour", [None, {}, {"y": torch.zeros(1)}])
def test_missing_behaviour_logits(make_inputs: Callable[..., UpdateRuleInputs], behaviour: dict | None) -> None:
    inputs = dataclasses.replace(make_inputs(SPEC), behaviour_agent_out=behaviour)
    with pytest.raises(ValueError, match=r"`behaviour_agent_out` must hold the 'logits' of the policy that acted"):
        inputs.behaviour_logits()


def test_rollouts_are_trees(make_rollout: Callable[..., Rollout]) -> None:
    rollout = tree_map(lambda x: x[:, :1], make_rollout(B=3))
    assert rollout.rewards.shape[1] == 1 and rollout.observations.shape[1] == 1 and rollout.truncations is None


def test_leaves_are_named_by_the_path_to_them_in_the_order_of_flattening() -> None:
    state = EmaState(torch.zeros(()), torch.ones(()), torch.full((), 2.0))
    outs = ValueOuts(value=torch.ones(1), td=torch.zeros(1))  # fields that are None are not there
    tree = {"b": [state, (7, None)], "a": {"x.y": outs}, "nothing": []}
    names = ["b/0/moment1", "b/0/moment2", "b/0/decay_product", "b/1/0", "b/1/1", "a/x.y/value", "a/x.y/td"]
    items, (leaves, structure) = tree_items(tree), flatten_tree(tree)
    assert [name for name, _ in items] == names
    assert all(item is leaf for (_, item), leaf in zip(items, leaves, strict=True))
    again = unflatten_tree([leaf for _, leaf in items], structure)
    assert flatten_tree(again)[1] == structure and all(a is b for a, b in zip(flatten_tree(again)[0], leaves, strict=True))
    assert tree_items(7) == [("", 7)]
