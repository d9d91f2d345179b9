"""Products of rounded activations on weights in tiles: values, one result for every tile size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sglk.ir.blocks import BlockArray
from sglk.ir.dtype import round_bf16
from sglk.ir.ops.activations import QuantizeRows
from sglk.targets.cpu.tiles import pack_dense_tiles, pack_tiles
from sglk.targets.kernels import tile_linear
from sglk.targets.kernels.packing import BLOCK_TYPES
from sglk.targets.kernels.ttir import to_ttir
from sglk.targets.tilec import build, isa_named, isa_supported, translate
from sglk.targets.tilec.run import load

ISAS = [n for n in ("x86_64_v4_amx", "x86_64_v4", "x86_64_v3") if isa_supported(n)] or ["generic"]
POISON = -7.0
TILES = [(1, 64), (4, 32), (16, 64), (64, 32), (32, 64)]
KINDS = {
    "uint16": "*bf16", "uint8": "*u8", "int8": "*i8", "float32": "*fp32", "int32": "*i32",
}  # fmt: skip


def launch(isa: str, name: str, grid: tuple[int, int], constants: Any, **args: Any) -> None:
    signature = {k: "i32" if isinstance(v, int) else KINDS[v.dtype.name] for k, v in args.items()}
    function = getattr(tile_linear, name)
    kernel = translate(to_ttir(function, signature, constants), name)
    ordered = [args[n] for n in function.arg_names if n in args]
    load(build([kernel], isa_named(isa))).launch(kernel, ordered, grid)


def bits(x: np.ndarray) -> np.ndarray:
    return (round_bf16(x).view(np.uint32) >> 16).astype(np.uint16)


def group_sums(x: np.ndarray) -> np.ndarray:
    v = round_bf16(x).reshape(len(x), -1, 32)
    while v.shape[-1] > 1:
        half = v.shape[-1] // 2
        v = v[..., :half] + v[..., half:]
    return np.ascontiguousarray(v[..., 0])


def raw_blocks(rng: np.random.Generator, name: str, n: int, k: int) -> np.ndarray:
    """Random blocks with scales of sane size, wherever the type keeps them."""
    block = BLOCK_TYPES[name]
    raw = rng.integers(0, 256, (n, k // block.size, block.bytes), dtype=np.uint8)
    places = [-2] if name == "q6_k" else [0, 2] if block.has_min else [0]
    for at in places:
        scale = (rng.uniform(0.5, 1.5, raw.shape[:2]) * 2**-7).astype(np.float16)
        raw[..., at : at + 2 if at != -2 else None] = scale[..., None].view(np.uint8)
    return raw.reshape(n, -1)


class Weight:
    """Packed, with its values and what kernels must know of it."""

    def __init__(self, name: str, n: int, k: int) -> None:
        rng = np.random.default_rng([n, k, len(name)])
        self.n, self.k, self.is_dense = n, k, name == "bf16"
        self.constants: dict[str, Any] = {"BLOCK_K": 32} if self.is_dense else {}
        if self.is_dense:
            self.values = round_bf16(rng.normal(0, 0.1, (n, k)).astype(np.float32))
            self.packed = pack_dense_tiles(bits(self.values)).view(np.uint8).reshape(-1)
        else:
            raw = raw_blocks(rng, name, n, k)
            self.values = BlockArray(name, (n, k), raw).dequantize()
            self.packed = pack_tiles(BLOCK_TYPES[name], raw)
            self.constants = dict(BLOCK_TYPES[name].constants)

    def product(
        self,
        isa: str,
        tile: tuple[int, int],
        x: np.ndarray,
        halves: int = 1,
        integers: bool = False,
    ) -> np.ndarray:
        n = self.n // halves
        y = np.full((len(x), n), np.nan, np.float32)
        args: dict[str, Any] = {"x": bits(x), "w": self.packed, "y": y, "rows": len(x)}
        constants = {"K": self.k, "N": n, "BLOCK_M": tile[0], "BLOCK_N": tile[1]} | self.constants
        if not self.is_dense:
            constants["WITH_SCALES"] = integers
        if integers:
            args["x"], args["side"] = QuantizeRows().reference(x)
        elif self.constants.get("HAS_MIN"):
            args["side"] = group_sums(x)
        elif not self.is_dense:
            constants["side"] = None
        name = f"{'dense_' if self.is_dense else ''}tile_linear"
        if halves == 1:
            constants |= {"ACT": "none", "bias": None, "residual": None}
        else:
            name, constants["ACT"] = f"gated_{name}", "silu"
        grid = (-(-len(x) // tile[0]), -(-n // tile[1]))
        launch(isa, name, grid, constants, **args)
        return y


def inputs(rows: int, k: int) -> np.ndarray:
    return np.random.default_rng([rows, k]).normal(0, 1, (rows, k)).astype(np.float32)


def check(wanted: np.ndarray, got: np.ndarray) -> None:
    assert np.abs(got - wanted).max() <= 2e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("name", [*BLOCK_TYPES, "bf16"])
def test_every_type_and_batch(name: str) -> None:
    is_super = name in BLOCK_TYPES and BLOCK_TYPES[name].is_super
    weight = Weight(name, 72, 512 if is_super else 96)  # the last program has blocks too much
    x = inputs(70, weight.k)
    one = weight.product(ISAS[0], TILES[0], x)
    check(round_bf16(x).astype(np.float64) @ weight.values.astype(np.float64).T, one)
    for tile, rows in ((TILES[2], 37), (TILES[3], 70)):
        assert weight.product(ISAS[0], tile, x[:rows]).tobytes() == one[:rows].tobytes(), tile


@pytest.mark.parametrize("name", list(BLOCK_TYPES))
def test_integers_lose_nothing_but_the_rounding_of_x(name: str) -> None:
    weight = Weight(name, 200, 512 if BLOCK_TYPES[name].is_super else 64)
    x = inputs(70, weight.k)
    integers, scales = QuantizeRows().reference(x)
    exact = integers * np.repeat(scales.astype(np.float64), 32, axis=1)
    one = weight.product(ISAS[0], TILES[0], x, integers=True)
    check(exact @ weight.values.astype(np.float64).T, one)
    for tile, rows in ((TILES[2], 37), (TILES[4], 70)):
        again = weight.product(ISAS[0], tile, x[:rows], integers=True)
        assert again.tobytes() == one[:rows].tobytes(), tile


@pytest.mark.parametrize("isa", [*ISAS[1:], "generic"])
@pytest.mark.parametrize("name", ["q4_1", "bf16"])
def test_machines_agree_to_the_bit(name: str, isa: str) -> None:
    weight = Weight(name, 64, 64)
    x = inputs(19, 64)
    for tile in (TILES[0], TILES[1]):
        wanted = weight.product(ISAS[0], tile, x)
        assert weight.product(isa, tile, x).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("name", ["q4_1", "q6_k", "bf16"])
@pytest.mark.parametrize("tile", [(1, 32), (64, 16)])
def test_gated(name: str, tile: tuple[int, int]) -> None:
    weight = Weight(name, 96, 256)
    x = inputs(33, 256)
    y = round_bf16(x).astype(np.float64) @ weight.values.T.astype(np.float64)
    gate, up = y[:, :48], y[:, 48:]
    check(gate / (1 + np.exp(-gate)) * up, weight.product(ISAS[0], tile, x, halves=2))


@pytest.mark.parametrize("name", list(BLOCK_TYPES))
def test_gathered_rows_are_ggmls(name: str) -> None:
    weight = Weight(name, 40, 256)
    ids = np.array([0, 39, 17, 16, 15], np.int32)
    y = np.full((5, 256), np.nan, np.float32)
    constants = {"K": 256, **weight.constants}
    launch(ISAS[0], "gather_tiles", (5, 1), constants, table=weight.packed, ids=ids, y=y)
    assert y.tobytes() == weight.values[ids].tobytes()


def test_rounding() -> None:
    x = inputs(5, 96)
    rounded, sums = np.zeros((5, 96), np.uint16), np.full((5, 3), np.nan, np.float32)
    launch(ISAS[0], "round_rows", (5, 1), {"K": 96}, x=x, rounded=rounded, sums=sums)
    assert (rounded == bits(x)).all() and sums.tobytes() == group_sums(x).tobytes()


@pytest.mark.parametrize("isa", [ISAS[0], "generic"])
def test_quantizing(isa: str) -> None:
    x = inputs(6, 96)
    x[1, :32] = 0
    x[2, 5] = np.nan
    x[3, 40] = -np.inf
    x[4, 64:] *= 2.0**-110
    x[5, :32] = np.linspace(-127, 127, 32).round() + 0.5  # ties
    integers, scales = np.full(x.shape, 99, np.int8), np.full((6, 3), POISON, np.float32)
    launch(isa, "quantize_rows", (6, 1), {"K": 96}, x=x, integers=integers, scales=scales)
    wanted = QuantizeRows().reference(x)
    np.testing.assert_array_equal(integers, wanted[0])
    np.testing.assert_array_equal(scales, wanted[1])
