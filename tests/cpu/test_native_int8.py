"""Products of 8-bit activations: right for every block type, the same bits everywhere."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from sglk.ir.blocks import BlockArray
from sglk.ir.dtype import F32, dtype
from sglk.ir.graph import Graph
from sglk.ir.ops.activations import QuantizeRows
from sglk.ir.ops.elementwise import ACTIVATIONS as REFERENCE
from sglk.ir.ops.linear import Linear
from sglk.ir.testing import random_blocks
from sglk.ir.types import TensorType
from sglk.passes.quantize_activations import QuantizeActivations
from sglk.targets.cpu.build import native_kernel
from sglk.targets.cpu.rows_int8 import rows_of_program
from sglk.targets.cpu.rows_native import ACTIVATIONS, BLOCKS
from sglk.targets.cpu.tiles import pack_tiles
from sglk.targets.kernel import Kernel
from sglk.targets.kernels.packing import BLOCK_TYPES
from sglk.targets.tilec import CppKernel, build, isa_named
from sglk.targets.tilec.isa import isa_supported
from sglk.targets.tilec.run import Library, load

NAMES = ("x86_64_v4_amx", "x86_64_v4_bf16", "x86_64_v4", "x86_64_v3", "aarch64", "generic")
ISAS = [name for name in NAMES if isa_supported(name)]
BEST = ISAS[0]
TYPES = list(BLOCK_TYPES)
POISON = np.float32(np.nan)
ORDER = np.array([0, 4, 1, 5, 2, 6, 3, 7])


def make(
    isa: str, name: str, types: list[str], constants: Mapping[str, int | bool]
) -> tuple[CppKernel, Library]:
    signature = tuple((f"a{i}", kind) for i, kind in enumerate(types))
    made = Kernel(f"native.{name}", signature, tuple(sorted(dict(constants).items())))
    kernel = native_kernel(made)
    return kernel, load(build([kernel], isa_named(isa)))


def interleaved(integers: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(integers.reshape(len(integers), -1, 8)[..., ORDER])


class Product:
    """One weight, packed, and a kernel of one instruction set to multiply it with."""

    def __init__(self, isa: str, name: str, n: int, k: int, **constants: int | bool) -> None:
        blocks = random_blocks(name, (n, k), np.random.default_rng([n, k, len(name)]))
        halves = int(constants.get("HALVES", 1))
        self.n, self.k = n // halves, k
        self.weight = blocks.dequantize().astype(np.float64)
        self.packed = pack_tiles(BLOCK_TYPES[name], blocks.raw)
        self.constants = {
            "K": k, "N": self.n, "HALVES": halves, "BLOCK_N": BLOCKS * 16 // halves,
            "BLOCK_M": rows_of_program(k), "ACT": 0, "HAS_BIAS": False, "HAS_RESIDUAL": False,
            "OUT_BF16": False, **BLOCK_TYPES[name].constants, **constants,
        }  # fmt: skip
        optional = bool(self.constants["HAS_BIAS"]) + bool(self.constants["HAS_RESIDUAL"])
        types = ["*i8", "*u8", "*fp32", "i32", *["*fp32"] * (optional + 1)]
        self.kernel, self.library = make(isa, "linear_int8", types, self.constants)

    def __call__(self, x: np.ndarray, *optional: np.ndarray) -> np.ndarray:
        integers, scales = QuantizeRows().reference(x)
        y = np.full((len(x), self.n), POISON)
        block_m, block_n = int(self.constants["BLOCK_M"]), int(self.constants["BLOCK_N"])
        grid = (-(-self.n // block_n), -(-len(x) // block_m))
        args = (interleaved(integers), self.packed, y, len(x), *optional, scales)
        self.library.launch(self.kernel, args, grid)
        return y

    def wanted(self, x: np.ndarray) -> np.ndarray:
        """Without any rounding but that of x."""
        integers, scales = QuantizeRows().reference(x)
        exact: np.ndarray = integers * np.repeat(scales.astype(np.float64), 32, axis=1)
        return exact @ self.weight.T


def check(wanted: np.ndarray, got: np.ndarray) -> None:
    scale = np.abs(wanted).max()
    assert np.abs(got - wanted).max() <= 5e-6 * scale, (np.abs(got - wanted).max(), scale)


def inputs(rows: int, k: int) -> np.ndarray:
    return np.random.default_rng([rows, k]).normal(0, 1, (rows, k)).astype(np.float32)


@pytest.mark.parametrize("name", TYPES)
def test_every_type_and_batch(name: str) -> None:
    k = 512 if BLOCK_TYPES[name].is_super else 96
    product = Product(BEST, name, 40, k)  # the last program has half a block too much
    x = inputs(150, k)
    got = product(x)
    check(product.wanted(x), got)
    for rows in (1, 2, 3, 5, 6, 15, 16, 17, 64, 65):
        part = product(x[:rows])
        assert part.tobytes() == got[:rows].tobytes(), f"{rows} rows give other bits"
    assert product(x[70:71]).tobytes() == got[70:71].tobytes()


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("isa", ISAS[1:])
def test_machines_agree_to_the_bit(name: str, isa: str) -> None:
    x = inputs(20, 256)
    best, other = Product(BEST, name, 32, 256), Product(isa, name, 32, 256)
    for rows in (20, 1):
        assert other(x[:rows]).tobytes() == best(x[:rows]).tobytes()


def test_the_largest_integers_do_not_overflow() -> None:
    """Weights of 255 - 128 and -128 with inputs of 127 and -127: sums of two need 17 bits."""
    raw = np.zeros((32, 2, 34), np.uint8)
    raw[..., :2] = np.array([1], np.float16).view(np.uint8)
    raw[:16, :, 2:], raw[16:, :, 2:] = 127, 128
    x = np.ones((3, 64), np.float32)
    x[1] = -1
    for isa in ISAS:
        product = Product(isa, "q8_0", 32, 64)
        product.packed = pack_tiles(BLOCK_TYPES["q8_0"], raw.reshape(32, -1))
        y = product(x)
        assert (
            np.abs(y[0, :16] - 127 * 64).max() < 0.01 and np.abs(y[0, 16:] + 128 * 64).max() < 0.01
        )
        assert (y[1] == -y[0]).all()


def test_long_rows_take_fewer_at_a_time() -> None:
    k = 9728
    assert rows_of_program(k) == 16
    product, x = Product(BEST, "q4_1", 32, k), inputs(18, k)
    check(product.wanted(x), product(x))


@pytest.mark.parametrize("name", ["q4_1", "q8_0"])
def test_epilogues(name: str) -> None:
    k, n = 64, 48
    x, rng = inputs(19, k) * np.float32(0.01), np.random.default_rng(5)
    bias = rng.normal(size=n).astype(np.float32)
    residual = rng.normal(size=(19, n)).astype(np.float32)
    act = ACTIVATIONS.index("silu")
    product = Product(BEST, name, n, k, ACT=act, HAS_BIAS=True, HAS_RESIDUAL=True)
    y = product.wanted(x) + bias
    check(y / (1 + np.exp(-y)) + residual, product(x, bias, residual))


@pytest.mark.parametrize("act", ["silu", "gelu_tanh"])
def test_gated(act: str) -> None:
    x = inputs(33, 128)
    product = Product(BEST, "q4_1", 96, 128, HALVES=2, ACT=ACTIVATIONS.index(act))
    gate, up = np.split(product.wanted(x), 2, axis=1)
    check(np.asarray(REFERENCE[act](gate.astype(np.float32))) * up, product(x))


@pytest.mark.parametrize("isa", ISAS)
def test_quantizing_is_the_references(isa: str) -> None:
    x = inputs(6, 96)
    x[0, :32] = 0
    x[1, 32:64] = np.float32(1e-31)  # below 2^-100
    x[2, 64] = np.inf
    x[3, 5] = np.nan
    x[4] = np.tile(np.array([0.5, 1.5, 2.5, -0.5, -3.5, 127, 4, -2.5], np.float32), 12)  # ties
    integers, scales = np.full((6, 96), 99, np.int8), np.full((6, 3), POISON)
    kernel, library = make(isa, "quantize_rows", ["*fp32", "*i8", "*fp32"], {"K": 96})
    library.launch(kernel, (x, integers, scales), (6,))
    wanted, factors = QuantizeRows().reference(x)
    assert (integers.reshape(-1) == interleaved(wanted).reshape(-1)).all()
    np.testing.assert_array_equal(scales, factors)
    assert (
        np.isnan(factors[2, 2]) and np.isnan(factors[3, 0]) and factors[0, 0] == factors[1, 1] == 0
    )
    assert wanted[4, :8].tolist() == [0, 2, 2, 0, -4, 127, 4, -2]


@pytest.mark.parametrize("weight", ["q4_1", "q6_k", "q8_0"])
def test_the_pass_quantizes_products_of_blocks_alone(weight: str) -> None:
    graph = Graph()
    x = graph.input("x", TensorType(F32, (3, 256)))
    for name, kind in (("w", weight), ("v", "bf16"), ("u", "f32")):
        graph.outputs.append(
            graph.emit(Linear(), x, graph.param(name, TensorType(dtype(kind), (64, 256))))
        )
    assert QuantizeActivations().run(graph)
    assert [node.op.name for node in graph.nodes] == ["quantize_rows", *["linear"] * 3]
    first = graph.outputs[0].producer
    assert first is not None and first.op == Linear(has_scales=True)
    assert not QuantizeActivations().run(graph)


def test_reference_multiplies_what_the_integers_stand_for() -> None:
    blocks: BlockArray = random_blocks("q5_1", (7, 64), np.random.default_rng(1))
    x = inputs(4, 64)
    integers, scales = QuantizeRows().reference(x)
    y = Linear(has_scales=True).reference(integers, blocks, scales)
    real = integers * np.repeat(scales, 32, axis=1)
    np.testing.assert_allclose(y, real @ blocks.dequantize().T, rtol=1e-4, atol=1e-4)
    assert np.abs(real - x).max() <= np.abs(x).max() / 254 * 1.001
