"""A toy artifact on the emulator: load, step, run, capacity, and what goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sglk.errors import ArtifactError, DeviceError
from sglk.targets.artifact import Arg, Artifact, ArtifactWriter, Bucket, Buffer, Call, Program
from sglk.targets.artifact.kernel_pack import PackedKernel, write_pack
from sglk.targets.device import HasArgmax, StepBatch
from sglk.targets.kunlun.device import EmulatorDevice, KunlunExecutable
from sglk.targets.kunlun.emulator import predict_step
from sglk.targets.kunlun.player import build_player
from sglk.targets.registry import known_targets, open_device

VOCAB, PAGE = 64, 4
TABLE = np.random.default_rng(1).standard_normal((VOCAB, VOCAB)).astype(np.float32)
INPUTS = {
    "token_ids": ("tokens",), "positions": ("tokens",), "slots": ("tokens",),
    "query_start": ("seqs + 1",), "seq_lens": ("seqs",), "page_table": ("seqs", "pages"),
    "logit_rows": ("rows",),
}  # fmt: skip


def buffer(name: str, kind: str, dtype: str, shape: tuple[str, ...]) -> Buffer:
    size = " * ".join(["4", *(f"({dim})" for dim in shape)])
    return Buffer(name, dtype, shape, kind, "0", size)


def step_program() -> Program:
    args = {name: Arg("buffer", name) for name in ("token_ids", "slots", "logit_rows", "logits")}
    table, state = Arg("weight", "table"), Arg("state", "seen")
    first = Call("remember", ("tokens", "1", "1"), (args["token_ids"], args["slots"], state))
    reads = (args["token_ids"], args["slots"], args["logit_rows"], table, state, args["logits"])
    second = Call("toy_logits", ("rows", "1", "1"), reads)
    return Program(
        entry="step",
        symbols=("tokens", "seqs", "pages", "rows"),
        inputs=tuple(buffer(name, "input", "i32", shape) for name, shape in INPUTS.items()),
        outputs=(buffer("logits", "output", "f32", ("rows", str(VOCAB))),),
        temps=(),
        states=(buffer("seen", "state", "f32", ("num_pages", str(PAGE))),),
        arena_bytes="0",
        buckets=(Bucket(None, (first, second)),),
    )


def forward_program() -> Program:
    names = ("x", "y", "z")
    shapes = dict.fromkeys(names, ("n * 64",))
    kinds = {"x": "input", "y": "input", "z": "output"}
    made = {name: buffer(name, kinds[name], "f32", shapes[name]) for name in names}
    call = Call("add_whole", ("n", "1", "1"), tuple(Arg("buffer", name) for name in names))
    return Program(
        entry="forward",
        symbols=("n",),
        inputs=(
            *(made[name] for name in ("x", "y")),
            buffer("sizer", "input", "f32", ("n",)),
        ),
        outputs=(made["z"],),
        temps=(),
        states=(),
        arena_bytes="0",
        buckets=(Bucket(None, (call,)),),
    )


@pytest.fixture(scope="session")
def toy_kernels(
    kernels: ModuleType, compile_kernel: Callable[..., PackedKernel]
) -> dict[str, PackedKernel]:
    ids = {"token_ids": "*i32", "slots": "*i32"}
    floats = dict.fromkeys(("table", "state", "y"), "*fp32")
    return {
        "remember": compile_kernel(kernels.remember, {}, {**ids, "state": "*fp32"}),
        "toy_logits": compile_kernel(
            kernels.toy_logits, {"VOCAB": VOCAB}, {**ids, "logit_rows": "*i32", **floats}
        ),
        "add_whole": compile_kernel(
            kernels.add_whole, {"BLOCK": 64}, dict.fromkeys("xyz", "*fp32")
        ),
    }


def write_artifact(
    path: Path,
    kernels: dict[str, PackedKernel],
    library: bytes | None,
    target: str = "kunlun",
    player: bytes | None = None,
) -> Path:
    with ArtifactWriter(path) as writer:
        if player is not None:
            writer.add_bytes("host/xpu_player.so", player)
        if library is not None:
            writer.add_bytes("emulator/libxpurt_emulator.so", library)
        writer.add_bytes("kernels/xpu3.pack", write_pack(kernels))
        for program in (step_program(), forward_program()):
            writer.add_bytes(f"programs/{program.entry}.json", program.to_json())
        blob = writer.add_blob([TABLE.tobytes()])
        weight = {
            "blob": blob, "bytes": TABLE.nbytes, "dtype": "f32", "shape": list(TABLE.shape),
            "layout": "row", "sections": {}, "sha256": blob.rpartition("/")[2],
        }  # fmt: skip
        variant = {"isa": "xpu3", "library": "kernels/xpu3.pack", "symbols": sorted(kernels)}
        writer.finish(
            {
                "format": [1, 0], "features": [], "producer": "test",
                "model": {"name": "toy", "architecture": "toy", "vocab_size": VOCAB},
                "target": {"name": target, "page_size": PAGE, "variants": [variant]},
                "programs": {e: f"programs/{e}.json" for e in ("step", "forward")},
                "weights": {"table": weight},
            }
        )  # fmt: skip
    return path


@pytest.fixture(scope="session")
def toy(
    tmp_path_factory: pytest.TempPathFactory,
    toy_kernels: dict[str, PackedKernel],
    library_bytes: bytes,
) -> Path:
    path = tmp_path_factory.mktemp("toy") / "toy.sglk"
    return write_artifact(path, toy_kernels, library_bytes, player=build_player())


@pytest.fixture
def executable(toy: Path) -> Iterator[KunlunExecutable]:
    with Artifact.open(toy) as artifact:
        loaded = EmulatorDevice().load(artifact, num_pages=8, max_tokens=16)
        yield loaded
        loaded.close()


def batch(tokens: list[int], slots: list[int], rows: list[int]) -> StepBatch:
    def ints(values: Any) -> Any:
        return np.array(values, np.int32)

    count = len(tokens)
    return StepBatch(
        ints(tokens), ints(range(count)), ints(slots), ints([0, count]), ints([count]),
        ints([[1, 2]]), ints(rows),
    )  # fmt: skip


def test_a_step_gives_logits_and_keeps_its_state(executable: KunlunExecutable) -> None:
    logits = executable.step(batch([3, 9, 5], [4, 5, 6], [0, 2]))
    np.testing.assert_allclose(logits, TABLE[[3, 5]] + np.array([[3], [5]], np.float32))
    again = executable.step(batch([7], [4], [0])).copy()
    np.testing.assert_allclose(again, TABLE[[7]] + 7)
    assert isinstance(executable, HasArgmax)
    assert executable.argmax(np.array([0], np.int32)).tolist() == [int(TABLE[7].argmax())]


def test_without_a_player_steps_are_the_same(
    tmp_path: Path, toy_kernels: dict[str, PackedKernel], library_bytes: bytes
) -> None:
    path = write_artifact(tmp_path / "plain.sglk", toy_kernels, library_bytes)
    with (
        Artifact.open(path) as artifact,
        EmulatorDevice().load(artifact, num_pages=8, max_tokens=16) as executable,
    ):
        logits = executable.step(batch([3, 9], [4, 5], [1]))
        np.testing.assert_allclose(logits, TABLE[[9]] + 9)


def test_a_launch_that_fails_is_named_by_its_number(executable: KunlunExecutable) -> None:
    executable.step(batch([3], [4], [0]))
    executable._device().library.call("xpuemu_configure", b"param_bytes=16")
    with pytest.raises(DeviceError, match=r"launch 0: INVALID_PARAM .*limit param_bytes"):
        executable.step(batch([3], [4], [0]))


def test_counters_are_those_of_the_plan(
    executable: KunlunExecutable, toy_kernels: dict[str, PackedKernel]
) -> None:
    executable.step(batch([3, 9, 5], [4, 5, 6], [0, 2]))
    sizes = {"tokens": 3, "seqs": 1, "pages": 2, "rows": 2, "num_pages": 8}
    for name, counts in predict_step(step_program(), toy_kernels, sizes).items():
        assert counts is not None
        counted = executable.counters(name)
        assert counts == {key: counted[key] for key in counts}
    assert executable.counters()["launches"] == 2
    assert executable.counters("toy_logits")["gm_written"] == 2 * VOCAB * 4


def test_other_entries_run_on_arrays_by_name(executable: KunlunExecutable) -> None:
    x = np.arange(128, dtype=np.float32)
    inputs = {"x": x, "y": x, "sizer": np.zeros(2, np.float32)}
    np.testing.assert_array_equal(executable.run("forward", inputs)["z"], 2 * x)
    with pytest.raises(
        DeviceError, match=r"input x: expected contiguous float32 of shape \(128,\), got"
    ):
        executable.run("forward", {**inputs, "x": x[:64]})
    with pytest.raises(DeviceError, match=r"expected inputs \['sizer', 'x', 'y'\], got \['x'\]"):
        executable.run("forward", {"x": x})
    with pytest.raises(DeviceError, match="no program 'backward'"):
        executable.run("backward", {})


@pytest.mark.parametrize(
    ("tokens", "slots", "rows", "message"),
    [
        ([64], [4], [0], r"token_ids: expected values in 0\.\.63, got 64 at 0"),
        ([1], [32], [0], r"slots: expected values in 0\.\.31, got 32"),
        ([1], [4], [1], r"logit_rows: expected values in 0\.\.0, got 1"),
        ([1] * 17, [4] * 17, [0], r"expected 1 to 16 tokens and at least one sequence, got 17"),
    ],
)
def test_steps_that_point_outside_are_refused(
    executable: KunlunExecutable, tokens: list[int], slots: list[int], rows: list[int], message: str
) -> None:
    with pytest.raises(DeviceError, match=message):
        executable.step(batch(tokens, slots, rows))


def test_a_device_that_is_lost_stays_lost(executable: KunlunExecutable) -> None:
    step = batch([3], [4], [0])
    executable.step(step)
    executable._device().library.call("xpuemu_lose_device", 0, 0)
    with pytest.raises(DeviceError, match=r"DEVRESET \(801\)"):
        executable.step(step)
    with pytest.raises(DeviceError, match=r"the device was lost: .*DEVRESET"):
        executable.step(step)


def test_a_closed_executable_says_so(toy: Path) -> None:
    with Artifact.open(toy) as artifact:
        loaded = EmulatorDevice().load(artifact, num_pages=8, max_tokens=16)
        loaded.close()
        loaded.close()
        with pytest.raises(DeviceError, match="the executable is closed"):
            loaded.step(batch([3], [4], [0]))


def test_pages_are_bounded_by_the_device(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLK_KUNLUN_EMULATOR", f"main_bytes={TABLE.nbytes + 10 * PAGE * 4}")
    with Artifact.open(toy) as artifact:
        assert EmulatorDevice().kv_bytes_per_page(artifact) == PAGE * 4
        with pytest.raises(
            DeviceError, match=r"10 pages of 16 bytes fit, got 11 \(use fewer pages"
        ):
            EmulatorDevice().load(artifact, num_pages=11, max_tokens=16)


def test_the_chip_and_the_emulator_are_devices_by_name(toy: Path) -> None:
    assert {"kunlun", "emulator"} <= set(known_targets())
    assert isinstance(open_device("emulator"), EmulatorDevice)
    assert open_device("emulator").name == open_device("kunlun").name == "kunlun"
    with (
        Artifact.open(toy) as artifact,
        pytest.raises(ArtifactError, match=r"kernels of kind xpubin for the device kunlun, got \["),
    ):
        open_device("kunlun").load(artifact, num_pages=2, max_tokens=1)


def test_artifacts_that_do_not_fit_are_refused(
    tmp_path: Path, toy_kernels: dict[str, PackedKernel], library_bytes: bytes
) -> None:
    device = EmulatorDevice()
    cases = {
        "for the target kunlun, got one for cpu": (toy_kernels, library_bytes, "cpu"),
        "expected emulator/libxpurt_emulator.so inside": (toy_kernels, None, "kunlun"),
        r"its kernels lack \['toy_logits'\]": (
            {n: k for n, k in toy_kernels.items() if n != "toy_logits"}, library_bytes, "kunlun",
        ),
    }  # fmt: skip
    for number, (message, (kernels, library, target)) in enumerate(cases.items()):
        path = write_artifact(tmp_path / f"{number}.sglk", kernels, library, target)
        with Artifact.open(path) as artifact, pytest.raises(ArtifactError, match=message):
            device.load(artifact, num_pages=2, max_tokens=1)
