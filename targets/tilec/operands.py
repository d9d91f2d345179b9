"""Where the operands of a dot lie: in place where they can, else in arrays on the stack."""

from __future__ import annotations

from .context import Context
from .expr import constant, memory_c
from .index import Index
from .ir import F32, I32, Element, Op, Pointer, Scalar, Value
from .nest import fill, roots
from .pointers import pointee
from .storage import Memory, new_memory
from .strides import step


def bind_accumulator(ctx: Context, op: Op, c: Value, memory: Memory) -> None:
    """The result of a dot that went into `memory`, by a new name.

    Text that reads the old contents must not be taken for the new ones.
    """
    alias = ctx.em.name("buf")
    ctx.em.line(f"float* const {alias} = {memory.pointer};")
    result = Memory(alias, op.result.shape, F32, ctx.em.level)
    ctx.buffers[op.result] = ctx.buffers[c] if memory.pointer == _name(ctx, c) else memory.pointer
    ctx.env[op.result] = result


def _name(ctx: Context, value: Value) -> str:
    storage = ctx.env.get(value)
    return storage.pointer if isinstance(storage, Memory) else ""


def accumulator(ctx: Context, op: Op, c: Value) -> Memory:
    """The accumulator's array, filled; in place of `c` when nobody else reads it."""
    storage = ctx.env.get(c)
    if isinstance(storage, Memory) and c in ctx.buffers and roots(c) == {op} and len(c.users) == 1:
        return storage
    source = _rescaled(ctx, c)
    if source is not None and roots(source) == {op}:
        kept = ctx.env[source]
        assert isinstance(kept, Memory)
        alias = ctx.em.name("buf")
        ctx.em.line(f"float* const {alias} = {kept.pointer};")
        memory = Memory(alias, op.result.shape, F32, ctx.em.level)
        fill(ctx, memory, c)
        ctx.env[c], ctx.buffers[c] = memory, ctx.buffers[source]
        return memory
    memory = new_memory(ctx.em, op.result.shape, F32, ctx.em.level)
    fill(ctx, memory, c)
    ctx.buffers.setdefault(c, "")
    return memory


def _rescaled(ctx: Context, c: Value) -> Value | None:
    """The one array behind ``c = x * scale + ...`` that has c's shape, if `c` is lazy."""
    found: set[Value] = set()
    stack = [c] if c not in ctx.env else []
    while stack:
        value = stack.pop()
        if value in ctx.env:
            if value in ctx.buffers and value.shape == c.shape:
                found.add(value)
        elif value.op is not None and value.op.name.startswith(("arith.", "math.")):
            stack += value.op.operands
        elif value.op is None or value.op.name not in ("tt.splat", "tt.broadcast", "tt.load"):
            return None
    return found.pop() if len(found) == 1 else None


def in_place(
    ctx: Context, value: Value, direct: tuple[str, ...], masked: bool = False
) -> tuple[str, str] | None:
    """Pointer and row stride of a load that lies right in memory; `masked`: perhaps a part."""
    op = value.op
    if value in ctx.env or op is None or op.name != "tt.load":
        return None
    if not masked and not always(ctx, op):
        return None
    pointer = op.operands[0]
    element: Element = pointer.element
    assert isinstance(element, Pointer)
    if memory_c(element.element) not in [memory_c(Scalar(name)) for name in direct]:
        return None
    if step(pointer, 1) != 1 or step(pointer, 0) is None:
        return None
    zero, one = constant(0, I32), constant(1, I32)
    first = ctx.at(pointer, Index((zero, zero)))
    assert pointee(first) is not None
    if value.shape[0] == 1:
        return first.text, "0"
    second = ctx.at(pointer, Index((one, zero)))
    return first.text, f"{second.text} - {first.text}"


def always(ctx: Context, load: Op) -> bool:
    """A load without mask, or under one that is known to be true."""
    if len(load.operands) == 1:
        return True
    mask = load.operands[1]
    while mask not in ctx.assumed:
        if mask.op is None or mask.op.name not in ("tt.broadcast", "tt.expand_dims", "tt.splat"):
            return False
        mask = mask.op.operands[0]
    return True
