"""Complex numbers as pairs of real values: rotary embeddings that multiply by e^(i angle).

A complex result is a `Complex` in place of a value. Ops that move elements do so with both parts;
products, and the ways in and out of complex numbers, have converters of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..ir.graph import Value
from ..ir.ops import elementwise as ops
from ..ir.ops.shape import Concat
from .fx_convert_context import CONVERTERS, Emitter, Unsupported
from .fx_convert_shape import take

SHAPES = ("view", "reshape", "flatten", "unsqueeze", "squeeze", "expand", "permute", "transpose")
COPIES = ("slice", "select", "clone", "contiguous", "to", "_to_copy", "alias", "detach")
MOVES = frozenset((*SHAPES, *COPIES))


@dataclass(frozen=True)
class Complex:
    """Real and imaginary parts, of the same type."""

    real: Value
    imag: Value


def convert_complex(
    e: Emitter, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Complex | Value:
    """The result of an op that has complex operands or a complex result."""
    short = name.removeprefix("aten.")
    if short in _SPECIAL:
        return _SPECIAL[short](e, *args)
    if short not in MOVES or not isinstance(args[0], Complex):
        raise Unsupported("complex numbers")
    convert = CONVERTERS[name]
    parts = (convert(e, part, *args[1:], **kwargs) for part in (args[0].real, args[0].imag))
    return Complex(*parts)


def polar(e: Emitter, size: Value, angle: Value) -> Complex:
    waves = (e.emit(op, angle) for op in (ops.Cos(), ops.Sin()))
    return Complex(*(e.emit(ops.Mul(), size, wave) for wave in waves))


def join(e: Emitter, real: Value, imag: Value) -> Complex:
    return Complex(real, imag)


def view_as_complex(e: Emitter, x: Value) -> Complex:
    axis = x.type.rank - 1
    parts = (take(e, x, axis, i, i + 1) for i in (0, 1))
    return Complex(*(e.reshape(part, x.type.shape[:-1]) for part in parts))


def view_as_real(e: Emitter, x: Complex) -> Value:
    parts = [e.reshape(part, (*part.type.shape, 1)) for part in (x.real, x.imag)]
    return e.emit(Concat(x.real.type.rank), *parts)


def multiply(e: Emitter, a: Any, b: Any) -> Complex:
    if not isinstance(a, Complex):
        a, b = b, a
    if not isinstance(b, Complex):
        factor = e.operand(b, a.real.type.dtype)
        return Complex(*(e.emit(ops.Mul(), part, factor) for part in (a.real, a.imag)))
    rr, ii = e.emit(ops.Mul(), a.real, b.real), e.emit(ops.Mul(), a.imag, b.imag)
    ri, ir = e.emit(ops.Mul(), a.real, b.imag), e.emit(ops.Mul(), a.imag, b.real)
    return Complex(e.emit(ops.Sub(), rr, ii), e.emit(ops.Add(), ri, ir))


_SPECIAL: dict[str, Callable[..., Complex | Value]] = {
    "polar": polar,
    "complex": join,
    "view_as_complex": view_as_complex,
    "view_as_real": view_as_real,
    "mul": multiply,
    "real": lambda e, x: x.real,
    "imag": lambda e, x: x.imag,
}
NAMES = frozenset(f"aten.{name}" for name in _SPECIAL)
"""Ops to leave whole, though `CONVERTERS` may lack them."""
