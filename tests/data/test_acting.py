"""Acting: rows that are aligned, rollouts that continue each other, and statistics of whole episodes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from disco_torch import Agent, OutputSpec
from disco_torch.data import ActorState, Collector, Episodes, act, act_rows, collect, collect_rollout, init_actor
from disco_torch.data.acting import next_actor
from disco_torch.data.module_acting import as_tensor
from disco_torch.envs import Environment, EnvStep, make_env
from disco_torch.kernels import Speed
from disco_torch.types import Rollout, flatten_tree, tree_dataclass

# How long the episodes of each copy are; a negative length is cut by a time limit. The scripts repeat.
ENDS = [[3, 2, 1, 7], [1, 1, 1, 5], [11, 4]]
CUTS = [[3, -2, 1, -4], [-1, -1, 2, 5], [-6, 3]]
NUM_ACTIONS = 3


@tree_dataclass
class CountingState:
    episode: Tensor  # [B]
    now: Tensor  # [B]


def reward_of(episode: float, now: float, action: float) -> float:
    """Of the step that leaves `now`; names all three, so that a row with anything else in it shows."""
    return 100.0 * episode + 10.0 * now + action


class CountingTensors(Environment):
    """Observes [copy, episode, step] and ends by a script. With `spare_rows` an end shows its last observation, and one
    more row, whose action is ignored, the next episode's first.
    """

    name, num_actions, saves_state = "counting", NUM_ACTIONS, True

    def __init__(self, scripts: list[list[int]], spare_rows: bool = False) -> None:
        self.scripts, self.spare_rows = scripts, spare_rows
        self.num_envs, self.device = len(scripts), torch.device("cpu")
        self.observation_example = torch.zeros(3)
        self.truncates = any(length < 0 for script in scripts for length in script)

    def lengths(self, state: CountingState) -> Tensor:
        numbers = enumerate(state.episode.tolist())
        return torch.tensor([self.scripts[copy][episode % len(self.scripts[copy])] for copy, episode in numbers])

    def observe(self, state: CountingState) -> Tensor:
        return torch.stack([torch.arange(self.num_envs), state.episode, state.now], dim=1).float()

    def reset(self, generator: torch.Generator) -> tuple[CountingState, EnvStep]:
        zeros = torch.zeros(self.num_envs, dtype=torch.long)
        state, no = CountingState(zeros, zeros), zeros.bool()
        shown = self.observe(state)
        return state, EnvStep(shown, zeros.float(), zeros.float() + 1, no, shown if self.truncates else None, ~no, no)

    def step(self, state: CountingState, actions: Tensor, generator: torch.Generator) -> tuple[CountingState, EnvStep]:
        if self.spare_rows:
            return self.step_with_spare_rows(state, actions)
        lengths = self.lengths(state)
        rewards = reward_of(state.episode, state.now, actions).float()
        last = CountingState(state.episode, state.now + 1)
        ends = last.now == lengths.abs()
        cut = ends & (lengths < 0)
        state = CountingState(last.episode + ends, last.now * ~ends)
        shown = self.observe(state)
        final = torch.where(cut[:, None], self.observe(last), shown) if self.truncates else None
        return state, EnvStep(shown, rewards, (~(ends & ~cut)).float(), cut, final, ends, ends)

    def step_with_spare_rows(self, state: CountingState, actions: Tensor) -> tuple[CountingState, EnvStep]:
        waits = state.now == self.lengths(state)
        rewards = torch.where(waits, 0.0, reward_of(state.episode, state.now, actions).float())
        state = CountingState(state.episode + waits, (state.now + 1) * ~waits)
        ends = (state.now == self.lengths(state)) & ~waits
        no = torch.zeros_like(ends)
        return state, EnvStep(self.observe(state), rewards, (~(ends | waits)).float(), no, None, waits, ends)


class CountingAgent:
    """Prefers actions by what it sees, and remembers how many observations of this episode it has seen."""

    def initial_state(self, batch_size: int) -> dict[str, Tensor]:
        return {"seen": torch.zeros(batch_size)}

    def act(self, params, observations, generator=None, should_reset=None, state=None):
        seen = torch.where(should_reset, 0.0, state["seen"]) + 1.0
        assert torch.equal(seen, observations[:, 2] + 1.0)  # the memory began anew with each episode, and only then
        logits = logits_of(observations)
        return torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0], logits, {"seen": seen}


def logits_of(observations: Tensor) -> Tensor:
    return observations.sum(-1, keepdim=True) * torch.arange(NUM_ACTIONS) / 50.0


def play(env: Environment, lengths: list[int], seed: int = 0) -> tuple[list[Rollout], list[Episodes], ActorState]:
    agent, generator = CountingAgent(), torch.Generator().manual_seed(seed)
    actor = init_actor(agent, env, generator)
    rollouts, ended = [], []
    for rows in lengths:
        rollout, actor, episodes = collect(agent, {}, env, actor, rows, generator)
        rollouts.append(rollout)
        ended.append(episodes)
    return rollouts, ended, actor


def joined(rollouts: list[Rollout], name: str) -> Tensor:
    return torch.cat([getattr(rollout, name) for rollout in rollouts])


def check_rows(rollouts: list[Rollout], scripts: list[list[int]]) -> None:
    """Walks along the rows of every copy and says what the next one must hold."""
    names = ("observations", "actions", "rewards", "discounts", "behaviour_logits")
    columns = {name: joined(rollouts, name) for name in names}
    cuts = None if rollouts[0].truncations is None else joined(rollouts, "truncations")
    for copy, script in enumerate(scripts):
        episode = now = 0
        reward, discount, shown, cut = 0.0, 1.0, (copy, 0, 0), False
        for row in range(len(columns["rewards"])):
            assert tuple(columns["observations"][row, copy].tolist()) == shown
            assert columns["rewards"][row, copy] == reward and columns["discounts"][row, copy] == discount
            assert cuts is None or cuts[row, copy] == cut
            acted_on = torch.tensor([copy, episode, now]).float()
            torch.testing.assert_close(columns["behaviour_logits"][row, copy], logits_of(acted_on))
            length = script[episode % len(script)]
            reward = reward_of(episode, now, columns["actions"][row, copy].item())
            ends, cut = now + 1 == abs(length), now + 1 == abs(length) and length < 0
            discount = 0.0 if ends and not cut else 1.0
            last = (copy, episode, now + 1)
            episode, now = (episode + 1, 0) if ends else (episode, now + 1)
            shown = last if cut else (copy, episode, now)  # a closing row shows the next episode


def test_rows_are_aligned_and_a_closing_row_shows_the_next_episode() -> None:
    rollouts, _, _ = play(CountingTensors(ENDS), [5, 5, 9])
    check_rows(rollouts, ENDS)
    assert all(rollout.truncations is None for rollout in rollouts)
    discounts, shown = joined(rollouts, "discounts"), joined(rollouts, "observations")
    assert (discounts == 0).sum() > 10 and (shown[discounts == 0][:, 2] == 0).all()


def test_a_cut_row_holds_the_last_observation_and_is_marked() -> None:
    rollouts, _, _ = play(CountingTensors(CUTS), [5, 4, 9])
    check_rows(rollouts, CUTS)
    cut, shown = joined(rollouts, "truncations"), joined(rollouts, "observations")
    assert cut.dtype == torch.bool and cut.sum() > 5
    assert (shown[cut][:, 2] > 0).all() and (joined(rollouts, "discounts")[cut] == 1).all()


@pytest.mark.parametrize("scripts", [ENDS, CUTS])
def test_rollouts_continue_each_other(scripts: list[list[int]]) -> None:
    short, _, short_actor = play(CountingTensors(scripts), [4, 1, 3, 7])
    (whole,), _, whole_actor = play(CountingTensors(scripts), [15])
    for name in ("observations", "actions", "rewards", "discounts", "behaviour_logits"):
        assert torch.equal(joined(short, name), getattr(whole, name)), name
    assert torch.equal(short_actor.step.observations, whole_actor.step.observations)
    assert torch.equal(short_actor.returns, whole_actor.returns)


def test_the_generator_decides() -> None:
    actions = [joined(play(CountingTensors(ENDS), [8], seed)[0], "actions") for seed in (3, 3, 4)]
    assert torch.equal(actions[0], actions[1]) and not torch.equal(actions[0], actions[2])


def test_the_memory_from_before_the_first_row_is_kept() -> None:
    rollouts, _, actor = play(CountingTensors(ENDS), [3, 4])
    assert torch.equal(rollouts[0].first_state["seen"], torch.zeros(3))
    assert torch.equal(rollouts[1].first_state["seen"], joined(rollouts[:1], "observations")[-1, :, 2] + 1)
    assert rollouts[0].rewards.shape == (3, 3) and actor.memory["seen"].shape == (3,)


def finished(ended: list[Episodes], copy: int) -> list[tuple[float, float]]:
    found = []
    for episodes in ended:
        for row in episodes.ends[:, copy].nonzero()[:, 0].tolist():
            found.append((episodes.returns[row, copy].item(), episodes.lengths[row, copy].item()))
    return found


@pytest.mark.parametrize("scripts", [ENDS, CUTS])
@pytest.mark.parametrize("lengths", [[3] * 8, [12, 12], [24], [1] * 24])
def test_statistics_are_of_whole_episodes(scripts: list[list[int]], lengths: list[int]) -> None:
    rollouts, ended, actor = play(CountingTensors(scripts), lengths)
    actions = joined(rollouts, "actions")
    for copy, script in enumerate(scripts):
        expected, row, episode = [], 0, 0
        while row + abs(script[episode % len(script)]) <= len(actions):
            length = abs(script[episode % len(script)])
            rewards = [reward_of(episode, now, actions[row + now, copy].item()) for now in range(length)]
            expected.append((sum(rewards), float(length)))
            row, episode = row + length, episode + 1
        assert finished(ended, copy) == expected
        running = [reward_of(episode, now, actions[row + now, copy].item()) for now in range(len(actions) - row)]
        assert actor.returns[copy] == sum(running) and actor.lengths[copy] == len(running)


def test_a_spare_row_belongs_to_no_episode() -> None:
    class Forgetful(CountingAgent):
        def act(self, params, observations, generator=None, should_reset=None, state=None):
            return torch.ones(len(observations), dtype=torch.long), logits_of(observations), state

    env, generator = CountingTensors([[2, 3]], spare_rows=True), torch.Generator()
    actor = init_actor(Forgetful(), env, generator)
    _, actor, episodes = collect(Forgetful(), {}, env, actor, 8, generator)
    # Episodes 0, 1 and 2 take 2, 3 and 2 steps, each but the first after a spare row.
    assert finished([episodes], 0) == [(1.0 + 11.0, 2.0), (101.0 + 111.0 + 121.0, 3.0)]
    assert actor.lengths.tolist() == [1.0] and actor.returns.tolist() == [201.0]


VARIED = {"varied": True, "num_actions": 6}


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [("catch", {}), ("grid", {}), ("swing", VARIED), ("bandit", {}), ("maze", {}), ("doors", VARIED), ("lander", {})],
)
@pytest.mark.parametrize("speed", [Speed(), Speed(trace=True)])
def test_a_collector_takes_the_numbers_that_collect_takes(name: str, kwargs: dict[str, Any], speed: Speed) -> None:
    env = make_env(name, 3, **kwargs)
    agent = Agent(env.observation_example, env.num_actions, OutputSpec(flat={"logits": env.num_actions}))
    params = agent.init(torch.Generator().manual_seed(1))
    results = []
    for collector in (None, Collector(agent, env, speed)):
        generator = torch.Generator().manual_seed(0)
        actor, seen = init_actor(agent, env, generator), []
        for rows in (5, 9):
            if collector is None:
                rollout, actor, episodes = collect(agent, params, env, actor, rows, generator)
            else:
                rollout, actor, episodes = collector(params, actor, rows, generator)
            seen.append((rollout, episodes))
        results.append((seen, actor, generator.get_state()))
    (plain, structure), (recorded, other) = (flatten_tree(result) for result in results)
    assert structure == other
    tolerance = 0.0 if speed == Speed() else 1e-6  # recorded, operations may be rounded in another order
    for a, b in zip(plain, recorded, strict=True):
        torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance)


def test_the_loop_takes_a_step_for_each_input_and_no_more_than_asked_for() -> None:
    taken = []

    def step(state: int, x: int) -> tuple[int, dict[str, Tensor]]:
        taken.append(x)
        return state + x, {"before": torch.tensor([state])}

    states = []
    for state, _ in act(step, 100, itertools.count()):
        states.append(state)
        if len(states) == 4:
            break
    assert states == [100, 101, 103, 106] and taken == [0, 1, 2, 3]
    state, rows = act_rows(step, 0, [5, 6, 7])
    assert state == 18 and rows["before"].tolist() == [[0], [5], [11]]
    assert act_rows(step, 0, [5, 6, 7], dim=1)[1]["before"].tolist() == [[0, 5, 11]]


def test_returns_of_long_episodes_are_sums_in_float64() -> None:
    """In float32 a million rewards of 0.1 add up to 100,958."""
    env = make_env("catch", 2)
    agent = Agent(env.observation_example, env.num_actions, OutputSpec(flat={"logits": env.num_actions}))
    actor = init_actor(agent, env, torch.Generator())
    assert actor.returns.dtype == actor.lengths.dtype == torch.float64
    actor.returns, actor.lengths = actor.returns + 99_999.9, actor.lengths + 2.0**24
    no = torch.zeros(2, dtype=torch.bool)
    step = EnvStep(actor.step.observations, torch.full((2,), 0.1), torch.ones(2), no, None, no, no)
    after, _ = next_actor(actor, None, step, None)
    torch.testing.assert_close(after.returns, torch.full((2,), 1e5, dtype=torch.float64), rtol=0, atol=1e-8)
    assert after.lengths.tolist() == [2.0**24 + 1] * 2


def test_a_collector_steps_other_environments_plainly() -> None:
    agent, env = CountingAgent(), CountingTensors(ENDS)
    actor = init_actor(agent, env, torch.Generator())
    want = collect(agent, {}, env, actor, 6, torch.Generator().manual_seed(0))[0]
    got = Collector(agent, env, Speed(trace=True))({}, actor, 6, torch.Generator().manual_seed(0))[0]  # type: ignore[arg-type]
    assert torch.equal(got.actions, want.actions) and torch.equal(got.observations, want.observations)


class Numbers:
    """A toy environment in numpy with the interface of the quick start; observes [copy, episode, step]."""

    def __init__(self, num_envs: int = 3, length: int = 4, dtype: type = np.float64) -> None:
        self.num_envs, self.length, self.dtype = num_envs, length, dtype
        self.episode, self.now = np.zeros(num_envs, int), np.zeros(num_envs, int)
        self.taken: list[Any] = []

    def obs(self) -> np.ndarray:
        return np.stack([np.arange(self.num_envs), self.episode, self.now], axis=1).astype(self.dtype)

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray]:
        self.taken.append(actions)
        rewards = reward_of(self.episode, self.now, np.asarray(actions))
        self.now = self.now + 1
        dones = self.now == self.length + np.arange(self.num_envs)
        self.episode, self.now = self.episode + dones, self.now * ~dones
        return rewards, dones


class Remembering(nn.Module):
    """Counts the observations of each episode in a memory of the given kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.bias = kind, nn.Parameter(torch.zeros(NUM_ACTIONS))

    def init_lstm_state(self, batch_size: int, device: torch.device | str) -> Any:
        seen = torch.zeros(batch_size, 1, device=device)
        return {"seen": seen} if self.kind == "dict" else (seen, seen.clone())

    def forward_step(self, observations: Tensor, lstm_state: Any) -> tuple[dict[str, Tensor], Any]:
        seen = lstm_state["seen"] if self.kind == "dict" else lstm_state[0]
        assert torch.equal(seen[:, 0], observations[:, 2].float())
        state = {"seen": seen + 1} if self.kind == "dict" else (seen + 1, lstm_state[1] + 2)
        return {"logits": logits_of(observations.float()) + self.bias}, state


@pytest.mark.parametrize("kind", ["dict", "tuple"])
@pytest.mark.parametrize("tensors", [False, True])
def test_collect_rollout(kind: str, tensors: bool) -> None:
    env, agent = Numbers(), Remembering(kind)

    def step_fn(actions: Any) -> tuple[Any, Any, Any]:
        assert isinstance(actions, Tensor if tensors else np.ndarray) and actions.shape == (3,)
        rewards, dones = env.step(actions)
        arrays = (env.obs(), rewards, dones)
        return tuple(map(torch.as_tensor, arrays)) if tensors else arrays  # type: ignore[return-value]

    obs: Any = torch.as_tensor(env.obs()) if tensors else env.obs()
    state, generator = agent.init_lstm_state(3, "cpu"), torch.Generator().manual_seed(0)
    rollouts = []
    for _ in range(3):
        rollout, obs, state = collect_rollout(agent, step_fn, obs, state, 6, generator=generator)
        rollouts.append(rollout)
    assert all(rollout.rewards.shape == (7, 3) and rollout.observations.dtype == torch.float32 for rollout in rollouts)
    assert isinstance(obs, Tensor) is tensors
    # The last row of a rollout is the first of the next; nothing was executed on it, and what arrived is in it alone.
    for before, after in itertools.pairwise(rollouts):
        assert torch.equal(before.observations[-1], after.observations[0])
        assert (after.rewards[0] == 0).all() and (after.discounts[0] == 1).all()
    assert torch.equal(rollouts[-1].observations[-1], torch.as_tensor(env.obs()).float())
    steps = [rollout.actions[:-1] for rollout in rollouts]
    assert torch.equal(torch.cat(steps), torch.stack([torch.as_tensor(actions) for actions in env.taken]))
    for rollout in rollouts:
        seen = rollout.observations[:-1]
        assert torch.equal(rollout.rewards[1:], reward_of(seen[..., 1], seen[..., 2], rollout.actions[:-1]))
        closes = rollout.discounts[1:] == 0
        assert torch.equal(closes, seen[..., 2] + 1 == 4 + torch.arange(3))
        assert torch.equal(rollout.observations[1:][..., 2], torch.where(closes, 0.0, seen[..., 2] + 1))
        torch.testing.assert_close(rollout.behaviour_logits, logits_of(rollout.observations))
        assert not rollout.behaviour_logits.requires_grad


def test_collect_rollout_takes_what_the_generator_gives() -> None:
    def actions(seed: int) -> Tensor:
        env, agent = Numbers(), Remembering("dict")
        generator = torch.Generator().manual_seed(seed)
        memory = agent.init_lstm_state(3, "cpu")
        return collect_rollout(agent, stepping(env), env.obs(), memory, 8, "cpu", generator)[0].actions

    assert torch.equal(actions(1), actions(1)) and not torch.equal(actions(1), actions(2))


def stepping(env: Numbers) -> Any:
    def step_fn(actions: Any) -> tuple[Any, Any, Any]:
        rewards, dones = env.step(actions)
        return env.obs(), rewards, dones

    return step_fn


def test_bytes_stay_bytes() -> None:
    env, agent = Numbers(dtype=np.uint8), Remembering("dict")
    rollout, _, _ = collect_rollout(agent, stepping(env), env.obs(), agent.init_lstm_state(3, "cpu"), 2)
    assert rollout.observations.dtype == torch.uint8
    assert as_tensor([1.5], torch.device("cpu")).dtype == torch.float32
    assert as_tensor(np.ones(2, np.float16), torch.device("cpu")).dtype == torch.float16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda o, r, d: (o[:2], r, d), r"`step_fn` must return observations of \[3, 3\], got \[2, 3\]"),
        (lambda o, r, d: (o[:, :2], r, d), r"`step_fn` must return observations of \[3, 3\], got \[3, 2\]"),
        (lambda o, r, d: (o, r[:2], d), r"`step_fn` must return rewards of \[3\], got \[2\]"),
        (lambda o, r, d: (o, r[:, None], d), r"`step_fn` must return rewards of \[3\], got \[3, 1\]"),
        (lambda o, r, d: (o, r.sum(), d), r"`step_fn` must return rewards of \[3\], got \[\]"),
        (lambda o, r, d: (o, r, d[:1]), r"`step_fn` must return dones of \[3\], got \[1\]; one entry for each environment"),
    ],
)
def test_wrong_shapes_are_named(change: Any, message: str) -> None:
    env, agent = Numbers(), Remembering("dict")

    def step_fn(actions: np.ndarray) -> Any:
        rewards, dones = env.step(actions)
        return change(env.obs(), rewards, dones)

    with pytest.raises(ValueError, match=message):
        collect_rollout(agent, step_fn, env.obs(), agent.init_lstm_state(3, "cpu"), 4)


def test_a_memory_with_another_first_dimension_is_named() -> None:
    class LayersFirst(Remembering):
        def forward_step(self, observations: Tensor, lstm_state: Any) -> tuple[dict[str, Tensor], Any]:
            return {"logits": logits_of(observations)}, lstm_state

    env, agent = Numbers(), LayersFirst("dict")
    with pytest.raises(ValueError, match=r"`lstm_state` must hold tensors of \[3, \.\.\.\], got \[1, 3, 8\]"):
        collect_rollout(agent, stepping(env), env.obs(), torch.zeros(1, 3, 8), 4)
