"""Products that round weights where rows are many: the kernel, the pass, and what is chosen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sglk.ir.dim import concrete, dim
from sglk.ir.dtype import BF16, F32, dtype, round_bf16
from sglk.ir.graph import Graph
from sglk.ir.interpret import interpret
from sglk.ir.ops.linear import GatedLinear, Linear
from sglk.ir.ops.norm import RmsNorm
from sglk.ir.target import Target
from sglk.ir.testing import random_blocks
from sglk.ir.types import TensorType
from sglk.passes.eliminate_common import EliminateCommon
from sglk.passes.quantize_activations import QuantizeActivations
from sglk.passes.round_activations import RoundActivations
from sglk.targets.conformance.chip import Chip, KitChoices
from sglk.targets.cpu.backend import CpuBackend
from sglk.targets.cpu.build import native_kernel
from sglk.targets.cpu.compile import lower, target_for
from sglk.targets.cpu.rows_native import BLOCKS
from sglk.targets.cpu.rows_rounded import shares
from sglk.targets.cpu.tiles import pack_tiles
from sglk.targets.kernel import Kernel
from sglk.targets.kernels.packing import BLOCK_TYPES
from sglk.targets.lowering import TokenRange
from sglk.targets.registry import open_device
from sglk.targets.tilec import build, isa_named
from sglk.targets.tilec.isa import isa_supported
from sglk.targets.tilec.run import load

AMX = "x86_64_v4_amx"
needs_amx = pytest.mark.skipif(not isa_supported(AMX), reason="weights are rounded where AMX is")
FROM = 32


def inputs(rows: int, k: int) -> np.ndarray:
    return np.random.default_rng([rows, k]).normal(0, 1, (rows, k)).astype(np.float32)


def bits(x: np.ndarray) -> np.ndarray:
    return (round_bf16(x).view(np.uint32) >> 16).astype(np.uint16)


@needs_amx
@pytest.mark.parametrize(("name", "k"), [("q4_1", 96), ("q8_0", 1056), ("q6_k", 256)])
def test_the_kernel_rounds_both_and_no_row_sees_another(name: str, k: int) -> None:
    n, block_m = 40, 128
    blocks = random_blocks(name, (n, k), np.random.default_rng(k))
    constants = {
        "K": k, "N": n, "HALVES": 1, "BLOCK_N": BLOCKS * 16, "BLOCK_M": block_m, "ACT": 0,
        "HAS_BIAS": False, "HAS_RESIDUAL": False, "OUT_BF16": False, **BLOCK_TYPES[name].constants,
    }  # fmt: skip
    types = [("x", "*bf16"), ("w", "*u8"), ("y", "*fp32"), ("rows", "i32")]
    made = Kernel("native.linear_rounded", tuple(types), tuple(sorted(constants.items())))
    kernel = native_kernel(made)
    library = load(build([kernel], isa_named(AMX)))
    x, packed = inputs(300, k), pack_tiles(BLOCK_TYPES[name], blocks.raw)

    def product(rows: int) -> np.ndarray:
        y = np.full((rows, n), np.float32(np.nan))
        grid = (-(-n // 32), -(-rows // block_m))
        library.launch(kernel, (bits(x[:rows]), packed, y, rows), grid)
        return y

    got = product(300)
    weight = round_bf16(blocks.dequantize().astype(np.float32)).astype(np.float64)
    wanted = round_bf16(x).astype(np.float64) @ weight.T
    # A weight may round the other way where the type's value lies between: one fma, not two steps.
    assert np.abs(got - wanted).max() <= 2e-3 * np.abs(wanted).max()
    for rows in (32, 33, 48, 49, 63, 129, 150):
        assert product(rows).tobytes() == got[:rows].tobytes(), f"{rows} rows give other bits"


def graph_of(*, gated: bool) -> Graph:
    graph = Graph()
    x = graph.input("x", TensorType(F32, (dim("n"), 64)))
    w = graph.param("w", TensorType(dtype("q4_1"), (128, 64)))
    if gated:
        graph.outputs = [graph.emit(GatedLinear("silu"), x, w)]
    else:
        bias = graph.param("b", TensorType(F32, (128,)))
        rest = graph.input("r", TensorType(F32, (dim("n"), 128)))
        op = Linear(has_bias=True, has_residual=True)
        graph.outputs = [graph.emit(op, x, w, bias, rest)]
    return graph


def rounded(graph: Graph, mode: str) -> Graph:
    step = QuantizeActivations(FROM) if mode == "int8" else RoundActivations(rounded_from=FROM)
    assert step.run(graph) and not step.run(graph)
    EliminateCommon().run(graph)
    return graph


def test_products_get_what_either_kernel_multiplies() -> None:
    graph = rounded(graph_of(gated=False), "int8")
    assert [node.op.name for node in graph.nodes] == ["quantize_rows", "cast", "linear"]
    product = graph.nodes[-1]
    assert product.op == Linear(True, True, has_scales=True, rounded_from=FROM)
    assert product.inputs[3].type.dtype == BF16
    graph = rounded(graph_of(gated=True), "bf16")
    assert [node.op.name for node in graph.nodes] == ["round_rows", "gated_linear"]
    assert graph.nodes[-1].op == GatedLinear("silu", has_sums=True, rounded_from=FROM)


@needs_amx
@pytest.mark.parametrize("mode", ["int8", "bf16"])
@pytest.mark.parametrize("gated", [False, True])
def test_few_rows_and_many_give_what_the_reference_says(
    tmp_path: Path, mode: str, gated: bool
) -> None:
    graph = rounded(graph_of(gated=gated), mode)
    params: dict[str, Any] = {"w": random_blocks("q4_1", (128, 64), np.random.default_rng(2))}
    params |= {} if gated else {"b": np.linspace(-1, 1, 128, dtype=np.float32)}
    chip = Chip(
        CpuBackend(), open_device("cpu"), tmp_path, KitChoices((AMX,), mode, round_weights=True)
    )
    other = []
    with chip.loaded(chip.compile(graph, params)) as executable:
        for rows in (FROM - 1, FROM):
            given = {"x": inputs(rows, 64)}
            given |= {} if gated else {"r": inputs(rows, 128)}
            (got,) = executable.run("forward", given).values()
            (wanted,) = interpret(graph, given, params)
            assert np.abs(got - wanted).max() <= 2e-3 * np.abs(wanted).max()
            plain = interpret(graph_of(gated=gated), given, params)[0]
            other.append(np.abs(got - plain).max())
    assert min(other) > 0


def mlp_of(rows: int, *, shown: bool) -> Graph:
    """A norm, a gated MLP and its residual; ``shown``: what lies between is asked for too."""
    graph = Graph()
    x = graph.input("x", TensorType(F32, (rows, 64)))
    up = graph.param("w", TensorType(dtype("q4_1"), (128, 64)))
    down = graph.param("v", TensorType(dtype("q4_1"), (64, 64)))
    normed = graph.emit(RmsNorm(), x, graph.param("n", TensorType(F32, (64,))))
    hidden = graph.emit(GatedLinear("silu"), normed, up)
    graph.outputs = [graph.emit(Linear(has_residual=True), hidden, down, x)]
    graph.outputs += [normed, hidden] if shown else []
    return rounded(graph, "int8")


@needs_amx
@pytest.mark.parametrize("rows", [FROM, FROM - 1])
def test_norms_and_gates_store_bf16_where_nobody_reads_more(tmp_path: Path, rows: int) -> None:
    params = {
        name: random_blocks("q4_1", shape, np.random.default_rng(2))
        for name, shape in (("w", (128, 64)), ("v", (64, 64)))
    } | {"n": np.linspace(0.5, 1.5, 64, dtype=np.float32)}
    choices = KitChoices((AMX,), "int8", round_weights=True)
    chip = Chip(CpuBackend(), open_device("cpu"), tmp_path, choices)
    results, names = [], []
    for shown in (False, True):
        graph = mlp_of(rows, shown=shown)
        artifact = chip.compile(graph, params)
        names.append([call.op for call in artifact.program("forward").buckets[0].calls])
        with chip.loaded(artifact) as executable:
            results.append(next(iter(executable.run("forward", {"x": inputs(rows, 64)}).values())))
    assert results[0].tobytes() == results[1].tobytes()
    wanted = interpret(graph, {"x": inputs(rows, 64)}, params)[0]
    assert np.abs(results[0] - wanted).max() <= 5e-3 * np.abs(wanted).max()
    between = ["cast"] if rows >= FROM else ["quantize_rows"]
    plain = ["rmsnorm", *between, "gated_linear", *between, "linear"]
    assert names == [["rmsnorm", "gated_linear", "linear"] if rows >= FROM else plain, plain]


def test_the_bucket_chooses_where_rows_are_the_tokens() -> None:
    tokens = dim("tokens")
    context = lower(rounded(graph_of(gated=True), "int8"), rounding_target(), partial=True)
    context.bucket = TokenRange(17, FROM - 1)
    assert shares(context, tokens, FROM) == (tokens, 0)
    context.bucket = TokenRange(FROM, None)
    assert shares(context, tokens, FROM) == (0, tokens)
    few, many = shares(context, dim("rows"), FROM)
    for rows, wanted in ((1, (1, 0)), (FROM - 1, (FROM - 1, 0)), (FROM, (0, FROM))):
        assert (concrete(few, {"rows": rows}), concrete(many, {"rows": rows})) == wanted
    assert shares(context, 31, FROM) == (31, 0) and shares(context, 64, FROM) == (0, 64)


def rounding_target() -> Target:
    return target_for((AMX,), batch_invariant=False)


def test_only_where_every_variant_has_the_tiles_and_the_user_asks() -> None:
    assert rounding_target().rounded_from == FROM
    assert FROM - 1 in rounding_target().token_buckets
    for target in (
        target_for((AMX,)),
        target_for((AMX, "x86_64_v4"), batch_invariant=False),
        target_for((AMX,), batch_invariant=False, handwritten=False),
    ):
        assert target.rounded_from == 0 and FROM - 1 not in target.token_buckets


def test_a_product_from_other_rows_on_has_no_kernel() -> None:
    graph = rounded(graph_of(gated=True), "int8")
    lowering = lower(graph, replace(rounding_target(), rounded_from=FROM + 1), partial=True)
    assert graph.nodes[-1] in lowering.selection.missing
    assert "c++-gated-rounded" in str(lowering.selection.refused[graph.nodes[-1]])
