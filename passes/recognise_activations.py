"""Raises spelled-out activations, x * sigmoid(x) and the two forms of gelu, to one op.

They are written in many ways, so the pass does not match spellings. It takes the elementwise ops
between x and the result, if they read nothing but x and numbers, and evaluates them in f64 at
sample points: a few analytic ops that agree there with an activation to 1e-6 are that activation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..ir.dtype import F32
from ..ir.graph import Graph, Node, Value
from ..ir.op import Op
from ..ir.ops.elementwise import (
    ACTIVATIONS,
    Add,
    Div,
    Erf,
    Exp,
    Gelu,
    GeluTanh,
    Mul,
    Neg,
    Pow,
    Reciprocal,
    Sigmoid,
    Silu,
    Sub,
    Tanh,
)
from .base import Pass
from .patterns import scalar

ANALYTIC = (Add, Sub, Mul, Div, Neg, Exp, Tanh, Erf, Sigmoid, Reciprocal, Pow)
KNOWN: dict[str, Op] = {"silu": Silu(), "gelu": Gelu(), "gelu_tanh": GeluTanh()}
SAMPLES = np.linspace(-9.0, 9.0, 181)
MAX_NODES = 16
"""The longest spelling seen, gelu by tanh, has 10."""
TOLERANCE = 1e-6
"""Constants are f32; gelu and its tanh form differ by 5e-4."""


@dataclass(frozen=True)
class RecogniseActivations(Pass):
    """
    %y = mul(%x, sigmoid(%x))   ->   %y = silu(%x), and likewise `gelu` and `gelu_tanh`.
    Requires: f32.
    """

    name: ClassVar[str] = "recognise-activations"

    def run(self, graph: Graph) -> bool:
        changed = False
        for node in list(graph.nodes):
            if isinstance(node.op, Mul | Div) and node.outputs[0].type.dtype == F32:
                changed |= _raise(graph, node)
        return graph.erase_dead() or changed


def _raise(graph: Graph, node: Node) -> bool:
    for x in _factors(node):
        if x.type != node.outputs[0].type:
            continue
        curve = _curve(node, x)
        for name, op in KNOWN.items() if curve is not None else ():
            if np.max(np.abs(curve - ACTIVATIONS[name](SAMPLES))) < TOLERANCE:
                graph.replace(node.outputs[0], graph.emit(op, x, before=node))
                return True
    return False


def _factors(node: Node) -> Iterator[Value]:
    """The operands of nested products that are no numbers; each known activation is x times ..."""
    pending = [node]
    for _ in range(MAX_NODES):
        if not pending:
            return
        for value in pending.pop().inputs:
            if scalar(value) is not None:
                continue
            yield value
            if value.producer is not None and isinstance(value.producer.op, Mul | Div):
                pending.append(value.producer)


def _curve(node: Node, x: Value) -> np.ndarray | None:
    """The value of ``node`` at the sample points of x; None if it reads anything else."""
    known: dict[Value, np.ndarray] = {x: SAMPLES}
    pending = [node]
    for _ in range(4 * MAX_NODES):
        if not pending:
            return known[node.outputs[0]]
        top = pending[-1]
        missing = [v for v in top.inputs if v not in known]
        if not missing:
            with np.errstate(all="ignore"):
                known[pending.pop().outputs[0]] = top.op.reference(*(known[v] for v in top.inputs))
            continue
        for value in missing:
            number = scalar(value)
            if number is not None:
                known[value] = np.array(number, np.float64)
            elif value.producer is not None and isinstance(value.producer.op, ANALYTIC):
                pending.append(value.producer)
            else:
                return None
    return None
