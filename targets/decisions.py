"""What a compiler decided for each op and each kernel, as plain data: the lowering report.

Works on a lowering alone: nothing is compiled, no weight is read. `docs/lowering-report.md` states
the schema. Times are modelled, from stated rates: they compare choices, they predict nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ..ir.dim import Dim, concrete, parse_dim, symbols_of
from ..ir.graph import Node
from ..ir.target import Row, Target
from ..passes.choose_tiles import TileChoice
from ..passes.select_rows import HOST_KIND
from .artifact.program import Bucket, Call, Program
from .kernel import Kernel
from .lowering import Lowering, token_ranges

SCHEMA = 1
NOMINAL = {"seqs": 1, "rows": 1}
NOMINAL_TOKENS = 512
CONTEXT = 2048
"""Sizes that times are modelled for, beside the bucket's own token count."""
SHOWN_REFUSED = 12


@dataclass
class Group:
    """Nodes of one op, row and types: in a decoder, the same place of every layer."""

    op: str
    row: Row | None
    types: str
    problem: str
    nodes: list[Node] = field(default_factory=list)
    calls: list[list[Call]] = field(default_factory=list)
    """By bucket: the calls of one of the nodes."""


@dataclass(frozen=True)
class Times:
    """Modelled seconds of calls, and what bounds them."""

    seconds: float
    bound: str


def decision_records(lowering: Lowering, program: Program) -> dict[str, Any]:
    """Ops, kernels and buckets of a lowering."""
    groups = list(_groups(lowering, program))
    timing = _Timing(lowering, program)
    return {
        "schema": SCHEMA,
        "target": _target_record(lowering.target),
        "sizes": {"context": CONTEXT, **NOMINAL},
        "ops": [_op_record(group, lowering, timing) for group in groups],
        "kernels": _kernel_records(lowering, program, timing),
        "buckets": [_bucket_record(i, bucket, timing) for i, bucket in enumerate(program.buckets)],
        "missing": _missing(lowering),
        "on_host": _on_host(lowering),
    }


def _target_record(target: Target) -> dict[str, Any]:
    return {
        "name": target.name,
        "arch": target.arch,
        "programs": target.programs,
        "page_size": target.page_size,
        "units": {unit.name: dict(unit.peak_flops) for unit in target.units},
        "memory": [vars(level) for level in target.memory],
    }


# Ops ------------------------------------------------------------------------------------------


def _groups(lowering: Lowering, program: Program) -> Iterator[Group]:
    found: dict[tuple[str, str, str], Group] = {}
    for node, row in lowering.selection.chosen.items():
        _group_of(found, node, row).nodes.append(node)
    for number, (bucket, emitted) in enumerate(zip(program.buckets, lowering.emitted, strict=True)):
        calls = iter(bucket.calls)
        for node, count in emitted:
            own = [next(calls) for _ in range(count)]
            group = _group_of(found, node, lowering.selection.chosen[node])
            if len(group.calls) == number:
                group.calls.append(own)
    yield from found.values()


def _group_of(found: dict[tuple[str, str, str], Group], node: Node, row: Row | None) -> Group:
    types = _types_text(node)
    key = (node.op.name, row.name if row else "", types)
    return found.setdefault(key, Group(node.op.name, row, types, problem_of(node)))


def _types_text(node: Node) -> str:
    inputs = ", ".join(str(v.type) for v in node.inputs)
    return f"{inputs} -> {', '.join(str(v.type) for v in node.outputs)}"


def problem_of(node: Node) -> str:
    """What makes an op of two targets the same problem: the sizes that are fixed."""
    if node.op.name in ("linear", "gated_linear", "embedding"):
        weight = node.inputs[0 if node.op.name == "embedding" else 1].type
        return "x".join(map(str, weight.shape))
    fixed = [str(d) for d in node.outputs[0].type.shape if isinstance(d, int)]
    return "x".join(fixed)


def _op_record(group: Group, lowering: Lowering, timing: _Timing) -> dict[str, Any]:
    first = group.nodes[0]
    decode, prefill = group.calls[0], group.calls[-1]
    return {
        "op": group.op,
        "problem": group.problem,
        "types": group.types,
        "count": len(group.nodes),
        "source": first.source or "",
        "row": group.row.name if group.row else "",
        "kind": group.row.kind if group.row else "",
        "why": group.row.why if group.row else "",
        "passed_over": [
            {"row": name, "reason": why} for name, why in lowering.selection.refused.get(first, [])
        ],
        "decode": _use_record(0, first, decode, lowering, timing),
        "prefill": _use_record(len(group.calls) - 1, first, prefill, lowering, timing),
        "kernels": list(dict.fromkeys(call.kernel for calls in group.calls for call in calls)),
        "notes": _notes(group),
    }


def _use_record(
    bucket: int, node: Node, calls: Sequence[Call], lowering: Lowering, timing: _Timing
) -> dict[str, Any]:
    """How one node runs in a bucket."""
    live = [call for call in calls if timing.programs(bucket, call)] or list(calls)
    tiles = [tile_of(lowering, call.kernel) for call in live if call.kernel in lowering.kernels]
    times = timing.node(bucket, node, calls)
    return {
        "tiles": [tile for tile in tiles if tile],
        "launches": len(live),
        "programs": sum(timing.programs(bucket, call) for call in live),
        "seconds": times.seconds,
        "bound": times.bound,
    }


def tile_of(lowering: Lowering, symbol: str) -> dict[str, int]:
    """The chosen tile, or else the block sizes among a kernel's constants."""
    if symbol in lowering.tiles:
        return dict(lowering.tiles[symbol].tile)
    constants = dict(lowering.kernels[symbol].constants)
    return {name: n for name, n in constants.items() if name.startswith("BLOCK")}


def _notes(group: Group) -> list[str]:
    """What a reader of the table should know."""
    notes = []
    for calls, when in zip(group.calls, range(len(group.calls)), strict=True):
        offsets = {arg.offset for call in calls for arg in call.args[1:2] if arg.kind == "weight"}
        if when == len(group.calls) - 1 and len(offsets) > 1:
            notes.append(f"split into {len(offsets)} parts of the outputs")
    return notes


def _missing(lowering: Lowering) -> list[dict[str, Any]]:
    """Ops that no row takes, with every row's reason."""
    found: dict[str, list[Node]] = {}
    for node in lowering.selection.missing:
        found.setdefault(node.op.name, []).append(node)
    return [_op_summary(op, nodes, lowering) for op, nodes in found.items()]


def _op_summary(op: str, nodes: Sequence[Node], lowering: Lowering) -> dict[str, Any]:
    """An op without a row, its first place, and the reason of each row."""
    return {
        "op": op,
        "count": len(nodes),
        "types": _types_text(nodes[0]),
        "source": nodes[0].source or "",
        "passed_over": [
            {"row": name, "reason": why}
            for name, why in lowering.selection.refused.get(nodes[0], [])
        ],
    }


def _on_host(lowering: Lowering) -> list[dict[str, Any]]:
    """Ops that the host does, and why no row takes them."""
    found: dict[str, list[Node]] = {}
    for node, row in lowering.selection.chosen.items():
        if row.kind == HOST_KIND:
            found.setdefault(node.op.name, []).append(node)
    return [_op_summary(op, nodes, lowering) for op, nodes in found.items()]


# Kernels --------------------------------------------------------------------------------------


def _kernel_records(lowering: Lowering, program: Program, timing: _Timing) -> list[dict[str, Any]]:
    uses: dict[str, list[tuple[int, Call]]] = {}
    for number, bucket in enumerate(program.buckets):
        for call in bucket.calls:
            if call.kernel in lowering.kernels:
                uses.setdefault(call.kernel, []).append((number, call))
    return [
        _kernel_record(lowering.kernels[symbol], calls, lowering.tiles.get(symbol), timing)
        for symbol, calls in uses.items()
    ]


def _kernel_record(
    kernel: Kernel, calls: list[tuple[int, Call]], choice: TileChoice | None, timing: _Timing
) -> dict[str, Any]:
    buckets = list(dict.fromkeys(number for number, _ in calls))
    return {
        "symbol": kernel.symbol,
        "function": kernel.function,
        "ops": list(dict.fromkeys(call.op for _, call in calls)),
        "buckets": [timing.bounds[number] for number in buckets],
        "calls": sum(number == buckets[-1] for number, _ in calls),
        "programs": max(timing.programs(number, call) for number, call in calls),
        "constants": {name: value for name, value in kernel.constants if value is not None},
        "signature": dict(kernel.signature),
        "tile": _choice_record(choice) if choice else None,
    }


def _choice_record(choice: TileChoice) -> dict[str, Any]:
    return {
        "tile": dict(choice.tile),
        "rows": choice.rows,
        "seconds": choice.seconds,
        "bound": choice.bound,
        "on_chip_bytes": choice.on_chip_bytes,
        "on_chip_limit": choice.on_chip_limit,
        "on_chip_name": choice.on_chip_name,
        "programs": choice.programs,
        "per_unit": choice.per_unit,
        "runner_up": choice.runner_up.removeprefix("; next "),
        "refused": list(choice.refused[:SHOWN_REFUSED]),
        "refused_count": len(choice.refused),
    }


# Modelled times -------------------------------------------------------------------------------


class _Timing:
    """Sizes, programs and modelled times of calls at each bucket's nominal token count."""

    def __init__(self, lowering: Lowering, program: Program) -> None:
        self.lowering = lowering
        self.target = lowering.target
        self.sizes = [self._nominal(bucket.tokens_max, program) for bucket in program.buckets]
        self.bounds = [bucket.tokens_max for bucket in program.buckets]
        self._counts: dict[tuple[int, tuple[str, str, str]], int] = {}

    def _nominal(self, tokens_max: int | None, program: Program) -> dict[str, int]:
        ranges = token_ranges(self.target.token_buckets)
        low = next((r.low for r in ranges if r.high == tokens_max), 1)
        tokens = tokens_max if tokens_max is not None else max(low, NOMINAL_TOKENS)
        pages = -(-max(CONTEXT, tokens) // max(1, self.target.page_size))
        sizes = {"tokens": tokens, "pages": pages, **NOMINAL}
        return {name: sizes.get(name, 64) for name in (*program.symbols, "kv_slots", "num_pages")}

    def programs(self, bucket: int, call: Call) -> int:
        """Programs of a launch; none where another range of rows is served."""
        key = bucket, call.grid
        if key not in self._counts:
            sizes = (concrete(parse_dim(text), self.sizes[bucket]) for text in call.grid)
            self._counts[key] = max(0, prod(sizes))
        return self._counts[key]

    def node(self, bucket: int, node: Node, calls: Sequence[Call]) -> Times:
        """The model of the tile choice where there is one, else a roofline of the op's cost."""
        if not calls:
            return Times(0.0, "")
        live = [call for call in calls if self.programs(bucket, call)]
        choices = [self.lowering.tiles.get(call.kernel) for call in live]
        if choices and all(choices):
            known = [choice for choice in choices if choice is not None]
            slowest = max(known, key=lambda choice: choice.seconds)
            if not _is_fixed(slowest):
                return Times(sum(choice.seconds for choice in known), slowest.bound)
        return self._roofline(bucket, node)

    def _roofline(self, bucket: int, node: Node) -> Times:
        cost = node.op.cost([v.type for v in node.inputs], [v.type for v in node.outputs])
        peaks = [rate for unit in self.target.units for rate in unit.peak_flops.values() if rate]
        compute = self._value(bucket, cost.flops) / max(peaks, default=1.0)
        memory = self._value(bucket, cost.bytes) / self.target.memory[-1].bytes_per_second
        return Times(max(compute, memory), "compute" if compute >= memory else "memory")

    def _value(self, bucket: int, size: Dim) -> int:
        known = symbols_of(size) <= set(self.sizes[bucket])
        return concrete(size, self.sizes[bucket]) if known else 0


def _is_fixed(choice: TileChoice) -> bool:
    """Blocks that serve every bucket are chosen for one row count: their time is not a bucket's."""
    return set(choice.tile) == {"BLOCK"}


def _bucket_record(number: int, bucket: Bucket, timing: _Timing) -> dict[str, Any]:
    live = [call for call in bucket.calls if timing.programs(number, call)]
    seconds = 0.0
    calls = iter(bucket.calls)
    for node, count in timing.lowering.emitted[number]:
        own = [next(calls) for _ in range(count)]
        seconds += timing.node(number, node, own).seconds if own else 0.0
    return {
        "tokens_max": bucket.tokens_max,
        "tokens": timing.sizes[number].get("tokens", 0),
        "launches": len(live),
        "kernels": len({call.kernel for call in live}),
        "seconds": seconds,
    }


def compare_records(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Puts into each op of ``ours`` what another target does with the same problem."""
    name = f"{theirs['target']['name']}:{theirs['target']['arch']}"
    known = {(op["op"], op["problem"]): op for op in theirs["ops"]}
    for op in ours["ops"]:
        same = known.get((op["op"], op["problem"]))
        if same is not None:
            op["compared"] = {"target": name, "row": same["row"]} | {
                when: {"tiles": same[when]["tiles"], "seconds": same[when]["seconds"]}
                for when in ("decode", "prefill")
            }
