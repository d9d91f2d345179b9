"""Exporters of the ops that every graph may have: mathematics, movement, reductions, windows."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from ...errors import FrontendError
from ...ir.dtype import BF16, I32, I64, U64
from ...ir.graph import Node
from .export_nodes import Builder, elem_type, fused, inline

_SAME = {
    "abs": "Abs", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "sin": "Sin",
    "reciprocal": "Reciprocal", "cos": "Cos", "tanh": "Tanh", "erf": "Erf", "sigmoid": "Sigmoid",
    "floor": "Floor", "not": "Not", "acos": "Acos", "acosh": "Acosh", "asin": "Asin",
    "asinh": "Asinh", "atan": "Atan", "atanh": "Atanh", "ceil": "Ceil", "cosh": "Cosh",
    "sinh": "Sinh", "tan": "Tan", "round": "Round", "sign": "Sign", "isinf": "IsInf",
    "isnan": "IsNaN", "bit_not": "BitwiseNot", "add": "Add", "sub": "Sub", "mul": "Mul",
    "div": "Div", "maximum": "Max", "minimum": "Min", "eq": "Equal", "lt": "Less",
    "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual", "and": "And", "or": "Or",
    "xor": "Xor", "bit_and": "BitwiseAnd", "bit_or": "BitwiseOr", "bit_xor": "BitwiseXor",
    "where": "Where", "matmul": "MatMul",
}  # fmt: skip


@inline(*_SAME)
def same(b: Builder, node: Node, *xs: str) -> str:
    return b.op(_SAME[node.op.name], *xs)


@inline("cast")
def cast(b: Builder, node: Node, x: str) -> str:
    """To bf16: rounded to it, and kept as f32."""
    dtype = node.outputs[0].type.dtype
    if dtype == BF16:
        x = b.op("Cast", x, to=16)
    return b.op("Cast", x, to=elem_type(dtype))


@inline("bitcast")
def bitcast(b: Builder, node: Node, x: str) -> str:
    return b.op("BitCast", x, to=elem_type(node.outputs[0].type.dtype))


def _is_float(node: Node) -> bool:
    return node.inputs[0].type.dtype.is_float


@fused("ne")
def ne(b: Builder, node: Node, x: str, y: str) -> str:
    return b.op("Not", b.op("Equal", x, y))


@inline("relu")
def relu(b: Builder, node: Node, x: str) -> str:
    return b.op("Relu", x) if _is_float(node) else b.op("Max", x, b.like(0, x))


@fused("rsqrt")
def rsqrt(b: Builder, node: Node, x: str) -> str:
    return b.op("Reciprocal", b.op("Sqrt", x))


@fused("silu")
def silu(b: Builder, node: Node, x: str) -> str:
    return activated(b, "silu", x)


@inline("gelu", "gelu_tanh")
def gelu(b: Builder, node: Node, x: str) -> str:
    return activated(b, node.op.name, x)


def activated(b: Builder, name: str, x: str) -> str:
    if name == "silu":
        return b.op("Mul", x, b.op("Sigmoid", x))
    if name in ("gelu", "gelu_tanh"):
        return b.op("Gelu", x, approximate="tanh" if name == "gelu_tanh" else "none")
    return b.op({"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh"}[name], x)


@fused("expm1")
def expm1(b: Builder, node: Node, x: str) -> str:
    """2 t / (1 - t) with t = tanh(x / 2) near 0."""
    t = b.op("Tanh", b.op("Mul", x, b.like(0.5, x)))
    near = b.op("Div", b.op("Add", t, t), b.op("Sub", b.like(1, x), t))
    far = b.op("Sub", b.op("Exp", x), b.like(1, x))
    return b.op("Where", b.op("Less", b.op("Abs", x), b.like(1, x)), near, far)


@fused("log1p")
def log1p(b: Builder, node: Node, x: str) -> str:
    """2 atanh(x / (2 + x)) near 0."""
    half = b.op("Atanh", b.op("Div", x, b.op("Add", x, b.like(2, x))))
    far = b.op("Log", b.op("Add", x, b.like(1, x)))
    return b.op("Where", b.op("Less", b.op("Abs", x), b.like(0.5, x)), b.op("Add", half, half), far)


@fused("log2", "log10")
def log_of(b: Builder, node: Node, x: str) -> str:
    base = 2 if node.op.name == "log2" else 10
    return b.op("Div", b.op("Log", x), b.like(math.log(base), x))


@fused("trunc")
def trunc(b: Builder, node: Node, x: str) -> str:
    return truncated(b, x)


def truncated(b: Builder, x: str) -> str:
    return b.op("Mul", b.op("Sign", x), b.op("Floor", b.op("Abs", x)))


@inline("fmod")
def fmod(b: Builder, node: Node, x: str, y: str) -> str:
    return b.op("Mod", x, y, fmod=1)


@fused("mod")
def mod(b: Builder, node: Node, x: str, y: str) -> str:
    """With the sign of the divisor."""
    if not _is_float(node):
        return b.op("Mod", x, y)
    rest, zero = b.op("Mod", x, y, fmod=1), b.like(0, x)
    differ = b.op("Xor", b.op("Less", rest, zero), b.op("Less", y, zero))
    uneven = b.op("Not", b.op("Equal", rest, zero))
    return b.op("Where", b.op("And", uneven, differ), b.op("Add", rest, y), rest)


@fused("floor_div")
def floor_div(b: Builder, node: Node, x: str, y: str) -> str:
    if _is_float(node):
        return b.op("Floor", b.op("Div", x, y))
    if node.inputs[0].type.dtype.is_unsigned:
        return b.op("Div", x, y)
    return _floored(b, x, y)


def _floored(b: Builder, x: str, y: str) -> str:
    """Of integers: the quotient is one less where it was cut the other way."""
    quotient, zero = b.op("Div", x, y), b.like(0, x)
    uneven = b.op("Not", b.op("Equal", b.op("Mul", quotient, y), x))
    below = b.op("Xor", b.op("Less", x, zero), b.op("Less", y, zero))
    return b.op("Where", b.op("And", uneven, below), b.op("Sub", quotient, b.like(1, x)), quotient)


@fused("trunc_div")
def trunc_div(b: Builder, node: Node, x: str, y: str) -> str:
    quotient = b.op("Div", x, y)
    return truncated(b, quotient) if _is_float(node) else quotient


@fused("atan2")
def atan2(b: Builder, node: Node, y: str, x: str) -> str:
    zero = b.like(0, x)
    turn = b.op("Where", b.op("Less", y, zero), b.like(-math.pi, x), b.like(math.pi, x))
    angle = b.op("Atan", b.op("Div", y, x))
    moved = b.op("Where", b.op("Less", x, zero), b.op("Add", angle, turn), angle)
    return b.op("Where", b.op("IsNaN", moved), zero, moved)


def _wide(b: Builder, node: Node, kind: str, *xs: str) -> str:
    """ONNX defines some ops for few integers: i64 has the same low bits."""
    dtype = node.inputs[0].type.dtype
    if dtype.is_float or dtype in (I32, I64):
        return b.op(kind, *xs)
    return b.cast(b.op(kind, *(b.cast(x, I64) for x in xs)), dtype)


@inline("neg")
def neg(b: Builder, node: Node, x: str) -> str:
    return _wide(b, node, "Neg", x)


@inline("pow")
def power(b: Builder, node: Node, x: str, y: str) -> str:
    return _wide(b, node, "Pow", x, y)


@fused("shift_left", "shift_right")
def shift(b: Builder, node: Node, x: str, y: str) -> str:
    """ONNX shifts unsigned numbers; to the right, the sign is kept by dividing."""
    dtype = node.inputs[0].type.dtype
    if node.op.name == "shift_left":
        up = b.op("BitShift", b.cast(x, U64), b.cast(y, U64), direction="LEFT")
        return b.cast(up, dtype)
    if dtype.is_unsigned:
        return b.op("BitShift", x, y, direction="RIGHT")
    by = b.cast(b.op("BitShift", b.const(1, np.uint64), b.cast(y, U64), direction="LEFT"), I64)
    return b.cast(_floored(b, b.cast(x, I64), by), dtype)


# Movement -------------------------------------------------------------------------------------


@inline("reshape")
def reshape(b: Builder, node: Node, x: str) -> str:
    shape = node.outputs[0].type.shape
    unknown = [i for i, d in enumerate(shape) if not isinstance(d, int)]
    if len(unknown) == 1 and 0 not in shape:
        return b.reshape(x, *(int(d) if isinstance(d, int) else -1 for d in shape))
    return b.op("Reshape", x, b.shape(shape))


@inline("transpose")
def transpose(b: Builder, node: Node, x: str) -> str:
    return b.op("Transpose", x, perm=list(vars(node.op)["permutation"]))


@inline("slice")
def slice_(b: Builder, node: Node, x: str) -> str:
    op: Any = node.op
    bounds = b.dim(op.start), b.dim(op.stop)
    return b.op("Slice", x, *bounds, b.ints(op.axis), b.ints(op.step))


@inline("concat")
def concat(b: Builder, node: Node, *xs: str) -> str:
    return b.op("Concat", *xs, axis=vars(node.op)["axis"])


@inline("broadcast")
def broadcast(b: Builder, node: Node, x: str) -> str:
    return b.op("Expand", x, b.shape(node.outputs[0].type.shape))


@inline("iota")
def iota(b: Builder, node: Node) -> str:
    op: Any = node.op
    size = b.op("Squeeze", b.dim(op.size), b.ints(0))
    count = b.op("Range", b.const(0, np.int64), size, b.const(1, np.int64))
    return b.cast(count, op.dtype)


@inline("take_axis", "gather_rows", "embedding")
def take_axis(b: Builder, node: Node, x: str, ids: str) -> str:
    return b.op("Gather", x, ids, axis=vars(node.op).get("axis", 0))


@fused("put_axis")
def put_axis(b: Builder, node: Node, x: str, ids: str, source: str) -> str:
    op: Any = node.op
    rank = node.inputs[0].type.rank
    column = b.reshape(ids, *(-1 if i == op.axis else 1 for i in range(rank)))
    places = b.op("Expand", column, b.op("Shape", source))
    how = {} if op.how == "put" else {"reduction": op.how}
    return b.op("ScatterElements", x, places, source, axis=op.axis, **how)


@inline("take_along")
def take_along(b: Builder, node: Node, x: str, ids: str) -> str:
    return b.op("GatherElements", x, ids, axis=node.inputs[0].type.rank - 1)


@inline("put_along")
def put_along(b: Builder, node: Node, x: str, ids: str, source: str) -> str:
    return b.op("ScatterElements", x, ids, source, axis=node.inputs[0].type.rank - 1)


# Reductions and order -------------------------------------------------------------------------

_REDUCTIONS = {
    "sum": "ReduceSum",
    "mean": "ReduceMean",
    "max": "ReduceMax",
    "min": "ReduceMin",
    "prod": "ReduceProd",
}


@inline(*_REDUCTIONS)
def reduction(b: Builder, node: Node, x: str) -> str:
    op: Any = node.op
    return b.op(_REDUCTIONS[op.name], x, b.ints(op.axis), keepdims=int(op.keepdim))


@inline("argmax", "argmin")
def place(b: Builder, node: Node, x: str) -> str:
    op: Any = node.op
    kind = "ArgMax" if op.name == "argmax" else "ArgMin"
    return b.cast(b.op(kind, x, axis=op.axis, keepdims=int(op.keepdim)), I32)


@inline("softmax")
def softmax(b: Builder, node: Node, x: str) -> str:
    return b.op("Softmax", x, axis=vars(node.op)["axis"])


@inline("top_k")
def top_k(b: Builder, node: Node, x: str) -> tuple[str, str]:
    values, ids = b.several("TopK", 2, x, b.ints(vars(node.op)["k"]))
    return values, b.cast(ids, I32)


@inline("cumsum")
def cumsum(b: Builder, node: Node, x: str) -> str:
    dtype = node.inputs[0].type.dtype
    wide = x if dtype.is_float or dtype in (I32, I64) else b.cast(x, I64)
    y = b.op("CumSum", wide, b.const(-1, np.int64))
    return y if wide == x else b.cast(y, dtype)


# Windows --------------------------------------------------------------------------------------


@fused("convolution")
def convolution(b: Builder, node: Node, x: str, w: str, *bias: str) -> str:
    op: Any = node.op
    shared = {"strides": list(op.stride), "dilations": list(op.dilation), "group": op.groups}
    if not op.transposed:
        x, pads = _padded(b, x, op.before, op.after)
        return b.op("Conv", x, w, *bias, pads=pads, **shared)
    shape = [int(d) for d in node.inputs[1].type.shape]
    groups, kernel = op.groups, shape[2:]
    apart = b.reshape(w, groups, shape[0] // groups, shape[1], *kernel)
    order = [0, 2, 1, *range(3, 3 + len(kernel))]
    turned = b.reshape(
        b.op("Transpose", apart, perm=order), groups * shape[1], shape[0] // groups, *kernel
    )
    cut = [*op.before, *(max(a, 0) for a in op.after)]
    more = [max(-a, 0) for a in op.after]
    return b.op("ConvTranspose", x, turned, *bias, pads=cut, output_padding=more, **shared)


def _padded(b: Builder, x: str, before: Any, after: Any) -> tuple[str, list[int]]:
    """What cuts is done apart: pads of a window are never negative."""
    cuts = [0, 0, *(min(p, 0) for p in before), 0, 0, *(min(p, 0) for p in after)]
    x = b.op("Pad", x, b.ints(*cuts)) if any(cuts) else x
    return x, [max(p, 0) for p in (*before, *after)]


@fused("max_pool")
def max_pool(b: Builder, node: Node, x: str) -> tuple[str, str]:
    op: Any = node.op
    x, pads = _padded(b, x, op.before, op.after)
    attributes = {"strides": list(op.stride), "dilations": list(op.dilation), "pads": pads}
    values, ids = b.several("MaxPool", 2, x, kernel_shape=list(op.kernel), **attributes)
    plane = b.op("ReduceProd", b.op("Shape", x, start=2), keepdims=0)
    return values, b.cast(b.op("Mod", ids, plane), I32)


@fused("avg_pool")
def avg_pool(b: Builder, node: Node, x: str) -> str:
    op: Any = node.op
    places = _counts(node) if op.count_padding and op.pads != op.after and not op.divisor else None
    x, pads = _padded(b, x, op.before, op.after)
    attributes = {"strides": list(op.stride), "dilations": list(op.dilation), "pads": pads}
    counts = bool(op.divisor) or op.count_padding
    y = b.op(
        "AveragePool", x, kernel_shape=list(op.kernel), count_include_pad=int(counts), **attributes
    )
    if places is not None:
        return b.op("Mul", y, b.const(math.prod(op.kernel) / places))
    return b.op("Mul", y, b.const(math.prod(op.kernel) / op.divisor)) if op.divisor else y


def _counts(node: Node) -> np.ndarray:
    """What each window divides by, where some reach beyond the padding that counts."""
    op: Any = node.op
    shape = node.inputs[0].type.shape
    if not all(isinstance(d, int) for d in shape[2:]):
        raise FrontendError(f"avg_pool: expected spatial axes of known size, got {shape}")
    ones = np.ones((1, 1, *(int(d) for d in shape[2:])), np.float32)
    everywhere = dataclasses.replace(op, divisor=1)
    return np.asarray(everywhere.reference(ones) / op.reference(ones), np.float32)
