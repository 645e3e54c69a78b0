"""Cores: what an LSTM remembers, where it forgets, and its derivatives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, jvp, vmap

from disco_torch.agents import Agent, AgentConfig, LSTMCore, NoMemory
from disco_torch.layers import LSTMState
from disco_torch.types import OutputSpec, Params, tree_map, tree_stack

SPEC = OutputSpec(flat={"logits": 3, "y": 5}, per_action={"q": 7})
CONFIG = AgentConfig(dense=(8,), lstm_size=4, head_mlp_hiddens=(5,), core="lstm", core_size=6)
ROWS, BATCH = 7, 3
RESETS = torch.zeros(ROWS, BATCH, dtype=torch.bool)
RESETS[0, 0] = RESETS[3, 1] = RESETS[4, 1] = True


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_agent(**changes: Any) -> Agent:
    agent = Agent(torch.zeros(10), 3, SPEC, replace(CONFIG, **changes)).double()
    params = agent.init(torch.Generator().manual_seed(0))
    agent.load_state_dict({name: x + 0.1 * draw(*x.shape, seed=i) for i, (name, x) in enumerate(params.items())})
    return agent


def params_of(agent: Agent) -> Params:
    return {name: param.detach() for name, param in agent.named_parameters()}


def some_state(batch: int = BATCH) -> LSTMState:
    return LSTMState(draw(batch, 6, seed=8), draw(batch, 6, seed=9))


def assert_equal(got: Any, want: Any, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def test_it_is_the_lstm_of_the_layers() -> None:
    """Step by step, and as `LSTM.unroll`, which has another derivative."""
    core = LSTMCore(10, 6).double()
    x, state = draw(ROWS, BATCH, 10), some_state()
    hiddens, after = core(x, RESETS, state)
    unrolled, last = core.lstm.unroll(x, RESETS, state)
    assert_equal(hiddens, unrolled)
    assert_equal([after.hidden, after.cell], [last.hidden, last.cell])
    for t in range(ROWS):
        keeps = (~RESETS[t, :, None]).double()
        state = core.lstm(x[t], LSTMState(keeps * state.hidden, keeps * state.cell))
        assert_equal(hiddens[t], state.hidden)


def test_the_network_has_the_configured_layers() -> None:
    agent = make_agent()
    shapes = {name: tuple(param.shape) for name, param in agent.named_parameters()}
    assert shapes["core.lstm.linear.weight"] == (4 * 6, 8 + 6) and shapes["core.lstm.linear.bias"] == (4 * 6,)
    assert shapes["heads.logits.0.weight"] == (3, 6) and shapes["action_model.root.weight"] == (4, 6)
    state = agent.initial_state(2)
    assert [tuple(x.shape) for x in (state.hidden, state.cell)] == [(2, 6)] * 2 and state.cell.dtype == torch.float64
    assert not state.hidden.any() and not state.cell.any()
    fresh = agent.init(torch.Generator().manual_seed(1))["core.lstm.linear.weight"]
    assert not torch.equal(fresh, agent.init(torch.Generator().manual_seed(2))["core.lstm.linear.weight"])
    assert AgentConfig().core == "none" and isinstance(make_agent(core="none").core, NoMemory)


def test_in_one_piece_and_row_by_row() -> None:
    agent, observations, state = make_agent(), draw(ROWS, BATCH, 10), some_state()
    params = params_of(agent)
    out, last = agent.unroll(params, observations, RESETS, state)
    for t in range(ROWS):
        logits, state = agent.policy(params, observations[t], RESETS[t], state)
        assert_equal(logits, out["logits"][t])
    assert_equal([state.hidden, state.cell], [last.hidden, last.cell])


@pytest.mark.parametrize("cut", range(1, ROWS))
def test_in_two_pieces(cut: int) -> None:
    agent, observations = make_agent(), draw(ROWS, BATCH, 10)
    params = params_of(agent)
    whole, last = agent.unroll(params, observations, RESETS, some_state())
    first, state = agent.unroll(params, observations[:cut], RESETS[:cut], some_state())
    second, end = agent.unroll(params, observations[cut:], RESETS[cut:], state)
    for name, value in whole.items():
        assert_equal(torch.cat([first[name], second[name]]), value)
    assert_equal([end.hidden, end.cell], [last.hidden, last.cell])


def test_a_reset_begins_anew_in_its_own_entry_alone() -> None:
    agent, observations = make_agent(), draw(ROWS, BATCH, 10)
    params = params_of(agent)
    out = agent.unroll(params, observations, RESETS, some_state())[0]["q"]
    anew = agent.unroll(params, observations[4:], None, agent.initial_state(BATCH))[0]["q"]
    never = agent.unroll(params, observations, None, some_state())[0]["q"]
    assert_equal(out[4:, 1], anew[:, 1])
    assert_equal(out[:3, 1], never[:3, 1])
    assert_equal(out[:, 2], never[:, 2])
    assert not torch.allclose(out[4:, 1], never[4:, 1]) and not torch.allclose(out[4:, 2], anew[:, 2])
    # Reset before the first row: what the memory was does not matter.
    other = agent.unroll(params, observations, RESETS, agent.initial_state(BATCH))[0]["q"]
    assert_equal(out[:, 0], other[:, 0])
    assert not torch.allclose(out[:, 2], other[:, 2])


def test_with_a_reset_in_every_row_there_is_no_memory() -> None:
    """Then the order of the rows does not matter: the agent is a feed-forward one."""
    agent, observations, order = make_agent(), draw(ROWS, BATCH, 10), torch.randperm(ROWS)
    params, always = params_of(agent), torch.ones_like(RESETS)
    out, _ = agent.unroll(params, observations, always, some_state())
    again, _ = agent.unroll(params, observations[order], always, some_state())
    rows, _ = agent.unroll(params, observations.flatten(0, 1)[None])  # [1, T * B, ...]
    for name, value in out.items():
        assert_equal(again[name], value[order])
        assert_equal(rows[name][0].unflatten(0, (ROWS, BATCH)), value)
    remembered, _ = agent.unroll(params, observations[order], None, some_state())
    assert not torch.allclose(remembered["logits"], out["logits"][order])


def test_without_a_state_the_memory_is_empty() -> None:
    agent, observations = make_agent(), draw(ROWS, BATCH, 10)
    params = params_of(agent)
    begun = agent.unroll(params, observations, torch.zeros_like(RESETS), agent.initial_state(BATCH))[0]["logits"]
    assert torch.equal(agent.unroll(params, observations)[0]["logits"], begun)


def test_a_population_by_vmap_is_each_alone() -> None:
    agents = [make_agent().init(torch.Generator().manual_seed(i)) for i in range(3)]
    agent, observations = make_agent(), draw(3, ROWS, BATCH, 10)
    states: LSTMState = tree_stack([tree_map(lambda x, i=i: x + i, some_state()) for i in range(3)])
    resets = torch.stack([RESETS, ~RESETS, RESETS.roll(1, 1)])
    out, after = vmap(agent.unroll)(tree_stack(agents), observations, resets, states)
    for i, params in enumerate(agents):
        alone, last = agent.unroll(params, observations[i], resets[i], tree_map(lambda x, i=i: x[i], states))
        assert_equal(out["q"][i], alone["q"])
        assert_equal(after.cell[i], last.cell)


def test_gradients_flow_back_to_the_row_that_was_reset_last() -> None:
    core, x = LSTMCore(10, 6).double(), draw(ROWS, BATCH, 10).requires_grad_()
    core(x, RESETS, some_state())[0][-1].sum().backward()
    assert x.grad is not None
    reached = (x.grad != 0).any(-1)  # [T, B]
    assert reached[:, 0].all() and reached[:, 2].all() and reached[:, 1].tolist() == [False] * 4 + [True] * 3


def test_first_and_second_derivatives() -> None:
    core = LSTMCore(3, 2).double()
    x, resets = draw(4, 2, 3).requires_grad_(), RESETS[1:5, :2]
    weights = [draw(*param.shape, seed=i).requires_grad_() for i, param in enumerate(core.parameters())]
    state = [draw(2, 2, seed=i).requires_grad_() for i in (5, 6)]

    def hiddens(x: Tensor, hidden: Tensor, cell: Tensor, *weights: Tensor) -> Tensor:
        params = dict(zip(dict(core.named_parameters()), weights, strict=True))
        return functional_call(core, params, (x, resets, LSTMState(hidden, cell)))[0]

    assert torch.autograd.gradcheck(hiddens, (x, *state, *weights))
    assert torch.autograd.gradgradcheck(hiddens, (x, *state, *weights))


def test_the_curvature_forwards_and_backwards() -> None:
    """A forward derivative of the gradient, as mixed mode takes it, is a backward pass through it."""
    agent, observations = make_agent(), draw(ROWS, BATCH, 10)
    params = params_of(agent)
    direction = {name: draw(*x.shape, seed=i) for i, (name, x) in enumerate(params.items())}

    def loss(params: Params) -> Tensor:
        return agent.unroll(params, observations, RESETS, some_state())[0]["q"].square().sum()

    pushed: Any = jvp(grad(loss), (params,), (direction,))
    along = grad(lambda p: sum((grad(loss)(p)[name] * direction[name]).sum() for name in params))(params)
    size = max(float(x.abs().max()) for x in along.values())
    for name, value in along.items():
        torch.testing.assert_close(pushed[1][name], value, rtol=1e-10, atol=1e-12 * size)


def test_mistakes() -> None:
    agent = make_agent()
    with pytest.raises(ValueError, match=r"`core` must be one of \['none', 'lstm'\], got 'gru'"):
        AgentConfig(core="gru")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"`core_size` must be at least 1, got 0"):
        AgentConfig(core_size=0)
    with pytest.raises(
        ValueError, match=r"`state.hidden` must be \[3, 6\], got \[2, 6\]; begin with `agent.initial_state\(batch_size\)`"
    ):
        agent.unroll(params_of(agent), draw(ROWS, BATCH, 10), RESETS, agent.initial_state(2))
