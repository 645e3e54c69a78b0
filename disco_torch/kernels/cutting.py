"""A graph in two: what the first gives, the second is given beside all inputs."""

from __future__ import annotations

import itertools
import operator

from torch import fx

from disco_torch.kernels.simplifying import origin, written_into

LARGE = 1500
"""Operations of a graph that takes long to compile."""


def split(module: fx.GraphModule, number: int) -> tuple[fx.GraphModule, fx.GraphModule]:
    """What depends on the first `number` inputs alone, which are all that the first graph has; and the rest.

    Where something is written into, its order matters, and all is left to the second.
    """
    graph = module.graph
    inputs = inputs_of(graph)
    late = set(graph.nodes).difference(inputs[:number]) if written_into(graph) else set(inputs[number:])
    for node in graph.nodes:
        if any(each in late for each in node.all_input_nodes):
            late.add(node)
    return apart(module, late)


def halve(module: fx.GraphModule) -> tuple[fx.GraphModule, fx.GraphModule] | None:
    """About half of the operations each, with few tensors between them; None for a graph that is not large."""
    graph = module.graph
    operations = [node for node in graph.nodes if node.op == "call_function"]
    if len(operations) < LARGE or written_into(graph):
        return None
    places = {node: place for place, node in enumerate(operations)}
    # How many tensors there are after each operation that are wanted later.
    last: dict[fx.Node, int] = {}
    for node in operations:
        ends = [places[node], *(places.get(user, len(places)) for user in node.users)]
        last[origin(node)] = max(last.get(origin(node), 0), *ends)
    changes = [0] * (len(operations) + 1)
    for node, end in last.items():
        if node in places:
            changes[places[node]] += 1
            changes[end] -= 1
    alive = list(itertools.accumulate(changes))
    middle = min(range(len(places) * 2 // 5, len(places) * 3 // 5), key=alive.__getitem__)
    late = set(operations[middle + 1 :])
    # An operation of several results is no tensor; they are, and stay with it.
    late -= {node for node in late if node.target is operator.getitem and node.args[0] not in late}
    return apart(module, late)


def apart(module: fx.GraphModule, late: set[fx.Node]) -> tuple[fx.GraphModule, fx.GraphModule]:
    """All but the late operations and inputs, and these. What is late must not be wanted by what is not.

    Of views, what they show is kept, and shown again in the second: several of them may show the same.
    """
    graph = module.graph
    late = late | {node for node in graph.nodes if node.op == "output"}
    # What depends on nothing is made again: kept it would be a tensor, where a compiler has a number.
    fixed: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "call_function" and all(each in fixed for each in node.all_input_nodes):
            fixed.add(node)
    crossing = (node for node in graph.nodes if node not in late and any(user in late for user in node.users))
    origins = dict.fromkeys(map(origin, crossing))
    kept = [node for node in origins if node.op == "call_function" and node not in fixed]

    copies: dict[fx.Node, fx.Node] = {}
    first = fx.Graph()
    first.graph_copy(graph, copies)
    first.output([copies[node] for node in kept])
    first.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
    for node in inputs_of(graph):
        if node in late:
            first.erase_node(copies[node])

    copies, second = {}, fx.Graph()
    results = second.graph_copy(graph, copies)
    second.output(results)
    with second.inserting_before(next(iter(second.nodes))):
        for node in kept:
            given = second.placeholder(f"kept_{node.name}")
            given.meta.update(node.meta)
            copies[node].replace_all_uses_with(given)
    second.eliminate_dead_code()
    return fx.GraphModule(module, first), fx.GraphModule(module, second)


def inputs_of(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]
