"""Dimensions: an ``int`` or a sympy expression over named positive integers (`tokens`, `seqs`,
`pages`).

One symbol per name and one spelling of rounded-up division, so that equal sizes compare equal:
sympy does not see that ``ceiling(s/128)`` is ``floor((s+127)/128)``.

>>> dim("tokens") * 2
2*tokens
>>> parse_dim("cdiv(tokens, 128)") == cdiv(dim("tokens"), 128)
True
>>> dim_text(cdiv(dim("tokens"), 128))
'((tokens + 127) // 128)'
"""

from __future__ import annotations

import ast
import functools
import keyword
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import sympy

from ..errors import VerifyError

Dim: TypeAlias = int | sympy.Expr
_remembered = functools.lru_cache(maxsize=65536)
"""Equal sizes of equal layers are worked out once."""


_RESERVED = frozenset({"inf", "nan", "min", "max", "cdiv", "align"})


@functools.cache
def dim(name: str) -> sympy.Symbol:
    """The symbol of that name: a positive integer. The text form must read the name back."""
    if not (name.isidentifier() and name.isascii()) or keyword.iskeyword(name) or name in _RESERVED:
        raise VerifyError(f"dim: expected a name such as 'tokens', got {name!r}")
    return sympy.Symbol(name, integer=True, positive=True)


def as_dim(value: Dim | sympy.Basic) -> Dim:
    """One form per size: expanded, an int when no symbol is left. Fractions are refused."""
    return int(value) if isinstance(value, int) else _expanded(value)


@_remembered
def _expanded(value: sympy.Basic) -> Dim:
    result = sympy.expand(value)
    if not result.is_integer:
        raise VerifyError(f"dim {value}: expected a whole number")
    return int(result) if isinstance(result, sympy.Integer) else result


def cdiv(a: Dim, b: Dim) -> Dim:
    """``a`` divided by ``b``, rounded up: the only spelling of it."""
    return floordiv(as_dim(sympy.sympify(a) + b - 1), b)


@_remembered
def floordiv(a: Dim, b: Dim) -> Dim:
    """``a`` divided by ``b``, rounded down."""
    if b == 0:
        raise VerifyError(f"dim {a} // 0: expected a divisor other than zero")
    return as_dim(sympy.floor(sympy.sympify(a) / b))


def align(a: Dim, n: Dim) -> Dim:
    """``a`` rounded up to a multiple of ``n``."""
    return as_dim(cdiv(a, n) * n)


@_remembered
def dim_max(*values: Dim) -> Dim:
    return as_dim(sympy.Max(*values))


@_remembered
def dim_min(*values: Dim) -> Dim:
    return as_dim(sympy.Min(*values))


def prod(dims: Iterable[Dim]) -> Dim:
    return as_dim(functools.reduce(operator.mul, dims, sympy.Integer(1)))


def substitute(value: Dim, sizes: Mapping[str, Dim]) -> Dim:
    """Replace symbols by name; the result is an int when nothing symbolic is left."""
    if isinstance(value, int):
        return value
    return as_dim(value.xreplace({dim(n): sympy.sympify(size) for n, size in sizes.items()}))


def concrete(value: Dim, sizes: Mapping[str, int]) -> int:
    """The number that ``value`` is for these sizes; a missing size raises `VerifyError`."""
    result = substitute(value, sizes)
    if not isinstance(result, int):
        missing = ", ".join(sorted(str(s) for s in result.free_symbols))
        raise VerifyError(f"dim {value}: expected sizes for every symbol, got none for {missing}")
    return result


@_remembered
def symbols_of(value: Dim) -> frozenset[str]:
    return frozenset() if isinstance(value, int) else frozenset(s.name for s in value.free_symbols)


@_remembered
def dim_text(value: Dim) -> str:
    """``value`` in the dim language that the runtime compiles: + - * // min max and parentheses."""
    return str(value) if isinstance(value, int) else _text(value)


def _text(e: sympy.Basic) -> str:
    if isinstance(e, sympy.Symbol | sympy.Integer):
        return str(e)
    if isinstance(e, sympy.Add):
        return "(" + " + ".join(_text(a) for a in e.as_ordered_terms()) + ")"
    if isinstance(e, sympy.Mul):
        return "(" + " * ".join(_text(a) for a in e.as_ordered_factors()) + ")"
    if isinstance(e, sympy.Pow) and isinstance(e.exp, sympy.Integer) and int(e.exp) > 0:
        return "(" + " * ".join([_text(e.base)] * int(e.exp)) + ")"
    if isinstance(e, sympy.floor):
        top, bottom = sympy.fraction(sympy.together(e.args[0]))
        return f"({_text(sympy.expand(top))} // {_text(bottom)})"
    if isinstance(e, sympy.Max | sympy.Min):
        name = "max" if isinstance(e, sympy.Max) else "min"
        return functools.reduce(lambda a, b: f"{name}({a}, {b})", sorted(_text(a) for a in e.args))
    raise VerifyError(f"dim {e}: expected + - * // min max over symbols, got {type(e).__name__}")


_BINARY: dict[type[ast.operator], Callable[[Dim, Dim], Dim]] = {
    ast.Add: lambda a, b: as_dim(sympy.sympify(a) + b),
    ast.Sub: lambda a, b: as_dim(sympy.sympify(a) - b),
    ast.Mult: lambda a, b: as_dim(sympy.sympify(a) * b),
    ast.FloorDiv: floordiv,
    ast.Mod: lambda a, b: as_dim(sympy.sympify(a) - floordiv(a, b) * sympy.sympify(b)),
}
_CALLS: dict[str, Callable[..., Dim]] = {
    "cdiv": cdiv,
    "align": align,
    "max": dim_max,
    "min": dim_min,
}


def parse_dim(text: str) -> Dim:
    """Read the dim language; anything outside it raises `VerifyError`."""
    return dim_from_ast(parse_expression(text.strip()))


def parse_expression(text: str) -> ast.expr:
    """Python's own expression syntax, as a tree that is never evaluated."""
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise VerifyError(f"{text[:120]!r}: expected an expression such as '2*tokens'") from error


def dim_from_ast(node: ast.expr) -> Dim:
    try:
        return _from_ast(node)
    except RecursionError as error:
        raise VerifyError("dim: expected a shorter expression") from error


def _from_ast(node: ast.expr) -> Dim:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.Name(id=name):
            return dim(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return as_dim(-sympy.sympify(_from_ast(operand)))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_from_ast(left), _from_ast(right))
        case ast.Call(func=ast.Name(id=name), args=[a, b], keywords=[]) if name in _CALLS:
            return _CALLS[name](_from_ast(a), _from_ast(b))
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=[_, _, _, *_], keywords=[]):
            return _CALLS[name](*map(_from_ast, node.args))
    raise VerifyError(
        f"dim {ast.unparse(node)!r}: expected + - * // % min max cdiv align over names and ints"
    )
