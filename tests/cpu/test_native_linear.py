"""Products of bf16 activations: right for every weight type, and the same bits for every batch."""

from __future__ import annotations

import numpy as np
import pytest
from sglk.ir.blocks import BlockArray
from sglk.ir.dtype import BF16, round_bf16
from sglk.ir.ops.elementwise import ACTIVATIONS as REFERENCE
from sglk.targets.cpu.build import native_kernel
from sglk.targets.cpu.rows_native import ACTIVATIONS, BLOCKS
from sglk.targets.cpu.tiles import pack_dense_tiles, pack_tiles, tiles_bytes
from sglk.targets.kernel import Kernel
from sglk.targets.kernels.packing import BLOCK_TYPES
from sglk.targets.packing import to_storage
from sglk.targets.tilec import build, isa_named
from sglk.targets.tilec.isa import isa_supported
from sglk.targets.tilec.run import load

ISAS = [n for n in ("x86_64_v4_amx", "x86_64_v4", "x86_64_v3") if isa_supported(n)] or ["generic"]
BEST = ISAS[0]
POISON = np.float32(np.nan)


def raw_blocks(rng: np.random.Generator, name: str, n: int, k: int) -> np.ndarray:
    """Random blocks with scales of sane size, wherever the type keeps them."""
    block = BLOCK_TYPES[name]
    raw = rng.integers(0, 256, (n, k // block.size, block.bytes), dtype=np.uint8)
    places = [-2] if name == "q6_k" else [0, 2] if block.has_min else [0]
    for at in places:
        scale = (rng.uniform(0.5, 1.5, raw.shape[:2]) * 2**-7).astype(np.float16)
        raw[..., at : at + 2 if at != -2 else None] = scale[..., None].view(np.uint8)
    return raw.reshape(n, -1)


def bf16_bits(x: np.ndarray) -> np.ndarray:
    return (round_bf16(x).view(np.uint32) >> 16).astype(np.uint16)


def group_sums(x: np.ndarray) -> np.ndarray:
    """Sums over groups of 32 in the kernels' order: halves are added, then halves of those."""
    v = x.astype(np.float32).reshape(len(x), -1, 32)
    while v.shape[-1] > 1:
        half = v.shape[-1] // 2
        v = v[..., :half] + v[..., half:]
    return v[..., 0]


class Product:
    """One weight, packed, and kernels of one instruction set to multiply it with."""

    def __init__(
        self, isa: str, name: str, n: int, k: int, *, x: str = "bf16", **constants: int | bool
    ) -> None:
        rng = np.random.default_rng([n, k, len(name)])
        halves = int(constants.get("HALVES", 1))
        self.n, self.k, self.name = n // halves, k, name
        if name == "bf16":
            self.weight = round_bf16(rng.normal(0, 0.1, (n, k)).astype(np.float32))
            self.packed = pack_dense_tiles(bf16_bits(self.weight))
            kind: dict[str, int | bool] = {"HAS_MIN": False}
        else:
            raw = raw_blocks(rng, name, n, k)
            self.weight = BlockArray(name, (n, k), raw).dequantize()
            self.packed = pack_tiles(BLOCK_TYPES[name], raw)
            kind = dict(BLOCK_TYPES[name].constants)
        self.has_min = bool(kind["HAS_MIN"])
        self.constants = {
            "K": k, "N": self.n, "HALVES": halves, "BLOCK_N": BLOCKS * 16 // halves, "BLOCK_M": 64,
            "ACT": 0, "HAS_BIAS": False, "HAS_RESIDUAL": False, "OUT_BF16": False,
            **kind, **constants,
        }  # fmt: skip
        self.x = x
        types = ["*fp32" if x == "f32" else "*bf16", "*u8", "*fp32", "i32"] + ["*fp32"] * (
            self.has_min + bool(self.constants["HAS_BIAS"]) + bool(self.constants["HAS_RESIDUAL"])
        )
        function = f"native.{'dense_bf16' if name == 'bf16' else f'linear_{x}'}"
        signature = tuple((f"a{i}", t) for i, t in enumerate(types))
        made = Kernel(function, signature, tuple(sorted(self.constants.items())))
        self.kernel = native_kernel(made)
        self.library = load(build([self.kernel], isa_named(isa)))

    def __call__(self, x: np.ndarray, *optional: np.ndarray) -> np.ndarray:
        y = np.full((len(x), self.n), POISON)
        x = x if self.x == "f32" else round_bf16(x)
        sums = [group_sums(x)] if self.has_min else []
        grid = (
            -(-self.n // int(self.constants["BLOCK_N"])),
            -(-len(x) // int(self.constants["BLOCK_M"])),
        )
        rows = x if self.x == "f32" else bf16_bits(x)
        args: list[np.ndarray | int] = [rows, self.packed, y, len(x), *sums, *optional]
        self.library.launch(self.kernel, args, grid)
        return y


def check(wanted: np.ndarray, got: np.ndarray) -> None:
    scale = np.abs(wanted).max()
    assert np.abs(got - wanted).max() <= 2e-5 * scale, (np.abs(got - wanted).max(), scale)


def inputs(rows: int, k: int) -> np.ndarray:
    return np.random.default_rng([rows, k]).normal(0, 1, (rows, k)).astype(np.float32)


NAMES = [*BLOCK_TYPES, "bf16"]


KINDS = [(name, "bf16") for name in NAMES] + [(name, "f32") for name in BLOCK_TYPES]


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_every_type_and_batch(name: str, kind: str) -> None:
    k = 512 if BLOCK_TYPES.get(name) and BLOCK_TYPES[name].is_super else 96
    product = Product(BEST, name, 40, k, x=kind)  # the last program has half a block too much
    x = inputs(150, k)
    wanted = (x if kind == "f32" else round_bf16(x)).astype(np.float64) @ product.weight.astype(
        np.float64
    ).T
    got = product(x)
    check(wanted, got)
    for rows in (1, 2, 15, 16, 17, 64, 65):
        part = product(x[:rows])
        assert part.tobytes() == got[:rows].tobytes(), f"{rows} rows give other bits"
    assert product(x[70:71]).tobytes() == got[70:71].tobytes()


@pytest.mark.parametrize(("name", "kind"), KINDS)
@pytest.mark.parametrize("isa", ISAS[1:])
def test_machines_agree_to_the_bit(name: str, kind: str, isa: str) -> None:
    k = 256
    x = inputs(20, k)
    one, other = (Product(i, name, 32, k, x=kind) for i in (BEST, isa))
    assert one(x).tobytes() == other(x).tobytes()
    assert other(x[:1]).tobytes() == one(x)[:1].tobytes()


@pytest.mark.parametrize("name", ["q4_1", "bf16"])
def test_epilogues(name: str) -> None:
    k, n = 64, 48
    x = inputs(19, k)
    rng = np.random.default_rng(5)
    bias, residual = (
        rng.normal(size=n).astype(np.float32),
        rng.normal(size=(19, n)).astype(np.float32),
    )
    product = Product(
        BEST, name, n, k, ACT=ACTIVATIONS.index("silu"), HAS_BIAS=True, HAS_RESIDUAL=True
    )
    y = round_bf16(x).astype(np.float64) @ product.weight.T.astype(np.float64) + bias
    wanted = y / (1 + np.exp(-y)) + residual
    check(wanted, product(x, bias, residual))


@pytest.mark.parametrize("act", sorted(REFERENCE))
def test_gated(act: str) -> None:
    k, n = 128, 96
    x = inputs(33, k)
    product = Product(BEST, "q4_1", n, k, HALVES=2, ACT=ACTIVATIONS.index(act))
    y = round_bf16(x).astype(np.float64) @ product.weight.T.astype(np.float64)
    gate, up = y[:, : n // 2].astype(np.float32), y[:, n // 2 :]
    check(np.asarray(REFERENCE[act](gate)) * up, product(x))


@pytest.mark.parametrize("name", list(BLOCK_TYPES))
def test_packing_keeps_every_byte_of_information(name: str) -> None:
    """Sizes: what ggml takes, but for 6-bit scales that become bytes and the last rows' padding."""
    block = BLOCK_TYPES[name]
    ggml = 64 * 512 // block.size * block.bytes
    ours = tiles_bytes(block, 64, 512)
    assert ours == ggml or (block.is_super and block.has_min and ggml < ours < 1.04 * ggml)


def test_embedding_and_rounding() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(5, 96)).astype(np.float32)
    rounded, sums = np.zeros((5, 96), np.uint16), np.full((5, 3), POISON)
    kernel = native_kernel(
        Kernel("native.round_rows", (("x", "*fp32"), ("r", "*bf16"), ("s", "*fp32")), (("K", 96),))
    )
    load(build([kernel], isa_named(BEST))).launch(kernel, (x, rounded, sums), (5,))
    assert (rounded == to_storage(x, BF16)).all()
    assert sums.tobytes() == group_sums(round_bf16(x)).tobytes()


@pytest.mark.parametrize("name", list(BLOCK_TYPES))
def test_embedding_rows_are_ggmls(name: str) -> None:
    block, (n, k) = BLOCK_TYPES[name], (40, 256)
    raw = raw_blocks(np.random.default_rng(7), name, n, k)
    ids = np.array([0, 39, 17, 16, 15], np.int32)
    y = np.full((5, k), POISON)
    constants = tuple(sorted({"K": k, **block.constants}.items()))
    kernel = native_kernel(
        Kernel("native.embedding_tiles", (("t", "*u8"), ("i", "*i32"), ("y", "*fp32")), constants)
    )
    library = load(build([kernel], isa_named(BEST)))
    library.launch(kernel, (pack_tiles(block, raw), ids, y), (5,))
    assert y.tobytes() == BlockArray(name, (n, k), raw).dequantize()[ids].tobytes()


def test_embedding_rows_of_dense_tiles_are_the_tables() -> None:
    values = round_bf16(np.random.default_rng(8).normal(size=(40, 96)).astype(np.float32))
    ids, y = np.array([0, 39, 17, 16, 15], np.int32), np.full((5, 96), POISON)
    signature = (("t", "*u8"), ("i", "*i32"), ("y", "*fp32"))
    kernel = native_kernel(Kernel("native.embedding_dense", signature, (("K", 96),)))
    library = load(build([kernel], isa_named(BEST)))
    library.launch(kernel, (pack_dense_tiles(to_storage(values, BF16)), ids, y), (5,))
    assert y.tobytes() == values[ids].tobytes()
