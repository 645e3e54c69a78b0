"""Which of the parallel environments failed, and how to end the processes of a vector environment that did."""

from __future__ import annotations

import traceback
from multiprocessing import connection
from typing import Any

from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from disco_torch.envs.spaces import BadOutput, stack_observations


def trace_failure(env: VectorEnv[Any, Any, Any], error: Exception) -> tuple[int | None, str]:
    """The index of the environment that an error came from (None where it cannot be told), and what went wrong in words."""
    problem = f"{type(error).__name__}: {error}".rstrip(": .")
    if isinstance(error, BadOutput):
        return error.index, str(error)
    vector = env.unwrapped
    if isinstance(vector, SyncVectorEnv):
        return _trace_in_turn(vector, error, problem)
    if isinstance(vector, AsyncVectorEnv):
        return _trace_in_workers(vector, problem)
    return None, problem


def _trace_in_turn(vector: SyncVectorEnv[Any, Any], error: Exception, problem: str) -> tuple[int | None, str]:
    """Environments that step in turn: the one on the traceback, else the one whose observation does not stack."""
    callers = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    for index, single in enumerate(vector.envs):
        if any(caller is single for caller in callers):
            return index, problem
    for index, observation in enumerate(vector._env_obs):
        if observation is not None and not _stacks(vector.single_observation_space, observation):
            return index, f"its observation does not fit {vector.single_observation_space} ({problem})"
    return None, problem


def _stacks(space: spaces.Space[Any], observation: Any) -> bool:
    try:
        stack_observations(space, [observation])
    except Exception:  # whatever it is, the observation is not of this space
        return False
    return True


def _trace_in_workers(vector: AsyncVectorEnv[Any, Any], problem: str) -> tuple[int | None, str]:
    """Environments in processes: one that reported an error has lost its pipe, one that died has ended."""
    for index, pipe in enumerate(vector.parent_pipes):
        if pipe is None:
            return index, problem
    ended = connection.wait([process.sentinel for process in vector.processes], timeout=1.0)
    for index, process in enumerate(vector.processes):
        if process.sentinel in ended:
            process.join()  # fills in the exit code
            return index, f"its process died with exit code {process.exitcode} ({problem})"
    return None, problem


def close_workers(vector: AsyncVectorEnv[Any, Any]) -> None:
    """Ends all processes of a vector environment that failed, which may wait for answers that never come."""
    for process in vector.processes:
        process.terminate()
    for process in vector.processes:
        process.join()
    for pipe in vector.parent_pipes:
        if pipe is not None:
            pipe.close()
    vector.closed = True
