"""Your own environment in 20 lines: train, load, predict, evaluate, continue.

python examples/own_environment.py
"""

import argparse

import gymnasium as gym

from disco_torch import load_run, train


def make_env() -> gym.Env:
    """Any environment of yours with discrete actions."""
    return gym.wrappers.TimeLimit(gym.make("CartPole-v1"), 200)


def main(steps: int = 100_000) -> float:
    """Returns the mean return after the second half of the training."""
    result = train(env=make_env, steps=steps // 2)

    env, run = make_env(), load_run(result.folder)
    observation, _ = env.reset(seed=0)
    over = False
    while not over:
        action = run.predict(observation, deterministic=True)
        observation, _, terminated, truncated, _ = env.step(action)
        over = terminated or truncated

    train(resume=result.folder, env=make_env, steps=steps)
    mean, low, high = load_run(result.folder, env=make_env).evaluate(episodes=100).interval
    print(f"{result.folder}: mean return {mean:.1f} (95% interval {low:.1f} to {high:.1f})")
    return mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    main(parser.parse_args().steps)
