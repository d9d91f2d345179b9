"""If, Loop, Scan and SequenceMap: bodies are written out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import torch

from .registry import Known, NeedsValue, Node, Slot, Subgraph, Tensor, Value, op, outside_trace
from .sizes import as_slot, fixed_slot, objects, tensor_in

MAX_TRIPS = 1024
"""Runs of a loop's body that are written out; more would make graphs that nobody can compile."""


@op("If")
def if_(node: Node, condition: Tensor) -> Value:
    """A known condition takes its branch; else both are computed and each result chosen."""
    then, other = node.attrs["then_branch"], node.attrs["else_branch"]
    if node.is_known(condition):
        return tuple(node.run(then if node.numbers(condition)[0] else other, []))
    pairs = zip(node.run(then, []), node.run(other, []), strict=True)
    needs = node.slot(condition).needs
    return tuple(_chosen(node, condition, a, b, needs) for a, b in pairs)


def _chosen(node: Node, condition: Tensor, a: Slot, b: Slot, needs: frozenset[str]) -> Slot:
    yes, no = tensor_in(a), tensor_in(b)
    if yes is no:
        return a
    if not isinstance(yes, torch.Tensor) or not isinstance(no, torch.Tensor):
        _need(node, needs, "expected tensors of both branches, got sequences or optionals")
    if yes.shape != no.shape:
        shapes = f"{tuple(yes.shape)} and {tuple(no.shape)}"
        _need(node, needs, f"expected one shape of both branches, got {shapes}")
    result = torch.where(condition.reshape(()), yes, no)
    return Slot(result, needs=a.needs | b.needs | needs)


def _need(node: Node, needs: frozenset[str], reason: str) -> NoReturn:
    """The shape follows the condition: it must be known, or the op is refused."""
    if needs:
        raise NeedsValue(needs, node.where)
    node.refuse(reason)


@op("Loop")
def loop(node: Node, count: Tensor | None, condition: Tensor | None, *state: Value) -> Value:
    """Known trips are written out. With a condition found as it runs, all trips are, and those
    after its end keep the values. Without one, what the body says of it is ignored."""
    body: Subgraph = node.attrs["body"]
    trips, is_bounded = _trips(node, count)
    values = [node.slot(v) for v in state]
    always = as_slot(Known(objects([True], ()), torch.bool))
    going = always if condition is None else node.slot(condition)
    scans: list[list[Slot]] = [[] for _ in range(len(body.outputs) - 1 - len(values))]
    for trip in range(trips):
        if _is_over(going):
            break
        if going.fixed is None and (scans or not is_bounded):
            _need(node, going.needs, "expected a known number of trips, got one that depends on a "
                  "condition")  # fmt: skip
        after, *results = node.run(body, [Known(objects([trip], ())), going, *values])
        new, made = results[: len(values)], results[len(values) :]
        if going.fixed is None:
            new = [_kept(node, going, a, b) for a, b in zip(new, values, strict=True)]
        values, going = new, going if condition is None else _both(going, after)
        for scan, value in zip(scans, made, strict=True):
            scan.append(value)
    if not is_bounded and not _is_over(going):
        node.refuse(f"expected a loop that ends within {trips} trips, got one that does not")
    return (*values, *(_stacked(node, rows) for rows in scans))


def _trips(node: Node, count: Tensor | None) -> tuple[int, bool]:
    """How many are written out at most, and whether the loop itself has that bound. Exporters
    write the largest integer where only the condition ends a loop."""
    trips = None if count is None else node.ints(count)[0]
    if trips is None or (isinstance(trips, int) and trips >= 2**31 - 1):
        return MAX_TRIPS, False
    if not isinstance(trips, int):
        node.refuse("expected a known number of trips, got one that depends on a free size")
    if trips > MAX_TRIPS:
        node.refuse(f"expected at most {MAX_TRIPS} trips, got {trips}")
    return trips, True


def _is_over(going: Slot) -> bool:
    """Whether the condition is known to be false."""
    with outside_trace():
        return going.fixed is not None and not bool(going.fixed.reshape(()))


def _kept(node: Node, going: Slot, new: Slot, old: Slot) -> Slot:
    return _chosen(node, tensor_in(going), new, old, going.needs)


def _both(a: Slot, b: Slot) -> Slot:
    """The loop goes on if it did and the body says so."""
    if a.fixed is not None:
        return b  # it is true, or the loop would be over
    result = torch.logical_and(tensor_in(a).reshape(()), tensor_in(b).reshape(()))
    return Slot(result, needs=a.needs | b.needs)


def _stacked(node: Node, rows: Sequence[Slot]) -> Slot:
    """Rows whose numbers are known give a result that is."""
    if not rows:
        node.refuse("expected at least one trip, got none: its scan outputs have no shape")
    if all(row.fixed is not None for row in rows):
        with outside_trace():
            return fixed_slot(torch.stack([row.fixed for row in rows if row.fixed is not None]))
    needs = frozenset[str]().union(*(row.needs for row in rows))
    return Slot(torch.stack([tensor_in(row) for row in rows]), needs=needs)


@op("Scan")
def scan(node: Node, *inputs: Value) -> Value:
    """Written out along the scan axes."""
    body: Subgraph = node.attrs["body"]
    num_scans = node.attrs["num_scan_inputs"]
    num_states = len(inputs) - num_scans
    states = [node.slot(v) for v in inputs[:num_states]]
    num_outputs = len(body.outputs) - num_states
    axes = node.attrs.get("scan_input_axes", [0] * num_scans)
    ways = node.attrs.get("scan_input_directions", [0] * num_scans)
    rows = [
        _rows(node, x, axis, way)
        for x, axis, way in zip(inputs[num_states:], axes, ways, strict=True)
    ]
    needs = frozenset[str]().union(*(node.slot(x).needs for x in inputs))
    made: list[list[Value]] = [[] for _ in range(num_outputs)]
    for step in zip(*rows, strict=True):
        slots = [Slot(row, needs=needs) for row in step]
        results = node.run(body, [*states, *slots])
        states = results[:num_states]
        for collected, value in zip(made, results[num_states:], strict=True):
            collected.append(tensor_in(value))
    out_axes = node.attrs.get("scan_output_axes", [0] * num_outputs)
    out_ways = node.attrs.get("scan_output_directions", [0] * num_outputs)
    stacked = [
        torch.stack(values[::-1] if way else values, axis)
        for values, axis, way in zip(made, out_axes, out_ways, strict=True)
    ]
    return (*states, *(Slot(x, needs=needs) for x in stacked))


def _rows(node: Node, x: Tensor, axis: int, way: int) -> list[Tensor]:
    length = x.shape[axis]
    if not isinstance(length, int):
        node.refuse("expected a known number of steps, got a free size (fix it with --dim)")
    if not 0 < length <= MAX_TRIPS:
        node.refuse(f"expected 1 to {MAX_TRIPS} steps, got {length}")
    rows = list(torch.unbind(x, axis))
    return rows[::-1] if way else rows


@op("SequenceMap")
def sequence_map(node: Node, first: list[Value], *rest: Value) -> Value:
    """The body for each element; tensors beside the sequences are given to all."""
    body: Subgraph = node.attrs["body"]
    needs = frozenset[str]().union(*(node.slot(x).needs for x in (first, *rest)))
    made: list[list[Value]] = [[] for _ in body.outputs]
    for place in range(len(first)):
        given = [x[place] if isinstance(x, list) else x for x in (first, *rest)]
        for values, slot in zip(
            made, node.run(body, [Slot(x, needs=needs) for x in given]), strict=True
        ):
            values.append(tensor_in(slot))
    return tuple(made)
