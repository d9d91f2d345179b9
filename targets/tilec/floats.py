"""Floating-point operations. bf16 and f16 compute in f32 and round after each step."""

from __future__ import annotations

import dataclasses

from ...errors import LoweringError
from .expr import Emitter, Expr, Lookup, constant, scalar_c
from .integers import extended
from .ir import BF16, F32, I1, I32, I64, Element, Scalar

BINARY = {
    "arith.addf": ("add", "+"),
    "arith.subf": ("sub", "-"),
    "arith.mulf": ("mul", "*"),
    "arith.divf": ("div", "/"),
    "tt.precise_divf": ("div", "/"),
    "arith.maxnumf": ("maxnum", ""),
    "arith.minnumf": ("minnum", ""),
    "arith.maximumf": ("maximum", ""),
    "arith.minimumf": ("minimum", ""),
}
UNARY = {
    "arith.negf": "neg",
    "math.absf": "vabs",
    "math.exp": "vexp",
    "math.exp2": "vexp2",
    "math.log": "vlog",
    "math.log2": "vlog2",
    "math.sin": "vsin",
    "math.cos": "vcos",
    "math.tanh": "vtanh",
    "math.erf": "verf",
    "math.sqrt": "vsqrt",
    "tt.precise_sqrt": "vsqrt",
    "math.rsqrt": "vrsqrt",
    "math.floor": "vfloor",
    "math.ceil": "vceil",
    "math.trunc": "vtrunc",
    "math.roundeven": "vrint",
}
EXTERN = {
    "__nv_tanhf": "vtanh",
    "__nv_erff": "verf",
    "__nv_expf": "vexp",
    "__nv_exp2f": "vexp2",
    "__nv_logf": "vlog",
    "__nv_log2f": "vlog2",
    "__nv_sinf": "vsin",
    "__nv_cosf": "vcos",
    "__nv_sqrtf": "vsqrt",
    "__nv_rsqrtf": "vrsqrt",
    "__nv_fabsf": "vabs",
    "__nv_floorf": "vfloor",
    "__nv_ceilf": "vceil",
    "__nv_truncf": "vtrunc",
    "__nv_rintf": "vrint",
    "__nv_nearbyintf": "vrint",
    "__nv_powf": "vpow",
    "__nv_fmaf": "fma",
    "__nv_atan2f": "vatan2",
    "__nv_fmodf": "vfmod",
    **{
        f"__nv_{name}f": f"v{name}"
        for name in (
            *("acos", "acosh", "asin", "asinh", "atan", "atanh"),
            *("cosh", "sinh", "tan", "expm1", "log1p", "log10"),
        )
    },
}
_ORDERED = {"oeq": "eq", "olt": "lt", "ole": "le", "ogt": "gt", "oge": "ge"}
_INVERSE = {"ugt": "le", "uge": "lt", "ult": "ge", "ule": "gt"}
_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


_EXACT_IN_BF16 = 256
"""Integers up to this magnitude need no rounding."""


def rounded(text: str, element: Element) -> str:
    assert isinstance(element, Scalar)
    return f"round_{element.name}({text})" if element.name in ("bf16", "f16") else text


def call(em: Emitter, function: str, operands: list[Expr], operator: str = "") -> Expr:
    """A function (or an infix operator for scalars) of operands of one type."""
    element = operands[0].type
    level = max(e.level for e in operands)
    if all(e.is_uniform for e in operands):
        texts = [e.text for e in operands]
        text = f" {operator} ".join(texts) if operator else f"{function}({', '.join(texts)})"
        return em.scalar(rounded(text, element), element, level)
    if element == Scalar("f64"):
        raise LoweringError("tilec: expected tensors of f32 or narrower, got f64 (use f32)")
    text = f"{function}({', '.join(em.lanes(e) for e in operands)})"
    return em.vector(rounded(text, element), element, level)


def compare(em: Emitter, predicate: str, a: Expr, b: Expr) -> Expr:
    level = max(a.level, b.level)
    if predicate in ("true", "false"):
        return dataclasses.replace(constant(predicate == "true", I1), level=level)
    uniform = a.is_uniform and b.is_uniform

    def test(name: str, x: Expr, y: Expr) -> str:
        if uniform:
            return f"({x.text} {_SIGNS[name]} {y.text})"
        return f"{name}({em.lanes(x)}, {em.lanes(y)})"

    def both(x: str, y: str, sign: str, function: str) -> str:
        return f"{x} {sign} {y}" if uniform else f"{function}({x}, {y})"

    if predicate in _ORDERED:
        text = test(_ORDERED[predicate], a, b)
    elif predicate in _INVERSE:
        inner = test(_INVERSE[predicate], a, b)
        text = f"!{inner}" if uniform else f"mnot({inner})"
    elif predicate == "une":
        text = test("ne", a, b)
    elif predicate == "one":
        text = both(test("lt", a, b), test("gt", a, b), "||", "mor")
    elif predicate == "ueq":
        inner = both(test("lt", a, b), test("gt", a, b), "||", "mor")
        text = f"!({inner})" if uniform else f"mnot({inner})"
    elif predicate == "ord":
        text = both(test("eq", a, a), test("eq", b, b), "&&", "mand")
    else:
        text = both(test("ne", a, a), test("ne", b, b), "||", "mor")
    return em.scalar(text, I1, level) if uniform else em.vector(text, I1, level)


def from_int(em: Emitter, e: Expr, to: Element, sign: bool) -> Expr:
    """sitofp, uitofp."""
    assert isinstance(e.type, Scalar)
    if e.type == I1:
        one, zero = constant(-1.0 if sign else 1.0, to), constant(0.0, to)
        return select(em, e, one, zero)
    is_small = e.type.bits <= 8 or (e.bound is not None and e.bound <= _EXACT_IN_BF16)
    e = extended(em, e, "s" if sign else "z")
    if e.const is not None and sign:
        return dataclasses.replace(constant(float(e.const), to), level=e.level)
    unsigned = not sign and e.type in (I32, I64)
    if e.kind == "s":
        cast = f"uint{e.scalar.bits}_t" if unsigned else ""
        return em.scalar(rounded(f"{scalar_c(to)}({cast}({e.text}))", to), to, e.level)
    if unsigned and e.type == I64:
        raise LoweringError("tilec: expected signed i64 tensors in uitofp (cast to i32 first)")
    if e.text in em.nibbles and to in (F32, BF16) and abs(em.nibbles[e.text][1]) < 128:
        source, below = em.nibbles[e.text]
        found = em.vector(f"nibble_f<{below}>({source})", to, e.level)
        em.lookups[found.text] = Lookup(*em.shifts.get(source, (source, 0)), below)
        return found
    text = f"{'to_fu' if unsigned else 'to_f'}({em.lanes(e)})"
    exact = to == BF16 and not unsigned and is_small
    return em.vector(text if exact else rounded(text, to), to, e.level)


def to_int(em: Emitter, e: Expr, to: Element) -> Expr:
    """fptosi, fptoui (of values that fit)."""
    assert isinstance(to, Scalar)
    if e.kind == "s":
        wide = "int64_t" if to.bits == 64 else "int32_t"
        return em.scalar(f"{wide}({e.text})", to, e.level)
    function = "to_l" if to.bits == 64 else "to_i"
    return em.vector(f"{function}({em.lanes(e)})", to, e.level)


def cast(em: Emitter, e: Expr, to: Element) -> Expr:
    """extf, truncf, fp_to_fp: values of narrow types are exact in f32, so widening is free."""
    assert isinstance(e.type, Scalar) and isinstance(to, Scalar)
    if e.const is not None and to.name in ("f32", "f64") and e.type.bits <= to.bits:
        return dataclasses.replace(constant(e.const, to), level=e.level)
    if to.bits >= e.type.bits and "f64" not in (to.name, e.type.name):
        return dataclasses.replace(e, type=to)
    if e.kind == "s":
        return em.scalar(rounded(f"{scalar_c(to)}({e.text})", to), to, e.level)
    return em.vector(rounded(em.lanes(e), to), to, e.level)


def bitcast(em: Emitter, e: Expr, to: Element) -> Expr:
    """Between f32 and i32, bf16 or f16 and i16."""
    assert isinstance(e.type, Scalar) and isinstance(to, Scalar)
    if e.type == to or not (e.type.is_float or to.is_float):
        return dataclasses.replace(e, type=to)
    names = (e.type.name, to.name)
    table = {
        ("f32", "i32"): "bits_i({})",
        ("i32", "f32"): "bits_f({})",
        ("bf16", "i16"): "ushr(bits_i({}), 16)",
        ("i16", "bf16"): "bits_f(shl({}, 16))",
    }
    if names not in table:
        raise LoweringError(f"tilec: expected a bitcast among {sorted(table)}, got {names}")
    ext = "z" if to.name == "i16" else ""
    if e.kind == "s":
        text = table[names].format(e.text).replace("ushr", "ushr_s").replace("shl", "shl_s")
        return em.scalar(text, to, e.level, ext=ext)
    text = table[names].format(em.lanes(e)).replace(", 16)", ", vsplat(int32_t(16)))")
    return em.vector(text, to, e.level, ext=ext)


def select(em: Emitter, condition: Expr, a: Expr, b: Expr) -> Expr:
    level = max(condition.level, a.level, b.level)
    if condition.const is not None:
        return dataclasses.replace(a if condition.const else b, level=level)
    assert isinstance(a.type, Scalar)
    ext = "".join(sign for sign in a.ext if sign in b.ext)
    if all(e.is_uniform for e in (condition, a, b)):
        return em.scalar(f"{condition.text} ? {a.text} : {b.text}", a.type, level, ext=ext)
    x, y = em.lanes(a), em.lanes(b)
    if condition.is_uniform:
        return em.vector(f"{condition.text} ? {x} : {y}", a.type, level, ext=ext)
    function = "msel" if a.type == I1 else "sel"
    return em.vector(f"{function}({em.lanes(condition)}, {x}, {y})", a.type, level, ext=ext)


def clamp(em: Emitter, x: Expr, low: Expr, high: Expr, propagate: bool) -> Expr:
    up, down = ("maximum", "minimum") if propagate else ("maxnum", "minnum")
    return call(em, down, [call(em, up, [x, low]), high])
