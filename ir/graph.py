"""The graph: SSA values made by nodes in order. Edits go through append, replace and erase only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from ..errors import VerifyError
from .op import Op, result_types
from .types import TensorType

Kind = Literal["input", "param", "state", "const", "node"]
NAME = r"[\w./:-]+"
"""Names of graphs and values, as a regular expression: the text form must be able to read them
back."""


def _checked(name: str) -> str:
    if not re.fullmatch(NAME, name):
        raise VerifyError(f"name {name!r}: expected letters, digits and _ . / : - only")
    return name


class Value:
    """One SSA value. ``kind`` says where it comes from; only "node" values have a producer.

    ``param`` values are weights by name; ``const`` values carry ``data`` (a NumPy array);
    ``state`` values (KV pages) enter the graph and are chained by ops that return the next state.
    """

    __slots__ = ("data", "index", "kind", "name", "producer", "type", "uses")

    def __init__(
        self,
        type: TensorType,
        kind: Kind,
        name: str,
        producer: Node | None = None,
        index: int = 0,
        data: np.ndarray | None = None,
    ) -> None:
        self.type = type
        self.kind: Kind = kind
        self.name = name
        self.producer = producer
        self.index = index
        self.data = data
        self.uses: list[Node] = []

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"


class Node:
    """One op applied to values. ``source`` is the line of the model it came from, if known."""

    __slots__ = ("inputs", "op", "outputs", "source")
    __match_args__ = ("op", "inputs")

    def __init__(self, op: Op, inputs: list[Value], source: str = "") -> None:
        self.op = op
        self.inputs = inputs
        self.outputs: list[Value] = []
        self.source = source

    def __repr__(self) -> str:
        args = ", ".join(f"%{v.name}" for v in self.inputs)
        return f"{', '.join(map(repr, self.outputs))} = {self.op.name}({args})"


class Graph:
    """Inputs, parameters, states and constants; nodes in execution order; outputs.

    >>> from .dtype import F32
    >>> from .ops.norm import RmsNorm
    >>> graph = Graph("tiny")
    >>> x = graph.input("x", TensorType(F32, (4, 8)))
    >>> graph.outputs = [graph.emit(RmsNorm(1e-5), x, graph.param("w", TensorType(F32, (8,))))]
    >>> print(graph.as_text(), end="")
    graph tiny(%x: f32[4, 8]) {
      param %w: f32[8]
      %0: f32[4, 8] = rmsnorm(%x, %w) {eps=1e-05}
      return %0
    }
    """

    def __init__(self, name: str = "graph") -> None:
        self.name = _checked(name)
        self.inputs: list[Value] = []
        self.params: list[Value] = []
        self.states: list[Value] = []
        self.consts: list[Value] = []
        self.nodes: list[Node] = []
        self.outputs: list[Value] = []
        self._names: set[str] = set()
        self._counter = 0

    # Building -------------------------------------------------------------------------------

    def _fresh(self, wanted: str = "") -> str:
        name = _checked(wanted) if wanted else ""
        while not name or name in self._names:
            name = f"{wanted}_{self._counter}" if wanted else str(self._counter)
            self._counter += 1
        self._names.add(name)
        return name

    def _named(self, home: list[Value], kind: Kind, name: str, type: TensorType) -> Value:
        if name in self._names:
            raise VerifyError(f"graph {self.name}: %{name} is defined twice")
        self._names.add(_checked(name))
        home.append(Value(type, kind, name))
        return home[-1]

    def input(self, name: str, type: TensorType) -> Value:
        return self._named(self.inputs, "input", name, type)

    def param(self, name: str, type: TensorType) -> Value:
        return self._named(self.params, "param", name, type)

    def state(self, name: str, type: TensorType) -> Value:
        return self._named(self.states, "state", name, type)

    def const(self, data: np.ndarray, type: TensorType, name: str = "") -> Value:
        """A constant; ``data`` has the concrete shape and the NumPy dtype of ``type``."""
        if tuple(data.shape) != type.shape or data.dtype != type.dtype.numpy or type.dtype.is_block:
            raise VerifyError(f"const: expected data of {type}, got {data.dtype} of {data.shape}")
        self.consts.append(Value(type, "const", self._fresh(name or "c"), data=data))
        return self.consts[-1]

    def append(
        self,
        op: Op,
        *inputs: Value,
        before: Node | None = None,
        source: str = "",
        names: Sequence[str] = (),
    ) -> tuple[Value, ...]:
        """Add a node at the end, or just before another one, and return its output values."""
        node = Node(op, list(inputs), source or (before.source if before else ""))
        for i, type in enumerate(result_types(op, [v.type for v in inputs])):
            name = self._fresh(names[i] if i < len(names) else "")
            node.outputs.append(Value(type, "node", name, node, i))
        for value in inputs:
            value.uses.append(node)
        self.nodes.insert(self.nodes.index(before) if before else len(self.nodes), node)
        return tuple(node.outputs)

    def emit(self, op: Op, *inputs: Value, before: Node | None = None, source: str = "") -> Value:
        """`append` for ops with one output."""
        (value,) = self.append(op, *inputs, before=before, source=source)
        return value

    # Editing --------------------------------------------------------------------------------

    def replace(self, old: Value, new: Value) -> None:
        """Let every user of ``old``, graph outputs included, read ``new``. ``old`` stays until
        erased."""
        if old is new:
            return
        for node in old.uses:
            node.inputs = [new if v is old else v for v in node.inputs]
        new.uses.extend(old.uses)
        old.uses = []
        self.outputs = [new if v is old else v for v in self.outputs]

    def set_input(self, node: Node, index: int, value: Value) -> None:
        """Let one operand of one node read another value."""
        node.inputs[index].uses.remove(node)
        node.inputs[index] = value
        value.uses.append(node)

    def rename(self, value: Value, name: str) -> None:
        """Another name for a value; one that has it already gets a fresh one."""
        holder = next((v for v in self.values() if v.name == name), None)
        if holder is value:
            return
        self._names.discard(value.name)
        if holder is not None:
            holder.name = self._fresh()
        value.name = _checked(name)
        self._names.add(name)

    def erase(self, node: Node) -> None:
        """Remove a node whose outputs nobody reads; a live one is refused."""
        for value in node.outputs:
            if value.uses or self.is_output(value):
                raise VerifyError(
                    f"erase {node!r}: expected no users, got {value.uses or 'the output'}"
                )
        for value in node.inputs:
            value.uses.remove(node)
        for value in node.outputs:
            self._names.discard(value.name)
        self.nodes.remove(node)

    def erase_dead(self) -> bool:
        """Remove every node, constant and parameter that no output or state depends on."""
        changed = False
        for node in reversed(list(self.nodes)):
            if not any(v.uses or self.is_output(v) for v in node.outputs):
                self.erase(node)
                changed = True
        for home in (self.consts, self.params):
            dead = [v for v in home if not v.uses and not self.is_output(v)]
            self._names.difference_update(v.name for v in dead)
            home[:] = [v for v in home if v.uses or self.is_output(v)]
            changed |= bool(dead)
        return changed

    def is_output(self, value: Value) -> bool:
        return any(v is value for v in self.outputs)

    def become(self, other: Graph) -> None:
        """Take over the contents of ``other``, which is spent: for passes that rebuild a graph."""
        self.__dict__.update(other.__dict__)

    # Reading --------------------------------------------------------------------------------

    def values(self) -> Iterator[Value]:
        """Every value, leaves first."""
        yield from (*self.inputs, *self.params, *self.states, *self.consts)
        for node in self.nodes:
            yield from node.outputs

    def find(self, name: str) -> Value:
        """The value of that name; an unknown one raises `VerifyError`."""
        for value in self.values():
            if value.name == name:
                return value
        raise VerifyError(f"graph {self.name}: no value %{name}")

    def static_values(self) -> set[Value]:
        """Values of known size that depend on parameters and constants alone: computed once, when
        weights are packed."""
        static = {*self.params, *self.consts}
        for node in self.nodes:
            known = all(isinstance(d, int) for v in node.outputs for d in v.type.shape)
            if known and node.inputs and all(v in static for v in node.inputs):
                static.update(node.outputs)
        return static

    def as_text(self) -> str:
        from .printer import print_graph  # the printer needs Graph; keep the import one-way at load

        return print_graph(self)

    def __str__(self) -> str:
        return self.as_text()

    def __eq__(self, other: Any) -> bool:
        """Graphs are compared by identity; compare `as_text()` for structure."""
        return self is other

    __hash__ = object.__hash__
