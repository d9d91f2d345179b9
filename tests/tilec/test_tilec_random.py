"""Random kernels: element-wise trees over tiles with broadcasts and masks, against NumPy."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

KERNEL = """
@triton.jit
def random_{number}(a, b, i, y, rows, N, BM: tl.constexpr, BN: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    n = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    mask = (m < rows) & (n < N)
    at = m * N + n
    A = tl.load(a + at, mask=mask, other=1.0)
    B = tl.load(b + n, mask=n < N, other=2.0)
    I = tl.load(i + m, mask=m < rows, other=3)
    tl.store(y + at, {expression}, mask=mask)
"""
FUNCTIONS: dict[str, Any] = {
    "tl.exp": np.exp, "tl.abs": np.abs, "tl.maximum": np.maximum, "tl.minimum": np.minimum,
    "tl.where": np.where,
}  # fmt: skip
SHAPES = [(1, 64), (4, 16), (2, 4), (32, 128), (16, 8), (8, 1)]


def _tree(rng: np.random.Generator, depth: int) -> str:
    leaves = ["A", "B", "A", "(I % 7).to(tl.float32)", "(m * 3 + n // 4).to(tl.float32)", "0.5"]
    if depth == 0:
        return str(rng.choice(leaves))
    x, y = _tree(rng, depth - 1), _tree(rng, depth - 1)
    kind = int(rng.integers(8))
    forms = [
        f"({x} + {y})", f"({x} - {y})", f"({x} * {y} * 0.25)", f"tl.maximum({x}, {y} + 0.0 * A)",
        f"tl.minimum({x} + 0.0 * A, {y})", f"tl.exp(-tl.abs({x} + 0.0 * A))",
        f"tl.where(A > B, {x} + 0.0 * A, {y} + 0.0 * A)", f"tl.abs({x} + 0.0 * A)",
    ]  # fmt: skip
    return forms[kind]


def _expected(expression: str, a: Any, b: Any, i: Any) -> Any:
    rows, columns = a.shape
    text = expression.replace(".to(tl.float32)", ".astype(np.float32)")
    for name in FUNCTIONS:
        text = text.replace(name, f"F['{name}']")
    names = {"A": a, "B": b[None, :], "I": i[:, None], "np": np, "F": FUNCTIONS}
    names |= {"m": np.arange(rows)[:, None], "n": np.arange(columns)[None, :]}
    return np.broadcast_to(eval(text, names), a.shape)


@pytest.fixture(scope="module")
def random_kernels(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, str]]:
    rng = np.random.default_rng(11)
    texts = [_tree(rng, 3) for _ in range(len(SHAPES))]
    path: Path = tmp_path_factory.mktemp("random") / "random_tilec_kernels.py"
    body = [KERNEL.format(number=k, expression=text) for k, text in enumerate(texts)]
    path.write_text("import triton\nimport triton.language as tl\n" + "".join(body))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return [(getattr(module, f"random_{k}"), text) for k, text in enumerate(texts)]


@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_random_trees(launch: Any, random_kernels: list[tuple[Any, str]], number: int) -> None:
    fn, text = random_kernels[number]
    bm, bn = SHAPES[number]
    rng = np.random.default_rng(number)
    for rows, columns in ((bm, bn), (2 * bm + 1, 2 * bn + 3), (1, 1)):
        a = rng.standard_normal((rows, columns)).astype(np.float32)
        b = rng.standard_normal(columns).astype(np.float32)
        i = rng.integers(0, 1000, rows).astype(np.int32)
        y = np.full((rows + 1, columns), 77, np.float32)
        grid = (-(-rows // bm), -(-columns // bn))
        launch(fn, grid, {"BM": bm, "BN": bn}, a=a, b=b, i=i, y=y, rows=rows, N=columns)
        expected = _expected(text, a, b, i)
        np.testing.assert_allclose(y[:rows], expected, rtol=1e-5, atol=1e-5, err_msg=text)
        assert np.all(y[rows] == 77)
