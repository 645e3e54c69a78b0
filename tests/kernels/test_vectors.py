"""Vectors of parts taken apart: fewer copies, the same numbers."""

import torch
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx

from disco_torch.kernels import vectors
from disco_torch.kernels.passes import run_passes
from disco_torch.kernels.vectors import FEWEST, split_vectors
from disco_torch.optim import AdamConfig, AdamState, adam_gains, adam_update, flat, unflat

aten = torch.ops.aten


def parted(fn, *args):
    graph = make_fx(fn)(*args)
    run_passes(graph.graph, "record", "cpu")
    split_vectors(graph.graph)
    graph.recompile()
    return graph


def wide_cats(graph):
    found = graph.graph.find_nodes(op="call_function", target=aten.cat.default)
    return [node for node in found if len(node.args[0]) >= FEWEST]


def params(seed, *batch, number=FEWEST):
    generator = torch.Generator().manual_seed(seed)
    return {str(i): torch.randn(*batch, i + 1, 3, generator=generator, dtype=torch.float64) for i in range(number)}


def test_a_chain_between_cat_and_split_works_on_parts():
    def fn(first, second, scale):
        vector = torch.sqrt(flat(first) ** 2 + 1.0) * scale - flat(second)
        return unflat(vector, first)

    args = (params(0), params(1), torch.tensor(2.0, dtype=torch.float64))
    graph = parted(fn, *args)
    assert not wide_cats(graph)
    torch.testing.assert_close(graph(*args), fn(*args), rtol=0, atol=0)


def test_what_is_wanted_as_a_whole_is_put_together():
    def fn(first, whole):
        vector = flat(first) * whole  # `whole` is given in one piece
        return unflat(vector, first), vector + 1.0, vector.sum()

    first = params(0)
    args = (first, torch.randn(flat(first).numel(), dtype=torch.float64))
    graph = parted(fn, *args)
    torch.testing.assert_close(graph(*args), fn(*args), rtol=0, atol=0)


def test_other_sizes_and_other_dimensions_are_left_alone():
    def fn(first, table):
        a, b = torch.exp(flat(first)).split([5, flat(first).numel() - 5])
        return a, b, torch.cat(list(table.unbind()), dim=0) * 2.0

    first = params(0)
    args = (first, torch.randn(FEWEST, 2, 3, dtype=torch.float64))
    torch.testing.assert_close(parted(fn, *args)(*args), fn(*args), rtol=0, atol=0)


def test_what_is_written_into_is_left_alone():
    def into_all(first):
        return unflat(flat(first).add_(1.0), first)

    def into_a_part(first):
        vector = flat(first)
        vector[2:5].zero_()
        return unflat(vector * 2.0, first)

    first = params(0)
    for fn in (into_all, into_a_part):
        want = fn(first)
        torch.testing.assert_close(parted(fn, first)(first), want, rtol=0, atol=0)
        torch.testing.assert_close(first, params(0), rtol=0, atol=0)


def test_a_vector_of_several_dtypes_is_left_alone():
    def fn(first):
        return unflat(flat(first) * 2.0, first)

    first = {name: x.to(torch.float32 if name == "3" else torch.float64) for name, x in params(0).items()}
    torch.testing.assert_close(parted(fn, first)(first), fn(first), rtol=0, atol=0)


def test_vectors_of_several_small_agents_are_left_alone():
    def fn(first):
        return unflat(torch.exp(flat(first)), first)

    agents = {str(i): torch.randn(4, i + 1) for i in range(FEWEST)}
    graph = parted(lambda agents: vmap(fn)(agents), agents)
    assert wide_cats(graph)


def test_adam_of_a_batch_of_agents_copies_nothing_into_vectors(monkeypatch):
    monkeypatch.setattr(vectors, "LEAST", 0)
    config = AdamConfig(1e-2)

    def step(grads, mu, nu, now, rate):
        changes, after = adam_update(grads, AdamState(mu, nu, torch.tensor(3)), now, config, rate)
        return changes, after.mu, after.nu, adam_gains(after, config)

    batch = (params(0, 4), params(1, 4), params(2, 4), params(3, 4), torch.rand(4, dtype=torch.float64))
    batch[2].update({name: nu.abs() for name, nu in batch[2].items()})
    fn = vmap(step)
    graph = parted(fn, *batch)
    assert [next(iter(node.users)).op for node in wide_cats(graph)] == ["output"]  # the gains, as they are returned
    torch.testing.assert_close(graph(*batch), fn(*batch), rtol=0, atol=0)
