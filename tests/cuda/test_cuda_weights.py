"""Weights reach the device whole: in chunks from the file, or from a seed."""

from __future__ import annotations

import ctypes
import dataclasses
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk.errors import DeviceError
from sglk.targets.artifact import (
    FORMAT,
    Arg,
    Artifact,
    ArtifactWriter,
    Bucket,
    Buffer,
    Call,
    Program,
)
from sglk.targets.artifact.fill import FEATURE, FILL_BLOCK, Fill, fill_array
from sglk.targets.artifact.kernel_pack import PackedKernel
from sglk.targets.cuda.device import weights
from sglk.targets.cuda.device.bound_program import BoundProgram
from sglk.targets.cuda.device.driver import Grid
from sglk.targets.cuda.device.kernel_table import KernelTable
from sglk.targets.cuda.device.memory import DeviceMemory
from sglk.targets.cuda.device.null_driver import NullDriver
from sglk.targets.cuda.device.program_code import encode

FILL = Fill(seed=0xFFFFFFF0, mean=1.0, step=2.0**-25)
FILL_META = {"num_warps": 4, "params": ["*bf16", "i64", "i32", "i32", "i32"]}
NUMBERS = ("count", "seed", "step", "mean")


def fill_program() -> Program:
    arguments = [Arg("buffer", "weight"), Arg("i64", "count")]
    arguments += [Arg("i32", name) for name in NUMBERS[1:]]
    call = Call("fill", (f"cdiv(count, {FILL_BLOCK})", "1", "1"), tuple(arguments))
    weight = Buffer("weight", "bf16", ("count",), "output", "0", "count * 2")
    return Program("fill_bf16", NUMBERS, (), (weight,), (), (), "0", (Bucket(None, (call,)),))


def make_fill(grid: Grid, words: Sequence[int]) -> None:
    """What targets/kernels/fill.py does."""
    address, count = words[:2]
    seed, step, mean = np.array(words[2:5], np.int64).astype(np.uint32)
    assert grid.x == -(-count // FILL_BLOCK) and seed == FILL.seed
    fill = Fill(int(seed), float(mean.view(np.float32)), float(step.view(np.float32)))
    data = fill_array(fill, count, "bf16").tobytes()
    ctypes.memmove(address, data, len(data))


def record(writer: ArtifactWriter, data: bytes) -> dict[str, object]:
    blob = writer.add_blob([data])
    return {
        "blob": blob, "bytes": len(data), "dtype": "u8", "shape": [len(data)], "layout": "row",
        "sections": {}, "sha256": blob.rpartition("/")[2],
    }  # fmt: skip


@pytest.fixture
def contents() -> dict[str, NDArray[np.uint8]]:
    rng = np.random.default_rng(3)
    sizes = {"a": 100, "b": 5000, "c": 1, "d": 70_000, "e": 0, "f": 4096, "g": 333}
    found = {name: rng.integers(0, 256, size, np.uint8) for name, size in sizes.items()}
    return found | {"same as b": found["b"], "made": fill_array(FILL, 9001, "bf16").view(np.uint8)}


@pytest.fixture
def artifact(tmp_path: Path, contents: dict[str, NDArray[np.uint8]]) -> Artifact:
    path = tmp_path / "weights.sglk"
    with ArtifactWriter(path) as writer:
        records = {n: record(writer, v.tobytes()) for n, v in contents.items() if n != "made"}
        made = {
            "fill": FILL.to_json(), "bytes": 18002, "dtype": "bf16", "shape": [9001],
            "layout": "row", "sections": {},
        }  # fmt: skip
        names = ["a", "b", "made", "c", "d", "e", "f", "same as b", "g"]
        every = {**records, "made": made}
        writer.finish({
            "format": list(FORMAT), "features": [FEATURE], "producer": "test",
            "model": {"name": "w", "architecture": "w"},
            "target": {"name": "cuda", "variants": []},
            "programs": {}, "weights": {name.replace(" ", "_"): every[name] for name in names},
        })  # fmt: skip
    return Artifact.open(path)


@pytest.mark.parametrize("has_kernel", [True, False])
def test_every_byte_arrives(
    artifact: Artifact,
    contents: dict[str, NDArray[np.uint8]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    has_kernel: bool,
) -> None:
    """Chunks are small here, so that some weights take several and some share one."""
    monkeypatch.setattr(weights, "CHUNK_BYTES", 4096)
    driver = NullDriver(kernels={"fill": make_fill})
    memory = DeviceMemory(driver, "stream")
    kernels = KernelTable(driver, {"fill": PackedKernel(FILL_META, b"")}, "pack")
    code = encode(fill_program())
    bound = BoundProgram(driver, "stream", code, kernels, memory, num_pages=1)
    programs = {"fill_bf16": bound} if has_kernel else {}
    with caplog.at_level(logging.INFO):
        weights.load_weights(driver, "stream", memory, programs, artifact, list(artifact.weights))
    for name, wanted in contents.items():
        key = ("weight", name.replace(" ", "_"))
        assert memory.address(key) % 256 == 0 and memory.num_bytes(key) == len(wanted)
        got = ctypes.string_at(memory.address(key), len(wanted))
        assert got == wanted.tobytes(), name
    assert memory.address(("weight", "b")) == memory.address(("weight", "same_as_b"))
    assert len(driver.of("launch")) == has_kernel
    copied = sum(r.num_bytes for r in driver.of("copy in"))
    assert copied < 100_000 and "GB/s" in caplog.text
    memory.close()
    assert driver.allocated_bytes == 0
    artifact.close()


def test_neighbours_share_a_copy_and_made_weights_are_not_overwritten() -> None:
    def piece(offset: int, size: int) -> Any:
        return weights.Piece(offset, size, lambda target: None)

    near = [piece(0, 100), piece(256, 100), piece(1024, 10)]
    assert [len(lot) for lot in weights._chunks(near)] == [2, 1]
    large = [piece(0, weights.CHUNK_BYTES), piece(weights.CHUNK_BYTES, 8)]
    assert [len(lot) for lot in weights._chunks(large)] == [1, 1]


def test_a_placed_weight_is_plain_data() -> None:
    assert dataclasses.astuple(weights.Placed("a", 0, 4)) == ("a", 0, 4)


def test_a_failed_copy_waits_for_the_others_before_memory_is_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_freed = threading.Event()
    freed_early: list[bool] = []

    def run(worker: object, lots: Sequence[Sequence[weights.Piece]]) -> None:
        if lots[0][0].offset == 0:
            raise DeviceError("cuda:null: copy: it failed")
        freed_early.append(is_freed.wait(0.05))

    monkeypatch.setattr(weights._Worker, "run", run)
    monkeypatch.setattr(weights._Worker, "close", lambda worker: is_freed.set())
    pieces = [weights.Piece(at << 20, 8, lambda target: None) for at in range(2)]
    with pytest.raises(DeviceError, match="it failed"):
        weights._upload(NullDriver(), 0, pieces)
    assert freed_early == [False] and is_freed.is_set()
