"""Train an agent on CartPole-v1, a Gymnasium environment, with Disco103, and evaluate it.

    python examples/cartpole.py --seed 1

The same from the command line: `disco-torch train --preset cartpole --seed 1`, then `disco-torch evaluate RUN`.
"""

from __future__ import annotations

import argparse
import dataclasses

from disco_torch import PRESETS, evaluate, load_run, train


def main(seed: int = 0, steps: int | None = None, rule: str = "disco103") -> float:
    """Returns the mean return of 100 evaluation episodes."""
    config = dataclasses.replace(PRESETS["cartpole"][1], seed=seed, rule=rule)
    if steps is not None:
        config = dataclasses.replace(config, steps=steps)
    result = train(config)
    trained = load_run(result.folder)
    outcome = evaluate(trained.agent, trained.params, trained.make_env(10), episodes=100, policy="greedy")
    mean, low, high = outcome.interval
    print(f"{result.folder}: mean return {mean:.1f} (95% interval {low:.1f} to {high:.1f})")
    return mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--rule", default="disco103")
    main(**vars(parser.parse_args()))
