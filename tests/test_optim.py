"""Adam: against PyTorch's where the clip is idle, the clip and the decay by hand, and what gradients flow through."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from torch import Tensor

from disco_torch.optim import (
    AdamConfig,
    AdamState,
    ClippedAdam,
    adam_backward,
    adam_gains,
    adam_init,
    adam_update,
    apply_updates,
    flat,
    global_norm,
    unflat,
)
from disco_torch.types import Params, tree_map, tree_stack

SETTINGS = [
    AdamConfig(learning_rate=lr, max_abs_update=1e9, b1=b1, b2=b2, eps=eps, weight_decay=decay)
    for lr, (b1, b2), eps, decay in itertools.product(
        [1e-3, 0.3], [(0.9, 0.999), (0.0, 0.99), (0.5, 0.0)], [1e-8, 1e-2], [0.0, 0.1]
    )
]


def make_params() -> Params:
    generator = torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {"w": (3, 2), "b": (4,), "scalar": ()}
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def make_grads(step: int) -> Params:
    generator = torch.Generator().manual_seed(100 + step)
    return {
        name: (step + 1.0) * torch.randn(param.shape, generator=generator, dtype=param.dtype)
        for name, param in make_params().items()
    }


def run(config: AdamConfig, steps: int = 5) -> tuple[Params, AdamState]:
    params = make_params()
    state = adam_init(params)
    for step in range(steps):
        changes, state = adam_update(make_grads(step), state, params, config)
        params = apply_updates(params, changes)
    return params, state


def run_optimizer(optimizer: torch.optim.Optimizer, params: dict[str, Tensor], steps: range) -> None:
    for step in steps:
        for name, grad in make_grads(step).items():
            params[name].grad = grad
        optimizer.step()


def assert_equal(got: Params, want: Params, tolerance: float = 1e-12) -> None:
    assert got.keys() == want.keys()
    for name in want:
        torch.testing.assert_close(got[name].detach(), want[name].detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("config", SETTINGS, ids=str)
def test_without_an_active_clip_it_is_adam_with_decoupled_decay(config: AdamConfig) -> None:
    params = {name: param.requires_grad_() for name, param in make_params().items()}
    theirs = torch.optim.AdamW if config.weight_decay else torch.optim.Adam
    optimizer = theirs(
        params.values(),
        lr=config.learning_rate,
        betas=(config.b1, config.b2),
        eps=config.eps,
        weight_decay=config.weight_decay,
    )
    run_optimizer(optimizer, params, range(5))
    assert_equal(run(config)[0], params)


def test_the_update_is_clipped_before_the_learning_rate() -> None:
    params = {"w": torch.zeros(3, dtype=torch.float64)}
    config = AdamConfig(learning_rate=0.1, max_abs_update=0.5)
    state = adam_init(params)
    # The first scaled update is the gradient's sign, so 1 in size whatever the gradient's.
    changes, state = adam_update({"w": torch.tensor([1e-3, -7.0, 0.0], dtype=torch.float64)}, state, params, config)
    torch.testing.assert_close(changes["w"], torch.tensor([-0.05, 0.05, 0.0], dtype=torch.float64))
    # The moments are those of the gradients, not of what was clipped.
    torch.testing.assert_close(state.mu["w"], torch.tensor([1e-4, -0.7, 0.0], dtype=torch.float64))
    torch.testing.assert_close(state.nu["w"], torch.tensor([1e-9, 0.049, 0.0], dtype=torch.float64))


def test_weight_decay_is_outside_of_the_clip() -> None:
    params = {"w": torch.full((2,), 100.0, dtype=torch.float64)}
    config = AdamConfig(learning_rate=0.1, max_abs_update=0.5, weight_decay=0.2)
    changes, _ = adam_update({"w": torch.ones(2, dtype=torch.float64)}, adam_init(params), params, config)
    torch.testing.assert_close(changes["w"], torch.full((2,), -0.1 * (0.5 + 20.0), dtype=torch.float64))


def test_a_given_learning_rate_replaces_the_configured_one() -> None:
    params, config = make_params(), AdamConfig(learning_rate=1.0)
    ours, _ = adam_update(make_grads(0), adam_init(params), params, config, learning_rate=torch.tensor(0.25))
    want, _ = adam_update(make_grads(0), adam_init(params), params, AdamConfig(learning_rate=0.25))
    assert_equal(ours, want)


def test_nothing_is_written_in_place() -> None:
    params, grads = make_params(), make_grads(0)
    state = adam_init(params)
    adam_update(grads, state, params, AdamConfig())
    assert_equal(params, make_params(), 0)
    assert_equal(grads, make_grads(0), 0)
    assert int(state.count) == 0 and all((moment == 0).all() for moment in [*state.mu.values(), *state.nu.values()])


def test_no_gradient_flows_through_the_denominator() -> None:
    params = make_params()
    state = adam_update(make_grads(0), adam_init(params), params, AdamConfig())[1]
    config = AdamConfig(learning_rate=0.1, max_abs_update=1e9, eps=1e-3)
    grads = {name: grad.requires_grad_() for name, grad in make_grads(1).items()}
    changes, after = adam_update(grads, state, params, config)
    for name, grad in grads.items():
        (slope,) = torch.autograd.grad(changes[name].sum(), grad, retain_graph=True)
        denominator = torch.sqrt(after.nu[name] / (1.0 - config.b2**2)) + config.eps
        want = -0.1 * (1.0 - config.b1) / (1.0 - config.b1**2) / denominator
        torch.testing.assert_close(slope, want.detach().expand_as(slope), rtol=1e-12, atol=1e-12)


def test_the_gradient_is_0_where_the_clip_is_active_and_reaches_parameters_through_the_decay() -> None:
    params = {"w": torch.ones(2, dtype=torch.float64, requires_grad=True)}
    grads = {"w": torch.ones(2, dtype=torch.float64, requires_grad=True)}
    config = AdamConfig(learning_rate=0.1, max_abs_update=0.5, weight_decay=0.2)
    changes, _ = adam_update(grads, adam_init(params), params, config)
    to_params, to_grads = torch.autograd.grad(changes["w"].sum(), (params["w"], grads["w"]))
    torch.testing.assert_close(to_params, torch.full((2,), -0.02, dtype=torch.float64))
    assert (to_grads == 0).all()


def test_first_update_in_float32_is_exact_to_its_last_digits() -> None:
    # 1 - 0.999 computed in float32 is off by 6e-5.
    params = {"w": torch.zeros(1)}
    changes, _ = adam_update({"w": torch.tensor([0.5])}, adam_init(params), params, AdamConfig(learning_rate=1.0))
    torch.testing.assert_close(changes["w"], torch.tensor([-1.0]), rtol=1e-6, atol=0)


def test_flat_is_all_entries_in_order_and_unflat_its_inverse() -> None:
    params = make_params()
    vector = flat(params)
    assert vector.tolist() == [x for param in params.values() for x in param.reshape(-1).tolist()]
    again = unflat(vector, params)
    assert list(again) == list(params)
    for name, param in params.items():
        assert again[name].shape == param.shape and torch.equal(again[name], param)
    batched = torch.func.vmap(lambda p: unflat(2 * flat(p), p))(tree_stack([params, make_grads(0)]))
    for name, param in params.items():
        assert torch.equal(batched[name], torch.stack([2 * param, 2 * make_grads(0)[name]]))
    with pytest.raises(RuntimeError, match="split_with_sizes"):
        unflat(vector[:-1], params)


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_adam_backward_takes_the_learning_rate_of_the_update(weight_decay: float) -> None:
    """Each of several agents with a rate of its own, batched."""
    config = AdamConfig(learning_rate=7.0, max_abs_update=0.8, weight_decay=weight_decay)
    _, before = run(config, 3)
    rates = torch.tensor([0.1, 0.02], dtype=torch.float64)
    params_bar, mu_bar = make_grads(5), make_grads(6)
    _, after = adam_update(make_grads(3), before, make_params(), config)  # the moments do not depend on the rate
    together = torch.func.vmap(lambda rate: adam_backward(params_bar, mu_bar, adam_gains(after, config), config, rate))(
        rates
    )
    for i, rate in enumerate(rates):
        params, grads = (tree_map(lambda x: x.requires_grad_(), make()) for make in (make_params, lambda: make_grads(3)))
        state = tree_map(lambda x: x.clone().requires_grad_(x.is_floating_point()), before)
        changes, after = adam_update(grads, state, params, config, rate)
        new = apply_updates(params, changes)
        loss = sum((new[name] * params_bar[name] + after.mu[name] * mu_bar[name]).sum() for name in new)
        leaves = [*grads.values(), *state.mu.values(), *params.values()]
        wanted = torch.autograd.grad(loss, leaves)
        got = [part[name][i] for part in together for name in params]
        torch.testing.assert_close(got, list(wanted), rtol=1e-12, atol=1e-14)


def test_global_norm_is_that_of_all_entries_together() -> None:
    assert float(global_norm({"a": torch.full((2, 2), 2.0), "b": torch.tensor(3.0)})) == 5.0


@pytest.mark.parametrize("max_delta", [0.6, 1e9])
def test_clipped_adam_is_the_pure_functions(max_delta: float) -> None:
    config = AdamConfig(0.05, max_delta, 0.8, 0.95, 1e-4, 0.1)
    params = {name: param.requires_grad_() for name, param in make_params().items()}
    optimizer = ClippedAdam(params.values(), 0.05, (0.8, 0.95), 1e-4, max_delta, 0.1)
    run_optimizer(optimizer, params, range(6))
    assert_equal(params, run(config, 6)[0])


def test_state_dict_round_trip_continues_the_same_path() -> None:
    params = {name: param.requires_grad_() for name, param in make_params().items()}
    optimizer = ClippedAdam(params.values(), lr=0.1)
    run_optimizer(optimizer, params, range(3))
    saved = copy.deepcopy(optimizer.state_dict())
    copies = {name: param.detach().clone().requires_grad_() for name, param in params.items()}
    resumed = ClippedAdam(copies.values(), lr=7.0)
    resumed.load_state_dict(saved)
    assert resumed.param_groups[0]["lr"] == 0.1
    for opt, ps in ((optimizer, params), (resumed, copies)):
        run_optimizer(opt, ps, range(3, 6))
    assert_equal(copies, params, 0)


def test_the_count_of_updates_stays_an_integer_when_loaded() -> None:
    # In bfloat16 a count stops at 256, so that a resumed run would keep correcting a bias that is long gone.
    param = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
    optimizer = ClippedAdam([param])
    param.grad = torch.ones_like(param)
    optimizer.step()
    resumed = ClippedAdam([param])
    resumed.load_state_dict(optimizer.state_dict())
    counts = [x for x in resumed.state[param].values() if x.ndim == 0]
    assert not counts[0].is_floating_point()


def test_parameter_groups_have_their_own_settings() -> None:
    params = {name: param.requires_grad_() for name, param in make_params().items()}
    before = {name: param.detach().clone() for name, param in params.items()}
    groups = [{"params": [params["w"]], "lr": 0.5}, {"params": [params["b"]], "max_delta": 0.1}]
    optimizer = ClippedAdam(groups, lr=0.01)
    run_optimizer(optimizer, params, range(1))
    sizes = {name: (params[name].detach() - before[name]).abs() for name in params}
    torch.testing.assert_close(sizes["w"], torch.full_like(sizes["w"], 0.5), rtol=1e-6, atol=0)
    torch.testing.assert_close(sizes["b"], torch.full_like(sizes["b"], 0.001), rtol=1e-6, atol=0)
    assert (sizes["scalar"] == 0).all()  # in no group


def test_parameters_without_a_gradient_stay() -> None:
    param = torch.ones(2, requires_grad=True)
    optimizer = ClippedAdam([param])
    optimizer.step()
    assert param.tolist() == [1.0, 1.0] and not optimizer.state


def test_closure_is_evaluated_with_gradients() -> None:
    param = torch.full((2,), 3.0, requires_grad=True)
    optimizer = ClippedAdam([param], lr=0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (param**2).sum()
        loss.backward()
        return loss

    assert float(optimizer.step(closure)) == 18.0
    torch.testing.assert_close(param.detach(), torch.full((2,), 2.9))


def test_learning_rate_schedulers_drive_it() -> None:
    param = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = ClippedAdam([param], lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    places = []
    for _ in range(3):
        param.grad = torch.ones_like(param)  # a constant gradient moves by the learning rate
        optimizer.step()
        schedule.step()
        places.append(float(param))
    assert places == pytest.approx([-1.0, -1.1, -1.11])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_abs_update": 0.0}, r"`max_abs_update` must be greater than 0, got 0.0"),
        ({"learning_rate": "fast"}, r"`learning_rate` must be finite and not negative, got 'fast'"),
        ({"learning_rate": math.nan}, r"`learning_rate` must be finite and not negative, got nan"),
        ({"learning_rate": math.inf}, r"`learning_rate` must be finite and not negative, got inf"),
        ({"weight_decay": math.inf}, r"`weight_decay` must be finite and not negative, got inf"),
        ({"learning_rate": -1.0}, r"`learning_rate` must be finite and not negative, got -1.0"),
        ({"eps": -1e-8}, r"`eps` must be finite and not negative, got -1e-08"),
        ({"weight_decay": -0.1}, r"`weight_decay` must be finite and not negative, got -0.1"),
        ({"b1": 1.0}, r"`b1` must lie in \[0, 1\), got 1.0"),
        ({"b2": -0.1}, r"`b2` must lie in \[0, 1\), got -0.1"),
    ],
)
def test_bad_settings(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AdamConfig(**settings)


def test_bad_settings_of_the_optimizer() -> None:
    with pytest.raises(ValueError, match=r"`learning_rate` must be finite and not negative, got -1.0"):
        ClippedAdam([torch.ones(1, requires_grad=True)], lr=-1.0)
