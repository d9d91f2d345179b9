"""Arithmetic on sizes that are symbolic: what models do with `Shape` before they reshape.

Each rule has the op's inputs as `Known` and gives a `Known`, or None where it does not apply: then
the op runs on tensors like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch

from .registry import TORCH_TYPES, Known, Node, Size, Slot, Value, outside_trace

Rule: TypeAlias = Callable[..., "Known | tuple[Known, ...] | None"]
R = TypeVar("R", bound=Rule)
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[R], R]:
    """Enter a rule for ops of ONNX's own domain."""

    def enter(function: R) -> R:
        RULES.update(dict.fromkeys(names, function))
        return function

    return enter


def objects(values: Any, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Numbers and symbolic sizes as an array that NumPy does not look into."""
    flat = list(values)
    array = np.empty(len(flat), object)
    array[:] = flat
    return array if shape is None else array.reshape(shape)


def known_of(tensor: torch.Tensor) -> Known:
    """The same numbers in the other form."""
    with outside_trace():
        return Known(objects(tensor.reshape(-1).tolist(), tuple(tensor.shape)), tensor.dtype)


def is_plain(known: Known) -> bool:
    """Whether nothing in it is symbolic."""
    return all(isinstance(x, int | float) for x in known.array.reshape(-1))


def as_tensor(known: Known) -> torch.Tensor:
    """A tensor of the numbers, made of the sizes that the trace has."""
    parts = [torch.scalar_tensor(x, dtype=known.dtype) for x in known.array.reshape(-1).tolist()]
    if not parts:
        return torch.empty(known.array.shape, dtype=known.dtype)
    return torch.stack(parts).reshape(known.array.shape)


def smaller(a: Size, b: Size) -> Size:
    return torch.sym_min(a, b)  # type: ignore[no-untyped-call]


def larger(a: Size, b: Size) -> Size:
    return torch.sym_max(a, b)  # type: ignore[no-untyped-call]


def fixed_slot(value: Value) -> Slot:
    """A value whose numbers are known."""
    return Slot(value, fixed=value)


def of_known(known: Known) -> Slot:
    """Plain numbers become a tensor at once, outside the trace."""
    if not is_plain(known):
        return Slot(sizes=known)
    with outside_trace():
        flat = torch.tensor(known.array.reshape(-1).tolist(), dtype=known.dtype)
        return fixed_slot(flat.reshape(known.array.shape))


def as_slot(value: Value) -> Slot:
    """A value of any form."""
    if isinstance(value, Slot):
        return value
    return of_known(value) if isinstance(value, Known) else Slot(value)


def tensor_in(slot: Slot) -> Value:
    """What ops compute with; a tensor of symbolic sizes is made when the first one asks."""
    if slot.tensor is None and slot.sizes is not None:
        slot.tensor = as_tensor(slot.sizes)
    return slot.tensor


def _elementwise(function: Callable[..., Any], dtype: torch.dtype | None, *xs: Known) -> Known:
    arrays = np.broadcast_arrays(*(x.array for x in xs))
    flat = [function(*row) for row in zip(*(a.reshape(-1).tolist() for a in arrays), strict=True)]
    return Known(objects(flat, arrays[0].shape), dtype or xs[0].dtype)


def _divide(a: Any, b: Any) -> Any:
    """Integers are cut towards zero; sizes are never negative."""
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return a // b


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": _divide,
    "Mod": lambda a, b: a % b,
}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "Equal": lambda a, b: bool(a == b),
    "Less": lambda a, b: bool(a < b),
    "LessOrEqual": lambda a, b: bool(a <= b),
    "Greater": lambda a, b: bool(a > b),
    "GreaterOrEqual": lambda a, b: bool(a >= b),
}


@rule(*_ARITHMETIC)
def arithmetic(node: Node, a: Known, b: Known) -> Known | None:
    if a.dtype.is_floating_point:
        return None
    return _elementwise(_ARITHMETIC[node.op_type], None, a, b)


@rule(*_COMPARISONS)
def comparison(node: Node, a: Known, b: Known) -> Known:
    return _elementwise(_COMPARISONS[node.op_type], torch.bool, a, b)


@rule("Min", "Max")
def extreme(node: Node, *xs: Known) -> Known:
    choose = smaller if node.op_type == "Min" else larger
    result = xs[0]
    for x in xs[1:]:
        result = _elementwise(choose, None, result, x)
    return result


@rule("Neg")
def negative(node: Node, x: Known) -> Known:
    return _elementwise(lambda a: -a, None, x)


@rule("Identity")
def identity(node: Node, x: Known) -> Known:
    return x


@rule("Cast")
def cast(node: Node, x: Known) -> Known | None:
    """Between integers; a size that becomes a float is a number like any other."""
    dtype = TORCH_TYPES.get(node.attrs["to"])
    whole = dtype in (torch.int64, torch.int32)
    return Known(x.array, dtype) if whole and dtype is not None else None


@rule("Where")
def where(node: Node, condition: Known, a: Known, b: Known) -> Known:
    return _elementwise(lambda c, x, y: x if c else y, a.dtype, condition, a, b)


@rule("Gather")
def gather(node: Node, x: Known, indices: Known) -> Known | None:
    if not is_plain(indices):
        return None
    axis = node.attrs.get("axis", 0)
    shape = (*x.array.shape[:axis], *indices.array.shape, *x.array.shape[axis + 1 :])
    flat = np.take(x.array, indices.array.astype(np.int64).reshape(-1), axis)
    return Known(flat.reshape(shape), x.dtype)


@rule("Concat")
def concat(node: Node, *xs: Known) -> Known:
    return Known(np.concatenate([x.array for x in xs], node.attrs["axis"]), xs[0].dtype)


@rule("Slice")
def slice_(node: Node, x: Known, starts: Known, ends: Known, *rest: Known | None) -> Known | None:
    axes, steps = (*rest, None, None)[:2]
    if not all(is_plain(k) for k in (starts, ends, axes, steps) if k is not None):
        return None
    index = [slice(None)] * x.array.ndim
    count = starts.array.size
    for place in range(count):
        axis = int(axes.array[place]) if axes is not None else place
        step = int(steps.array[place]) if steps is not None else 1
        start, end = int(starts.array[place]), int(ends.array[place])
        low = -x.array.shape[axis] - 1
        index[axis] = slice(start, None if step < 0 and end <= low else end, step)
    return Known(x.array[tuple(index)], x.dtype)


@rule("Unsqueeze")
def unsqueeze(node: Node, x: Known, axes: Known) -> Known:
    rank = x.array.ndim + axes.array.size
    places = tuple(int(axis) % rank for axis in axes.array.reshape(-1))
    return Known(np.expand_dims(x.array, places), x.dtype)


@rule("Squeeze")
def squeeze(node: Node, x: Known, axes: Known | None = None) -> Known:
    places = None if axes is None else tuple(int(axis) for axis in axes.array.reshape(-1))
    return Known(np.squeeze(x.array, places), x.dtype)


@rule("Reshape")
def reshape(node: Node, x: Known, shape: Known) -> Known | None:
    return Known(x.array.reshape(shape.array.astype(int)), x.dtype) if is_plain(shape) else None


@rule("Expand")
def expand(node: Node, x: Known, shape: Known) -> Known | None:
    if not is_plain(shape):
        return None
    wanted = np.broadcast_shapes(x.array.shape, tuple(shape.array.tolist()))
    return Known(np.broadcast_to(x.array, wanted), x.dtype)


@rule("ReduceProd", "ReduceSum")
def reduce(node: Node, x: Known, axes: Known | None = None) -> Known | None:
    """Over all elements, the one use that models make of it."""
    if x.array.ndim != 1 or (axes is not None and axes.array.tolist() not in ([0], [-1])):
        return None
    total: Any = 1 if node.op_type == "ReduceProd" else 0
    for size in x.array.tolist():
        total = total * size if node.op_type == "ReduceProd" else total + size
    kept = node.attrs.get("keepdims", 1)
    return Known(objects([total], (1,) if kept else ()), x.dtype)


@rule("Split")
def split(node: Node, x: Known, sizes: Known | None = None) -> tuple[Known, ...] | None:
    if sizes is None or not is_plain(sizes):
        return None
    cuts = np.cumsum(sizes.array.astype(int))[:-1]
    parts = np.split(x.array, cuts, node.attrs.get("axis", 0))
    return tuple(Known(part, x.dtype) for part in parts)
