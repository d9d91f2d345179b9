"""Compile-time strides: how a pointer or integer tensor moves along each axis."""

from __future__ import annotations

from .ir import Op, Pointer, Scalar, Tensor, Value

DYNAMIC = "dynamic"
"""Affine, with a step that only the run knows."""
Step = int | str | None
"""A constant step in elements, `DYNAMIC`, or None: not affine."""

_PASS = frozenset(("arith.extsi", "arith.extui", "arith.index_cast", "arith.trunci", "tt.bitcast"))


def step(value: Value, axis: int) -> Step:
    """The change of an integer or pointer tensor from one position to the next along `axis`."""
    if axis not in value.steps:
        value.steps[axis] = _step(value, axis)
    return value.steps[axis]


def _step(value: Value, axis: int) -> Step:
    op = value.op
    if not isinstance(value.type, Tensor) or value.shape[axis] == 1:
        return 0
    if op is None:
        return None
    if op.name in ("tt.splat", "arith.constant"):
        return 0
    if op.name == "tt.make_range":
        return 1
    if op.name in _PASS:
        return step(op.operands[0], axis)
    if op.name in ("tt.broadcast", "tt.expand_dims", "tt.trans"):
        source = source_axis(op, axis)
        return 0 if source is None else step(op.operands[0], source)
    if op.name in ("arith.addi", "arith.subi", "tt.addptr"):
        a, b = (step(operand, axis) for operand in op.operands)
        return _combine(a, b, -1 if op.name == "arith.subi" else 1)
    if op.name == "arith.muli":
        return _product(op, axis)
    same = all(step(operand, axis) == 0 for operand in op.operands)
    return 0 if same and op.name.startswith("arith.") else None


def _combine(a: Step, b: Step, sign: int) -> Step:
    if a is None or b is None:
        return None
    if DYNAMIC in (a, b):
        return DYNAMIC
    assert isinstance(a, int) and isinstance(b, int)
    return a + sign * b


def _product(op: Op, axis: int) -> Step:
    steps = [step(operand, axis) for operand in op.operands]
    if None in steps or 0 not in steps:
        return None
    if steps == [0, 0]:
        return 0
    moving = 0 if steps[0] != 0 else 1
    factor = constant_of(op.operands[1 - moving])
    own = steps[moving]
    return own * factor if factor is not None and isinstance(own, int) else DYNAMIC


def constant_of(value: Value) -> int | None:
    """The number a value is everywhere, seen through shape changes."""
    op = value.op
    while op is not None and op.name in ("tt.splat", "tt.broadcast", "tt.expand_dims"):
        op = op.operands[0].op
    if op is not None and op.name == "arith.constant" and isinstance(op.attrs["value"], int):
        return int(op.attrs["value"])
    return None


def source_axis(op: Op, axis: int) -> int | None:
    """The operand's axis that a result's axis comes from; None where it does not move."""
    if op.name == "tt.broadcast":
        return axis if op.operands[0].shape[axis] > 1 else None
    if op.name == "tt.expand_dims":
        new = op.attrs["axis"]
        assert isinstance(new, int)
        return None if axis == new else axis - (axis > new)
    order = op.attrs["order"]
    assert isinstance(order, tuple)
    return order[axis]


def lane_axis(value: Value, pointer: Value | None = None) -> int | None:
    """The axis along which most accesses behind a value are contiguous; None means the last.

    `pointer` is the address it is stored to, if it is.
    """
    rank = len(value.shape)
    if rank < 2:
        return None
    candidates = [axis for axis in range(rank) if value.shape[axis] % 16 == 0]
    if not candidates or candidates == [rank - 1]:
        return None
    scores = {axis: _score(value, axis, set()) for axis in candidates}
    if pointer is not None:
        for axis in candidates:
            scores[axis] += 2 * (step(pointer, axis) == 1)
    best = max(candidates, key=lambda axis: (scores[axis], axis))
    return None if best == rank - 1 else best


def _score(value: Value, axis: int, seen: set[tuple[Value, int]]) -> int:
    """Loads behind a value that are contiguous along an axis."""
    op = value.op
    if op is None or (value, axis) in seen or not isinstance(value.type, Tensor):
        return 0
    seen.add((value, axis))
    if op.name == "tt.load":
        return int(step(op.operands[0], axis) == 1)
    if op.name in ("tt.broadcast", "tt.expand_dims", "tt.trans"):
        source = source_axis(op, axis)
        return 0 if source is None else _score(op.operands[0], source, seen)
    if op.name.startswith(("arith.", "math.")):
        return sum(_score(operand, axis, seen) for operand in op.operands)
    return 0


def base_argument(value: Value) -> Value | None:
    """The kernel argument a pointer is derived from; None if it cannot be told."""
    while value.op is not None:
        if value.op.name not in (*_PASS, "tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims"):
            return None
        value = value.op.operands[0]
    return value if isinstance(value.type, (Pointer, Scalar)) else None
