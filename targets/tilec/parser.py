"""TTIR text (MLIR custom assembly, one function) to the SSA form of `ir`.

One generic rule reads most operations: operands are the ``%names`` before the colon, attributes
the ``key = value`` pairs, types what follows the colon. Only operations with regions have a rule
of their own. An operation nobody knows still parses; the back end then names all of them at once.
"""

from __future__ import annotations

import struct

from ...errors import LoweringError
from .ir import (
    I1,
    Attribute,
    Block,
    Function,
    Op,
    Pointer,
    Scalar,
    Type,
    Value,
    element_of,
    link_users,
    with_element,
)
from .lexer import Tokens, is_type, parse_type, split_locations


def parse(text: str) -> Function:
    """The one function of a TTIR module."""
    body, locations = split_locations(text)
    return link_users(_Parser(Tokens(body), locations).module())


TERMINATORS = ("scf.yield", "scf.condition", "tt.return", "tt.reduce.return", "tt.scan.return")


class _Parser:
    def __init__(self, tokens: Tokens, locations: dict[str, str]) -> None:
        self.t = tokens
        self.locations = locations
        self.values: dict[str, Value] = {}
        self.place = ""

    def module(self) -> Function:
        while self.t.peek() != "tt.func":
            if self.t.kind() == "end":
                raise LoweringError("ttir: expected a tt.func, got none")
            self.t.next()
        function = self.function()
        while self.t.kind() != "end":
            if self.t.next() == "tt.func":
                raise LoweringError("ttir: expected one function, got two (inline the calls)")
        return function

    def function(self) -> Function:
        self.t.expect("tt.func")
        while not self.t.peek().startswith("@"):
            self.t.next()
        name = self.t.next()[1:]
        self.t.expect("(")
        args = self.block_args(")")
        while not self.t.take("{"):
            if self.t.take("attributes"):
                self.t.expect("{")
                self.attributes("}")
            else:
                self.t.next()
        return Function(name, args, self.block_body(args))

    def block_args(self, close: str) -> list[Value]:
        args = []
        while not self.t.take(close):
            name = self.t.next()
            self.t.expect(":")
            args.append(self.define(name, parse_type(self.t.next()), None))
            if self.t.take("{"):
                self.attributes("}")
            self.location()
            self.t.take(",")
        return args

    def define(self, name: str, type_: Type, op: Op | None) -> Value:
        value = Value(name, type_, op)
        self.values[name] = value
        return value

    def use(self, name: str) -> Value:
        if name in self.values:
            return self.values[name]
        if f"{name}#0" in self.values:
            return self.values[f"{name}#0"]
        raise LoweringError(f"ttir: expected a defined value, got {name}")

    def region(self) -> Block:
        self.t.expect("{")
        args: list[Value] = []
        if self.t.peek().startswith("^"):
            self.t.next()
            args = self.block_args(")") if self.t.take("(") else []
            self.t.expect(":")
        return self.block_body(args)

    def block_body(self, args: list[Value]) -> Block:
        block = Block(args, [])
        while not self.t.take("}"):
            if self.t.peek().startswith("^"):
                raise LoweringError("ttir: expected structured control flow, got several blocks")
            block.ops.append(self.op())
        if not block.ops or block.ops[-1].name not in TERMINATORS:
            block.ops.append(Op("scf.yield", [], [], {}, [], ""))  # the text leaves empty ones out
        return block

    def op(self) -> Op:
        names, count = self.result_names()
        quoted = self.t.kind() == "string"
        op = Op(self.t.next().strip('"'), [], [], {}, [], "")
        rule = {"scf.for": self.scf_for, "scf.if": self.scf_if, "scf.while": self.scf_while}
        if quoted:
            types = self.generic(op)
        elif op.name in rule:
            types = rule[op.name](op)
        elif op.name == "arith.constant":
            types = self.constant(op)
        else:
            types = self.custom(op)
        op.loc = self.location()
        op.place = self.place
        if names:
            types = _result_types(op, types, count)
            labels = names if len(names) == count else [f"{names[0]}#{i}" for i in range(count)]
            op.results = [self.define(n, ty, op) for n, ty in zip(labels, types, strict=True)]
        return op

    def result_names(self) -> tuple[list[str], int]:
        names: list[str] = []
        count = 0
        while self.t.kind() == "value":
            names.append(self.t.next())
            count += int(self.t.next()) if self.t.take(":") else 1
            self.t.take(",")
        if names:
            self.t.expect("=")
        return names, count

    def location(self) -> str:
        self.place = ""
        if not (self.t.peek() == "loc" and self.t.peek(1) == "("):
            return ""
        self.t.at += 2
        self.place = self.t.peek() if self.t.peek().startswith("#") else ""
        found, depth = "", 1
        while depth:
            token = self.t.next()
            depth += (token == "(") - (token == ")")
            found = found or self.locations.get(token.lstrip("#"), "")
        return found

    def attributes(self, close: str) -> dict[str, Attribute]:
        attrs: dict[str, Attribute] = {}
        while not self.t.take(close):
            key = self.t.next().strip('"')
            attrs[key] = self.attribute() if self.t.take("=") else True
            self.t.take(",")
        return attrs

    def attribute(self) -> Attribute:
        kind, text = self.t.kind(), self.t.next()
        if text == "array":
            return self.array()
        if text in ("dense", "[", "(") or text.startswith("#"):
            return self.skip_balanced(text)
        if self.t.peek() == ":" and kind == "number":
            self.t.at += 2
        return int(text) if kind == "number" and text.lstrip("-").isdigit() else text.strip('"')

    def array(self) -> tuple[int, ...]:
        self.t.expect("<")
        self.t.next()
        items: list[int] = []
        self.t.take(":")
        while not self.t.take(">"):
            items.append(int(self.t.next()))
            self.t.take(",")
        return tuple(items)

    def skip_balanced(self, start: str) -> str:
        pairs = {"[": "]", "(": ")", "<": ">"}
        close = pairs.get(start) or (pairs.get(self.t.peek()) if self.t.peek() == "<" else None)
        depth = 1 if start in pairs else 0
        while close and (depth or self.t.peek() == "<"):
            token = self.t.next()
            depth += (pairs.get(token) == close) - (token == close)
        return start

    def types(self) -> list[Type]:
        """Types up to the end of the operation; ``->`` and ``to`` keep only what follows."""
        found: list[Type] = []
        while True:
            if is_type(self.t.items[self.t.at]):
                found.append(parse_type(self.t.next()))
            elif self.t.peek() in ("->", "to"):
                self.t.next()
                found = []
            elif self.t.peek() in ("(", ")", ",", "*"):
                self.t.next()
            else:
                return found

    def custom(self, op: Op) -> list[Type]:
        t = self.t
        while True:
            if t.take(":"):
                return self.types()
            if t.kind() == "value":
                op.operands.append(self.use(t.next()))
            elif t.take("{"):
                op.attrs.update(self.attributes("}"))
            elif t.peek() == "loc" or t.kind() == "end" or t.peek() == "}":
                return []
            elif t.peek() in (",", "[", "]", "(", ")"):
                t.next()
            elif t.peek(1) == "=":
                key = t.next()
                t.next()
                op.attrs[key] = self.attribute()
            else:
                word = t.next()
                op.attrs.setdefault("word", word)
                op.attrs[word] = True

    def generic(self, op: Op) -> list[Type]:
        self.t.expect("(")
        while not self.t.take(")"):
            op.operands.append(self.use(self.t.next()))
            self.t.take(",")
        if self.t.take("<"):
            self.t.expect("{")
            op.attrs.update(self.attributes("}"))
            self.t.expect(">")
        if self.t.take("("):
            while not self.t.take(")"):
                op.regions.append(self.region())
                self.t.take(",")
        if self.t.take("{"):
            op.attrs.update(self.attributes("}"))
        self.t.expect(":")
        return self.types()

    def constant(self, op: Op) -> list[Type]:
        text = self.t.next()
        if text in ("true", "false"):
            op.attrs["value"] = text == "true"
            return [I1]
        if text == "dense":
            self.t.expect("<")
            text = self.t.next()
            if text == "[":
                raise LoweringError("ttir: expected a splat constant, got a list")
            self.t.expect(">")
        self.t.expect(":")
        type_ = parse_type(self.t.next())
        op.attrs["value"] = literal(text, type_)
        return [type_]

    def bindings(self, op: Op, close: str) -> list[Value]:
        """``%arg = %init, ...)``: inits become operands, args wait for their types."""
        args: list[Value] = []
        while not self.t.take(close):
            name = self.t.next()
            self.t.expect("=")
            init = self.use(self.t.next())
            op.operands.append(init)
            args.append(Value(name, init.type))
            self.t.take(",")
        return args

    def scf_for(self, op: Op) -> list[Type]:
        name = self.t.next()
        for separator in ("=", "to", "step"):
            self.t.expect(separator)
            op.operands.append(self.use(self.t.next()))
        args: list[Value] = []
        types: list[Type] = []
        if self.t.take("iter_args"):
            self.t.expect("(")
            args = self.bindings(op, ")")
            types = self.types()
        if self.t.take(":"):
            self.t.next()
        index = Value(name, op.operands[0].type)
        self.values.update({value.name: value for value in (index, *args)})
        self.t.expect("{")
        op.regions = [self.block_body([index, *args])]
        if self.t.take("{"):
            op.attrs.update(self.attributes("}"))
        return types

    def scf_if(self, op: Op) -> list[Type]:
        op.operands.append(self.use(self.t.next()))
        types = self.types()
        op.regions = [self.region()]
        if self.t.take("else"):
            op.regions.append(self.region())
        return types

    def scf_while(self, op: Op) -> list[Type]:
        args = self.bindings(op, ")") if self.t.take("(") else []
        self.values.update({value.name: value for value in args})
        self.t.expect(":")
        types = self.types()
        self.t.expect("{")
        before = self.block_body(args)
        self.t.expect("do")
        op.regions = [before, self.region()]
        return types


def literal(text: str, type_: Type) -> Attribute:
    element = element_of(type_)
    if text in ("true", "false"):
        return text == "true"
    if isinstance(element, Pointer) or not element.is_float:
        number = int(text, 0)
        return bool(number) if element == I1 else number
    if text.startswith("0x"):
        return _float_bits(int(text, 16), element)
    return float(text)


def _float_bits(bits: int, element: Scalar) -> float:
    if element.name == "bf16":
        return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])
    code, width = {"f16": ("<e", "<H"), "f32": ("<f", "<I"), "f64": ("<d", "<Q")}[element.name]
    return float(struct.unpack(code, struct.pack(width, bits))[0])


def _result_types(op: Op, types: list[Type], count: int) -> list[Type]:
    """What the text leaves to be inferred."""
    if op.name in ("arith.cmpi", "arith.cmpf"):
        return [with_element(types[0], I1)]
    if op.name == "tt.addptr":
        return types[:1]
    if op.name == "arith.select":
        return types[-1:]
    if op.name == "tt.load":
        pointer = element_of(types[0])
        if not isinstance(pointer, Pointer):
            raise LoweringError(f"ttir: expected a load of pointers, got {types[0]} at {op.loc}")
        return [with_element(types[0], pointer.element)]
    if op.name == "tt.split":
        return [types[0], types[0]]
    if len(types) < count:
        raise LoweringError(f"ttir: expected {count} result types of {op.name}, got {len(types)}")
    return types[-count:] if not op.regions else types[:count]
