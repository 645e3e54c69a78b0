"""Frame stacks: the last frames of the same episode, whichever way environments are reset."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from counting import SCRIPTS, CountingEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from disco_torch.envs import Catch, GymnasiumEnvironment, Sokoban, make_env, stack_frames


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_frames_of_one_episode(mode: AutoresetMode) -> None:
    """Observations count episodes and steps, so that each frame says where it comes from."""
    makers = [lambda copy=copy: CountingEnv(copy) for copy in range(len(SCRIPTS))]
    env = stack_frames(GymnasiumEnvironment(SyncVectorEnv(makers, autoreset_mode=mode)), 3)
    generator = torch.Generator().manual_seed(0)
    assert env.observation_example.shape == (3, 3) and env.truncates and not env.saves_state
    _, row = env.reset(generator)
    cuts = 0
    for _ in range(60):
        for shown in (row.observations, row.final_observations):
            copies, episodes, steps = shown.unbind(-1)  # [B, K] each
            assert (copies == torch.arange(3.0)[:, None]).all() and (episodes == episodes[:, -1:]).all()
            assert torch.equal(steps, (steps[:, -1:] - torch.arange(2.0, -1.0, -1.0)).clamp(min=0))
        cuts += int(row.truncations.sum())
        assert torch.equal(row.final_observations[~row.truncations], row.observations[~row.truncations])
        if mode != AutoresetMode.NEXT_STEP:
            assert (row.final_observations[row.truncations, -1, 1] < row.observations[row.truncations, -1, 1]).all()
        assert (row.observations[row.is_first, :, 2] == 0).all()
        _, row = env.step(None, torch.zeros(3, dtype=torch.long), generator)
    assert cuts > 10


def test_games_of_tensors_stay_pure() -> None:
    plain, env = (
        Sokoban(8, num_levels=20, size=6, boxes=1, limit=7),
        make_env("sokoban", 8, num_levels=20, size=6, boxes=1, limit=7, frame_stack=4),
    )
    assert env.saves_state and env.observation_kinds == "unit" and env.name == "sokoban"
    a, b = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    (bare, row), (state, stacked) = plain.reset(a), env.reset(b)
    frames = [row.observations] * 4
    for _ in range(30):
        assert torch.equal(stacked.observations, torch.stack(frames, 1))
        actions = torch.randint(4, (8,), generator=a)
        torch.randint(4, (8,), generator=b)
        (bare, row), (state, stacked) = plain.step(bare, actions, a), env.step(state, actions, b)
        assert torch.equal(row.rewards, stacked.rewards) and torch.equal(row.discounts, stacked.discounts)
        last = torch.stack([*frames[1:], row.final_observations], 1)
        assert torch.equal(stacked.final_observations[row.truncations], last[row.truncations])
        first = row.is_first[:, None, None, None]
        frames = [torch.where(first, row.observations, frame) for frame in (*frames[1:], row.observations)]
    assert np.array_equal(env.render(state), plain.render(bare))
    env.autoreset = False
    assert not env.env.autoreset and env.autoreset is False


def test_one_frame_is_the_environment_itself_and_none_is_refused() -> None:
    env = Catch(2)
    assert stack_frames(env, 1) is env
    with pytest.raises(ValueError, match=r"`frame_stack` must be at least 1, got 0"):
        stack_frames(env, 0)
    stacked = stack_frames(GymnasiumEnvironment(SyncVectorEnv([lambda: CountingEnv(0)])), 2)
    with pytest.raises(ValueError, match=r"`reset` must come before `step`, got a step first"):
        stacked.step(None, torch.zeros(1, dtype=torch.long), torch.Generator())
    stacked.close()
