"""Linear layers on every block type against `gguf.quants.dequantize` and matmul."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray
from sglk.targets.kernels import embedding, quant_linear
from sglk.targets.kernels.packing import BLOCK_TYPES, BlockType, pack_blocks, pad_rows, sections

Launch = Callable[..., None]
Array = NDArray[Any]
TYPES = pytest.mark.parametrize("block", BLOCK_TYPES.values(), ids=lambda block: block.name)
NUMPY = {"u8": np.uint8, "i8": np.int8, "f16": np.float16}
N, K = 70, 256


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def random_blocks(block: BlockType, n: int, seed: int = 0) -> Array:
    """Any quants and sub-scales, with d and m of either sign and a sane size."""
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (n, K // block.size, block.bytes), dtype=np.uint8)
    largest = 0.02 / (64 if block.is_super else 1)
    places = [208] if block.name == "q6_k" else [0, 2] if block.has_min else [0]
    for at in places:
        scales = rng.uniform(-largest, largest, (*raw.shape[:2], 1)).astype(np.float16)
        raw[..., at : at + 2] = scales.view(np.uint8)
    return raw.reshape(n, -1)


def values(block: BlockType, raw: Array) -> Array:
    dense: Array = dequantize(raw, GGMLQuantizationType[block.name.upper()])
    return dense


def matmul(x: Array, block: BlockType, raw: Array) -> Array:
    product: Array = x.astype(np.float64) @ values(block, raw).astype(np.float64).T
    return product


def planes(block: BlockType, raw: Array) -> dict[str, Array | None]:
    """The five section arguments of the kernels."""
    blob = pack_blocks(block, raw)
    given: dict[str, Array | None] = dict.fromkeys("qhsdm")
    for name, part in sections(block, len(raw), K).items():
        given[name] = blob[part.offset : part.offset + part.bytes].view(NUMPY[part.dtype])
    return given


def linear_call(
    block: BlockType, raw: Array, x: Array, block_m: int, **more: Any
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Kernel, constants and arguments of one product; y is poisoned."""
    constants = {"K": K, "N": len(raw), "ACT": "none", "BLOCK_M": block_m, **block.constants}
    y = np.full((len(x), len(raw)), np.nan, np.float32)
    arguments = {"x": x, **planes(block, raw), "bias": None, "residual": None, "y": y}
    return quant_linear.quant_linear, constants, arguments | {"rows": len(x)} | more


def run(launch: Launch, block: BlockType, raw: Array, x: Array, block_m: int, **more: Any) -> Array:
    kernel, constants, arguments = linear_call(block, raw, x, block_m, **more)
    launch(kernel, (-(-len(x) // block_m), -(-len(raw) // 64), 1), constants, **arguments)
    y: Array = arguments["y"]
    return y


def gather_call(block: BlockType, raw: Array) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    arguments: dict[str, Any] = {
        **planes(block, raw),
        "ids": np.array([0, 69, 63, 64, 0], np.int32),
    }
    arguments |= {"y": np.full((5, K), np.nan, np.float32), "scale": 1.0}
    return embedding.gather_quant, {"K": K, **block.constants}, arguments


@pytest.fixture(scope="module", autouse=True)
def all_types(launch: Any) -> None:
    """Compiles the kernels of all types together, on all cores."""
    blocks = [(block, random_blocks(block, N)) for block in BLOCK_TYPES.values()]
    x = normal(5, K)
    launch.prepare(linear_call(*pair, x, block_m) for pair in blocks for block_m in (1, 4, 32))
    launch.prepare(gather_call(block, raw) for block, raw in blocks)


@TYPES
def test_equals_matmul_on_dequantized(launch: Launch, block: BlockType) -> None:
    raw, x = random_blocks(block, N), normal(5, K)
    got = run(launch, block, raw, x, 1)
    np.testing.assert_allclose(got, matmul(x, block, raw), rtol=1e-5, atol=5e-5)


@TYPES
def test_same_bits_in_every_tile(launch: Launch, block: BlockType) -> None:
    raw, x = random_blocks(block, N), normal(37, K)
    whole = run(launch, block, raw, x, 1)
    for block_m in (4, 32):
        assert np.array_equal(run(launch, block, raw, x, block_m), whole)
        assert np.array_equal(run(launch, block, raw, x[3:8], block_m), whole[3:8])


@pytest.mark.parametrize("name", ["q4_1", "q6_k"])
def test_same_bits_on_other_machines(launch: Any, elsewhere: Any, name: str) -> None:
    block = BLOCK_TYPES[name]
    raw, x = random_blocks(block, N), normal(5, K)
    elsewhere.prepare(linear_call(block, raw, x, block_m) for block_m in (1, 4))
    native = run(launch, block, raw, x, 1)
    for block_m in (1, 4):
        assert np.array_equal(run(elsewhere, block, raw, x, block_m), native)


def test_same_bits_by_zig(launch: Any, by_zig: Any) -> None:
    block = BLOCK_TYPES["q4_1"]
    raw, x = random_blocks(block, N), normal(5, K)
    by_zig.prepare(linear_call(block, raw, x, block_m) for block_m in (1, 4))
    for block_m in (1, 4):
        got = run(by_zig, block, raw, x, block_m)
        assert np.array_equal(got, run(launch, block, raw, x, block_m))


def test_one_hot_rows_read_exact_weights(launch: Launch) -> None:
    for name in ("q4_1", "q6_k"):
        raw = random_blocks(BLOCK_TYPES[name], N)
        got = run(launch, BLOCK_TYPES[name], raw, np.eye(K, dtype=np.float32)[:5], 1)
        assert np.array_equal(got, values(BLOCK_TYPES[name], raw).T[:5])


@pytest.mark.parametrize("block_m", [1, 4])
def test_epilogue(launch: Launch, block_m: int) -> None:
    block = BLOCK_TYPES["q4_1"]
    raw, x = random_blocks(block, 128), normal(5, K)
    bias, residual = normal(128, seed=1), normal(5, 128, seed=2)
    got = run(launch, block, raw, x, block_m, bias=bias, residual=residual)
    expected = matmul(x, block, raw) + bias + residual
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=5e-5)


@pytest.mark.parametrize("block_m", [1, 4])
def test_gated(launch: Launch, block_m: int) -> None:
    block = BLOCK_TYPES["q4_1"]
    gate, up, x = random_blocks(block, N), random_blocks(block, N, seed=1), normal(19, K)
    y = np.full((len(x), N), np.nan, np.float32)
    launch(
        quant_linear.gated_quant_linear,
        (-(-len(x) // block_m), -(-N // 64), 1),
        {"K": K, "N": N, "ACT": "silu", "BLOCK_M": block_m, **block.constants},
        x=x,
        **planes(block, np.concatenate([pad_rows(gate), up])),
        y=y,
        rows=len(x),
    )
    g = matmul(x, block, gate)
    expected = g / (1 + np.exp(-g)) * (matmul(x, block, up))
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=5e-5)


@TYPES
def test_gather_is_exact(launch: Launch, block: BlockType) -> None:
    raw = random_blocks(block, N)
    kernel, constants, arguments = gather_call(block, raw)
    launch(kernel, (5, 1, 1), constants, **arguments)
    assert np.array_equal(arguments["y"], values(block, raw)[arguments["ids"]])
