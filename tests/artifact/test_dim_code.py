"""The size language against Python's own arithmetic, and what it refuses."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglk.errors import ArtifactError, DeviceError
from sglk.targets.dim_code import MAX_DEPTH, DimExpr, parse

NAMES = ["tokens", "seqs", "pages"]
SMALL = st.integers(-50, 50)
OPERATORS = st.sampled_from(["+", "-", "*", "//", "%"])
FUNCTIONS = st.sampled_from(["min", "max", "cdiv", "align"])
NAMESPACE = {
    "cdiv": lambda a, b: -(-a // b),
    "align": lambda a, n: -(-a // n) * n,
    "min": min,
    "max": max,
    "__builtins__": {},
}


def _texts() -> st.SearchStrategy[str]:
    leaf = st.one_of(st.sampled_from(NAMES), SMALL.map(str))
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.builds("({} {} {})".format, inner, OPERATORS, inner),
            st.builds("{} {} {}".format, inner, OPERATORS, inner),
            st.builds("{}({}, {})".format, FUNCTIONS, inner, inner),
            st.builds("-({})".format, inner),
        ),
        max_leaves=12,
    )


def _python(text: str, env: dict[str, int]) -> int | None:
    try:
        return int(eval(text, NAMESPACE, env))
    except ZeroDivisionError:
        return None


@settings(max_examples=300, derandomize=True, deadline=None)
@given(_texts(), st.fixed_dictionaries(dict.fromkeys(NAMES, SMALL)))
def test_value_is_pythons(text: str, env: dict[str, int]) -> None:
    expr = parse(text, NAMES)
    expected = _python(text, env)
    if expected is None:
        with pytest.raises(DeviceError, match="by zero"):
            expr.evaluate(env)
    elif abs(expected) < 2**60:
        assert expr.evaluate(env) == expected
    assert parse(str(expr), NAMES) == expr


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.text(alphabet="ab01+-*/%(),. _minxcdv\n", max_size=40))
def test_any_text_parses_or_is_refused_in_one_sentence(text: str) -> None:
    try:
        expr = parse(text, ["a", "b"])
    except ArtifactError as error:
        assert str(error).startswith("size ")
    else:
        assert isinstance(expr, DimExpr)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got 'the end'"),
        ("tokens +", "got 'the end'"),
        ("tokens tokens", "an operator or the end"),
        ("heads", "unknown symbol 'heads' (known: ['pages', 'seqs', 'tokens'])"),
        ("tokens ** 2", "got '*'"),
        ("tokens / 2", "unexpected"),
        ("__import__('os')", "unexpected"),
        ("min(1)", "expected ','"),
        ("cdiv(1, 2, 3)", "expected ')'"),
        ("9223372036854775808", "64 bits"),
        ("9" * 6000, "64 bits"),
        ("(" * (MAX_DEPTH + 2) + "1" + ")" * (MAX_DEPTH + 2), "nested"),
        ("1+" * 9000 + "1", "characters"),
        ("٣", "unexpected"),
    ],
)
def test_refuses(text: str, message: str) -> None:
    with pytest.raises(ArtifactError, match=re.escape(message)):
        parse(text, NAMES)


def test_overflow_is_refused_at_every_step() -> None:
    expr = parse("tokens * tokens // tokens", NAMES)
    assert expr.evaluate({"tokens": 2**31}) == 2**31
    with pytest.raises(DeviceError, match="64 bits"):
        expr.evaluate({"tokens": 2**32})
    lowest = parse("-9223372036854775808", [])
    assert lowest.evaluate({}) == -(2**63)
    with pytest.raises(DeviceError, match="64 bits"):
        parse("-9223372036854775808 // -1", []).evaluate({})


def test_missing_value_is_named() -> None:
    with pytest.raises(DeviceError, match="value for tokens"):
        parse("tokens", NAMES).evaluate({"seqs": 1})


def test_long_sum_needs_no_recursion() -> None:
    expr = parse("+".join(["tokens"] * 1500), NAMES)
    assert expr.evaluate({"tokens": 2}) == 3000
    assert parse(str(expr), NAMES) == expr


def test_min_takes_many() -> None:
    assert parse("min(3, tokens, 2)", NAMES).evaluate({"tokens": 7}) == 2
    expr = parse(f"max({', '.join(['seqs'] * 200)}, tokens)", NAMES)
    assert parse(str(expr), NAMES) == expr


def test_a_sum_that_starts_with_min_is_no_argument_list() -> None:
    expr = parse("min(min(tokens, 4) + -1, 1)", NAMES)
    assert str(expr) == "min(min(tokens, 4) + -1, 1)"
    assert parse(str(expr), NAMES) == expr
