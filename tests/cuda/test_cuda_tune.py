"""From candidates in an artifact through a null driver to a file that a compile chooses by."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk.cli import main, tune
from sglk.errors import ArtifactError, DeviceError, LoweringError
from sglk.ir.dim import dim
from sglk.ir.dtype import BF16, dtype
from sglk.ir.graph import Graph
from sglk.ir.ops.linear import GatedLinear, Linear
from sglk.ir.target import Target
from sglk.ir.types import TensorType
from sglk.targets.artifact import FORMAT, Artifact, ArtifactWriter
from sglk.targets.artifact.kernel_pack import PackedKernel, write_pack
from sglk.targets.assemble import Library
from sglk.targets.backend import check_tunes, open_backend
from sglk.targets.conformance.chip import KitChoices
from sglk.targets.cuda import candidates as made
from sglk.targets.cuda import measured
from sglk.targets.cuda.compile import lower
from sglk.targets.cuda.device import tune as device_tune
from sglk.targets.cuda.device.device import CudaDevice
from sglk.targets.cuda.device.driver import Chip, Grid
from sglk.targets.cuda.device.null_driver import ALIGNMENT, NullDriver
from sglk.targets.cuda.device.tune import FOLDER, LISTING, Timed, _is_near, agreeing, read_listing
from sglk.targets.cuda.facts import chips_named, cuda_target
from sglk.targets.cuda.rows_linear import choose
from sglk.targets.kernel import Kernel
from sglk.targets.lowering import Lowering, TokenRange

N, K, MOST = 512, 256, 3
CHIPS = chips_named(("sm90",))


@pytest.fixture
def target() -> Target:
    return replace(cuda_target(CHIPS), token_buckets=(1, 64, 512))


def lowering_of(target: Target, form: str = "bf16") -> Lowering:
    graph = Graph("forward")
    x = graph.input("x", TensorType(BF16, (dim("n"), K)))
    y = graph.emit(Linear(), x, graph.param("w", TensorType(dtype(form), (N, K))))
    z = graph.emit(GatedLinear("silu"), x, graph.param("v", TensorType(dtype(form), (2 * N, K))))
    graph.outputs = [y, z]
    return lower(graph, target)


def test_every_row_count_of_every_product_is_there(target: Target) -> None:
    found = made.products_of(lowering_of(target))
    assert {(p.n, p.gated) for p in found} == {(N, False), (N, True)}
    assert {p.m for p in found} == {1, 64}  # rows that are no tokens


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Kernel]:
    """Kernels are listed, not compiled."""
    kernels: dict[str, Kernel] = {}

    def build(wanted: Sequence[Kernel], *_: object) -> list[Library]:
        kernels.update({kernel.symbol: kernel for kernel in wanted})
        pack = {
            symbol: PackedKernel(
                {"num_warps": 4, "params": [t for _, t in k.signature], "global_scratch": 384}, b""
            )
            for symbol, k in kernels.items()
        }
        return [Library("sm_90", write_pack(pack), ".pack")]

    monkeypatch.setattr(made, "build_libraries", build)
    return kernels


def write(path: Path, members: dict[str, bytes]) -> Path:
    with ArtifactWriter(path) as writer:
        for name, data in members.items():
            writer.add_bytes(name, data)
        writer.finish({
            "format": list(FORMAT), "features": [], "producer": "test",
            "model": {"name": "w", "architecture": "w"},
            "target": {"name": "cuda", "variants": []}, "programs": {}, "weights": {},
        })  # fmt: skip
    return path


@pytest.fixture
def artifact(
    request: pytest.FixtureRequest, packed: dict[str, Kernel], target: Target, tmp_path: Path
) -> Iterator[Artifact]:
    lowering = lowering_of(target, getattr(request, "param", "bf16"))
    members = made.candidates(lowering, CHIPS, MOST, lambda *_: None)
    with Artifact.open(write(tmp_path / "a.sglk", members)) as opened:
        yield opened


Run = Callable[[Grid, Sequence[int]], None]


def writer_of(driver: NullDriver, kernel: Kernel, wrong: str) -> Run:
    """Writes ones where the result goes; a kernel of that name writes something else."""
    names = [name for name, _ in kernel.signature]
    value = 0x4000 if kernel.function == wrong else 0x3F80
    constants = dict(kernel.constants)

    def run(grid: Grid, words: Sequence[int]) -> None:
        if "K" in constants and grid.x:
            memory = driver._memory[words[names.index("y")]]
            start, size = -memory.ctypes.data % ALIGNMENT, memory.nbytes - ALIGNMENT
            memory[start : start + size].view(np.uint16)[:] = value

    return run


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> NullDriver:
    """A GPU on which every round takes longer than the one before."""
    monkeypatch.setattr(device_tune, "POOL_BYTES", 4 << 20)
    monkeypatch.setattr(device_tune, "REST_S", 0.0)
    made = NullDriver(total_bytes=1 << 32)
    clock = iter(range(1, 1_000_000))
    monkeypatch.setattr(made, "milliseconds", lambda start, end: float(next(clock)))
    return made


def measured_by(
    driver: NullDriver, artifact: Artifact, kernels: dict[str, Kernel], wrong: str = ""
) -> tuple[dict[str, Any], int]:
    driver.kernels = {
        symbol: writer_of(driver, kernel, wrong) for symbol, kernel in kernels.items()
    }
    return CudaDevice(open_driver=lambda _: driver).tune(artifact, lambda *_: None)


@pytest.mark.parametrize("artifact", ["bf16", "e4m3_row_f32", "i4_g32_f16_z"], indirect=True)
def test_a_compile_reads_what_was_measured(
    driver: NullDriver, artifact: Artifact, packed: dict[str, Kernel], tmp_path: Path
) -> None:
    content, refused = measured_by(driver, artifact, packed)
    found, _ = read_listing(artifact)
    assert refused == 0 and len(content["linear"]) == len(found) > 8
    assert not driver.is_open and not driver.allocated_bytes
    path = tmp_path / "times.json"
    path.write_text(tune.as_text(content))
    text = measured.checked_tuning(str(path), ["sm_90"])
    records = list(measured.read_records(json.loads(text), "times"))
    best = min((r for r in records if r.product.m == 64), key=lambda r: r.seconds)
    p = best.product
    rival = [r for r in records if r.product == p]
    config, choice = choose(
        cuda_target(CHIPS, tuning=text), TokenRange(33, 64), p.n, p.k, p.gated, p.form
    )
    assert choice.bound == "measured"
    assert config.constants == min(rival, key=lambda r: r.seconds).config.constants
    assert "kernel" in tune.table_lines(content["linear"])[0]


def test_weights_take_turns_and_results_are_poisoned(
    driver: NullDriver, artifact: Artifact, packed: dict[str, Kernel]
) -> None:
    measured_by(driver, artifact, packed)
    launches = [r for r in driver.of("launch") if r.what in packed]
    at = {
        r.words[[n for n, _ in packed[r.what].signature].index("w")]
        for r in launches
        if "w" in dict(packed[r.what].signature)
    }
    assert len(at) >= 16
    assert len(driver.of("capture")) == len(read_listing(artifact)[0])


def test_only_products_of_some_rows_are_measured(
    driver: NullDriver, artifact: Artifact, packed: dict[str, Kernel]
) -> None:
    driver.kernels = {symbol: writer_of(driver, each, "") for symbol, each in packed.items()}
    device = CudaDevice(open_driver=lambda _: driver)
    content, refused = device.tune(artifact, lambda *_: None, rows=[64])
    records: Any = content["linear"]
    assert records and {each["m"] for each in records} == {64} and not refused
    with pytest.raises(ArtifactError, match=r"expected rows among \[1, .*\], got 63 \(choose"):
        device.tune(artifact, lambda *_: None, rows=[64, 63])


def test_a_way_with_another_result_is_left_out(
    driver: NullDriver, artifact: Artifact, packed: dict[str, Kernel]
) -> None:
    found, _ = read_listing(artifact)
    kinds = [str(each.record["kernel"]) for each in found if each.record["m"] == 1]
    wrong = "gemv.linear" if kinds.count("gemv.linear") < len(kinds) else "none"
    content, refused = measured_by(driver, artifact, packed, wrong)
    assert len(content["linear"]) + refused == len(found)


def test_most_results_decide() -> None:
    def timed(*values: float) -> Timed:
        candidate: Any = type("C", (), {"product": 1})
        return Timed(candidate, 1.0, np.array(values, np.float32))

    good, other, wrong, unwritten = (
        timed(1, 2), timed(1, 2.001), timed(2, 1), timed(1, float("nan")),
    )  # fmt: skip
    assert list(agreeing([wrong, good, unwritten, other])) == [good, other]
    nan: NDArray[np.float32] = np.full(2, np.nan, np.float32)
    assert not _is_near(nan, nan)


def test_foreign_artifacts_are_refused(
    artifact: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = NullDriver(chip=Chip("A100", (8, 0), 166912, 108, 13000))
    device = CudaDevice(open_driver=lambda _: older)
    with pytest.raises(ArtifactError, match=r"for sm_80 \(A100\), got those for sm_90 \(compile"):
        device.tune(artifact, lambda *_: None)
    assert not older.is_open
    with (
        Artifact.open(write(tmp_path / "bare.sglk", {})) as bare,
        pytest.raises(ArtifactError, match="expected candidates to measure, got none"),
    ):
        CudaDevice(open_driver=lambda _: NullDriver()).tune(bare, lambda *_: None)
    later = {n: artifact.read(n) for n in artifact.names if n.startswith(FOLDER)}
    later[LISTING] = json.dumps({**json.loads(later[LISTING]), "format": 2}).encode()
    with (
        Artifact.open(write(tmp_path / "later.sglk", later)) as newer,
        pytest.raises(ArtifactError, match="expected format 1, got 2"),
    ):
        read_listing(newer)
    assert main(["tune", str(artifact.path), "--device", "cpu"]) == 1
    assert "expected a device whose kernels are chosen by measured" in capsys.readouterr().err


RECORD = {
    "n": 8, "k": 8, "gated": 0, "m": 1, "us": 1.0, "maps": 0, "kernel": "gemv.linear",
    "constants": {"ROWS": 1, "BLOCK_N": 4, "BLOCK_K": 8}, "num_warps": 4, "num_stages": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("no json", "expected JSON"),
        ([1], "expected a tuning file, got other JSON"),
        ({"format": 1, "arch": "sm_80", "chip": "A100"}, "times of sm_90, got those of sm_80 A100"),
        ({"format": 9, "arch": "sm_90"}, "expected format 1, got 9"),
        ({"format": 1, "arch": "sm_90", "linear": [{}]}, "record 0: expected a measured product"),
        (
            {"format": 1, "arch": "sm_90", "linear": [RECORD | {"kernel": "old.linear"}]},
            "no kernel old.linear in this version",
        ),
        (
            {
                "format": 1,
                "arch": "sm_90",
                "linear": [RECORD | {"constants": {**RECORD["constants"], "WIDE": 1}}],  # type: ignore[dict-item]
            },
            "gemv.linear has no WIDE in this version",
        ),
    ],
)
def test_foreign_files_are_refused(tmp_path: Path, content: object, sentence: str) -> None:
    path = tmp_path / "times.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(LoweringError, match=sentence):
        open_backend("cuda").check(KitChoices(("sm90",), "bf16", tuning=str(path)))
    with pytest.raises(LoweringError, match="cannot read it: No such file"):
        measured.checked_tuning(str(tmp_path / "absent.json"), ["sm_90"])


def test_a_norm_that_a_kernel_does_not_do_is_refused(tmp_path: Path) -> None:
    record = {
        "n": 64, "k": 64, "gated": 0, "m": 8, "us": 1.0, "maps": 0, "num_warps": 4, "num_stages": 3,
        "kernel": "matmul_tiles.linear",
        "constants": {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 8, "PROGRAMS": 4},
    }  # fmt: skip
    content = {"format": 1, "arch": "sm_90", "chip": "H200", "linear": [], "normed": [record]}
    path = tmp_path / "times.json"
    path.write_text(json.dumps(content))
    with pytest.raises(LoweringError, match=r"normed record 0: matmul_tiles.linear takes no norm"):
        measured.checked_tuning(str(path), ["sm_90"])


def test_times_of_other_products_stay_ours() -> None:
    text = json.dumps({"format": 1, "arch": "sm_90", "linear": [RECORD]})
    shipped, both = (measured.all_records("sm_90", tuning=t) for t in ("", text))
    assert len(both) == len(shipped) + 1 and both[0].product.n == 8


@pytest.mark.parametrize("choice", [{"tuning": "times.json"}, {"candidates": 4}])
def test_targets_without_measured_times_refuse_them(choice: dict[str, Any]) -> None:
    with pytest.raises(LoweringError, match="expected a target whose kernels are chosen by meas"):
        check_tunes(open_backend("cpu"), KitChoices(**choice))
    with pytest.raises(LoweringError, match="--candidates: expected 0 or more, got -1"):
        check_tunes(open_backend("cuda"), KitChoices(candidates=-1))


def test_a_kernel_that_the_chip_refuses_is_no_way(
    driver: NullDriver,
    artifact: Artifact,
    packed: dict[str, Kernel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, _ = read_listing(artifact)
    first = found[0].code.kernels[-1]

    def function(module: object, entry: str, shared: int) -> str:
        if entry == first:
            raise DeviceError("cuda:null: expected less shared memory")
        return entry

    monkeypatch.setattr(driver, "function", function)
    content, refused = measured_by(driver, artifact, packed)
    assert refused >= 1 and len(content["linear"]) == len(found) - refused
