"""Values: transforms, encodings, returns, moving averages and the estimates made of them."""

from disco_torch.values.encoding import ValueEncoding
from disco_torch.values.estimates import (
    estimate_q_values,
    estimate_values,
    expected_q,
    normalize_estimates,
    scalar_values,
)
from disco_torch.values.moving_average import MovingAverage
from disco_torch.values.returns import (
    VTrace,
    importance_weights,
    log_prob,
    retrace,
    select_action,
    vtrace,
)
from disco_torch.values.transforms import (
    from_two_hot,
    signed_exp,
    signed_hyperbolic,
    signed_log,
    signed_parabolic,
    two_hot,
)

__all__ = [
    "MovingAverage",
    "VTrace",
    "ValueEncoding",
    "estimate_q_values",
    "estimate_values",
    "expected_q",
    "from_two_hot",
    "importance_weights",
    "log_prob",
    "normalize_estimates",
    "retrace",
    "scalar_values",
    "select_action",
    "signed_exp",
    "signed_hyperbolic",
    "signed_log",
    "signed_parabolic",
    "two_hot",
    "vtrace",
]
