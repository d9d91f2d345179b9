"""Text to graph: reads what `ir.printer` writes; result types are inferred again and compared."""

from __future__ import annotations

import ast
import base64
import binascii
import dataclasses
import re
import typing
import zlib
from types import UnionType
from typing import Any

import numpy as np

from ..errors import VerifyError
from . import ops as _ops  # noqa: F401  (op classes register themselves when loaded)
from .dim import dim_from_ast, parse_dim, parse_expression
from .dtype import DTYPES, dtype
from .graph import NAME, Graph, Value
from .op import OPS, Op
from .types import TensorType

_TYPE = r"\w+\[[^\]]*\]"
_STRING = r'"(?:[^"\\]|\\.)*"'
_HEADER = re.compile(rf"graph (?P<name>{NAME})\((?P<inputs>.*)\) \{{$")
_LEAF = re.compile(
    rf"(?P<kind>param|state|const) %(?P<name>{NAME}): (?P<type>{_TYPE})(?: = (?P<data>.+))?$"
)
_NODE = re.compile(
    rf"(?P<results>%.+?) = (?P<op>[\w.]+)\((?P<operands>[^)]*)\)"
    rf'(?: \{{(?P<attributes>(?:[^"}}]|{_STRING})*)\}})?(?:  # (?P<source>.*))?$'
)
_DECLARED = re.compile(rf"%(?P<name>{NAME}): (?P<type>{_TYPE})")
_DECLARATIONS = re.compile(rf"%{NAME}: {_TYPE}(, %{NAME}: {_TYPE})*")


def parse_graph(text: str) -> Graph:
    """Read one graph; a line that does not fit raises `VerifyError` with its number."""
    return _Reader().read(text)


def parse_type(text: str) -> TensorType:
    """``f32[tokens, 576]``"""
    match = re.fullmatch(r"(\w+)\[(.*)\]", text.strip())
    if not match:
        raise VerifyError(f"type {text!r}: expected a form such as f32[tokens, 576]")
    dims = parse_expression(f"({match[2]},)" if match[2] else "()")
    if not isinstance(dims, ast.Tuple):
        raise VerifyError(f"type {text!r}: expected sizes with commas between them")
    return TensorType(dtype(match[1]), tuple(dim_from_ast(d) for d in dims.elts))


class _Reader:
    def __init__(self) -> None:
        self.known: dict[str, Value] = {}
        self.graph: Graph | None = None
        self.closed = False

    def read(self, text: str) -> Graph:
        for number, line in enumerate(text.split("\n"), start=1):
            try:
                self._line(line.strip())
            except VerifyError as error:
                where = f"line {number}: {error} (in: {line.strip()[:120]})"
                raise VerifyError(where) from error
        if self.graph is None or not self.closed:
            raise VerifyError("graph text: expected a line 'return ...', got none")
        return self.graph

    def _line(self, line: str) -> None:
        if not line or line == "}" or line.startswith("#"):
            return
        if self.closed:
            raise VerifyError("expected the end of the graph after 'return'")
        if match := _HEADER.match(line):
            self._header(match)
        elif self.graph is None:
            raise VerifyError("expected a header 'graph NAME(%x: TYPE, ...) {'")
        elif match := _LEAF.match(line):
            self._leaf(self.graph, match)
        elif re.match(r"return\b", line):
            self.graph.outputs = self._operands(line.removeprefix("return"))
            self.closed = True
        elif match := _NODE.match(line):
            self._node(self.graph, match)
        else:
            raise VerifyError("expected a param, state, const, node or return line")

    def _header(self, match: re.Match[str]) -> None:
        if self.graph is not None:
            raise VerifyError("expected one graph, got a second header")
        self.graph = Graph(match["name"])
        for name, type in _declared(match["inputs"]):
            self.known[name] = self.graph.input(name, type)

    def _leaf(self, graph: Graph, match: re.Match[str]) -> None:
        type, name = parse_type(match["type"]), match["name"]
        if (match["kind"] == "const") != bool(match["data"]):
            raise VerifyError("expected data for a const and for nothing else")
        if match["kind"] == "const":
            value = graph.const(_parse_data(match["data"], type), type, name)
        elif match["kind"] == "param":
            value = graph.param(name, type)
        else:
            value = graph.state(name, type)
        self._define(name, value)

    def _node(self, graph: Graph, match: re.Match[str]) -> None:
        op = make_op(match["op"], parse_attributes(match["attributes"] or ""))
        declared = _declared(match["results"])
        operands = self._operands(match["operands"])
        names = [name for name, _ in declared]
        outputs = graph.append(op, *operands, source=match["source"] or "", names=names)
        wanted, got = [v.type for v in outputs], [type for _, type in declared]
        if wanted != got:
            texts = (", ".join(map(str, types)) for types in (wanted, got))
            raise VerifyError("expected results of {}, got {}".format(*texts))
        for name, value in zip(names, outputs, strict=True):
            self._define(name, value)

    def _define(self, name: str, value: Value) -> None:
        """`Graph` renames a value whose name is taken; in a text that is a second definition."""
        if value.name != name:
            raise VerifyError(f"%{name} is defined twice")
        self.known[name] = value

    def _operands(self, text: str) -> list[Value]:
        names = [part.strip().removeprefix("%") for part in text.split(",") if part.strip()]
        missing = [name for name in names if name not in self.known]
        if missing:
            raise VerifyError(f"%{missing[0]} is read before it is defined")
        return [self.known[name] for name in names]


def _declared(text: str) -> list[tuple[str, TensorType]]:
    """``%x: f32[tokens], %y: i32[4]``, and nothing between."""
    if text and not _DECLARATIONS.fullmatch(text):
        raise VerifyError(f"expected '%name: type' with commas between, got {text[:120]!r}")
    return [(m["name"], parse_type(m["type"])) for m in _DECLARED.finditer(text)]


def parse_attributes(text: str) -> dict[str, Any]:
    """``eps=1e-05, shape=(tokens, 9, 64)`` as values; bare names are dtypes or dims."""
    call = parse_expression(f"op({text})")
    if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
        raise VerifyError(f"attributes {text!r}: expected name=value pairs")
    return {str(k.arg): _attribute(k.value) for k in call.keywords}


def _attribute(node: ast.expr) -> Any:
    match node:
        case ast.Tuple(elts=elts) | ast.List(elts=elts):
            return tuple(_attribute(e) for e in elts)
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.Name(id="inf" | "nan" as name):
            return float(name)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf")):
            return float("-inf")
        case ast.Name(id=name) if name in DTYPES:
            return DTYPES[name]
    return dim_from_ast(node)


def make_op(name: str, attributes: dict[str, Any]) -> Op:
    """An op by its registered name; unknown names and attributes raise `VerifyError`."""
    if name not in OPS:
        raise VerifyError(f"unknown op {name!r}")
    fields = typing.get_type_hints(OPS[name])
    own = [f.name for f in dataclasses.fields(OPS[name])]
    unknown = set(attributes) - set(own)
    if unknown:
        raise VerifyError(
            f"op {name}: expected attributes among {sorted(own)}, got {sorted(unknown)}"
        )
    for key, value in attributes.items():
        if not _fits(value, fields[key]):
            raise VerifyError(f"op {name}: expected {key} to be {fields[key]}, got {value!r}")
    try:
        return OPS[name](**attributes)
    except TypeError as error:
        raise VerifyError(f"op {name}: {error}") from error


def _fits(value: object, wanted: Any) -> bool:
    """Whether ``value`` is of an attribute's annotated type: the few forms that ops use."""
    if typing.get_origin(wanted) is tuple:
        item = typing.get_args(wanted)[0]
        return isinstance(value, tuple) and all(_fits(v, item) for v in value)
    if typing.get_origin(wanted) in (UnionType, typing.Union):
        return any(_fits(value, w) for w in typing.get_args(wanted))
    if wanted is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, wanted)


def _parse_data(text: str, type: TensorType) -> np.ndarray:
    try:
        shape = type.concrete({})
        if text.startswith('"'):
            raw = zlib.decompress(base64.b64decode(text.strip('"'), validate=True))
            return np.frombuffer(raw, type.dtype.numpy).reshape(shape)
        read = float if type.dtype.is_float else int
        numbers = [read(n) for n in text.strip("[]").split(",") if n.strip()]
        return np.array(numbers, type.dtype.numpy).reshape(shape)
    except (ValueError, OverflowError, binascii.Error, zlib.error) as error:
        raise VerifyError(f"constant data for {type}: {error}") from error


__all__ = ["make_op", "parse_attributes", "parse_dim", "parse_graph", "parse_type"]
