"""Pointer arithmetic, loads and stores of 16 lanes or one element."""

from __future__ import annotations

import dataclasses

from ...errors import LoweringError
from .expr import Emitter, Expr, constant, memory_c, scalar_c
from .integers import uniform_base
from .ir import I1, Element, Pointer, Scalar


def advance(em: Emitter, pointer: Expr, offset: Expr) -> Expr:
    """tt.addptr: fold the uniform part into the base, keep the lanes apart."""
    level = max(pointer.level, offset.level)
    if offset.kind == "v":
        lanes = offset
        if pointer.kind == "a":
            steps = Expr("a", "0", offset.type, stride=pointer.stride)
            lanes = _sum(em, steps, offset)
        elif pointer.offset is not None:
            lanes = _sum(em, pointer.offset, offset)
        return dataclasses.replace(pointer, kind="v", offset=lanes, level=level, stride=0)
    base = uniform_base(offset)
    moved = dataclasses.replace(pointer, level=level)
    if base.const != 0:
        text = em.let(scalar_c(pointer.type), f"{pointer.text} + {base.text}", level, "p")
        moved = dataclasses.replace(moved, text=text)
    if pointer.kind == "v" and offset.stride and pointer.offset is not None:
        steps = Expr("a", "0", pointer.offset.type, stride=offset.stride)
        return dataclasses.replace(moved, offset=_sum(em, pointer.offset, steps))
    if pointer.kind == "v":
        return moved
    stride = pointer.stride + offset.stride
    return dataclasses.replace(moved, kind="a" if stride else "s", stride=stride)


def _sum(em: Emitter, a: Expr, b: Expr) -> Expr:
    wide = any(e.type == Scalar("i64") for e in (a, b))
    element = Scalar("i64" if wide else "i32")

    def lanes(e: Expr) -> str:
        if e.kind == "v" and wide and e.type != element:
            return f"to_l({e.text})"
        return em.lanes(dataclasses.replace(e, type=element) if e.kind == "a" else e)

    level = max(a.level, b.level)
    return em.vector(f"add({lanes(a)}, {lanes(b)})", element, level)


def recast(em: Emitter, pointer: Expr, to: Pointer) -> Expr:
    """tt.bitcast of a pointer: the address stays."""
    text = em.let(scalar_c(to), f"({scalar_c(to)})({pointer.text})", pointer.level, "p")
    return dataclasses.replace(pointer, text=text, type=to)


def pointee(pointer: Expr) -> Element:
    assert isinstance(pointer.type, Pointer)
    return pointer.type.element


def load(
    em: Emitter,
    pointer: Expr,
    mask: Expr | None,
    other: Expr | None,
    level: int,
    unsigned: bool = False,
) -> Expr:
    """`level`: the outermost scope the access may move to."""
    element = pointee(pointer)
    if not isinstance(element, Scalar):
        raise LoweringError("tilec: expected loads of numbers, got a load of pointers")
    ext = ("z" if unsigned else "s") if element.name in ("i8", "i16") else ""
    address = f"(const u{memory_c(element)}*){pointer.text}" if ext == "z" else pointer.text
    level = max(level, *(e.level for e in (pointer, mask, other) if e is not None))
    if mask is not None and mask.const is not None:
        if not mask.const:
            fill = other or constant(0, element)
            return dataclasses.replace(fill, level=level)
        mask = None
    fill = other or constant(0, element)
    if pointer.kind == "s":
        return _load_one(em, address, element, mask, fill, level, ext)
    if pointer.kind == "a" and pointer.stride == 1:
        plain, masked = f"vld({address})", f"vldm({address}, "
    else:
        offsets = _offsets(em, pointer)
        plain, masked = f"gather({address}, {offsets})", f"gatherm({address}, {offsets}, "
    if mask is None:
        text = plain
    elif mask.is_uniform:
        text = f"{mask.text} ? {plain} : {em.lanes(fill)}"
    else:
        text = f"{masked}{em.lanes(mask)}, {em.lanes(fill)})"
    return em.vector(text, element, level, ext=ext)


def _load_one(
    em: Emitter, address: str, element: Scalar, mask: Expr | None, fill: Expr, level: int, ext: str
) -> Expr:
    if mask is None:
        return em.scalar(f"ld({address})", element, level, ext=ext)
    if mask.is_uniform and fill.is_uniform:
        return em.scalar(f"{mask.text} ? ld({address}) : {fill.text}", element, level, ext=ext)
    lanes = em.lanes(mask)
    zero = constant(0, element).text
    one = em.scalar(f"many({lanes}) ? ld({address}) : {zero}", element, level, ext=ext)
    function = "msel" if element == I1 else "sel"
    return em.vector(
        f"{function}({lanes}, {em.lanes(one)}, {em.lanes(fill)})", element, level, ext=ext
    )


def _offsets(em: Emitter, pointer: Expr) -> str:
    if pointer.offset is not None:
        return em.lanes(pointer.offset)
    return em.let("vi", f"affine(int32_t(0), int32_t({pointer.stride}))", 0)


def store_text(em: Emitter, pointer: Expr, value: Expr, mask: Expr | None) -> str:
    """The statement that stores `value`; empty when the mask is false."""
    if mask is not None and mask.const is not None:
        if not mask.const:
            return ""
        mask = None
    guard = f"if ({mask.text}) " if mask is not None and mask.is_uniform else ""
    lanes_mask = mask if mask is not None and not mask.is_uniform else None
    if pointer.kind == "s" and lanes_mask is None:
        text = value.text if value.is_uniform else f"get({em.lanes(value)}, 15)"
        return f"{guard}st({pointer.text}, {text});"
    value_text = em.lanes(value)
    if pointer.kind == "a" and pointer.stride == 1:
        arguments, name = f"{pointer.text}, {value_text}", "vst"
    else:
        offsets = "vsplat(int32_t(0))" if pointer.kind == "s" else _offsets(em, pointer)
        arguments, name = f"{pointer.text}, {offsets}, {value_text}", "scatter"
    if lanes_mask is not None:
        return f"{name}m({arguments}, {em.lanes(lanes_mask)});"
    return f"{guard}{name}({arguments});"
