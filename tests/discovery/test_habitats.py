"""Habitats: several environments seen as one, padded and split."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_discoveries import TINY_AGENT
from small_groups import CATCH, CHAIN, GRID, make_group, tiny_config

from disco_torch.discovery.config import GroupConfig, HabitatConfig
from disco_torch.discovery.habitats import Habitats, shares_of
from disco_torch.envs import make_env
from disco_torch.types import tree_leaves, tree_map

CPU, COPIES = torch.device("cpu"), 2


def habitats_of(*habitats: HabitatConfig, rank: int = 0, size: int = 1) -> Habitats:
    return Habitats(GroupConfig(habitats, TINY_AGENT), COPIES, CPU, torch.float64, rank, size)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 6))
def test_processes_share_a_group_evenly_and_in_order(agents: list[int], size: int) -> None:
    config = GroupConfig(tuple(HabitatConfig(agents=number) for number in agents))
    shares = [shares_of(config, rank, size) for rank in range(size)]
    for i, number in enumerate(agents):
        assert [agent for share in shares for agent in share[i]] == list(range(number))
    numbers = [sum(len(mine) for mine in share) for share in shares]
    assert max(numbers) - min(numbers) <= 1


def test_observations_are_flat_and_padded_with_zeros() -> None:
    group = make_group(tiny_config(CATCH, CHAIN, num_envs=COPIES, batch_size=COPIES))
    habitats, steps = group.habitats, group.state.acting.steps
    seen = habitats.observations(steps)
    sizes = [9, 4 + 1 + 3]
    assert habitats.observation_size == 9 and seen.shape == (3, COPIES, 9)
    for agent, (i, row) in enumerate([(0, 0), (0, 2), (1, 0)]):
        own = steps[i].observations[row : row + COPIES].flatten(1)
        assert torch.equal(seen[agent, :, : sizes[i]], own)
        assert (seen[agent, :, sizes[i] :] == 0).all()


def test_actions_beyond_an_environments_own_count_from_0_again() -> None:
    """Catch has 3 actions, the grid 5: in one group actions 3 and 4 of Catch are 0 and 1."""
    group = make_group(tiny_config(CATCH, GRID, num_envs=COPIES, batch_size=COPIES))
    habitats, acting = group.habitats, group.state.acting
    assert habitats.num_actions == 5 and group.agent.num_actions == 5
    _, env_uniforms = habitats.draws(1, group.generator)
    numbers = [drawn[0] for drawn in env_uniforms]
    moved = {}
    for action in range(5):
        uniforms = torch.full((3, COPIES, 5), 1e-30)
        uniforms[:, :, action] = 1 - 1e-7  # the largest noise wins
        after, (row, _) = habitats.act(group.agent, group.state.learners.params, acting, uniforms, numbers)
        assert (row.actions == action).all(), "the agents' own action is what they learn from"
        moved[action] = after
        env = make_env("catch", 4, rows=3, columns=3)
        by_hand, _ = env.step_with(acting.env_states[0], torch.full((4,), action % 3), numbers[0])
        assert torch.equal(after.env_states[0].paddle_column, by_hand.paddle_column)
    assert torch.equal(moved[3].env_states[0].paddle_column, moved[0].env_states[0].paddle_column)
    assert not torch.equal(moved[2].env_states[0].paddle_column, moved[0].env_states[0].paddle_column)


def test_each_agent_acts_with_its_own_parameters() -> None:
    group = make_group(tiny_config(CATCH, CHAIN))
    seen = group.habitats.observations(group.state.acting.steps)
    logits = torch.func.vmap(lambda own, x: group.agent.policy(own, x)[0])(group.state.learners.params, seen)
    for agent in range(3):
        params = tree_map(lambda x, agent=agent: x[agent], group.state.learners.params)
        alone, _ = group.agent.unroll(params, seen[agent].unsqueeze(0))
        torch.testing.assert_close(logits[agent], alone["logits"][0], rtol=1e-12, atol=1e-14)
    assert not torch.equal(logits[0], logits[1])


def test_a_step_adds_up_what_ended_with_it() -> None:
    """A row holds what arrived with it; what a step earns is counted with the step."""
    group = make_group(tiny_config(CATCH))
    acting = group.state.acting
    for _ in range(5):
        before = acting.returns
        (uniforms, env_uniforms) = group.habitats.draws(1, group.generator)
        step, shown = acting.steps[0], acting
        params = group.state.learners.params
        acting, (row, sums) = group.habitats.act(group.agent, params, shown, uniforms[0], [env_uniforms[0][0]])
        assert torch.equal(row.rewards.flatten(), step.rewards.double())
        assert torch.equal(row.discounts.flatten(), step.discounts.double())
        earned, ends = (x.double().unflatten(0, (2, 3)) for x in (acting.steps[0].rewards, acting.steps[0].episode_ends))
        assert torch.equal(sums.count, ends.sum(1)) and torch.equal(sums.rewards, earned.sum(1))
        assert torch.equal(sums.returns, ((before + earned) * ends).sum(1))
        assert torch.equal(sums.positive, (earned == 1).sum(1)) and torch.equal(sums.negative, (earned == -1).sum(1))
        assert torch.equal(acting.returns, (before + earned) * (1 - ends))


def test_all_copies_of_an_agent_play_its_level_and_episodes_of_their_own() -> None:
    habitats = habitats_of(HabitatConfig("chain", agents=2))
    env_states = [habitats.begin(agent, torch.Generator().manual_seed(agent))[1] for agent in range(2)]
    for leaf in tree_leaves(vars(env_states[0].levels)):
        assert torch.equal(leaf[0], leaf[1])
    assert not torch.equal(env_states[0].levels.keys, env_states[1].levels.keys)
    again = habitats.begin(0, torch.Generator().manual_seed(0))[1]
    assert torch.equal(again.levels.keys, env_states[0].levels.keys)
    assert torch.equal(again.episode.bits, env_states[0].episode.bits)


def test_the_numbers_of_a_step_do_not_depend_on_the_split() -> None:
    kinds = (HabitatConfig("catch", agents=3), HabitatConfig("chain", agents=2))
    whole = habitats_of(*kinds)
    uniforms, env_uniforms = whole.draws(4, torch.Generator().manual_seed(1))
    ids, parts = [], []
    drawn: dict[str, list[torch.Tensor]] = {"catch": [], "chain": []}
    for rank in range(2):
        part = habitats_of(*kinds, rank=rank, size=2)
        mine, numbers = part.draws(4, torch.Generator().manual_seed(1))
        ids += part.ids
        parts.append(mine)
        for habitat, own in zip(part.habitats, numbers, strict=True):
            drawn[habitat.config.env].append(own)
        assert part.num_actions == whole.num_actions and part.observation_size == whole.observation_size
    assert ids == list(range(5)) and torch.equal(torch.cat(parts, 1), uniforms)
    for i, name in enumerate(drawn):
        assert torch.equal(torch.cat(drawn[name], 1), env_uniforms[i])


def test_a_process_without_agents_of_an_environment_pads_alike() -> None:
    part = habitats_of(CHAIN, HabitatConfig("grid", agents=1), rank=0, size=2)
    assert [habitat.config.env for habitat in part.habitats] == ["chain"] and part.ids == [0]
    assert part.num_actions == 5 and part.observation_size == habitats_of(CHAIN, HabitatConfig("grid")).observation_size


def test_levels_are_not_the_settings_to_choose() -> None:
    message = r"`env_args` of a habitat must not name a `level_seed`, got 3 for 'grid'; every life draws its own level"
    with pytest.raises(ValueError, match=message):
        habitats_of(CATCH, HabitatConfig("grid", {"size": 5, "level_seed": 3}))
