"""Joins the rotation of q and k and the write of k and v, on the joined projection itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.dim import Dim
from ..ir.dtype import F32
from ..ir.graph import Graph, Node, Value
from ..ir.ops.attention import PagedAttention, RopeWriteKv, WriteKv
from ..ir.ops.norm import RmsNorm
from ..ir.ops.rope import Rope
from ..ir.ops.shape import Reshape, Slice
from ..ir.types import TensorType
from .base import Pass
from .patterns import are_defined_before, produced_by


@dataclass(frozen=True)
class FuseRopeWriteKv(Pass):
    """
    %q = rope(heads of %l[:, :a], %c, %s); %k = rope(heads of %l[:, a:b], %c, %s)
    %t = write_kv(%state, %k, heads of %l[:, b:], %slots)
      ->   %q, %t = rope_write_kv(%l, %c, %s, %state, %slots)
    and with ``norms``, heads of q and of k that go through an rmsnorm first, both with one eps:
      ->   %q, %t = rope_write_kv(%l, %c, %s, %state, %slots, %wq, %wk) {eps=...}
    Requires: the three slices make up all of %l [T, N], one pair of tables, k read by the write
    only, q read only by attentions on the state written here.
    """

    name: ClassVar[str] = "fuse-rope-write-kv"
    norms: bool = False
    """Whether the target's fused op takes norms too."""

    def run(self, graph: Graph) -> bool:
        changed = False
        for node in list(graph.nodes):
            if isinstance(node.op, PagedAttention):
                changed |= _fuse(graph, node, self.norms)
        return graph.erase_dead() or changed


@dataclass(frozen=True)
class _Part:
    """Columns start to stop of ``joined``, seen as heads."""

    joined: Value
    start: Dim
    stop: Dim


@dataclass(frozen=True)
class _Heads:
    """Heads of q or k before their rotation: as projected, and the norm they go through."""

    projected: Value
    norm: Node | None

    @property
    def eps(self) -> float | None:
        return self.norm.op.eps if self.norm and isinstance(self.norm.op, RmsNorm) else None

    @property
    def weights(self) -> list[Value]:
        return [self.norm.inputs[1]] if self.norm else []


def _fuse(graph: Graph, attention: Node, norms: bool) -> bool:
    write = produced_by(attention.inputs[1], WriteKv)
    q_rope = produced_by(attention.inputs[0], Rope)
    k_rope = produced_by(write.inputs[1], Rope) if write else None
    if write is None or q_rope is None or k_rope is None:
        return False
    if q_rope.op != k_rope.op or q_rope.inputs[1:] != k_rope.inputs[1:]:
        return False
    if not _is_read_only_here(graph, write, q_rope, k_rope):
        return False
    q_heads, k_heads = (_heads(rope.inputs[0], norms) for rope in (q_rope, k_rope))
    weights = [*q_heads.weights, *k_heads.weights]
    if q_heads.eps != k_heads.eps or not are_defined_before(graph, weights, write):
        return False
    parts = [_part(v) for v in (q_heads.projected, k_heads.projected, write.inputs[2])]
    joined = _whole([p for p in parts if p is not None])
    if joined is None:
        return False
    assert isinstance(write.op, WriteKv) and isinstance(q_rope.op, Rope)
    heads, eps = int(q_rope.outputs[0].type.shape[1]), q_heads.eps
    op = RopeWriteKv(heads, write.op.layer, write.op.kv_dtype, q_rope.op.interleaved, eps)
    state, slots = write.inputs[0], write.inputs[3]
    q, written = graph.append(op, joined, *q_rope.inputs[1:], state, slots, *weights, before=write)
    graph.replace(q_rope.outputs[0], q)
    graph.replace(write.outputs[0], written)
    return True


def _is_read_only_here(graph: Graph, write: Node, q_rope: Node, k_rope: Node) -> bool:
    """q comes into being at the write now, so everything that reads it must follow the write."""
    (q,), (k,), (state,) = q_rope.outputs, k_rope.outputs, write.outputs
    attends = all(isinstance(n.op, PagedAttention) and n.inputs[1] is state for n in q.uses)
    return attends and k.uses == [write] and not graph.is_output(q) and not graph.is_output(k)


def _heads(value: Value, norms: bool) -> _Heads:
    norm = produced_by(value, RmsNorm) if norms else None
    if norm is None or norm.inputs[1].type != TensorType(F32, value.type.shape[-1:]):
        return _Heads(value, None)
    return _Heads(norm.inputs[0], norm)


def _part(value: Value) -> _Part | None:
    """reshape(slice(joined, columns)) as [T, heads, width]."""
    heads = produced_by(value, Reshape)
    columns = produced_by(heads.inputs[0], Slice) if heads else None
    if columns is None or not isinstance(columns.op, Slice) or value.type.rank != 3:
        return None
    joined = columns.inputs[0]
    if joined.type.rank != 2 or columns.op.axis != 1 or columns.op.step != 1:
        return None
    return _Part(joined, columns.op.start, columns.op.stop)


def _whole(parts: list[_Part]) -> Value | None:
    """What q, k and v are the consecutive columns of, and all of them."""
    if len(parts) != 3 or len({p.joined for p in parts}) != 1:
        return None
    q, k, v = parts
    joined = q.joined
    ends = (q.start, q.stop, k.stop, v.stop)
    return joined if ends == (0, k.start, v.start, joined.type.shape[1]) else None
