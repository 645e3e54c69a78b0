"""What a reference file must hold: every array by name, so that a missing or unexpected one is reported.

docs/verification.md describes the format. `scripts/validate_against_jax.py` writes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from disco_torch.weights.files import Arrays

NUMBER_OF_CALLS = {"rule": 3, "learner": 5, "actor_critic": 3}
"""How many rollouts a file of each kind holds; for a meta-gradient, config.json says so."""

ROLLOUT = ("observations", "actions", "rewards", "discounts", "behaviour_logits")
VALUE_INPUTS = ("rewards", "actions", "discounts", "rho", "values", "target_values", "q", "target_q", "x")
VTRACE = ("adv", "td", "value_target")
RETRACE = (*VTRACE, "q_target", "q_td", "qv_adv")
TRANSFORMS = ("signed_log", "signed_hyperbolic", "signed_parabolic", "two_hot")
AGENT_OUTPUTS = ("logits", "y", "z", "q", "aux_pi")
RULE_LOGS = (
    *("agent_q_mean", "aux_kl_loss", "aux_policy_entropy", "aux_target_entropy", "entropy", "logits", "normalized_td"),
    *("pi_hat", "pi_hat_entropy", "pi_loss", "q_loss", "q_target", "td", "y", "y_entropy", "y_hat"),
    *("z", "z_entropy", "z_hat"),
)
RULE_OUTPUTS = (
    *("pi", "y", "z", "meta_input_emb", "adv", "normalized_adv", "q_target", "q_td", "normalized_q_td", "q_value"),
    *("qv_adv", "normalized_qv_adv", "loss", "loss_no_meta"),
    *("adv_m1", "adv_m2", "td_m1", "td_m2", "decay", "rnn_h", "rnn_c"),
    *(f"log/{name}" for name in RULE_LOGS),
)
UPDATE_LOGS = ("total_loss", "global_gradient_norm", "global_update_norm")
LEARNER_LOGS = (*RULE_LOGS, *UPDATE_LOGS)
ACTOR_CRITIC_LOGS = ("avg_value", "entropy", "logits", "pg_advs", "raw_advs", *UPDATE_LOGS)
META_LOSS = ("meta_loss", "pg_loss", "reg_loss", "entropy", "adv", "normalized_adv", "value")


class BadReference(ValueError):
    """A reference file that does not hold what its kind of file must."""


class Group(Arrays):
    """The arrays of a reference file under one prefix. Asking for a name that is not there is a `BadReference`.

    Args:
      prefix: what their names in the file begin with.
      arrays: by their names behind the prefix.
      read: full names of arrays that were read; each that is asked for is entered.
    """

    def __init__(self, prefix: str, arrays: Arrays, read: set[str]) -> None:
        super().__init__(arrays)
        self.prefix, self.read = prefix, read

    def __getitem__(self, name: str) -> np.ndarray:
        self.read.add(f"{self.prefix}/{name}")
        return super().__getitem__(name)

    def __missing__(self, name: str) -> np.ndarray:
        raise BadReference(f"array {f'{self.prefix}/{name}'!r} is missing")


class Settings(dict[str, Any]):
    """A part of config.json. Asking for an entry that is not there is a `BadReference`."""

    def __missing__(self, name: str) -> Any:
        raise BadReference(f"config.json must hold {name!r} beside {sorted(self)}")


def check_numbers(arrays: Arrays) -> None:
    """Raises at the first array that is not of finite numbers: nothing can be compared with it."""
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub":
            raise BadReference(f"array {name!r} must hold numbers, got {array.dtype}")
        bad = int((~np.isfinite(array)).sum())
        if bad:
            raise BadReference(f"array {name!r} must be finite, got {bad} values that are not")


def check_all_read(arrays: Arrays, read: set[str]) -> None:
    """Raises where a file holds an array that took no part in the comparison."""
    unexpected = sorted(set(arrays) - read)
    if unexpected:
        raise BadReference(f"array {unexpected[0]!r} is not expected ({len(unexpected)} such of {len(arrays)})")
