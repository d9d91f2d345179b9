"""Dims against plain integers: however built, their text, and what the runtime makes of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from sglk.errors import VerifyError
from sglk.ir.dim import (
    Dim,
    align,
    as_dim,
    cdiv,
    concrete,
    dim,
    dim_max,
    dim_min,
    dim_text,
    floordiv,
    parse_dim,
    prod,
    substitute,
    symbols_of,
)
from sglk.targets import dim_code

NAMES = ("tokens", "seqs", "pages")
SIZES = [
    {"tokens": 1, "seqs": 1, "pages": 1},
    {"tokens": 7, "seqs": 3, "pages": 2},
    {"tokens": 512, "seqs": 1, "pages": 17},
    {"tokens": 129, "seqs": 64, "pages": 5},
]


@dataclasses.dataclass(frozen=True)
class Built:
    """A dim, and what the same steps make of plain integers for each of `SIZES`."""

    dim: Dim
    numbers: tuple[int, ...]


def built_dims() -> st.SearchStrategy[Built]:
    leaves = st.one_of(
        st.integers(-3, 300).map(lambda n: Built(n, (n,) * len(SIZES))),
        st.sampled_from(NAMES).map(lambda n: Built(dim(n), tuple(s[n] for s in SIZES))),
    )

    def grow(inner: st.SearchStrategy[Built]) -> st.SearchStrategy[Built]:
        pairs = st.tuples(inner, inner)
        divided = st.tuples(inner, st.sampled_from([1, 2, 3, 16, 128]))
        return st.one_of(
            pairs.map(lambda p: combine(p, lambda a, b: a + b, lambda a, b: as_dim(sym(a) + b))),
            pairs.map(lambda p: combine(p, lambda a, b: a - b, lambda a, b: as_dim(sym(a) - b))),
            pairs.map(lambda p: combine(p, lambda a, b: a * b, lambda a, b: prod([a, b]))),
            pairs.map(lambda p: combine(p, max, dim_max)),
            pairs.map(lambda p: combine(p, min, dim_min)),
            divided.map(lambda p: scaled(*p, lambda a, n: a // n, floordiv)),
            divided.map(lambda p: scaled(*p, lambda a, n: -(-a // n), cdiv)),
            divided.map(lambda p: scaled(*p, lambda a, n: -(-a // n) * n, align)),
        )

    return st.recursive(leaves, grow, max_leaves=6)


def sym(a: Dim) -> sympy.Expr:
    return sympy.sympify(a)


def combine(pair: tuple[Built, Built], on_ints: object, on_dims: object) -> Built:
    a, b = pair
    numbers = tuple(on_ints(x, y) for x, y in zip(a.numbers, b.numbers, strict=True))  # type: ignore[operator]
    return Built(on_dims(a.dim, b.dim), numbers)  # type: ignore[operator]


def scaled(a: Built, n: int, on_ints: object, on_dims: object) -> Built:
    return combine((a, Built(n, (n,) * len(SIZES))), on_ints, on_dims)


@given(built_dims())
def test_a_dim_is_the_number_that_integers_give(built: Built) -> None:
    for sizes, number in zip(SIZES, built.numbers, strict=True):
        assert concrete(built.dim, sizes) == number


@given(built_dims())
def test_its_text_reads_back_to_the_same_numbers(built: Built) -> None:
    text = dim_text(built.dim)
    again = parse_dim(text)
    assert symbols_of(again) <= set(NAMES)
    for sizes, number in zip(SIZES, built.numbers, strict=True):
        assert concrete(again, sizes) == number, text
    assert dim_text(again) == dim_text(parse_dim(dim_text(again)))


@given(built_dims())
def test_the_runtime_computes_the_same_numbers_from_the_text(built: Built) -> None:
    code = dim_code.parse(dim_text(built.dim), NAMES)
    for sizes, number in zip(SIZES, built.numbers, strict=True):
        assert code.evaluate(sizes) == number


@given(built_dims(), st.sampled_from(NAMES), st.integers(1, 99))
def test_replacing_one_symbol_then_the_rest_changes_nothing(
    built: Built, name: str, size: int
) -> None:
    rest: Mapping[str, int] = {n: 5 for n in NAMES if n != name}
    partly = substitute(built.dim, {name: size})
    assert name not in symbols_of(partly)
    assert concrete(partly, rest) == concrete(built.dim, {**rest, name: size})


def test_equal_sizes_written_differently_are_equal() -> None:
    n = dim("tokens")
    assert as_dim(2 * (n + 1) - 2 * n) == 2
    assert type(as_dim(2 * (n + 1) - 2 * n)) is int
    assert as_dim((n + 1) * n) == as_dim(n * n + n)
    assert cdiv(n, 128) == floordiv(as_dim(n + 127), 128)
    assert parse_dim("align(tokens, 64)") == align(n, 64)
    assert parse_dim("tokens % 8") == as_dim(n - 8 * floordiv(n, 8))
    assert parse_dim("max(tokens, seqs, 4)") == dim_max(n, dim("seqs"), 4)


def test_symbols_may_swap_names() -> None:
    value = as_dim(dim("tokens") - dim("seqs"))
    swapped = substitute(value, {"tokens": dim("seqs"), "seqs": dim("tokens")})
    assert swapped == as_dim(dim("seqs") - dim("tokens"))


def test_a_missing_size_is_named() -> None:
    with pytest.raises(VerifyError, match="got none for pages, seqs"):
        concrete(as_dim(dim("tokens") + dim("seqs") * dim("pages")), {"tokens": 4})


@pytest.mark.parametrize("name", ["", "2x", "a b", "if", "min", "inf", "tökens"])
def test_names_that_would_not_read_back_are_refused(name: str) -> None:
    with pytest.raises(VerifyError, match="expected a name such as 'tokens'"):
        dim(name)


OUTSIDE = ["1.5", "True", "a / 2", "a ** 2", "f(a)", "cdiv(a)", "max(a)", "a if b else c", "a.b"]
OUTSIDE += ["'a'", "a[0]", "min(a, b, key=c)", "__import__('os')", "a b", "a < b"]


@pytest.mark.parametrize("text", ["", *OUTSIDE, "(" * 400, "\0", "1+" * 20000 + "1"])
def test_text_outside_the_language_is_refused(text: str) -> None:
    with pytest.raises(VerifyError):
        parse_dim(text)


@pytest.mark.parametrize("text", ["a // 0", "cdiv(a, 0)", "align(a, 0)", "a % 0", "1 // (b - b)"])
def test_division_by_zero_is_refused(text: str) -> None:
    with pytest.raises(VerifyError, match="other than zero"):
        parse_dim(text)


def test_fractions_are_refused() -> None:
    with pytest.raises(VerifyError, match="expected a whole number"):
        as_dim(dim("tokens") / 2)
    with pytest.raises(VerifyError, match="expected a whole number"):
        as_dim(sympy.Float(1.5))
