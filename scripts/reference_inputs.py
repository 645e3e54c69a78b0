"""Configurations and inputs of fresh cases: every number comes from a counter hash, so a folder can be made again."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from reference_cases import NUMBER_OF_CALLS
from reference_model import (
    RNG,
    Arrays,
    Config,
    actor_rollout,
    build_agent,
    build_value_function,
    flat_params,
    haiku_params,
    prefixed,
)

GAMMA = 0x9E3779B97F4A7C15
"""The increment of splitmix64."""

REWARD_SCALE, VALUE_SCALE, X_SCALE, BIAS_SCALE = 3.0, 2.0, 400.0, 0.1
"""`x` reaches beyond the two-hot range of 300, so that its clipping is seen."""

END_PROBABILITY = 1 / 6


def default_config() -> dict[str, Any]:
    """The configuration of a folder when nothing else is asked for; `config.json` holds one of these."""
    channels = [5, 2]
    meta_rnn = {"policy_channels": channels, "embedding_size": [9], "pred_embedding_size": [6, 1], "hidden_size": 12}
    tiny = {"prediction_size": 24, "hidden_size": 20, "embedding_size": [6, 1], "policy_target_channels": [7]}
    tiny |= {"policy_channels": channels, "meta_rnn_kwargs": meta_rnn}
    tiny |= {"num_bins": 31, "max_abs_value": 10.0, "value_discount": 0.997}
    costs = {"pi_cost": 1.0, "y_cost": 1.0, "z_cost": 1.0, "aux_policy_cost": 1.0, "value_cost": 0.2}
    value_fn = {"dense": [16, 16], "learning_rate": 0.001, "max_abs_update": 1.0, "discount_factor": 0.99}
    value_fn |= {"td_lambda": 0.96, "outer_value_cost": 1.0, "ema_decay": 0.99, "ema_eps": 1e-06}
    actor_critic = {"discount_factor": 0.997, "vtrace_lambda": 0.95, "entropy_cost": 0.2, "pg_cost": 1.0, "value_cost": 0.5}
    return {
        "T": 6,
        "B": 3,
        "A": 4,
        "salt": 0,
        "dtype": "float64",
        "hyper_params": costs | {"target_params_coeff": 0.9, "value_fn_td_lambda": 0.95, "discount_factor": 0.997},
        "agent": {
            "dense": [32, 24],
            "lstm_size": 16,
            "head_mlp_hiddens": [20],
            "observation_size": 10,
            "learning_rate": 0.0003,
            "max_abs_update": 1.0,
        },
        "rules": {"tiny": tiny, "disco103": {"num_bins": 601, "max_abs_value": 300.0, "value_discount": 0.997}},
        "values": {"discount": 0.97, "lambda_": 0.9},
        "meta": {
            "inner_steps": 3,
            "value_fn": value_fn,
            "weights": {
                "policy_entropy": 0.01,
                "prediction_entropy": 0.001,
                "target_mean": 0.001,
                "target_kl": 0.01,
            },
        },
        "actor_critic": {
            "learning_rate": 0.0005,
            "hyper_params": actor_critic,
            "num_bins": 601,
            "max_abs_value": 300.0,
        },
    }


def uniform(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """U(-1, 1) from a counter hash, rounded to float32 and returned in float64.

    Element i is splitmix64 of i + (seed + 1) * GAMMA modulo 2^64; its top 53 bits make the number.
    """
    start = np.array((seed + 2) * GAMMA % 2**64, np.uint64)  # the second increment is splitmix64's own
    bits = np.arange(np.prod(shape, dtype=int), dtype=np.uint64) + start
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    bits ^= bits >> np.uint64(31)
    x = (bits >> np.uint64(11)).astype(np.float64) / 2.0**52 - 1.0
    return x.astype(np.float32).astype(np.float64).reshape(shape)


class Inputs:
    """Makes the inputs of the files of one folder; the seed of an array is a checksum of the salt and its name."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def uniform(self, name: str, *shape: int) -> np.ndarray:
        """U(-1, 1) of the given shape, the same for the same name."""
        return uniform(zlib.crc32(f"{self.config['salt']}/{name}".encode()), shape)

    def indices(self, name: str, size: int, *shape: int) -> np.ndarray:
        """Integers in 0..size-1."""
        index = np.floor((self.uniform(name, *shape) + 1) / 2 * size).astype(np.int32)
        return np.minimum(index, size - 1)  # rounding to float32 can reach 1

    def discounts(self, name: str, *shape: int) -> np.ndarray:
        """0 where an episode ends, about once in six rows, and 1 elsewhere."""
        return ((self.uniform(name, *shape) + 1) / 2 >= END_PROBABILITY).astype(np.float64)

    def params(self, name: str, shapes: Mapping[str, np.ndarray]) -> Arrays:
        """Weights of variance 1 / fan_in, so that signals keep their size, and small biases."""
        params = {}
        for leaf, like in shapes.items():
            fan_in = np.prod(like.shape[:-1])
            scale = np.sqrt(3 / fan_in) if leaf.endswith("/w") else BIAS_SCALE
            params[leaf] = scale * self.uniform(f"{name}/{leaf}", *like.shape)
        return params

    def values(self) -> Arrays:
        """Inputs of `values.npz`."""
        T, B, A = (self.config[name] for name in "TBA")
        arrays = {
            "actions": self.indices("values/actions", A, T, B),
            "discounts": self.discounts("values/discounts", T, B),
            "rewards": self.uniform("values/rewards", T, B),
            "rho": np.exp(self.uniform("values/rho", T, B)),
            "values": VALUE_SCALE * self.uniform("values/values", T + 1, B),
            "target_values": VALUE_SCALE * self.uniform("values/target_values", T + 1, B),
            "q": VALUE_SCALE * self.uniform("values/q", T + 1, B, A),
            "target_q": VALUE_SCALE * self.uniform("values/target_q", T + 1, B, A),
            "x": X_SCALE * self.uniform("values/x", 5, 7),
        }
        return prefixed("input", arrays)

    def eta(self) -> Arrays:
        """Parameters of the tiny rule, the same in all its files."""
        params, _ = build_agent(self.config, "tiny").update_rule.init_params(RNG)
        return self.params("eta", flat_params(params))

    def of(self, kind: str, rule: str) -> Arrays:
        """Inputs of a file of kind `rule`, `learner`, `actor_critic` or `meta_gradient`: parameters and rollouts."""
        rows, agent = self.config["T"] + 1, build_agent(self.config, rule)
        theta = self.params(f"{rule}/theta", flat_params(agent.initial_learner_state(RNG).params))
        arrays = prefixed("theta" if kind == "rule" else "theta0", theta)
        if kind == "meta_gradient":
            rollouts = {f"train{n}": rows for n in range(self.config["meta"]["inner_steps"])} | {"valid": 2 * rows}
            arrays |= prefixed("value_params0", self._value_params())
        else:
            call = "call" if kind == "rule" else "step"
            rollouts = {f"{call}{n}_in": rows for n in range(NUMBER_OF_CALLS[kind])}
        behaviour = haiku_params({name: 0.9 * x + 0.01 for name, x in theta.items()})
        for name, length in rollouts.items():
            rollout = self._rollout(f"{kind}/{name}", length)
            out, _ = agent.unroll_net(behaviour, {}, actor_rollout(rollout))
            arrays |= prefixed(name, rollout | {"behaviour_logits": out["logits"]})
        return arrays

    def _value_params(self) -> Arrays:
        observation = np.zeros((1, self.config["agent"]["observation_size"]))
        value_state = build_value_function(self.config).initial_state(RNG, observation)
        return self.params("value_params", flat_params(value_state.params))

    def _rollout(self, name: str, rows: int) -> Arrays:
        """A rollout whose behaviour logits are still to be filled in."""
        B, A = self.config["B"], self.config["A"]
        return {
            "observations": self.uniform(f"{name}/observations", rows, B, self.config["agent"]["observation_size"]),
            "actions": self.indices(f"{name}/actions", A, rows, B),
            "rewards": REWARD_SCALE * self.uniform(f"{name}/rewards", rows, B),
            "discounts": self.discounts(f"{name}/discounts", rows, B),
            "behaviour_logits": np.zeros((rows, B, A)),
        }
