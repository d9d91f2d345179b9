"""Elementwise operators and reductions against NumPy in f64 (erf and the like: torch)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sglk.targets.kernels import elementwise, reduce

Launch = Callable[..., None]
Array = NDArray[Any]


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def by_torch(function: Callable[[Any], Any]) -> Callable[[Array], Array]:
    return lambda x: np.asarray(function(torch.from_numpy(x)).numpy())


UNARY: dict[str, Callable[[Array], Array]] = {
    "neg": np.negative,
    "exp": np.exp,
    "log": np.log,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "floor": np.floor,
    "tanh": np.tanh,
    "silu": by_torch(torch.nn.functional.silu),
    "gelu": by_torch(torch.nn.functional.gelu),
    "gelu_tanh": by_torch(lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
}


EDGES = np.array([0.0, 1e-6, -1e-6, 0.09, 80.0, -80.0], np.float32)


def unary_call(kind: str) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    x = np.concatenate([normal(95) * 4, EDGES])
    if kind in ("log", "rsqrt"):
        x = np.abs(x) + np.float32(1e-3)
    arguments = {"x": x, "y": np.full_like(x, np.nan), "n": x.size}
    return elementwise.unary, {"KIND": kind, "BLOCK": 64}, arguments


@pytest.fixture(scope="module", autouse=True)
def all_kinds(launch: Any) -> None:
    """Compiles them together, on all cores."""
    launch.prepare(unary_call(kind) for kind in UNARY)


@pytest.mark.parametrize("kind", UNARY)
def test_unary(launch: Launch, kind: str) -> None:
    kernel, constants, arguments = unary_call(kind)
    launch(kernel, (2, 1, 1), constants, **arguments)
    expected = UNARY[kind](arguments["x"].astype(np.float64))
    np.testing.assert_allclose(arguments["y"], expected, rtol=2e-6, atol=2e-6)


BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "sub": np.subtract,
    "div": np.divide,
    "maximum": np.maximum,
    "lt": np.less,
}


def strides(array: Array, shape: tuple[int, ...]) -> list[int]:
    """Element strides of `array` broadcast to `shape`."""
    return [step // array.itemsize for step in np.broadcast_to(array, shape).strides]


def numbered(name: str, values: list[int]) -> dict[str, int]:
    return {f"{name}{i}": value for i, value in enumerate(values)}


@pytest.mark.parametrize("kind", BINARY)
def test_binary_with_broadcasting(launch: Launch, kind: str) -> None:
    shape = (2, 3, 5, 70)
    a, b = normal(2, 1, 5, 70), normal(3, 1, 1, seed=1)
    y = np.full(shape, np.nan, np.float32)
    *outer_a, a3 = strides(a, shape)
    *outer_b, b3 = strides(b, shape)
    launch(
        elementwise.binary,
        (2, 30, 1),
        {"A3": a3, "B3": b3, "KIND": kind, "BLOCK": 64},
        a=a,
        b=b,
        y=y,
        **{f"d{i}": shape[i] for i in (1, 2, 3)},
        **numbered("a", outer_a),
        **numbered("b", outer_b),
    )
    np.testing.assert_allclose(y, BINARY[kind](a, b).astype(np.float32), rtol=1e-6)


def test_where(launch: Launch) -> None:
    shape = (1, 3, 5, 70)
    c, a, b = (
        (normal(5, 70) > 0).astype(np.int8),
        normal(*shape, seed=1),
        np.zeros((1, 1), np.float32),
    )
    y = np.full(shape, np.nan, np.float32)
    given: dict[str, int] = {f"d{i}": shape[i] for i in (1, 2, 3)}
    constants = {"BLOCK": 64}
    for name, array in (("c", c), ("a", a), ("b", b)):
        *outer, constants[f"{name.upper()}3"] = strides(array, shape)
        given |= numbered(name, outer)
    launch(elementwise.where, (2, 15, 1), constants, c=c, a=a, b=b, y=y, **given)
    assert np.array_equal(y, np.where(c, a, b))


def test_copy_transposes(launch: Launch) -> None:
    x = normal(1, 3, 5, 70)
    y = np.full((1, 5, 3, 70), np.nan, np.float32)
    *x_outer, x3 = strides(x.swapaxes(1, 2), y.shape)
    *y_outer, y3 = strides(y, y.shape)
    given = {"d1": 5, "d2": 3, "d3": 70, **numbered("x", x_outer), **numbered("y", y_outer)}
    launch(elementwise.copy, (2, 15, 1), {"X3": x3, "Y3": y3, "BLOCK": 64}, x=x, y=y, **given)
    assert np.array_equal(y, x.swapaxes(1, 2))


def test_casts(launch: Launch, bf16: Callable[[Array], Any]) -> None:
    x = normal(70)
    half, wide, whole = x.astype(np.float16), np.zeros(70, np.float32), np.zeros(70, np.int32)
    launch(elementwise.cast, (2, 1, 1), {"BLOCK": 64}, x=half, y=wide, n=70)
    assert np.array_equal(wide, half.astype(np.float32))
    launch(elementwise.cast, (2, 1, 1), {"BLOCK": 64}, x=x * 100, y=whole, n=70)
    assert np.array_equal(whole, (x * 100).astype(np.int32))
    short = bf16(np.zeros(70))
    launch(elementwise.cast, (2, 1, 1), {"BLOCK": 64}, x=x, y=short, n=70)
    np.testing.assert_allclose(short.floats(), x, rtol=8e-3)


@pytest.mark.parametrize(("act", "width"), [("silu", 128), ("gelu_tanh", 100)])
def test_gated(launch: Launch, act: str, width: int) -> None:
    x = normal(3, 2 * width)
    y = np.full((3, width), np.nan, np.float32)
    constants = {"WIDTH": width, "ACT": act, "BLOCK": 64}
    launch(elementwise.gated, (3, 2, 1), constants, x=x, y=y)
    wide = x.astype(np.float64)
    expected = UNARY[act](wide[:, :width]) * wide[:, width:]
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["sum", "mean", "max", "min"])
def test_reduce(launch: Launch, kind: str) -> None:
    x = normal(3, 200)
    y = np.full(3, np.nan, np.float32)
    launch(reduce.reduce, (3, 1, 1), {"N": 200, "KIND": kind, "BLOCK": 64}, x=x, y=y)
    expected = getattr(np, kind)(x.astype(np.float64), -1)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_argmax_takes_the_first_of_equals(launch: Launch) -> None:
    x = normal(5, 200)
    x[0, [7, 80, 199]] = 9.0
    x[1] = -np.inf
    x[2] = 0.0
    x[3, 199] = 9.0
    y = np.full(5, -7, np.int32)
    launch(reduce.argmax, (5, 1, 1), {"N": 200, "BLOCK": 64}, x=x, y=y)
    assert y.tolist() == x.argmax(-1).tolist()


@pytest.mark.parametrize("n", [1, 200])
def test_softmax(launch: Launch, n: int) -> None:
    x = normal(3, n) * 5 + 100
    y = np.full_like(x, np.nan)
    launch(reduce.softmax, (3, 1, 1), {"N": n, "BLOCK": 64}, x=x, y=y)
    weight = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    np.testing.assert_allclose(y, weight / weight.sum(-1, keepdims=True), rtol=1e-5, atol=1e-7)
