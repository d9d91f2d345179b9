"""Weights that stay in blocks: what compiles to them, the manifest's words, what a load makes."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sglk.errors import ArtifactError, LoweringError
from sglk.ir.blocks import BLOCK_TYPES, BlockArray
from sglk.ir.dtype import BF16, F32, round_bf16
from sglk.ir.graph import Graph
from sglk.ir.ops.shape import Concat, Transpose
from sglk.ir.types import TensorType
from sglk.targets.artifact import FORMAT, Artifact, ArtifactWriter
from sglk.targets.artifact.expand import FEATURE, Expand, Part
from sglk.targets.artifact.kernel_pack import PackedKernel
from sglk.targets.cuda.device import weights
from sglk.targets.cuda.device.bound_program import BoundProgram
from sglk.targets.cuda.device.driver import Grid
from sglk.targets.cuda.device.kernel_table import KernelTable
from sglk.targets.cuda.device.memory import DeviceMemory
from sglk.targets.cuda.device.null_driver import NullDriver
from sglk.targets.cuda.device.program_code import encode
from sglk.targets.cuda.entries import EXPANDED_AT_ONCE, Entry, expand
from sglk.targets.cuda.facts import chips_named, cuda_target
from sglk.targets.expanded import stacked, write_blocks
from sglk.targets.weight_use import WeightUse

SHAPES = {"q": ("q4_1", 48), "k": ("q4_1", 16), "v": ("q6_k", 16), "head": ("q8_0", 7)}
COLUMNS = 256
TARGET = cuda_target(chips_named(("sm90",)))


@pytest.fixture
def stored() -> dict[str, BlockArray]:
    rng = np.random.default_rng(8)

    def make(kind: str, rows: int) -> BlockArray:
        facts = BLOCK_TYPES[kind]
        raw = rng.integers(0, 256, (rows, facts.row_bytes(COLUMNS)), np.uint8)
        blocks = raw.reshape(-1).view(facts.layout)
        for field in {"d", "m", "dmin"} & set(facts.layout.names or ()):
            blocks[field] = rng.standard_normal(len(blocks))
        return BlockArray(kind, (rows, COLUMNS), raw)

    return {name: make(*shape) for name, shape in SHAPES.items()}


def bits(arrays: Sequence[BlockArray]) -> bytes:
    values = np.concatenate([round_bf16(array.dequantize()) for array in arrays])
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def write(path: Path, stored: dict[str, BlockArray], weights: dict[str, list[str]]) -> Artifact:
    with ArtifactWriter(path) as writer:
        records = {}
        for name, parts in weights.items():
            rows = sum(SHAPES[part][1] for part in parts)
            fixed = {"dtype": "bf16", "shape": [rows, COLUMNS], "layout": "row"}
            records[name] = fixed | write_blocks(writer, parts, stored.__getitem__)
        writer.finish({
            "format": list(FORMAT), "features": [FEATURE], "producer": "test",
            "model": {"name": "w", "architecture": "w"},
            "target": {"name": "cuda", "variants": []}, "programs": {}, "weights": records,
        })  # fmt: skip
    return Artifact.open(path)


def run(kind: str) -> Any:
    """What expand_blocks.py does."""

    def expand_blocks(grid: Grid, words: Sequence[int]) -> None:
        source, target, count = words[:3]
        facts = BLOCK_TYPES[kind]
        assert grid.x == -(-count // (EXPANDED_AT_ONCE // facts.elements))
        raw = np.frombuffer(ctypes.string_at(source, count * facts.bytes), np.uint8)
        data = bits([BlockArray(kind, (1, count * facts.elements), raw[None])])
        ctypes.memmove(target, data, len(data))

    return expand_blocks


def bind(driver: NullDriver, memory: DeviceMemory, kind: str) -> BoundProgram:
    entry: Entry = expand(kind, TARGET)
    (kernel,) = entry.kernels
    meta = {"entry": kind, "num_warps": 4, "params": [t for _, t in kernel.signature]}
    table = KernelTable(driver, {kernel.symbol: PackedKernel(meta, b"")}, "pack")
    return BoundProgram(driver, "stream", encode(entry.program), table, memory, num_pages=1)


def test_every_block_becomes_rounded_values(
    tmp_path: Path, stored: dict[str, BlockArray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "CHUNK_BYTES", 4096)
    wanted = {"qkv": ["q", "k", "v"], "head": ["head"], "tied": ["head"]}
    kinds = {kind for kind, _ in SHAPES.values()}
    driver = NullDriver(kernels={kind: run(kind) for kind in kinds})
    memory = DeviceMemory(driver, "stream")
    programs = {f"expand_{kind}": bind(driver, memory, kind) for kind in kinds}
    with write(tmp_path / "a.sglk", stored, wanted) as artifact:
        made = artifact.expand("qkv")
        assert made is not None and [part.type for part in made.parts] == ["q4_1", "q6_k"]
        assert len(artifact.weight("qkv")) < artifact.weight_bytes(["qkv"]) / 2
        weights.load_weights(driver, "stream", memory, programs, artifact, list(wanted))
    for name, parts in wanted.items():
        expected = bits([stored[part] for part in parts])
        key = ("weight", name)
        assert ctypes.string_at(memory.address(key), memory.num_bytes(key)) == expected
    assert len(driver.of("launch")) == 3  # a run of equal blocks is one; tied weights are one
    assert memory.address(("weight", "head")) == memory.address(("weight", "tied"))
    assert "blocks" not in memory.sizes()
    memory.close()
    assert driver.allocated_bytes == 0


def test_other_parts_of_the_same_blob_have_a_place_of_their_own(
    tmp_path: Path, stored: dict[str, BlockArray]
) -> None:
    artifact = write(tmp_path / "a.sglk", stored, {"all": ["head"], "part": ["head"]})
    record = artifact.weights["part"]
    record |= {"bytes": 64, "expand": Expand((Part("q8_0", 0, 1),)).to_json()}
    placed, end = weights.place(artifact, ["part", "all"])
    assert [weight.offset for weight in placed] == [0, 256]
    assert end == 256 + 2 * 7 * COLUMNS
    artifact.close()


def test_a_device_without_the_program_says_so(
    tmp_path: Path, stored: dict[str, BlockArray]
) -> None:
    driver = NullDriver()
    memory = DeviceMemory(driver, "stream")
    artifact = write(tmp_path / "a.sglk", stored, {"head": ["head"]})
    with pytest.raises(ArtifactError, match="weight head: expected a program 'expand_q8_0'"):
        weights.load_weights(driver, "stream", memory, {}, artifact, ["head"])
    artifact.close()
    memory.close()
    assert driver.allocated_bytes == 0


@pytest.mark.parametrize(
    ("part", "size", "message"),
    [
        (Part("q4_2", 0, 1), 64, "expected one of q4_0, q4_1"),
        (Part("q4_1", 8, 1), 64, "expected a multiple of 64, got 8"),
        (Part("q4_1", 0, 2), 64, "expected 64 elements of bf16, got 64 bytes of bf16"),
        (Part("q4_1", 0, 9999), 9999 * 64, "expected blocks within"),
    ],
)
def test_wrong_parts_are_refused(
    tmp_path: Path, stored: dict[str, BlockArray], part: Part, size: int, message: str
) -> None:
    with ArtifactWriter(tmp_path / "a.sglk") as writer:
        record = write_blocks(writer, ["head"], stored.__getitem__)
        record |= {"dtype": "bf16", "shape": [], "layout": "row", "sections": {}}
        record |= {"bytes": size, "expand": {"parts": [vars(part)]}}
        writer.finish({
            "format": list(FORMAT), "features": [FEATURE], "producer": "test",
            "model": {"name": "w", "architecture": "w"},
            "target": {"name": "cuda", "variants": []}, "programs": {}, "weights": {"w": record},
        })  # fmt: skip
    with pytest.raises(ArtifactError, match=re.escape(message)):
        Artifact.open(tmp_path / "a.sglk")


def test_what_the_manifest_says_is_read_back() -> None:
    expand = Expand((Part("q4_k", 0, 3), Part("q8_0", 448, 1)))
    assert Expand.from_json("w", expand.to_json()) == expand and expand.elements == 800


def test_only_stacked_tensors_of_blocks_stay_in_blocks() -> None:
    graph = Graph("g")
    a, b = (graph.param(name, TensorType(BF16, (8, COLUMNS))) for name in "ab")
    wide = graph.param("wide", TensorType(F32, (8, COLUMNS)))
    both = graph.emit(Concat(0), a, b)
    turned = graph.emit(Transpose((1, 0)), a)
    types = {"a": "q4_1", "b": "q8_0", "wide": "q4_1"}

    def names(value: Any, layout: str = "row", **other: str) -> list[str]:
        return stacked(WeightUse("w", value, layout), (types | other).__getitem__)

    assert names(both) == ["a", "b"] and names(a) == ["a"]
    assert not names(both, b="f16") and not names(turned)
    assert not names(wide) and not names(a, layout="n64")


def test_blocks_are_what_the_model_has(tmp_path: Path) -> None:
    wrong = pytest.raises(LoweringError, match="weight w: expected blocks, got ndarray")
    with ArtifactWriter(tmp_path / "a.sglk") as writer, wrong:
        write_blocks(writer, ["w"], lambda name: np.zeros(3))
