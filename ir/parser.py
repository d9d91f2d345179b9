"""Text to graph: reads what `ir.printer` writes. Types of results are inferred again and compared."""

from __future__ import annotations

import ast
import base64
import binascii
import dataclasses
import re
import zlib
from typing import Any

import numpy as np

from ..errors import VerifyError
from . import ops as _ops  # noqa: F401  (op classes register themselves when loaded)
from .dim import dim_from_ast, parse_dim
from .dtype import DTYPES, dtype
from .graph import Graph, Value
from .op import OPS, Op
from .types import TensorType

_HEADER = re.compile(r"graph (?P<name>[\w.-]+)\((?P<inputs>.*)\) \{$")
_LEAF = re.compile(
    r"(?P<kind>param|state|const) %(?P<name>[\w.]+): (?P<type>[^=]+?)(?: = (?P<data>.+))?$"
)
_NODE = re.compile(
    r"(?P<results>%.+?) = (?P<op>[\w.]+)\((?P<operands>[^)]*)\)(?: \{(?P<attributes>.*)\})?(?:  # (?P<source>.*))?$"
)
_DECLARED = re.compile(r"%(?P<name>[\w.]+): (?P<type>\w+\[[^\]]*\])")


def parse_graph(text: str) -> Graph:
    """Read one graph; a line that does not fit raises `VerifyError` with its number."""
    return _Reader(text).read()


def parse_type(text: str) -> TensorType:
    """``f32[tokens, 576]``"""
    match = re.fullmatch(r"(\w+)\[(.*)\]", text.strip())
    if not match:
        raise VerifyError(f"type {text!r}: expected a form such as f32[tokens, 576]")
    dims = ast.parse(f"({match[2]},)" if match[2] else "()", mode="eval").body
    assert isinstance(dims, ast.Tuple)
    return TensorType(dtype(match[1]), tuple(dim_from_ast(d) for d in dims.elts))


class _Reader:
    def __init__(self, text: str) -> None:
        self.lines = list(enumerate(text.splitlines(), start=1))
        self.known: dict[str, Value] = {}
        self.graph = Graph()
        self.returned = False

    def read(self) -> Graph:
        for number, line in self.lines:
            try:
                self._line(line.strip())
            except (VerifyError, SyntaxError, ValueError) as error:
                raise VerifyError(f"line {number}: {error} (in: {line.strip()[:120]})") from error
        if not self.returned:
            raise VerifyError("graph text: expected a line 'return ...', got none")
        return self.graph

    def _line(self, line: str) -> None:
        if not line or line == "}" or line.startswith("#"):
            return
        if match := _HEADER.match(line):
            self._header(match)
        elif match := _LEAF.match(line):
            self._leaf(match)
        elif line.startswith("return"):
            self.graph.outputs = self._operands(line.removeprefix("return"))
            self.returned = True
        elif match := _NODE.match(line):
            self._node(match)
        else:
            raise VerifyError("expected a header, param, state, const, node or return line")

    def _header(self, match: re.Match[str]) -> None:
        self.graph = Graph(match["name"])
        for declared in _DECLARED.finditer(match["inputs"]):
            value = self.graph.input(declared["name"], parse_type(declared["type"]))
            self.known[value.name] = value

    def _leaf(self, match: re.Match[str]) -> None:
        type = parse_type(match["type"])
        if match["kind"] == "const":
            value = self.graph.const(_parse_data(match["data"] or "", type), type, match["name"])
        elif match["kind"] == "param":
            value = self.graph.param(match["name"], type)
        else:
            value = self.graph.state(match["name"], type)
        self.known[match["name"]] = value

    def _node(self, match: re.Match[str]) -> None:
        op = make_op(match["op"], parse_attributes(match["attributes"] or ""))
        declared = [
            (m["name"], parse_type(m["type"])) for m in _DECLARED.finditer(match["results"])
        ]
        operands = self._operands(match["operands"])
        names = [name for name, _ in declared]
        outputs = self.graph.append(op, *operands, source=match["source"] or "", names=names)
        for (name, type), value in zip(declared, outputs, strict=True):
            if value.type != type or value.name != name:
                raise VerifyError(f"expected {value!r}, got %{name}: {type}")
            self.known[name] = value

    def _operands(self, text: str) -> list[Value]:
        names = [part.strip().removeprefix("%") for part in text.split(",") if part.strip()]
        missing = [name for name in names if name not in self.known]
        if missing:
            raise VerifyError(f"%{missing[0]} is read before it is defined")
        return [self.known[name] for name in names]


def parse_attributes(text: str) -> dict[str, Any]:
    """``eps=1e-05, shape=(tokens, 9, 64)`` as values; bare names are dtypes or dims."""
    call = ast.parse(f"op({text})", mode="eval").body
    assert isinstance(call, ast.Call)
    if call.args:
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
    fields = {f.name for f in dataclasses.fields(OPS[name])}
    unknown = set(attributes) - fields
    if unknown:
        raise VerifyError(
            f"op {name}: expected attributes among {sorted(fields)}, got {sorted(unknown)}"
        )
    try:
        return OPS[name](**attributes)
    except TypeError as error:
        raise VerifyError(f"op {name}: {error}") from error


def _parse_data(text: str, type: TensorType) -> np.ndarray:
    shape = type.concrete({})
    if text.startswith('"'):
        try:
            raw = zlib.decompress(base64.b64decode(text.strip('"'), validate=True))
        except (binascii.Error, zlib.error) as error:
            raise VerifyError(f"constant data: {error}") from error
        return np.frombuffer(raw, type.dtype.numpy).reshape(shape)
    numbers = [
        float(n) if type.dtype.is_float else int(n)
        for n in text.strip("[]").split(",")
        if n.strip()
    ]
    return np.array(numbers, type.dtype.numpy).reshape(shape)


__all__ = ["make_op", "parse_attributes", "parse_dim", "parse_graph", "parse_type"]
