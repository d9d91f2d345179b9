"""What the conformance kit found on a GPU, told without one."""

from __future__ import annotations

from pathlib import Path

import pytest
from sglk.ir.dim import dim
from sglk.ir.dtype import BF16, F32, I32, dtype
from sglk.ir.graph import Graph
from sglk.ir.ops.linear import GatedLinear, Linear
from sglk.ir.ops.sparse import GatherRows
from sglk.ir.types import TensorType
from sglk.targets.conformance.chip import Chip, KitChoices
from sglk.targets.conformance.kit import run_section
from sglk.targets.cuda import backend
from sglk.targets.cuda.backend import CudaBackend
from sglk.targets.cuda.device.device import CudaDevice
from sglk.targets.lowering import entry_of, symbols_of_entry


@pytest.fixture
def chip(tmp_path: Path) -> Chip:
    return Chip(CudaBackend(), CudaDevice(3), tmp_path, KitChoices(("sm90",), "bf16"))


def test_the_facts_conform_on_any_of_several_gpus(chip: Chip) -> None:
    assert not [o for o in run_section("facts", chip) if o.status == "failed"]


def test_rows_of_any_rank_are_gathered(chip: Chip) -> None:
    graph = Graph("ops")
    x = graph.input("x", TensorType(F32, (9, 3, 65)))
    rows = graph.input("rows", TensorType(I32, (dim("n"),)))
    graph.outputs = [graph.emit(GatherRows(), x, rows)]
    lowering = chip.backend.lower(graph, chip.target)
    entry = entry_of(graph)
    program = lowering.program(entry, symbols_of_entry(graph, entry))
    assert program.buckets[0].calls[0].grid == ("n", "1", "1")
    (gather,) = (k for k in lowering.kernels.values() if k.function.endswith("gather_rows"))
    assert dict(gather.constants)["K"] == 3 * 65


@pytest.mark.parametrize(("form", "slack"), [("e4m3_row_f32", 0.06), ("i8_row_f32", 0.0)])
def test_rows_that_become_e4m3_may_be_further_off(chip: Chip, form: str, slack: float) -> None:
    graph = Graph("ops")
    x = graph.input("x", TensorType(BF16, (dim("n"), 64)))
    w = graph.param("w", TensorType(dtype(form), (128, 64)))
    for op, wanted in ((Linear(), slack), (GatedLinear("silu"), 2 * slack)):
        node = graph.emit(op, x, w).producer
        assert node is not None
        assert chip.rows_for(node)[0].slack(node, chip.target) == wanted


@pytest.mark.parametrize(
    ("found", "arches", "reason"),
    [
        (None, ("sm90",), "it needs a GPU"),
        ((9, 0), ("sm80", "sm90"), ""),
        ((8, 9), ("sm90",), "the GPU here is sm_89, the kernels are for sm_90"),
    ],
)
def test_an_artifact_is_proved_where_a_gpu_fits(
    monkeypatch: pytest.MonkeyPatch,
    found: tuple[int, int] | None,
    arches: tuple[str, ...],
    reason: str,
) -> None:
    monkeypatch.setattr(backend, "capability_here", lambda: found)
    got = CudaBackend().why_not_here(KitChoices(arches, "bf16"))
    assert got.startswith(reason) and bool(got) == bool(reason)
