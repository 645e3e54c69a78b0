"""The meta-network: what it may not depend on, where its memory ends, and its sizes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from disco_torch.layers import linear_each
from disco_torch.rules import (
    DiscoConfig,
    DiscoUpdateRule,
    MetaNet,
    MetaNetConfig,
    MetaNetInputOption,
    MetaRNNConfig,
    MetaRNNState,
    RuleInput,
)
from disco_torch.rules.encoder import ActionBlock
from disco_torch.types import TREE_FIELDS, RuleEstimates, UpdateRuleInputs, ValueOuts, tree_map
from disco_torch.weights import TransformConfig
from disco_torch.weights.stored_inputs import TRANSFORMS, stored_form

MakeInputs = Callable[..., UpdateRuleInputs]

# Every transform there is, and the running normaliser, in one list.
EVERYTHING = MetaNetInputOption(
    base=(
        TransformConfig("rewards", ("identity", "normalize", "clip")),
        TransformConfig("rewards", ("sign",)),
        TransformConfig("rewards", ("sign_hyp",)),
        TransformConfig("is_terminal", ("masks_to_discounts",)),
        TransformConfig("agent_out/y", ("softmax", "y_net", "td_pair")),
        TransformConfig("agent_out/z", ("softmax", "z_net", "pi_weighted_avg", "drop_last")),
        TransformConfig("agent_out/z", ("softmax", "z_net", "max_a", "stop_grad", "td_pair")),
        TransformConfig("agent_out/logits", ("softmax", "drop_last", "select_a")),
        TransformConfig("agent_out/logits", ("log_softmax", "drop_last", "select_a")),
        TransformConfig("value_out/value", ("sign_log", "drop_last")),
        TransformConfig("value_out/td", ("normalize",)),
        TransformConfig("rewards", (lambda x: x**3,)),
        RuleInput("reward_times_value", lambda view: view.rewards * view.estimate("v_scalar")[:-1]),
    ),
    action_conditional=(
        TransformConfig("agent_out/logits", ("softmax", "drop_last")),
        TransformConfig("extra_from_rule/q", ("drop_last", "normalize")),
        TransformConfig("agent_out/q", ("softmax", "drop_last")),
        TransformConfig("rewards", ("at_taken",)),
    ),
)


def some_state(net: MetaNet) -> MetaRNNState:
    """A state in the middle of a life: at its beginning all but the gate's bias is hidden."""
    generator = torch.Generator().manual_seed(5)
    state = net.initial_meta_rnn_state()
    hidden, cell = torch.randn(2, *state.hidden.shape, generator=generator, dtype=torch.float64)
    return MetaRNNState(hidden, cell, state.normalizers)


def with_value_out(inputs: UpdateRuleInputs) -> UpdateRuleInputs:
    generator = torch.Generator().manual_seed(6)
    rows = torch.randn(inputs.actions.shape, generator=generator, dtype=torch.float64)
    return dataclasses.replace(inputs, value_out=ValueOuts(value=rows, td=rows[1:] - rows[:-1]))


@pytest.fixture(params=["disco", "everything"])
def net(request: pytest.FixtureRequest, tiny_config: DiscoConfig, randomize: Callable[..., None]) -> MetaNet:
    config = tiny_config.net
    if request.param == "everything":
        config = dataclasses.replace(config, input_option=EVERYTHING)
    net = MetaNet(config, tiny_config.num_bins).double()
    randomize(net)
    return net


@pytest.fixture
def inputs(tiny_rule: DiscoUpdateRule, make_inputs: MakeInputs) -> UpdateRuleInputs:
    return with_value_out(make_inputs(tiny_rule.outputs(4)))


def same(got: Tensor, want: Tensor) -> bool:
    return torch.allclose(got, want, rtol=1e-10, atol=1e-10)


def test_the_list_of_everything_has_everything() -> None:
    used: set[Any] = set()
    for config in EVERYTHING.all:
        with contextlib.suppress(ValueError):  # functions
            used |= set(stored_form(config, "config")["transforms"])
    assert {*TRANSFORMS, "normalize"} <= used


def test_outputs_have_the_documented_shapes(net: MetaNet, inputs: UpdateRuleInputs) -> None:
    targets, state = net(inputs, some_state(net))
    Y, H = net.config.prediction_size, net.config.meta_rnn.hidden_size
    shapes = {name: tuple(x.shape) for name, x in targets.items()}
    assert shapes == {"pi": (6, 3, 4), "y": (6, 3, Y), "z": (6, 3, Y), "meta_input_emb": (6, 3, 1)}
    assert state.hidden.shape == state.cell.shape == (H,)
    assert all(x.std() > 1e-3 for x in targets.values())  # not a constant, or the tests below would say nothing


def permute_actions(inputs: UpdateRuleInputs, order: Tensor) -> UpdateRuleInputs:
    """The same experience with action `order[i]` called `i`."""

    def outputs(out: dict[str, Tensor]) -> dict[str, Tensor]:
        moved = {name: x if name == "y" else x[:, :, order] for name, x in out.items()}
        return moved | {"aux_pi": moved["aux_pi"][..., order]}

    extra = {name: getattr(inputs.extra_from_rule, name) for name in TREE_FIELDS[RuleEstimates]}
    extra |= {name: extra[name][:, :, order] for name in ("q", "qv_adv", "normalized_qv_adv")}
    assert inputs.behaviour_agent_out is not None
    return dataclasses.replace(
        inputs,
        actions=torch.argsort(order)[inputs.actions],
        agent_out=outputs(inputs.agent_out),
        behaviour_agent_out=outputs(inputs.behaviour_agent_out),
        extra_from_rule=RuleEstimates(**extra | {"target_out": outputs(extra["target_out"])}),
    )


@pytest.mark.parametrize("order", [[1, 0, 2, 3], [3, 2, 0, 1]])
def test_the_order_of_actions_does_not_matter(net: MetaNet, inputs: UpdateRuleInputs, order: list[int]) -> None:
    index = torch.tensor(order)
    targets, state = net(inputs, some_state(net))
    permuted, permuted_state = net(permute_actions(inputs, index), some_state(net))
    assert same(permuted["pi"], targets["pi"][..., index]) and not same(permuted["pi"], targets["pi"])
    assert same(permuted["y"], targets["y"]) and same(permuted["z"], targets["z"])
    assert same(permuted_state.hidden, state.hidden) and same(permuted_state.cell, state.cell)


@pytest.mark.parametrize("num_actions", [1, 2, 3, 7, 18])
def test_any_number_of_actions(tiny_rule: DiscoUpdateRule, make_inputs: MakeInputs, num_actions: int) -> None:
    inputs = make_inputs(tiny_rule.outputs(num_actions))
    targets, _ = tiny_rule.meta_net(inputs, some_state(tiny_rule.meta_net))
    assert targets["pi"].shape == (6, 3, num_actions) and all(torch.isfinite(x).all() for x in targets.values())


def tensors_of(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def select_batch(inputs: UpdateRuleInputs, entries: list[int]) -> UpdateRuleInputs:
    return tree_map(lambda x: x[:, entries], inputs)


def test_batch_entries_do_not_see_each_other(
    tiny_rule: DiscoUpdateRule, inputs: UpdateRuleInputs, make_inputs: MakeInputs
) -> None:
    net = tiny_rule.meta_net
    other = with_value_out(make_inputs(tiny_rule.outputs(4), seed=1))
    mixed = tree_map(lambda x: x.clone(), inputs)
    for ours, theirs in zip(tensors_of(mixed), tensors_of(other), strict=True):
        ours[:, 1] = theirs[:, 1]
    targets, state = net(inputs, some_state(net))
    changed, changed_state = net(mixed, some_state(net))
    for name in targets:
        assert same(changed[name][:, [0, 2]], targets[name][:, [0, 2]])
        assert not same(changed[name][:, 1], targets[name][:, 1])
    # Only what lives as long as the agent sees the whole batch.
    assert not same(changed_state.hidden, state.hidden)


def test_the_order_of_the_batch_does_not_matter(net: MetaNet, inputs: UpdateRuleInputs) -> None:
    order = [2, 0, 1]
    targets, state = net(inputs, some_state(net))
    moved, moved_state = net(select_batch(inputs, order), some_state(net))
    assert all(same(moved[name], targets[name][:, order]) for name in targets)
    assert same(moved_state.hidden, state.hidden)


def change_after(inputs: UpdateRuleInputs, other: UpdateRuleInputs, end: int, first_row: int) -> UpdateRuleInputs:
    """Steps after `end` and rows from `first_row` on are those of `other`."""
    T = inputs.rewards.shape[0]
    changed = tree_map(lambda x: x.clone(), inputs)
    for ours, theirs in zip(tensors_of(changed), tensors_of(other), strict=True):
        start = end + 1 if ours.shape[0] == T else first_row
        ours[start:] = theirs[start:]
    return changed


@pytest.mark.parametrize("kind", ["terminal", "truncated", "neither"])
def test_nothing_after_an_end_flows_before_it(tiny_rule: DiscoUpdateRule, make_inputs: MakeInputs, kind: str) -> None:
    net, end = tiny_rule.meta_net, 2
    ends = tuple((end, b) for b in range(3)) if kind == "terminal" else ()
    inputs = make_inputs(tiny_rule.outputs(4), terminals=ends)
    if kind == "truncated":
        cut = torch.zeros_like(inputs.is_terminal)
        cut[end] = True
        inputs = dataclasses.replace(inputs, is_truncated=cut)
    other = dataclasses.replace(make_inputs(tiny_rule.outputs(4), seed=1), is_truncated=inputs.is_truncated)
    targets, _ = net(inputs, some_state(net))
    # A step reads the row that it leads to (`td_pair`), so the first row that cannot matter is the one after.
    changed, _ = net(change_after(inputs, other, end, first_row=end + 2), some_state(net))
    for name in ("pi", "y", "z"):
        assert same(changed[name][: end + 1], targets[name][: end + 1]) == (kind != "neither")
        assert not same(changed[name][end + 1 :], targets[name][end + 1 :])


@pytest.mark.parametrize("kind", ["terminal", "truncated"])
def test_a_step_reads_the_row_it_leads_to(tiny_rule: DiscoUpdateRule, make_inputs: MakeInputs, kind: str) -> None:
    net, end = tiny_rule.meta_net, 2
    inputs = make_inputs(tiny_rule.outputs(4), terminals=((end, 0),) if kind == "terminal" else ())
    if kind == "truncated":
        cut = torch.zeros_like(inputs.is_terminal)
        cut[end, 0] = True
        inputs = dataclasses.replace(inputs, is_truncated=cut)
    changed = tree_map(lambda x: x.clone(), inputs)
    changed.agent_out["y"][end + 1, 0] += torch.linspace(-1.0, 1.0, net.config.prediction_size)
    targets, _ = net(inputs, some_state(net))
    after, _ = net(changed, some_state(net))
    assert not same(after["y"][end, 0], targets["y"][end, 0])


def test_targets_bootstrap_from_later_steps(tiny_rule: DiscoUpdateRule, make_inputs: MakeInputs) -> None:
    net = tiny_rule.meta_net
    inputs = make_inputs(tiny_rule.outputs(4), terminals=())
    rewards = inputs.rewards.clone()
    rewards[-1, 0] += 5.0
    targets, _ = net(inputs, some_state(net))
    later, _ = net(dataclasses.replace(inputs, rewards=rewards), some_state(net))
    assert (later["y"][:, 0] != targets["y"][:, 0]).any(-1).all()
    # ... and not from earlier ones: the trajectory is read backwards.
    rewards = inputs.rewards.clone()
    rewards[0, 0] += 5.0
    earlier, _ = net(dataclasses.replace(inputs, rewards=rewards), some_state(net))
    assert same(earlier["y"][1:], targets["y"][1:]) and not same(earlier["y"][0, 0], targets["y"][0, 0])


def test_the_state_is_carried_through_and_gates_the_targets(net: MetaNet, inputs: UpdateRuleInputs) -> None:
    start = net.initial_meta_rnn_state()
    assert (start.hidden == 0).all() and (start.cell == 0).all()
    first, state = net(inputs, start)
    assert not same(state.hidden, start.hidden) and (start.hidden == 0).all()
    second, later = net(inputs, state)
    assert not same(second["y"], first["y"]) and not same(later.hidden, state.hidden)
    counts = [s.count for part in later.normalizers.values() for s in part.values()]
    assert all(int(count) == 2 for count in counts)
    again, _ = net(inputs, net.initial_meta_rnn_state())
    assert all(torch.equal(again[name], first[name]) for name in first)


def test_each_encoder_normalises_for_itself(net: MetaNet, inputs: UpdateRuleInputs) -> None:
    _, state = net(inputs, net.initial_meta_rnn_state())
    assert state.normalizers.keys() == {"net", "meta_rnn"}
    expected = 3 if net.config.input_option is EVERYTHING else 0
    assert all(len(part) == expected for part in state.normalizers.values())


def test_the_lifetime_input_is_averaged_across_processes(tiny_rule: DiscoUpdateRule, inputs: UpdateRuleInputs) -> None:
    net, state = tiny_rule.meta_net, some_state(tiny_rule.meta_net)
    seen: list[Tensor] = []
    halves = [select_batch(inputs, entries) for entries in ([0], [1])]
    for half in halves:
        net(half, state, lambda mean: seen.append(mean) or mean)
    _, got = net(halves[0], state, lambda mean: (mean + seen[1]) / 2.0)
    _, want = net(select_batch(inputs, [0, 1]), state)
    assert same(got.hidden, want.hidden) and same(got.cell, want.cell)


def test_gradients_reach_every_parameter(net: MetaNet, inputs: UpdateRuleInputs) -> None:
    targets, state = net(inputs, some_state(net))
    loss = sum((x.square().sum() for x in (*targets.values(), state.hidden)), torch.zeros(()))
    loss.backward()
    for name, param in net.named_parameters():
        assert param.grad is not None and torch.isfinite(param.grad).all() and (param.grad != 0).any(), name


def test_gradients_reach_the_predictions_and_not_the_policy(tiny_rule: DiscoUpdateRule, inputs: UpdateRuleInputs) -> None:
    assert inputs.extra_from_rule is not None and inputs.extra_from_rule.target_out is not None
    for out in (inputs.agent_out, inputs.extra_from_rule.target_out):
        for x in out.values():
            x.requires_grad_()
    targets, _ = tiny_rule.meta_net(inputs, some_state(tiny_rule.meta_net))
    loss = sum((x.square().sum() for x in targets.values()), torch.zeros(()))
    out = inputs.agent_out
    to_y, to_z, to_logits = torch.autograd.grad(loss, (out["y"], out["z"], out["logits"]), allow_unused=True)
    assert (to_y != 0).any() and (to_z != 0).any() and to_logits is None


def test_an_action_block_is_a_linear_map_of_own_and_mean() -> None:
    block = ActionBlock(channels=3, out_channels=4, state_size=2).double()
    x, s = torch.randn(2, 2, 5, 3).double(), torch.randn(2, 2, 2).double()
    own = torch.cat([s.unsqueeze(2).expand(-1, -1, 5, -1), x], -1)
    want = torch.relu(block.linear(torch.cat([own, own.mean(2, keepdim=True).expand_as(own)], -1)))
    torch.testing.assert_close(block(x, linear_each([block.state_affine()], s)[0]), want)


def test_the_released_rule_has_754778_parameters_in_42_arrays() -> None:
    sizes = [param.numel() for param in DiscoUpdateRule().parameters()]
    assert (sum(sizes), len(sizes)) == (754_778, 42)


def test_sizes_are_configurable(make_inputs: MakeInputs) -> None:
    rnn = MetaRNNConfig(policy_channels=(3,), embedding_size=(4, 4), pred_embedding_size=(2,), hidden_size=6)
    config = MetaNetConfig(
        prediction_size=5,
        hidden_size=7,
        embedding_size=(3, 2),
        policy_target_channels=(4, 3),
        policy_channels=(2,),
        meta_rnn=rnn,
    )
    rule = DiscoUpdateRule(DiscoConfig(net=config, num_bins=9, max_abs_value=2.0)).double()
    targets, state = rule.meta_net(make_inputs(rule.outputs(3)), rule.meta_net.initial_meta_rnn_state())
    assert targets["pi"].shape == (6, 3, 3) and targets["y"].shape == (6, 3, 5) and state.hidden.shape == (6,)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prediction_size": 0}, r"`prediction_size` must be at least 1, got 0"),
        ({"hidden_size": -2}, r"`hidden_size` must be at least 1, got -2"),
        ({"embedding_size": ()}, r"`embedding_size` must name at least one layer, got \(\)"),
        ({"policy_channels": ()}, r"`policy_channels` must name at least one layer"),
        ({"policy_target_channels": ()}, r"`policy_target_channels` must name at least one layer"),
    ],
)
def test_bad_sizes(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MetaNetConfig(**settings)


@pytest.mark.parametrize("settings", [{"hidden_size": 0}, {"policy_channels": ()}, {"pred_embedding_size": ()}])
def test_bad_sizes_of_the_lifetime_network(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"`{next(iter(settings))}` must"):
        MetaRNNConfig(**settings)


def test_bad_inputs_are_refused_by_the_network_itself(tiny_rule: DiscoUpdateRule, inputs: UpdateRuleInputs) -> None:
    net = tiny_rule.meta_net
    with pytest.raises(ValueError, match=r"inputs lack `extra_from_rule.v_scalar`, which its meta-network reads; call"):
        net(dataclasses.replace(inputs, extra_from_rule=None), net.initial_meta_rnn_state())
    with pytest.raises(ValueError, match=r"`actions` must be \[7, 3\], got \[6, 3\]; it needs one row more than `rewards`"):
        net(dataclasses.replace(inputs, actions=inputs.actions[:-1]), net.initial_meta_rnn_state())


def test_a_summary_is_enough_unless_an_input_reads_the_outputs_themselves(net: MetaNet) -> None:
    assert net.needs_action_outputs == (net.config.input_option is EVERYTHING)
    z = torch.randn(4, 3, net.config.prediction_size, dtype=torch.float64)
    own, lifetime = net.embed_z(z)
    torch.testing.assert_close(own, net.encoder.z_net(torch.softmax(z, -1)))
    torch.testing.assert_close(lifetime, net.meta_rnn.encoder.z_net(torch.softmax(z, -1)))


def test_an_input_is_a_name_and_a_function(tiny_config: DiscoConfig, inputs: UpdateRuleInputs) -> None:
    """A list with an input of one's own: the network reads it, and its target follows it."""
    option = tiny_config.net.input_option
    mine = RuleInput("doubled_reward", lambda view: 2.0 * view.rewards, needs_action_outputs=False)
    config = dataclasses.replace(tiny_config.net, input_option=MetaNetInputOption((mine,), option.action_conditional))
    net = MetaNet(config, tiny_config.num_bins).double()
    assert not net.needs_action_outputs
    targets, _ = net(inputs, some_state(net))
    changed, _ = net(dataclasses.replace(inputs, rewards=inputs.rewards + 1.0), some_state(net))
    assert not same(changed["y"], targets["y"])
