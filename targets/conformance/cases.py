"""Cases of every op of the catalogue: dtypes, shapes, strides, edge sizes.

Elementwise ops get theirs from their class, so a new one is covered; any other op needs a line in
`OTHERS`, or the kit fails with its name. Size n of a case takes those of `SIZES`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...ir import ops as _ops  # noqa: F401  (fills the catalogue)
from ...ir.dim import dim
from ...ir.dtype import BF16, BOOL, F16, F32, I32
from ...ir.graph import Graph, Value
from ...ir.op import OPS
from ...ir.ops.activations import GroupSums, QuantizeRows, RoundRows
from ...ir.ops.elementwise import Binary, Cast, Unary, Where
from ...ir.ops.linear import Linear
from ...ir.ops.moe import ExpertLinear, ExpertMlp, MoeRoute
from ...ir.ops.norm import AddRmsNorm, LayerNorm, RmsNorm
from ...ir.ops.order import CumSum, PutAlong, TakeAlong, TopK
from ...ir.ops.reduce import Argmax, Argmin, Max, Mean, Min, Prod, Softmax, Sum
from ...ir.ops.rope import Rope, RopeTable
from ...ir.ops.shape import Broadcast, Concat, Iota, Reshape, Slice, Transpose
from ...ir.ops.sparse import GatherRows
from .case import Build, Case, below, below_own, case, positive, wide
from .cases_any_rank import ANY_RANK
from .cases_elementwise import FLOATS, binary_cases, unary_cases
from .cases_integers import INTEGERS
from .cases_products import PRODUCTS
from .cases_windows import WINDOWS

SIZES = (1, 2, 3, 31, 32, 33, 63, 64, 65, 129, 1000)
"""Rows or elements: one, a few, and around the sizes of vectors, tiles and buckets."""
ONLY_IN_DECODERS = {"write_kv", "rope_write_kv", "paged_attention", "slot_conv", "slot_recurrence"}
"""Ops on a state, which the sections on decoders run (those on slots, where a chip has rows for
them, its own tests)."""
ONLY_CAPTURED = {"attention", "causal_conv", "linear_recurrence"}
"""Ops that passes replace before a chip sees them."""
N = dim("n")


def _norms() -> Iterable[Case]:
    for dtype, hidden in (("f32", 1), ("f32", 63), ("f32", 96), ("f32", 576), ("bf16", 96)):
        x, w = f"{dtype}[n, {hidden}]", f"w {dtype}[{hidden}]"
        yield case(RmsNorm(eps=1e-5), x, w)
        yield case(AddRmsNorm(), x, x, w)
        yield case(LayerNorm(), x, w, w)
    yield case(RmsNorm(), "f32[n, 3, 64]", "w f32[64]")
    yield case(RmsNorm(), "f32[3, 64]", "w f32[64]", note="of known size")
    yield case(RmsNorm(), "bf16[n, 96]", "w f32[96]")
    yield case(AddRmsNorm(), "bf16[n, 96]", "bf16[n, 96]", "w f32[96]")


def _reductions() -> Iterable[Case]:
    for width in (1, 9, 64, 257):
        for op in (Sum(), Mean(), Max(), Min(), Prod(), Argmax(), Argmin(), Softmax()):
            yield case(op, f"f32[n, {width}]")
    for op in (Sum(keepdim=True), Mean(keepdim=True), Max(keepdim=True)):
        yield case(op, "f32[n, 2, 9]")
    for op in (Sum(axis=0), Max(axis=1), Softmax(axis=0)):
        yield case(op, "f32[n, 3, 5]")
    yield case(Sum(), "f32[5, 9]", note="of known size")
    yield case(Sum(), "i32[n, 9]")
    yield case(Softmax(), "bf16[n, 9]")


def _rope() -> Iterable[Case]:
    positions = below(1 << 15)
    yield case(RopeTable(), "i32[n]", "w f32[16]", x0=positions, x1=positive)
    yield case(RopeTable(scale=1.5), "i32[n]", "w f32[5]", x0=positions, x1=positive)
    for heads, width, pairs, interleaved in (
        (1, 8, 4, False), (3, 64, 32, False), (2, 80, 16, False), (2, 64, 32, True),
        (2, 10, 3, True),
    ):  # fmt: skip
        tables = [f"f32[n, {pairs}]"] * 2
        yield case(Rope(interleaved), f"f32[n, {heads}, {width}]", *tables)


def _then_add(op: Reshape) -> Build:
    """A view is no memory of its own: somebody must read it."""

    def build(graph: Graph, leaves: Sequence[Value]) -> list[Value]:
        (view,) = graph.append(op, *leaves)
        return [graph.emit(OPS["add"](), view, view)]

    return build


def _movement() -> Iterable[Case]:
    for shape in ((N * 4, 6), (N, 2, 12), (2, N, 3, 4)):
        op = Reshape(shape)
        yield case(op, "f32[n, 24]", build=_then_add(op), note="then add")
    for permutation in ((1, 0, 2), (2, 0, 1), (0, 2, 1), (2, 1, 0)):
        yield case(Transpose(permutation), "f32[n, 3, 70]")
    yield case(Transpose((1, 0)), "f32[n, 65]")
    yield case(Transpose((0, 2, 1, 3)), "bf16[2, 3, n, 5]")
    yield case(Slice(1, 1, 7, 2), "f32[n, 8]")
    yield case(Slice(0, 0, N), "f32[n + 2, 8]")
    yield case(Slice(1, 64, 130), "f32[n, 130]")
    yield case(Slice(1, 2, 5), "i32[n, 7, 3]")
    yield case(Concat(0), "f32[n, 3]", "f32[2, 3]", "f32[n, 3]")
    yield case(Concat(1), "f32[n, 1]", "f32[n, 64]", "f32[n, 5]")
    yield case(Concat(2), "i32[n, 2, 3]", "i32[n, 2, 4]")
    yield case(Broadcast((3, N, 4)), "f32[n, 1]")
    yield case(Broadcast((N, 65)), "f32[1, 65]")
    yield case(Iota(N, I32))
    yield case(GatherRows(), "f32[n, 4]", "i32[n]", x1=below_own)
    yield case(GatherRows(), "f32[9, 3, 65]", "i32[n]", x1=below(9))


def _selection() -> Iterable[Case]:
    yield case(Where(), "bool[n, 1]", "f32[n, 4]", "f32[]")
    yield case(Where(), "bool[n, 65]", "f32[n, 65]", "f32[1, 65]")
    yield case(Where(), "bool[n]", "i32[n]", "i32[n]")
    for source, to in (
        ("f32", BF16), ("f32", F16), ("bf16", F32), ("f16", F32), ("bf16", F16), ("i32", F32),
        ("f32", I32), ("f32", BOOL), ("bool", F32),
    ):  # fmt: skip
        yield case(Cast(to), f"{source}[n, 3]", x0=wide if source in FLOATS else None)
    for top, renormalize in ((1, True), (2, False), (4, True)):
        yield case(MoeRoute(top, renormalize), "f32[n, 8]")


def _order() -> Iterable[Case]:
    """Along the last axis; equal elements are among integers of few values."""
    for op in (TopK(1), TopK(3), TopK(9), CumSum()):
        yield case(op, "f32[n, 9]")
        yield case(op, "i32[n, 9]")
    yield case(TopK(5), "f32[n, 2, 70]")
    yield case(CumSum(), "f32[n, 257]")
    ids = below(9)
    for dtype in ("f32", "i32", "bf16"):
        yield case(TakeAlong(), f"{dtype}[n, 9]", "i32[n, 4]", x1=ids)
        yield case(PutAlong(), f"{dtype}[n, 9]", "i32[n, 4]", f"{dtype}[n, 4]", x1=ids)
    yield case(TakeAlong(), "f32[n, 3, 9]", "i32[n, 3, 1]", x1=ids)


def _experts() -> Iterable[Case]:
    for dtype in ("f32", "bf16", "f16"):
        weight = f"w {dtype}[5, 65, 64]"
        yield case(ExpertLinear(), "f32[n, 64]", weight, "i32[n, 2]", x2=below(5))
        yield case(ExpertLinear(), "f32[n, 2, 64]", weight, "i32[n, 2]", x2=below(5))
    for kind in (F32, BF16):
        both = (f"w {kind}[5, 256, 64]", f"w {kind}[5, 64, 128]")
        choice = ("i32[n, 2]", "f32[n, 2]")
        yield case(ExpertMlp("silu", dtype=kind), f"{kind}[n, 64]", *both, *choice, x3=below(5))


def _fewer_bits() -> Iterable[Case]:
    for op in (RoundRows(), GroupSums()):
        yield case(op, "f32[n, 64]")
        yield case(op, "f32[n, 288]", x0=wide)
    for width in (64, 288):
        yield _quantized(width)


def _quantized(width: int) -> Case:
    """A chip may keep integers in an order of its own, so they are judged by a product."""

    def build(graph: Graph, leaves: Sequence[Value]) -> list[Value]:
        x, w = leaves
        integers, scales = graph.append(QuantizeRows(), x)
        return [graph.emit(Linear(has_scales=True), integers, w, scales), scales]

    operands = f"f32[n, {width}]", f"w q8_0[128, {width}]"
    return case(QuantizeRows(), *operands, build=build, note="before linear", x0=wide)


OTHERS: tuple[Case, ...] = (
    *PRODUCTS,
    *WINDOWS,
    *ANY_RANK,
    *_norms(),
    *_reductions(),
    *_rope(),
    *_movement(),
    *_selection(),
    *_order(),
    *_experts(),
    *_fewer_bits(),
    *INTEGERS,
)


def all_cases() -> dict[str, list[Case]]:
    """Cases by op; ops of decoders and captured graphs alone are left out."""
    cases: dict[str, list[Case]] = {
        name: [] for name in OPS if name not in ONLY_IN_DECODERS | ONLY_CAPTURED
    }
    for name, kind in OPS.items():
        if issubclass(kind, Unary):
            cases[name] += unary_cases(kind())
        elif issubclass(kind, Binary):
            cases[name] += binary_cases(kind())
    for each in OTHERS:
        cases[each.op.name].append(each)
    return cases
