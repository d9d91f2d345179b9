"""Measured products: what the file says wins, rows between counts, norms where they pay."""

from __future__ import annotations

import pytest
from sglk.errors import LoweringError
from sglk.ir.dtype import BF16
from sglk.ir.graph import Graph
from sglk.ir.ops.linear import Linear
from sglk.ir.target import Target
from sglk.ir.types import TensorType
from sglk.targets.cuda.compile import lower
from sglk.targets.cuda.facts import chips_named, cuda_target
from sglk.targets.cuda.measured import Product, all_records, exact, near, read_records
from sglk.targets.cuda.rows_linear import choose, normed_way
from sglk.targets.lowering import TokenRange

H200 = "sm_90"


@pytest.fixture
def target() -> Target:
    return cuda_target(chips_named(["sm90"]))


def upto(rows: int) -> TokenRange:
    return TokenRange(1, rows)


def test_the_fastest_measured_way_wins(target: Target) -> None:
    product = Product(64, 4096, 4096, False)
    best = min(exact(all_records(H200), product), key=lambda record: record.seconds)
    config, choice = choose(target, upto(64), 4096, 4096, False)
    assert config == best.config
    assert choice.bound == "measured" and choice.seconds == best.seconds


@pytest.mark.parametrize(("rows", "early"), [(8, True), (512, False)])
def test_large_products_start_after_the_kernel_before(
    target: Target, rows: int, early: bool
) -> None:
    graph = Graph("forward")
    x = graph.input("x", TensorType(BF16, (rows, 14336)))
    w = graph.param("w", TensorType(BF16, (4096, 14336)))
    graph.outputs = [graph.emit(Linear(), x, w)]
    lowering = lower(graph, target)
    lowering.program("forward", ())
    (kernel,) = lowering.kernels.values()
    assert choose(target, upto(rows), 4096, 14336, False)[0].starts_early is early
    assert dict(kernel.constants)["PDL"] == int(early)
    assert dict(kernel.options).get("launch_pdl", False) is early


def test_tiles_of_two_blocks_fit_where_they_were_measured(target: Target) -> None:
    config, choice = choose(target, upto(256), 6144, 4096, False)
    assert (config.kernel, choice.bound) == ("matmul_wide.linear", "measured")
    assert config.grid(256, 6144, False) == config.tiles == 128
    assert config.smem_bytes <= target.memory[0].bytes


def test_rows_between_measured_counts_get_a_tile_of_their_own_height(target: Target) -> None:
    product = Product(24, 4096, 4096, False)
    assert not exact(all_records(H200), product)
    assert near(all_records(H200), product)
    config, choice = choose(target, upto(24), 4096, 4096, False)
    assert choice.bound == "measured"
    assert config.constants["BLOCK_M"] == 32
    shared = target.memory[0].bytes // config.smem_bytes
    assert config.constants.get("PROGRAMS", 0) <= shared * target.programs


def test_a_gemv_is_not_taken_for_more_rows_than_it_was_measured_for() -> None:
    ways = near(all_records(H200), Product(2, 4096, 1024, False))
    gemvs = [way for way in ways if way.config.kernel == "gemv.linear"]
    assert gemvs and all(way.product.m > 2 for way in gemvs)
    assert all(way.config.constants["ROWS"] == 2 for way in gemvs)


def test_sizes_that_nobody_measured_are_modelled(target: Target) -> None:
    _, choice = choose(target, upto(256), 5120, 5120, False)
    assert choice.bound in ("memory", "compute")


def test_chips_without_measurements_are_modelled() -> None:
    assert not all_records("sm_80")
    other = cuda_target(chips_named(["sm80"]))
    _, choice = choose(other, upto(64), 4096, 4096, False)
    assert choice.bound in ("memory", "compute")


def test_a_norm_is_done_on_the_way_where_that_is_faster(target: Target) -> None:
    assert normed_way(target, upto(1), 14336, 4096, True) is not None
    assert normed_way(target, upto(1), 128256, 4096, False) is None  # 43 µs slower
    assert normed_way(target, upto(256), 14336, 4096, True) is None  # no GEMV
    assert normed_way(target, upto(1), 999, 1024, False) is not None  # short rows, not measured


def test_a_file_of_another_form_is_refused() -> None:
    with pytest.raises(LoweringError, match="expected format 1, got 2"):
        list(read_records({"format": 2}, "h200.json"))
    with pytest.raises(LoweringError, match="record 0: expected a measured product"):
        list(read_records({"format": 1, "linear": [{"n": 1}]}, "h200.json"))
