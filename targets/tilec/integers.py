"""Integer operations on expressions: affine where possible, else uniform or lane by lane."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from .expr import LANES, NARROW, Emitter, Expr, constant, wrap
from .ir import I1, I32, I64, Element, Scalar

# name -> (vector function, C++ operator or function for scalars, operand extension)
BINARY: dict[str, tuple[str, str, str]] = {
    "addi": ("add", "+", ""),
    "subi": ("sub", "-", ""),
    "muli": ("mul", "*", ""),
    "andi": ("band", "&", ""),
    "ori": ("bor", "|", ""),
    "xori": ("bxor", "^", ""),
    "shli": ("shl", "<<", ""),
    "shrsi": ("sshr", ">>", "s"),
    "shrui": ("ushr", ">>", "z"),
    "divsi": ("sdiv", "/", "s"),
    "divui": ("udiv", "/", "z"),
    "remsi": ("srem", "%", "s"),
    "remui": ("urem", "%", "z"),
    "maxsi": ("smax", "", "s"),
    "minsi": ("smin", "", "s"),
    "maxui": ("umax", "", "z"),
    "minui": ("umin", "", "z"),
}
PREDICATES = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_FOLD: dict[str, Callable[[int, int], int]] = {
    "addi": lambda a, b: a + b,
    "subi": lambda a, b: a - b,
    "muli": lambda a, b: a * b,
    "andi": lambda a, b: a & b,
    "ori": lambda a, b: a | b,
    "xori": lambda a, b: a ^ b,
    "shli": lambda a, b: a << b,
    "maxsi": max,
    "minsi": min,
    "shrsi": lambda a, b: a >> b,
}
_FOLD_NONNEGATIVE: dict[str, Callable[[int, int], int]] = {
    "divsi": lambda a, b: a // b,
    "remsi": lambda a, b: a % b,
}
_MASKS = {"andi": ("mand", "&"), "ori": ("mor", "|"), "xori": ("mxor", "^"), "addi": ("mxor", "^")}


def extended(em: Emitter, e: Expr, want: str) -> Expr:
    """A narrow integer with its upper bits zero (``z``) or copies of the sign (``s``)."""
    if not want or want in e.ext or not isinstance(e.type, Scalar) or e.type.name not in NARROW:
        return e
    bits = e.type.bits
    if e.const is not None:
        value = int(e.const) % (1 << bits) if want == "z" else wrap(int(e.const), e.type)
        return dataclasses.replace(constant(value, I32), type=e.type, ext=want)
    if e.kind == "s":
        cast = f"{'u' if want == 'z' else ''}int{bits}_t"
        return em.scalar(f"int32_t({cast}({e.text}))", e.type, e.level, ext=want)
    lanes = em.lanes(e)
    if want == "z":
        text = f"band({lanes}, vsplat(int32_t({(1 << bits) - 1})))"
    else:
        shift = f"vsplat(int32_t({32 - bits}))"
        text = f"sshr(shl({lanes}, {shift}), {shift})"
    return em.vector(text, e.type, e.level, ext=want)


def binary(em: Emitter, name: str, a: Expr, b: Expr) -> Expr:
    if a.type == I1:
        return mask_binary(em, name, a, b)
    function, operator, want = BINARY[name]
    a, b = extended(em, a, want), extended(em, b, want)
    found = _identity(name, a, b) or _fold(name, a, b)
    found = found or _affine(em, name, a, b) or _aligned(em, name, a, b)
    if found:
        return found
    level = max(a.level, b.level)
    ext = _result_ext(name, a, b)
    if a.kind == "s" and b.kind == "s":
        text = _scalar_text(name, function, operator, a, b)
        facts = {"align": _align(name, a, b), "nonneg": _nonneg(name, a, b), "ext": ext}
        return em.scalar(text, a.type, level, **facts)
    text = f"{function}({em.lanes(a)}, {em.lanes(b)})"
    result = em.vector(text, a.type, level, ext=ext, bound=_bound(name, a, b))
    if name == "andi" and b.const is not None and b.const >= 0:
        result = dataclasses.replace(result, nonneg=True)
    _note_nibble(em, name, a, b, result)
    return result


def _bound(name: str, a: Expr, b: Expr) -> int | None:
    """The greatest magnitude of a result: small integers are exact in narrow floats."""
    x, y = (abs(int(e.const)) if e.const is not None else e.bound for e in (a, b))
    if name == "andi" and b.const is not None and b.const >= 0:
        return int(b.const)
    if name == "shrsi" or x is None or y is None:
        return x if name == "shrsi" else None
    if name in ("addi", "subi"):
        if a.nonneg and b.const is not None:  # from 0 to x, moved
            move = int(b.const) if name == "addi" else -int(b.const)
            return max(abs(move), abs(x + move))
        return x + y
    if name in ("ori", "xori"):
        return 1 << max(x.bit_length(), y.bit_length())
    small = name == "shli" and b.const is not None and y < 16 and x < 1 << 15
    return x << y if small else None


def _note_nibble(em: Emitter, name: str, a: Expr, b: Expr, result: Expr) -> None:
    """Remember ``x & 15`` and ``(x & 15) - constant``: 4-bit weights on their way to floats."""
    if a.kind != "v" or b.const is None or result.type == I64:
        return
    if name in ("shrsi", "shrui"):
        em.shifts[result.text] = (a.text, int(b.const))
    if name == "andi" and b.const == 15:
        em.nibbles[result.text] = (a.text, 0)
    elif name in ("addi", "subi") and a.text in em.nibbles:
        source, zero = em.nibbles[a.text]
        em.nibbles[result.text] = (source, zero + int(b.const) * (1 if name == "subi" else -1))


def _identity(name: str, a: Expr, b: Expr) -> Expr | None:
    level = max(a.level, b.level)
    neutral = {"addi": 0, "subi": 0, "ori": 0, "xori": 0, "muli": 1, "divsi": 1, "divui": 1}
    neutral |= {"shli": 0, "shrsi": 0, "shrui": 0}
    if name in neutral and b.const == neutral[name]:
        return dataclasses.replace(a, level=level)
    if name in ("addi", "muli", "ori", "xori") and a.const == neutral[name]:
        return dataclasses.replace(b, level=level)
    return None


def _fold(name: str, a: Expr, b: Expr) -> Expr | None:
    if a.const is None or b.const is None:
        return None
    x, y = int(a.const), int(b.const)
    fold = _FOLD.get(name)
    if fold is None and x >= 0 and y > 0:
        fold = _FOLD_NONNEGATIVE.get(name)
    if fold is None or (name == "shrsi" and not 0 <= y < 64):
        return None
    result = constant(wrap(fold(x, y), a.type), a.type)
    return dataclasses.replace(result, level=max(a.level, b.level))


def _scalar_text(name: str, function: str, operator: str, a: Expr, b: Expr) -> str:
    assert isinstance(a.type, Scalar)
    wide = 64 if a.type.bits == 64 else 32
    x, y = a.text, b.text
    if name in ("shrui", "divui", "remui"):
        return f"int{wide}_t(uint{wide}_t({x}) {operator} uint{wide}_t({y}))"
    if name in ("maxui", "minui"):
        side = ">" if name == "maxui" else "<"
        return f"uint{wide}_t({x}) {side} uint{wide}_t({y}) ? {x} : {y}"
    if not operator:
        return f"{function}<int{wide}_t>({x}, {y})"
    return f"{x} {operator} {y}"


def _align(name: str, a: Expr, b: Expr) -> int:
    if name in ("addi", "subi", "ori", "xori"):
        return min(a.align, b.align)
    if name == "muli":
        return min(a.align * b.align, 1 << 30)
    if name == "shli" and b.const is not None:
        return min(a.align << int(b.const), 1 << 30)
    return max(a.align, b.align) if name == "andi" else 1


def _nonneg(name: str, a: Expr, b: Expr) -> bool:
    if name == "andi":
        return a.nonneg or b.nonneg
    return a.nonneg and b.nonneg and name != "subi"


def _result_ext(name: str, a: Expr, b: Expr) -> str:
    if not isinstance(a.type, Scalar) or a.type.name not in NARROW:
        return ""
    if name == "andi" and any("z" in e.ext and e.const is not None for e in (a, b)):
        top = max(int(e.const) for e in (a, b) if "z" in e.ext and e.const is not None)
        return "zs" if top < 1 << (a.type.bits - 1) else "z"
    if name == "shrui":
        return "zs" if b.const else "z"
    if name in ("andi", "ori", "xori", "maxui", "minui", "divui", "remui"):
        return (
            "z" if "z" in a.ext and "z" in b.ext else "s" if "s" in a.ext and "s" in b.ext else ""
        )
    return "s" if name in ("shrsi", "remsi", "maxsi", "minsi") else ""


def _affine(em: Emitter, name: str, a: Expr, b: Expr) -> Expr | None:
    """``+ - *`` of affine and uniform expressions stay affine."""
    if "v" in (a.kind, b.kind) or (a.kind, b.kind) == ("s", "s"):
        return None
    if name == "shli" and b.const is not None:
        name, b = "muli", dataclasses.replace(constant(1 << int(b.const), a.type), level=b.level)
    if name in ("addi", "subi"):
        base = binary(em, name, uniform_base(a), uniform_base(b))
        stride = a.stride + (b.stride if name == "addi" else -b.stride)
        return with_stride(base, stride)
    if name == "muli":
        factor = b if a.kind == "a" else a
        if factor.const is None:
            return None
        base = binary(em, "muli", uniform_base(a), uniform_base(b))
        return with_stride(base, (a.stride or b.stride) * int(factor.const))
    return None


def uniform_base(e: Expr) -> Expr:
    """Lane 0 of a uniform or affine expression."""
    if e.kind == "s":
        return e
    digits = e.text.lstrip("-").isdigit()
    return dataclasses.replace(e, kind="s", stride=0, const=int(e.text) if digits else None)


def with_stride(base: Expr, stride: int) -> Expr:
    if stride == 0:
        return base
    return dataclasses.replace(base, kind="a", stride=stride, const=None)


def _aligned(em: Emitter, name: str, a: Expr, b: Expr) -> Expr | None:
    """Division of 16 consecutive lanes that start at a multiple of 16, by a multiple of 16."""
    names = ("divsi", "divui", "remsi", "remui", "shrsi", "shrui", "andi")
    if name not in names or a.kind != "a" or a.stride != 1 or a.align < LANES or b.const is None:
        return None
    value = int(b.const)
    if name in ("divsi", "remsi") and not a.nonneg:
        return None
    if name in ("shrsi", "shrui"):
        return binary(em, name, uniform_base(a), b) if value >= 4 else None
    if name == "andi":
        low = value + 1
        keeps = value > 0 and low % LANES == 0 and low & value == 0
        return with_stride(binary(em, "andi", uniform_base(a), b), 1) if keeps else None
    if value <= 0 or value % LANES:
        return None
    base = binary(em, name, uniform_base(a), b)
    if name in ("remsi", "remui"):
        return with_stride(dataclasses.replace(base, align=LANES), 1)
    return base


def mask_binary(em: Emitter, name: str, a: Expr, b: Expr) -> Expr:
    function, operator = _MASKS[name]
    level = max(a.level, b.level)
    for one, other in ((a, b), (b, a)):
        if one.const is None:
            continue
        if name == "andi":
            return dataclasses.replace(other if one.const else one, level=level)
        if name == "ori":
            return dataclasses.replace(one if one.const else other, level=level)
        if not one.const:
            return dataclasses.replace(other, level=level)
    if a.kind == "s" and b.kind == "s":
        return em.scalar(f"{a.text} {operator} {b.text}", I1, level)
    return em.vector(f"{function}({em.lanes(a)}, {em.lanes(b)})", I1, level)


def compare(em: Emitter, predicate: str, a: Expr, b: Expr) -> Expr:
    """`predicate`: eq, ne, slt, ult, ..."""
    if a.type == I1:
        differ = mask_binary(em, "xori", a, b)
        return differ if predicate == "ne" else mask_binary(em, "xori", differ, constant(1, I1))
    signed = predicate[0] != "u"
    want = "s" if signed and not ("z" in a.ext and "z" in b.ext) else "z"
    a, b = extended(em, a, want), extended(em, b, want)
    bare = predicate if predicate in ("eq", "ne") else predicate[1:]
    level = max(a.level, b.level)
    if a.const is not None and b.const is not None and signed:
        truth = eval_predicate(bare, int(a.const), int(b.const))
        return dataclasses.replace(constant(truth, I1), level=level)
    if a.kind == "s" and b.kind == "s":
        cast = "" if signed else f"uint{64 if a.type == I64 else 32}_t"
        return em.scalar(f"{cast}({a.text}) {PREDICATES[bare]} {cast}({b.text})", I1, level)
    name = bare if signed else f"u{bare}"
    return em.vector(f"{name}({em.lanes(a)}, {em.lanes(b)})", I1, level)


def eval_predicate(bare: str, a: int, b: int) -> bool:
    table = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    return table[bare]


def cast_int(em: Emitter, e: Expr, to: Element, sign: bool) -> Expr:
    """extsi, extui, trunci, index_cast."""
    assert isinstance(to, Scalar)
    if e.type == to:
        return e
    if e.const is not None and e.type != I1:
        e = extended(em, e, "s" if sign else "z")
        value = int(e.const or 0)
        folded = value if sign or value >= 0 else value % (1 << e.scalar.bits)
        return dataclasses.replace(constant(wrap(folded, to), to), level=e.level)
    if e.type == I1:
        return _from_mask(em, e, to, sign)
    if to == I1:
        return _to_mask(em, e)
    e = extended(em, e, "s" if sign else "z") if to.bits > e.scalar.bits else e
    wide_from, wide_to = e.scalar.bits == 64, to.bits == 64
    ext = "" if to.bits < e.scalar.bits else e.ext
    if wide_from == wide_to or (e.kind == "a" and sign):
        return dataclasses.replace(_rewiden(em, e, to, wide_from, wide_to), ext=ext)
    if e.kind == "s":
        middle = "uint32_t" if wide_to and not sign and e.scalar.bits == 32 else ""
        text = f"int{64 if wide_to else 32}_t({middle}({e.text}))"
        return em.scalar(text, to, e.level, align=e.align, nonneg=e.nonneg, ext=ext)
    unsigned = wide_to and not sign and e.scalar.bits == 32
    function = ("to_lu" if unsigned else "to_l") if wide_to else "to_i"
    return em.vector(f"{function}({em.lanes(e)})", to, e.level, ext=ext)


def _rewiden(em: Emitter, e: Expr, to: Scalar, wide_from: bool, wide_to: bool) -> Expr:
    if wide_from == wide_to:
        return dataclasses.replace(e, type=to)
    base = uniform_base(e)
    if base.const is None:
        text = f"int{64 if wide_to else 32}_t({e.text})"
        base = em.scalar(text, to, e.level, align=e.align, nonneg=e.nonneg)
    else:
        base = dataclasses.replace(constant(base.const, to), level=e.level)
        return dataclasses.replace(
            base, text=str(base.const), kind="a", stride=e.stride, const=None
        )
    return with_stride(base, e.stride)


def _from_mask(em: Emitter, e: Expr, to: Scalar, sign: bool) -> Expr:
    ext = ("s" if sign else "zs") if to.name in NARROW else ""
    if e.kind == "s":
        minus = "-" if sign else ""
        wide = "int64_t" if to.bits == 64 else "int32_t"
        return em.scalar(f"{minus}{wide}({e.text})", to, e.level, ext=ext, nonneg=not sign)
    text = f"{'mask_bits' if sign else 'mask_int'}({em.lanes(e)})"
    return em.vector(f"to_l({text})" if to.bits == 64 else text, to, e.level, ext=ext)


def _to_mask(em: Emitter, e: Expr) -> Expr:
    low = binary(em, "andi", e, constant(1, e.type))
    return compare(em, "ne", low, constant(0, e.type))
