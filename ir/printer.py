"""Graph to text, for `sglk show --graph` and `sglk opt`. `ir.parser` reads the same form back."""

from __future__ import annotations

import base64
import dataclasses
import zlib
from collections.abc import Iterable

import numpy as np
import sympy

from ..errors import VerifyError
from .dim import dim_text
from .dtype import DType
from .graph import Graph, Node, Value
from .op import Op

INLINE_ELEMENTS = 16
"""Constants up to this size print as numbers, larger ones as zlib + base64 of their bytes."""


def print_graph(graph: Graph) -> str:
    """The whole graph, one value per line."""
    lines = [f"graph {graph.name}({', '.join(_declare(v) for v in graph.inputs)}) {{"]
    lines += [f"  param {_declare(v)}" for v in graph.params]
    lines += [f"  state {_declare(v)}" for v in graph.states]
    lines += [f"  const {_declare(v)} = {_data_text(v)}" for v in graph.consts]
    lines += [f"  {print_node(node)}" for node in graph.nodes]
    lines += [f"  return {_operands(graph.outputs)}", "}"]
    return "\n".join(lines) + "\n"


def print_node(node: Node) -> str:
    """``%y: f32[tokens, 576] = rmsnorm(%x, %w) {eps=1e-05}``"""
    results = ", ".join(_declare(v) for v in node.outputs)
    where = f"  # {' '.join(node.source.split())}" if node.source else ""
    return f"{results} = {node.op.name}({_operands(node.inputs)}){print_attributes(node.op)}{where}"


def print_attributes(op: Op) -> str:
    """The fields that differ from their defaults, as `` {name=value, ...}``."""
    shown = [
        f"{f.name}={attribute_text(getattr(op, f.name))}"
        for f in dataclasses.fields(op)
        if f.default is dataclasses.MISSING or getattr(op, f.name) != f.default
    ]
    return f" {{{', '.join(shown)}}}" if shown else ""


def attribute_text(value: object) -> str:
    if isinstance(value, tuple):
        inner = ", ".join(attribute_text(v) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, DType):
        return value.name
    if isinstance(value, sympy.Expr):
        return dim_text(value)
    if isinstance(value, str):
        escaped = value.encode("unicode_escape").decode().replace('"', '\\"')
        return f'"{escaped}"'
    if value is None or isinstance(value, bool | int):
        return str(value)
    if isinstance(value, float):
        return repr(float(value))  # also for NumPy's subclass, whose own repr names its type
    raise VerifyError(f"attribute {value!r}: expected plain data, got {type(value).__name__}")


def _declare(value: Value) -> str:
    return f"%{value.name}: {value.type}"


def _operands(values: Iterable[Value]) -> str:
    return ", ".join(f"%{v.name}" for v in values)


def _data_text(value: Value) -> str:
    assert value.data is not None
    data = value.data
    if data.size <= INLINE_ELEMENTS:
        return "[" + ", ".join(_number(x) for x in data.ravel()) + "]"
    packed = zlib.compress(np.ascontiguousarray(data).tobytes(), 9)
    return f'"{base64.b64encode(packed).decode()}"'


def _number(x: np.generic) -> str:
    if isinstance(x, np.bool_):
        return "1" if x else "0"
    return repr(x.item())  # shortest text that reads back to the same value (widened to f64)
