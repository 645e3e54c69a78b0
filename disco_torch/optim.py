"""Adam with a constant denominator and an elementwise clip of its update: as pure functions, and as an optimiser.

    m <- b1 m + (1 - b1) g,    v <- b2 v + (1 - b2) g^2
    u = clip(m^ / (sqrt(v^) + eps), -max_abs_update, max_abs_update),    theta <- theta - lr (u + weight_decay theta)

with m^ = m / (1 - b1^n) and v^ = v / (1 - b2^n). No gradient flows through v^: differentiated through, the second moment
makes meta-gradients unstable. The clip is on the scaled UPDATE, before the learning rate. Weight decay is decoupled
(Loshchilov and Hutter, 2019) and 0 in the reference harness.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from disco_torch.checks import check_positive
from disco_torch.kernels import is_by_parameter
from disco_torch.types import Params, tree_dataclass


@dataclass(frozen=True)
class AdamConfig:
    """Constants of Adam."""

    learning_rate: float = 3e-4
    """Learning rate, applied after the clip."""
    max_abs_update: float = 1.0
    """Bound on the size of each entry of the scaled update."""
    b1: float = 0.9
    """Decay rate of the first moment."""
    b2: float = 0.999
    """Decay rate of the second moment."""
    eps: float = 1e-8
    """Small constant added to the denominator."""
    weight_decay: float = 0.0
    """Decoupled weight decay: a multiple of the parameter, added to the update."""

    def __post_init__(self) -> None:
        check_positive("max_abs_update", self.max_abs_update)
        for name in ("learning_rate", "eps", "weight_decay"):
            value: float = getattr(self, name)
            if not isinstance(value, Real | Tensor) or not 0.0 <= value < math.inf:
                raise ValueError(f"`{name}` must be finite and not negative, got {value!r}.")
        for name in ("b1", "b2"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"`{name}` must lie in [0, 1), got {getattr(self, name)}.")


@tree_dataclass
class AdamState:
    """First and second moments, by parameter name, and the number of updates so far, a scalar of integers."""

    mu: Params
    nu: Params
    count: Tensor


def adam_init(params: Params) -> AdamState:
    device = next(iter(params.values())).device
    return AdamState(
        mu={name: torch.zeros_like(param) for name, param in params.items()},
        nu={name: torch.zeros_like(param) for name, param in params.items()},
        count=torch.zeros((), dtype=torch.int64, device=device),
    )


def _corrections(config: AdamConfig, count: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """1 - b^n for both moments, without the cancellation that would put the second off by 6e-5 in float32."""
    logs = (math.log(max(b, sys.float_info.min)) for b in (config.b1, config.b2))  # of 0 it would be infinite
    first, second = (-torch.expm1(count.to(dtype) * log) for log in logs)
    return first, second


def flat(params: Params) -> Tensor:
    """All entries as one vector: an operation on it is one operation, whatever the number of parameters."""
    return torch.cat([param.reshape(-1) for param in params.values()])


def unflat(vector: Tensor, like: Params) -> Params:
    """The inverse of `flat`, in the shapes and under the names of `like`."""
    parts = vector.split([param.numel() for param in like.values()])
    return {name: part.view(param.shape) for (name, param), part in zip(like.items(), parts, strict=True)}


def elementwise(fn: Callable[..., tuple[Tensor, ...]], first: Params, *others: Params | Tensor) -> list[Params]:
    """What an elementwise function of some tensors makes of each parameter of the first tree.

    It is called once, with all parameters as one vector, unless a compiler fuses its operations anyway.

    Args:
      fn: of as many tensors as there are trees.
      first, others: by name, or as the vector that `flat` would make of them.
    """
    if is_by_parameter():
        trees = [first, *(unflat(x, first) if isinstance(x, Tensor) else x for x in others)]
        parts = [fn(*(tree[name] for tree in trees)) for name in first]
        return [dict(zip(first, outputs, strict=True)) for outputs in zip(*parts, strict=True)]
    vectors = [x if isinstance(x, Tensor) else flat({name: x[name] for name in first}) for x in (first, *others)]
    return [unflat(output, first) for output in fn(*vectors)]


def joined(fn: Callable[..., Tensor], *trees: Params) -> Tensor:
    """An elementwise function of some tensors of all parameters as one vector; see `elementwise`."""
    if is_by_parameter():
        return flat({name: fn(*(tree[name] for tree in trees)) for name in trees[0]})
    return fn(*map(flat, trees))


def adam_update(
    grads: Params, state: AdamState, params: Params, config: AdamConfig, learning_rate: float | Tensor | None = None
) -> tuple[Params, AdamState]:
    """The change of each parameter, to be added, and the next state. Nothing is written in place.

    Args:
      grads, params: by name.
      state: from `adam_init` or the last update.
      config: constants.
      learning_rate: replaces `config.learning_rate`, for schedules.

    Returns:
      Changes and state. Gradients flow through the first moment and the parameters, not through the second moment.
    """
    rate = config.learning_rate if learning_rate is None else learning_rate
    count = state.count + 1

    def step(gradient: Tensor, mu: Tensor, nu: Tensor, *decayed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mu = config.b1 * mu + (1.0 - config.b1) * gradient
        nu = config.b2 * nu + (1.0 - config.b2) * torch.square(gradient)
        correct1, correct2 = _corrections(config, count, mu.dtype)
        # detached: the denominator is a constant of the meta-gradient.
        denominator = torch.sqrt((nu / correct2).detach()) + config.eps
        update = torch.clamp(mu / correct1 / denominator, -config.max_abs_update, config.max_abs_update)
        for param in decayed:
            update = update + config.weight_decay * param
        return -rate * update, mu, nu

    decayed = [params] if config.weight_decay else []
    changes, mu, nu = elementwise(step, grads, state.mu, state.nu, *decayed)
    return changes, AdamState(mu, nu, count)


def adam_gains(after: AdamState, config: AdamConfig) -> Tensor:
    """How much of a change of the first moment reaches the scaled update, one number for each parameter, as one vector.

    With u = m^ / d the scaled update and d its constant denominator:  k = [|u| <= max_abs_update] / (d (1 - b1^n)).
    All that the derivative of an update needs of the state after it.
    """

    def gain(mu: Tensor, nu: Tensor) -> Tensor:
        correct1, correct2 = _corrections(config, after.count, mu.dtype)
        denominator = (torch.sqrt(nu / correct2) + config.eps) * correct1
        return (torch.abs(mu / denominator) <= config.max_abs_update).to(mu.dtype) / denominator

    return joined(gain, after.mu, after.nu)


def adam_backward(
    param_cotangents: Params,
    mu_cotangents: Params,
    gains: Tensor,
    config: AdamConfig,
    learning_rate: float | Tensor | None = None,
) -> tuple[Params, Params, Params]:
    """Reverse-mode derivative of one update.

    With k its gains and bars for cotangents:

        m_bar' = m_bar - lr theta_bar k
        g_bar = (1 - b1) m_bar',    m_bar_before = b1 m_bar',    theta_bar_before = theta_bar (1 - lr weight_decay)

    Args:
      param_cotangents, mu_cotangents: of the parameters and first moments after the update, in the order of the state.
      gains: `adam_gains` of the state after the update.
      config: of the update.
      learning_rate: the one that was used, where it was not `config.learning_rate`.

    Returns:
      Cotangents of the gradients, of the first moments before, and (without the gradients' share) of the parameters before.
    """
    rate = config.learning_rate if learning_rate is None else learning_rate

    def back(theta_bar: Tensor, mu_bar: Tensor, gain: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mu_bar = mu_bar - rate * theta_bar * gain
        params_bar = theta_bar * (1.0 - rate * config.weight_decay) if config.weight_decay else theta_bar
        return (1.0 - config.b1) * mu_bar, config.b1 * mu_bar, params_bar

    grads, mus, params = elementwise(back, param_cotangents, mu_cotangents, gains)
    return grads, mus, params


def apply_updates(params: Params, changes: Params) -> Params:
    return {name: param + changes[name] for name, param in params.items()}


def global_norm(tensors: Params) -> Tensor:
    """The Euclidean norm of all entries together."""
    return torch.sqrt(torch.sum(joined(torch.square, tensors)))


def clip_by_norm(tensors: Params, norm: Tensor, max_norm: float) -> Params:
    """All tensors times one factor, so that their norm together, which is given, is at most `max_norm`."""
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    return {name: tensor * factor for name, tensor in tensors.items()}


class ClippedAdam(torch.optim.Optimizer):
    """The same arithmetic in place, as an ordinary PyTorch optimiser."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        max_delta: float = 1.0,
        weight_decay: float = 0.0,
    ) -> None:
        AdamConfig(lr, max_delta, *betas, eps, weight_decay)  # checks the numbers
        defaults = {"lr": lr, "betas": betas, "eps": eps, "max_delta": max_delta, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group(group)
        return loss

    def _step_group(self, group: dict[str, Any]) -> None:
        b1, b2 = group["betas"]
        config = AdamConfig(group["lr"], group["max_delta"], b1, b2, group["eps"], group["weight_decay"])
        for param in group["params"]:
            if param.grad is None:
                continue
            state = self.state[param]
            if not state:
                state["mu"], state["nu"] = torch.zeros_like(param), torch.zeros_like(param)
                # By this name torch keeps its dtype when a state is loaded.
                state["step"] = torch.zeros((), dtype=torch.int64, device=param.device)
            old = AdamState({"": state["mu"]}, {"": state["nu"]}, state["step"])
            changes, new = adam_update({"": param.grad}, old, {"": param}, config)
            state["mu"], state["nu"], state["step"] = new.mu[""], new.nu[""], new.count
            param.add_(changes[""])
