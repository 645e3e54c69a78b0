"""A recording that sums over processes, cut at these sums: what lies between them is compiled and captured."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch import Tensor, fx, nn
from torch.fx.passes.split_module import split_module

from disco_torch.kernels.collectives import SUM
from disco_torch.kernels.private import is_write, source_of

Finish = Callable[[fx.GraphModule, list[Tensor]], Callable[..., Any]]
"""Compiles and captures a graph for tensors such as these."""


def sums_over_processes(graph: fx.GraphModule) -> bool:
    """Whether a recording communicates with other processes."""
    return any(node.target is SUM for node in graph.graph.nodes)


def in_pieces(graph: fx.GraphModule, finish: Finish) -> fx.GraphModule:
    """The same function, with each piece between two sums finished on its first call. The sums themselves run plainly."""
    places: dict[fx.Node, int] = {}
    place = 0
    for node in graph.graph.nodes:
        if node.target is SUM:
            places[node], place = place + 1, place + 2
        elif node.target is operator.getitem:
            places[node] = places[node.args[0]]  # pieces pass tensors on, no lists of them
        else:
            places[node] = place
    _check_writes(graph, places)
    # None: in place of the module that the graph was traced from, of which there is none.
    whole = split_module(graph, None, lambda node: places[node])  # type: ignore[arg-type]
    for name, piece in list(whole.named_children()):
        assert isinstance(piece, fx.GraphModule)
        if not sums_over_processes(piece):
            setattr(whole, name, Piece(piece, finish))
    return whole


def _check_writes(graph: fx.GraphModule, places: dict[fx.Node, int]) -> None:
    """Raises where a piece writes into what another one has made: pieces work on copies."""
    for node in filter(is_write, graph.graph.nodes):
        home: Any = node.args[0]
        if places[source_of(home)] != places[node]:
            raise ValueError(f"{node.target} writes across a sum over processes.")


class Piece(nn.Module):
    """A part of a recording, finished with the tensors that it is first called with."""

    def __init__(self, graph: fx.GraphModule, finish: Finish) -> None:
        super().__init__()
        (output,) = graph.graph.find_nodes(op="output")
        self.is_single = isinstance(output.args[0], fx.Node)
        if self.is_single:
            output.args = ((output.args[0],),)
            graph.recompile()
        self._graph, self._finish = [graph], finish  # in a list: no submodule, whose parameters the compiler would look at
        self._run: Callable[..., Any] | None = None

    def forward(self, *tensors: Tensor) -> Any:
        if self._run is None:
            self._run = self._finish(self._graph[0], list(tensors))
        outputs = self._run(*tensors)
        return outputs[0] if self.is_single else tuple(outputs)
