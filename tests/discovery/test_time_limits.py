"""Time limits in a population: its rows are those that training sees, and what learns from them is told of the cuts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from small_groups import (
    CATCH,
    REPLAY,
    SLIDING,
    Watched,
    assert_close,
    make_group,
    meta_gradient_by_hand,
    params_of,
    pick,
    random_rule,
    tiny_config,
)
from torch import Tensor

from disco_torch.data import ActorState, collect
from disco_torch.discovery.config import HabitatConfig
from disco_torch.discovery.habitats import collect_population
from disco_torch.discovery.meta_loss import validation_loss
from disco_torch.discovery.session import DiscoverySession
from disco_torch.envs import FAMILIES, EnvStep, PureEnvironment
from disco_torch.envs.pure import select_envs
from disco_torch.types import Rollout, flatten_tree, tree_dataclass, tree_map

LIMIT = 3
WALKS = HabitatConfig("limited-walk", agents=2)


@tree_dataclass
class WalkState:
    place: Tensor  # [B]
    time: Tensor  # [B]
    episode: Tensor  # [B]


class LimitedWalk(PureEnvironment):
    """A walk on the places -2 .. 2, which ends beyond them, or is cut after 3 steps. Observes place, time and episode."""

    name, num_actions, truncates = "limited-walk", 3, True
    episode_draws, step_draws = 1, 1

    def __init__(self, num_envs: int, device: str | torch.device = "cpu") -> None:
        self.num_envs, self.device = num_envs, torch.device(device)
        self.observation_example = torch.zeros(3)

    def observe(self, state: WalkState) -> Tensor:
        return torch.stack([state.place, state.time, state.episode], dim=1).float() / 10.0

    def begin(self, episode: Tensor, uniforms: Tensor) -> WalkState:
        return WalkState((3 * uniforms[:, 0]).long() - 1, torch.zeros_like(episode), episode)

    def start(self, level_uniforms: Tensor, episode_uniforms: Tensor) -> tuple[WalkState, EnvStep]:
        zeros = torch.zeros(len(episode_uniforms), dtype=torch.long)
        state, no = self.begin(zeros, episode_uniforms), zeros.bool()
        shown = self.observe(state)
        return state, EnvStep(shown, zeros.float(), zeros.float() + 1, no, shown, ~no, no)

    def step_with(self, state: WalkState, actions: Tensor, uniforms: Tensor) -> tuple[WalkState, EnvStep]:
        place = state.place + actions - 1 + (uniforms[:, 0] < 0.3).long()
        last = WalkState(place, state.time + 1, state.episode)
        ends = place.abs() > 2
        cut = (last.time == LIMIT) & ~ends
        state = select_envs(ends | cut, self.begin(state.episode + 1, uniforms[:, 1:]), last)
        shown = self.observe(state)
        final = select_envs(cut, self.observe(last), shown)
        return state, EnvStep(shown, place.float() / 2, (~ends).float(), cut, final, ends | cut, ends | cut)


@pytest.fixture(autouse=True)
def limited_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, LimitedWalk.name, LimitedWalk)  # type: ignore[arg-type]


class Scripted:
    """An agent that does what a row of a population's rollout says, and an environment that takes the numbers it took."""

    def __init__(self, rollout: Rollout, env: PureEnvironment, numbers: Tensor) -> None:
        self.rows: Iterator[Any] = iter(zip(rollout.actions, rollout.behaviour_logits, strict=True))
        self.env, self.numbers, self.seen = env, iter(numbers), []

    def act(self, params, observations, generator=None, should_reset=None, state=None):
        self.seen.append(observations)
        return *next(self.rows), state

    def step(self, state: Any, actions: Tensor, generator: torch.Generator) -> Any:
        return self.env.step_with(state, actions % self.env.num_actions, next(self.numbers))


def test_the_rows_of_a_population_are_those_that_collect_gives() -> None:
    group = make_group(tiny_config(WALKS, CATCH))
    habitats, params, rows, B = group.habitats, group.state.learners.params, 14, 3
    uniforms, env_uniforms = habitats.draws(rows, torch.Generator().manual_seed(5))
    step = lambda state, numbers: habitats.act(group.agent, params, state, *numbers)  # noqa: E731
    before = tree_map(torch.clone, group.state.acting)
    _, rollout, sums = collect_population(step, group.state.acting, uniforms, env_uniforms)
    assert rollout.truncations is not None and rollout.truncations[:2].sum() > 4 and not rollout.truncations[2:].any()
    assert (rollout.discounts[:2] == 0).sum() > 2
    for agent in range(4):
        habitat, own = agent // 2, slice(agent % 2 * B, (agent % 2 + 1) * B)
        played = pick(rollout, agent)
        script = Scripted(played, habitats.habitats[habitat].env, env_uniforms[habitat][:, own])
        env_state, shown = tree_map(lambda x, own=own: x[own], (before.env_states[habitat], before.steps[habitat]))
        actor = ActorState(env_state, shown, None, before.returns[agent], torch.zeros(B))
        alone, _, episodes = collect(script, {}, script, actor, rows, torch.Generator())  # type: ignore[arg-type]
        size = alone.observations[0, 0].numel()
        assert torch.equal(played.observations[..., :size], alone.observations.flatten(2))
        assert (played.observations[..., size:] == 0).all()
        for name in ("actions", "rewards", "discounts", "behaviour_logits"):
            assert torch.equal(getattr(played, name), getattr(alone, name).to(getattr(played, name).dtype)), name
        assert (alone.truncations is None) == (habitat == 1)
        assert habitat == 1 or torch.equal(played.truncations, alone.truncations)
        assert sums.count[agent] == episodes.ends.sum()
        torch.testing.assert_close(sums.returns[agent], episodes.returns[episodes.ends].sum())
        # What an agent acts on is what comes next, also behind a cut: there its row shows something else.
        seen = torch.nn.functional.pad(torch.stack(script.seen).flatten(2), (0, habitats.observation_size - size))
        logits = group.agent.unroll(pick(params, agent), seen)[0]["logits"]
        torch.testing.assert_close(played.behaviour_logits, logits, rtol=1e-10, atol=1e-12)
        differs = (seen != played.observations).any(-1)
        assert torch.equal(differs, played.truncations)


@pytest.mark.parametrize("changes", [SLIDING, SLIDING | REPLAY], ids=["no replay", "replay"])
def test_what_learns_is_told_of_the_cuts(changes: dict[str, Any]) -> None:
    """The gradient of a group is each agent's own by autograd, where the cuts come in by `rule_inputs` and masks."""
    watched = Watched(make_group(tiny_config(WALKS, **changes)))
    gradient = [watched.group.advance(params_of(random_rule())) for _ in range(3)][-1]
    assert watched.valid is not None
    for rollout in [watched.valid, *(update.batch for update in watched.updates)]:
        assert rollout.truncations is not None and rollout.truncations.dtype == torch.bool
    assert any(update.batch.truncations.any() for update in watched.updates)  # type: ignore[union-attr]
    for agent in range(2):
        by_hand = meta_gradient_by_hand(watched, agent, watched.updates[-3:])
        assert_close(pick(gradient.grads, agent), by_hand)
    rings = watched.group.state.replay
    assert rings is None or (rings.trajectories.truncations is not None and rings.trajectories.truncations.any())


def test_nothing_is_carried_where_no_environment_truncates() -> None:
    watched = Watched(make_group(tiny_config(CATCH, **REPLAY)))
    watched.group.advance(params_of(random_rule()))
    assert not watched.group.habitats.truncates
    assert all(update.batch.truncations is None for update in watched.updates)
    assert watched.group.state.replay is not None and watched.group.state.replay.trajectories.truncations is None


def test_all_processes_carry_truncations_if_one_does() -> None:
    groups = [make_group(tiny_config(WALKS, CATCH, **REPLAY), rank=rank, size=2) for rank in range(2)]
    assert [[habitat.env.name for habitat in group.habitats.habitats] for group in groups] == [["limited-walk"], ["catch"]]
    for group in groups:
        watched = Watched(group)
        group.advance(params_of(random_rule()))
        assert all(update.batch.truncations is not None for update in watched.updates)


def test_a_discovery_with_time_limits_resumes_to_the_last_bit() -> None:
    changes = SLIDING | REPLAY | {"groups": tiny_config(WALKS, CATCH).groups}
    one = DiscoverySession(tiny_config(**changes))
    for _ in range(3):
        one.advance()
    other = DiscoverySession(tiny_config(**changes))
    other.load_state_dict(one.state_dict())
    for session in (one, other):
        session.advance()
    leaves = [flatten_tree(session.state_dict())[0] for session in (one, other)]
    assert len(leaves[0]) > 50
    for a, b in zip(*leaves, strict=True):
        assert torch.equal(a, b) if isinstance(a, Tensor) else a == b


def test_a_step_that_was_not_executed_is_not_in_the_meta_loss() -> None:
    group = make_group(tiny_config(WALKS))
    uniforms, env_uniforms = group.habitats.draws(12, torch.Generator().manual_seed(5))
    _, rollout, _ = group.meta_update.parts.collect(group.state.learners.params, group.state.acting, uniforms, env_uniforms)
    valid, params = pick(rollout, 0), pick(group.state.learners.params, 0)
    out, _ = group.agent.unroll(params, valid.observations)
    value_out, *_ = group.value_function.estimate(pick(group.state.values, 0), valid, out["logits"])
    assert value_out.normalized_adv is not None and valid.truncations is not None
    cut = valid.truncations[:-1]
    assert 0 < cut.sum() < cut.numel() / 2
    loss = validation_loss(valid, out, value_out, group.config.weights)[0]
    for where, same in ((cut, True), (~cut, False)):
        other = replace(value_out, normalized_adv=value_out.normalized_adv.masked_fill(where, 7.0))
        changed = validation_loss(valid, out, other, group.config.weights)[0]
        assert torch.equal(changed, loss) is same
