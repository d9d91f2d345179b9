"""Attention that chooses among keys, compiled as far as it takes all of them.

Some models let a query see only the keys that an indexer ranks highest, ``index_topk`` of them. Up
to that many tokens every key is chosen, and attention is plain. Such a model is compiled for a
context that ends there. That is proved, not assumed: the token count is bounded during capture, and
torch checks each condition on it.
"""

from __future__ import annotations

import builtins
import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import statically_known_true

log = logging.getLogger(__name__)
_CASTS = ("aten::_to_copy", "aten::to", "aten::alias")


def plain_up_to(config: Any) -> int:
    """The most tokens that all see each other's keys; 0 if there is no such limit.

    >>> from types import SimpleNamespace
    >>> plain_up_to(SimpleNamespace(index_topk=2048))
    2048
    >>> plain_up_to(SimpleNamespace())
    0
    """
    return max(int(getattr(config, "index_topk", None) or 0), 0)


def bounded(config: Any, stated: int) -> int:
    """The context that is stated (0: none is), or its plain part."""
    limit = plain_up_to(config)
    if not limit or 0 < stated <= limit:
        return stated
    log.warning(
        "%s: choices among keys are not supported: the context is %d tokens, as far as every key "
        "is chosen%s",
        config.model_type,
        limit,
        f", instead of {stated}" if stated else "",
    )
    return limit


@contextlib.contextmanager
def decided_minimum() -> Iterator[None]:
    """While a model runs under export: ``min(2048, tokens)`` is one of the two where bounds say
    which. torch puts a function without bounds in the place of the builtin one, until it is done.
    """
    torchs = builtins.min

    def least(*args: Any, **options: Any) -> Any:
        if len(args) == 2 and not options and any(isinstance(a, torch.SymInt) for a in args):
            for a, b in (args, args[::-1]):
                if statically_known_true(a <= b):
                    return a
        return torchs(*args, **options)

    builtins.min = least
    try:
        yield
    finally:
        builtins.min = torchs


# Choices ------------------------------------------------------------------------------------


def without_whole_choices(program: ExportedProgram) -> None:
    """A number put at the places of the ``n`` largest of ``n`` is put everywhere: no order counts.

    What ranked the keys has no use left.
    """
    for node in list(program.graph.nodes):
        if node.target is torch.ops.aten.scatter.value and _is_everywhere(*node.args[:3]):
            with program.graph.inserting_before(node):
                full = _full(program.graph, node.args[0], node.args[3])
            full.meta = dict(node.meta)
            node.replace_all_uses_with(full)
            program.graph.erase_node(node)
    program.graph_module.recompile()  # decomposition runs the code, not the graph


def _full(graph: fx.Graph, like: fx.Node, value: Any) -> fx.Node:
    """By its sizes where they are known, so that nothing else of ``like`` is kept."""
    if like.target is torch.ops.aten.new_ones.default:
        options = {"dtype": like.meta["val"].dtype}
        return graph.call_function(torch.ops.aten.full.default, (like.args[1], value), options)
    return graph.call_function(torch.ops.aten.full_like.default, (like, value))


def _is_everywhere(target: fx.Node, dim: int, places: fx.Node) -> bool:
    """Whether the places along the axis are all of them, for every row."""
    shape, rank = target.meta["val"].shape, target.meta["val"].dim()
    if rank != places.meta["val"].dim():
        return False
    same = zip(shape, places.meta["val"].shape, strict=True)
    while getattr(places.target, "_schema", None) and places.target._schema.name in _CASTS:  # type: ignore[union-attr]
        (places, *_) = places.args  # type: ignore[assignment]
    choice = places.args[0] if places.args else None
    if not isinstance(choice, fx.Node) or choice.target is not torch.ops.aten.topk.default:
        return False
    source, axis = choice.args[0], (*choice.args, choice.kwargs.get("dim", -1))[2]
    assert isinstance(source, fx.Node) and isinstance(axis, int)
    known = [source.meta["val"].shape[axis] == shape[dim], *(a == b for a, b in same)]
    if places.args[1] != 1 or axis % rank != dim % rank:
        return False
    return all(statically_known_true(each) for each in known)
