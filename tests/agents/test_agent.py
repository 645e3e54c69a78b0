"""The agent: sizes, observations of any structure, initial weights, sampling, and the one-step model of actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from disco_torch.agents import ActionModel, Agent, AgentConfig, action_model, sample_actions
from disco_torch.layers import LSTMState
from disco_torch.rules import ActorCritic, DiscoUpdateRule
from disco_torch.types import ActionSummary, AgentOutput, OutputSpec, Rollout, Summarizer
from disco_torch.values import select_action

SPEC = OutputSpec(flat={"logits": 3, "y": 5}, per_action={"z": 5, "aux_pi": 3, "q": 7})
CONFIG = AgentConfig(dense=(8, 6), lstm_size=4, head_mlp_hiddens=(5,))


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_agent(example: Any = None, spec: OutputSpec = SPEC, config: AgentConfig = CONFIG) -> Agent:
    return Agent(torch.zeros(10) if example is None else example, spec.flat["logits"], spec, config).double()


def test_outputs_have_the_sizes_that_the_rule_asks_for() -> None:
    out, state = make_agent()(draw(4, 2, 10))
    shapes = {name: tuple(x.shape) for name, x in out.items()}
    per_action = {"z": (4, 2, 3, 5), "aux_pi": (4, 2, 3, 3), "q": (4, 2, 3, 7)}
    assert shapes == {"logits": (4, 2, 3), "y": (4, 2, 5)} | per_action and state is None


def test_the_network_has_the_configured_layers() -> None:
    agent = make_agent()
    shapes = {name: tuple(param.shape) for name, param in agent.named_parameters() if name.endswith("weight")}
    heads = {"z": 5, "aux_pi": 3, "q": 7}
    want = {"torso.0.weight": (8, 10), "torso.2.weight": (6, 8)}
    want |= {"heads.logits.0.weight": (3, 6), "heads.y.0.weight": (5, 6)}
    want |= {"action_model.root.weight": (4, 6), "action_model.core.linear.weight": (16, 3 + 4)}
    want |= {f"action_model.heads.{name}.0.weight": (5, 4) for name in heads}
    want |= {f"action_model.heads.{name}.2.weight": (size, 5) for name, size in heads.items()}
    assert shapes == want


def test_default_sizes_for_disco103() -> None:
    agent = Agent(torch.zeros(8, 8), 3, DiscoUpdateRule().outputs(3))
    count = sum(param.numel() for param in agent.parameters())
    torso, flat = 64 * 512 + 512 + 512 * 512 + 512, 512 * 603 + 603
    model = 512 * 128 + 128 + (3 + 128) * 512 + 512
    heads = 3 * (128 * 128 + 128) + 128 * (600 + 3 + 601) + 600 + 3 + 601
    assert count == torso + flat + model + heads


def test_a_rule_without_outputs_per_action_needs_no_action_model() -> None:
    agent = make_agent(spec=ActorCritic().outputs(3))
    assert agent.action_model is None
    assert agent(draw(4, 2, 10))[0].keys() == {"logits", "v"}


def test_observations_may_be_a_tree_in_any_order() -> None:
    agent = make_agent({"image": torch.zeros(2, 3), "speed": torch.zeros(4)})
    image, speed = draw(4, 2, 2, 3), draw(4, 2, 4, seed=1)
    out, _ = agent({"speed": speed, "image": image})
    same, _ = agent({"image": image, "speed": speed})
    flat, _ = make_with(agent)(torch.cat([image.flatten(2), speed], -1))
    for name in out:
        assert torch.equal(out[name], same[name])
        torch.testing.assert_close(out[name], flat[name])
    other = make_agent({"speed": torch.zeros(4), "image": torch.zeros(2, 3)})
    other.load_state_dict(agent.state_dict())
    assert torch.equal(other({"image": image, "speed": speed})[0]["logits"], out["logits"])


def make_with(agent: Agent) -> Agent:
    """An agent for the same ten numbers in one vector, with the same weights."""
    twin = make_agent()
    twin.load_state_dict(agent.state_dict())
    return twin


def test_lists_and_tuples_of_observations() -> None:
    agent = make_agent([torch.zeros(6), (torch.zeros(3), torch.zeros(()))])
    x = draw(4, 2, 10)
    out, _ = agent([x[..., :6], (x[..., 6:9], x[..., 9])])
    torch.testing.assert_close(out["logits"], make_with(agent)(x)[0]["logits"])


def test_bytes_are_scaled_to_0_and_1() -> None:
    agent = make_agent(torch.zeros(2, 5, dtype=torch.uint8))
    pixels = torch.arange(80).reshape(4, 2, 2, 5).to(torch.uint8) * 3
    want, _ = make_with(agent)((pixels.double() / 255.0).flatten(2))
    torch.testing.assert_close(agent(pixels)[0]["logits"], want["logits"])


def test_integers_and_bools_are_numbers() -> None:
    agent = make_agent()
    x = torch.arange(80).reshape(4, 2, 10) % 2
    want = agent(x.double())[0]["logits"]
    assert torch.equal(agent(x)[0]["logits"], want) and torch.equal(agent(x.bool())[0]["logits"], want)


def test_initial_parameters_are_reproducible_and_leave_the_module_alone() -> None:
    agent = make_agent()
    before = {name: param.detach().clone() for name, param in agent.named_parameters()}
    first, again = (agent.init(torch.Generator().manual_seed(1)) for _ in range(2))
    other = agent.init(torch.Generator().manual_seed(2))
    assert first.keys() == before.keys() == dict(agent.named_parameters()).keys()
    for name, param in agent.named_parameters():
        assert torch.equal(first[name], again[name])
        assert torch.equal(param, before[name])
        if name.endswith("weight"):
            assert not torch.equal(first[name], other[name]) and not torch.equal(first[name], before[name])
        else:
            assert (first[name] == 0).all()


def test_initial_scales() -> None:
    agent = Agent(torch.zeros(64), 3, SPEC, AgentConfig(dense=(200, 100), head_w_init_std=1e-2))
    params = agent.init(torch.Generator().manual_seed(0))
    scales = {
        "torso.0.weight": 1 / 8.0,
        "torso.2.weight": 200**-0.5,
        "heads.y.0.weight": 1e-2,
        "heads.logits.0.weight": 1e-2,
    }
    for name, std in scales.items():
        weight = params[name]
        assert weight.abs().max() <= 2.0 * std  # cut at two standard deviations
        assert float(weight.std()) == pytest.approx(0.8796 * std, rel=0.1), name


def test_unroll_uses_the_given_parameters() -> None:
    agent = make_agent()
    params = agent.init(torch.Generator().manual_seed(1))
    observations = draw(4, 2, 10)
    out, _ = agent.unroll(params, observations, torch.zeros(4, 2, dtype=torch.bool))
    twin = make_agent()
    twin.load_state_dict(params)
    torch.testing.assert_close(out["q"], twin(observations)[0]["q"].detach())
    assert not torch.allclose(out["q"], agent(observations)[0]["q"])


def test_rows_do_not_see_each_other() -> None:
    agent = make_agent()
    observations = draw(4, 2, 10)
    whole = agent(observations)[0]["z"]
    torch.testing.assert_close(whole[2:3, 1:], agent(observations[2:3, 1:])[0]["z"])


def test_policy_only_is_the_same_policy() -> None:
    agent = make_agent()
    observations = draw(4, 2, 10)
    params = dict(agent.named_parameters())
    logits, _ = agent.policy(params, observations[2])
    torch.testing.assert_close(logits, agent(observations)[0]["logits"][2])


def test_acting_samples_from_the_softmax() -> None:
    logits = torch.log(torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64))
    draws = 20_000
    actions = sample_actions(logits.expand(draws, 3), torch.Generator().manual_seed(0))
    counts = torch.bincount(actions, minlength=3).double()
    expected = draws * torch.softmax(logits, -1)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 13.8  # one in a thousand fair samplers would exceed it


def test_a_certain_choice_is_always_taken() -> None:
    logits = torch.tensor([0.0, 200.0, 0.0]).expand(100, 3)
    assert (sample_actions(logits, torch.Generator().manual_seed(0)) == 1).all()


def test_act_returns_the_logits_it_sampled_from() -> None:
    agent = make_agent()
    params = agent.init(torch.Generator().manual_seed(1))
    observations = draw(50, 10)
    actions, logits, state = agent.act(params, observations, torch.Generator().manual_seed(7))
    torch.testing.assert_close(logits, agent.unroll(params, observations.unsqueeze(0))[0]["logits"][0])
    assert actions.shape == (50,) and actions.dtype == torch.int64 and state is None and not logits.requires_grad
    again, _, _ = agent.act(params, observations, torch.Generator().manual_seed(7))
    assert torch.equal(actions, again)
    assert torch.equal(actions, sample_actions(logits, torch.Generator().manual_seed(7)))
    assert actions.unique().numel() == 3


def test_act_takes_trees_of_observations() -> None:
    agent = make_agent({"a": torch.zeros(4), "b": torch.zeros(6)})
    actions, logits, _ = agent.act(agent.init(), {"b": draw(5, 6), "a": draw(5, 4)}, should_reset=torch.ones(5).bool())
    assert actions.shape == (5,) and logits.shape == (5, 3)


def test_action_model_is_an_lstm_step_with_the_one_hot_action(randomize: Callable[..., None]) -> None:
    model = ActionModel(6, 3, {"z": 5, "q": 7}, lstm_size=4, head_hiddens=(5,)).double()
    randomize(model)
    torso = draw(4, 2, 6)
    out = model(torso)
    cell = model.root(torso)
    for action in range(3):
        one_hot = torch.zeros(4, 2, 3, dtype=torch.float64)
        one_hot[..., action] = 1.0
        hidden = model.core(one_hot, LSTMState(torch.tanh(cell), cell)).hidden
        for name, head in model.heads.items():
            torch.testing.assert_close(out[name][:, :, action], head(hidden))
    assert not torch.allclose(out["z"][:, :, 0], out["z"][:, :, 1])


def test_action_model_of_given_actions_is_that_of_all_actions_at_them(randomize: Callable[..., None]) -> None:
    model = ActionModel(6, 3, {"z": 5, "q": 7}, lstm_size=4, head_hiddens=(5,)).double()
    randomize(model)
    torso, actions = draw(4, 2, 6), torch.arange(8).reshape(4, 2) % 3
    every, taken = model(torso), model.of_taken(model.roots(model.root(torso)), actions)
    for name in every:
        torch.testing.assert_close(taken[name], select_action(every[name], actions))


@pytest.mark.parametrize("rows", [1, 5 * 3, 11 * 3])  # one state at a time, five, all but one of twelve
def test_a_few_states_at_a_time_are_all_of_them(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, torso = ActionModel(6, 3, {"z": 5, "q": 7}, 4, (5,)).double(), draw(4, 3, 6)
    whole = model(torso)
    monkeypatch.setattr(action_model, "ROWS", rows)
    with torch.no_grad():
        parts = model(torso)
    for name, want in whole.items():
        torch.testing.assert_close(parts[name], want.detach(), rtol=1e-13, atol=1e-14)
        assert want.requires_grad and parts[name].shape == (4, 3, 3, want.shape[-1])


@pytest.mark.parametrize("spec", [SPEC, OutputSpec(flat={"logits": 3, "v": 5})], ids=["per action", "flat"])
def test_learning_outputs_are_all_outputs_and_the_taken_ones_with_a_graph(
    make_rollout: Callable[..., Rollout], spec: OutputSpec
) -> None:
    agent, rollout = make_agent(spec=spec), make_rollout(A=3)
    params = {name: x.requires_grad_() for name, x in agent.init(torch.Generator().manual_seed(0)).items()}
    resets = torch.zeros(7, 3, dtype=torch.bool)
    learning = agent.learning_outputs(params, rollout, resets)
    out, taken = learning.outputs, learning.taken
    want, _ = agent.unroll(params, rollout.observations, resets)
    assert out.keys() == want.keys() == {*spec.flat, *spec.per_action}
    for name in want:
        torch.testing.assert_close(out[name], want[name])
        assert out[name].requires_grad == (name in spec.flat)
    if not spec.per_action:
        assert taken is None
        return
    assert taken is not None and taken.keys() == dict(spec.per_action).keys()
    for name, x in taken.items():
        selected = select_action(want[name][:-1], rollout.actions[:-1])
        torch.testing.assert_close(x, selected)
        gradients = [
            torch.autograd.grad(y.square().sum(), params["torso.0.weight"], retain_graph=True) for y in (x, selected)
        ]
        torch.testing.assert_close(*gradients)


def test_a_summary_takes_the_place_of_the_outputs_of_all_actions(
    make_rollout: Callable[..., Rollout], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, rollout = make_agent(), make_rollout(A=3)
    params, resets = agent.init(torch.Generator().manual_seed(0)), torch.zeros(7, 3, dtype=torch.bool)

    def compute(outputs: AgentOutput) -> ActionSummary:
        assert outputs.keys() == {"z", "q"}
        return ActionSummary(outputs["q"].sum(-1), outputs["z"].sum(-1), 2.0 * outputs["z"], 3.0 * outputs["q"])

    summarizer = Summarizer(("z", "q"), compute)
    outputs, _ = agent.unroll(params, rollout.observations, resets)
    want = compute({name: outputs[name] for name in ("z", "q")})
    for rows in (1, 2048):  # in chunks and as a whole
        monkeypatch.setattr(action_model, "ROWS", rows)
        with torch.no_grad():
            alone = agent.summarized_outputs(params, rollout.observations, resets, None, summarizer)
        learning = agent.learning_outputs(params, rollout, resets, summarizer)
        for got in (alone, learning):
            assert got.outputs.keys() == set(SPEC.flat)
            torch.testing.assert_close(vars(got.summary), vars(want))
        assert learning.taken is not None and learning.taken.keys() == dict(SPEC.per_action).keys()


def test_observations_are_scaled_by_one_factor_or_one_for_each_entry() -> None:
    agent = make_agent()
    observations, factors = draw(4, 2, 10), [0.5 * 2.0**i for i in range(10)]
    for scale in ([0.25], factors):
        config = AgentConfig((8, 6), 4, (5,), observation_scale=scale)
        scaled = make_agent(config=config)
        scaled.load_state_dict(agent.state_dict())
        want = agent(observations * torch.tensor(scale, dtype=torch.float64))[0]["logits"]
        torch.testing.assert_close(scaled(observations)[0]["logits"], want)


def test_works_under_vmap_over_stacked_parameters() -> None:
    agent = make_agent()
    population = [agent.init(torch.Generator().manual_seed(i)) for i in range(3)]
    stacked = {name: torch.stack([params[name] for params in population]) for name in population[0]}
    observations = draw(3, 4, 2, 10)
    together = torch.func.vmap(lambda params, x: agent.unroll(params, x)[0])(stacked, observations)
    shared = torch.func.vmap(lambda params, x: agent.unroll(params, x)[0], in_dims=(0, None))(stacked, observations[0])
    for i, params in enumerate(population):
        alone, _ = agent.unroll(params, observations[i])
        torch.testing.assert_close(together["q"][i], alone["q"])
        torch.testing.assert_close(shared["q"][i], agent.unroll(params, observations[0])[0]["q"])


def test_function_gradients_are_those_of_autograd() -> None:
    agent = make_agent()
    params = agent.init(torch.Generator().manual_seed(0))
    observations = draw(4, 2, 10)
    gradients = torch.func.grad(lambda p: agent.unroll(p, observations)[0]["q"].square().sum())(params)
    leaves = {name: x.clone().requires_grad_() for name, x in params.items()}
    agent.unroll(leaves, observations)[0]["q"].square().sum().backward()
    for name in ("torso.0.weight", "action_model.core.linear.weight", "action_model.heads.q.2.bias"):
        torch.testing.assert_close(gradients[name], leaves[name].grad)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: AgentConfig(dense=()), r"`dense` must name at least one layer, got none"),
        (lambda: AgentConfig(dense=(8, 0)), r"`dense` must hold sizes of at least 1, got \[8, 0\]"),
        (lambda: AgentConfig(head_mlp_hiddens=(-1,)), r"`head_mlp_hiddens` must hold sizes of at least 1, got \[-1\]"),
        (lambda: AgentConfig(lstm_size=0), r"`lstm_size` must be at least 1, got 0"),
        (
            lambda: AgentConfig(torso="conv"),
            r"`torso` must be one of \['auto', 'mlp', 'board', 'impala', 'nature'\], got 'conv'",
        ),
        (lambda: make_agent(torch.zeros(0)), r"`example` must hold at least one number, got an observation of none"),
        (
            lambda: make_agent(config=AgentConfig(observation_scale=(1.0, 2.0))),
            r"`observation_scale` must hold 1 factor or 10, one for each entry, got 2",
        ),
        (lambda: Agent(torch.zeros(3), 0, SPEC), r"`num_actions` must be at least 1, got 0"),
        (lambda: make_agent(3.0), r"`observations` must be tensors.*got float; convert arrays with torch.as_tensor"),
        (
            lambda: make_agent()(draw(2, 10)),
            r"`observations` must be \[T, B, ...\] with leaves of shape \[\[10\]\], got \[\[2, 10\]\]; time and batch",
        ),
        (lambda: make_agent()(draw(4, 2, 9)), r"`observations` must be .*\[\[10\]\], got \[\[4, 2, 9\]\]"),
        (lambda: make_agent().act(make_agent().init(), draw(10)), r"`observations` must be \[T, B, ...\] with leaves"),
        (lambda: make_agent()({"a": draw(4, 2, 10), "b": draw(4, 2, 1)}), r"got \[\[4, 2, 10\], \[4, 2, 1\]\]"),
    ],
)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_another_number_of_actions_than_the_outputs() -> None:
    with pytest.raises(ValueError, match="`num_actions`"):
        Agent(torch.zeros(10), 4, SPEC, CONFIG)


def test_observations_of_different_lengths() -> None:
    agent = make_agent({"a": torch.zeros(4), "b": torch.zeros(6)})
    with pytest.raises(ValueError, match="`observations` must"):
        agent({"a": draw(4, 2, 4), "b": draw(5, 2, 6)})
