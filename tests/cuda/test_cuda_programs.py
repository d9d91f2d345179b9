"""Programs as tables, kernels as launches: what a null driver records is what a GPU would get."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sglk.errors import ArtifactError, DeviceError
from sglk.targets.artifact import Arg, Bucket, Buffer, Call, Program
from sglk.targets.artifact.kernel_pack import PackedKernel
from sglk.targets.cuda.device.bound_program import BoundProgram
from sglk.targets.cuda.device.kernel_table import KernelTable
from sglk.targets.cuda.device.memory import DeviceMemory
from sglk.targets.cuda.device.null_driver import NullDriver
from sglk.targets.cuda.device.program_code import encode

PARAMS = ["*bf16", "*fp32", "i32", "i64", "fp32", "*i32"]


def program(grid: tuple[str, str, str] = ("cdiv(n, 64)", "2", "1"), **changes: object) -> Program:
    arguments = (
        Arg("buffer", "x", "n * 2"), Arg("buffer", "t", "8"), Arg("i32", "n - 1"),
        Arg("i64", "n * 1000000"), Arg("f32", "-1.5"), Arg("state", "kv", "16"),
    )  # fmt: skip
    parts: dict[str, Any] = {
        "entry": "forward",
        "symbols": ("n",),
        "inputs": (Buffer("x", "bf16", ("n", "2"), "input", "0", "n * 4"),),
        "outputs": (Buffer("y", "f32", ("n",), "output", "0", "n * 4"),),
        "temps": (Buffer("t", "f32", ("n",), "temp", "align(n, 64)", "n * 4 + 8"),),
        "states": (Buffer("kv", "f32", ("num_pages",), "state", "0", "num_pages * 4"),),
        "arena_bytes": "align(n, 64) + n * 4 + 8",
        "buckets": (Bucket(None, (Call("mul", grid, arguments),)),),
    }
    return Program(**(parts | changes))


def meta(**changes: object) -> dict[str, object]:
    return {"entry": "mul_0d1d", "num_warps": 8, "shared": 70000, "params": PARAMS} | changes


Bind = Callable[..., tuple[BoundProgram, DeviceMemory]]


@pytest.fixture
def bind(driver: NullDriver) -> Bind:
    def bind(made: Program | None = None, **changes: object) -> tuple[BoundProgram, DeviceMemory]:
        memory = DeviceMemory(driver, "stream")
        memory.allocate(("state", "kv"), 64)
        memory.allocate(("output", "y"), 4096)
        kernels = KernelTable(driver, {"mul": PackedKernel(meta(**changes), b"code")}, "pack")
        code = encode(made or program())
        return BoundProgram(driver, "stream", code, kernels, memory, 16), memory

    return bind


def test_every_argument_has_its_word(bind: Bind, driver: NullDriver) -> None:
    bound, memory = bind()
    driver.launch(bound.prepare({"n": 100}, {"x": (0x7000, 400)}).calls)
    (launch,) = driver.of("launch")
    arena, state = memory.address(("arena", "")), memory.address(("state", "kv"))
    bits = struct.unpack("<i", struct.pack("<f", -1.5))[0]
    assert launch.words[:4] == (0x7000 + 200, arena + 128 + 8, 99, 100_000_000)
    assert launch.words[4] & 0xFFFFFFFF == bits & 0xFFFFFFFF
    assert launch.words[5:] == (state + 16, 0, 0)
    grid = launch.grid
    assert grid is not None and (grid.x, grid.y, grid.z) == (2, 2, 1)
    assert (grid.num_threads, grid.shared_bytes) == (256, 70000)
    assert [(r.what, r.num_bytes) for r in driver.of("function")] == [("mul_0d1d", 70000)]


@pytest.mark.parametrize(("is_early", "step"), [(True, 1536), (False, 0)])
def test_kernels_that_start_early_share_no_scratch(
    bind: Bind, driver: NullDriver, is_early: bool, step: int
) -> None:
    call = program().buckets[0].calls[0]
    empty = replace(call, grid=("0", "1", "1"))
    made = program(buckets=(Bucket(None, (call, empty, call, call)),))
    bound, memory = bind(made, global_scratch=[384, 128], pdl=is_early)
    bound.reserve({"n": 100})
    start = memory.address(("scratch", ""))
    driver.launch(bound.prepare({"n": 100}, {"x": (0x7000, 400)}).calls)
    places = [launch.words[6] for launch in driver.of("launch")]
    assert places == [start, start + step, start + 2 * step]
    assert memory.num_bytes(("scratch", "")) == 1536 + 2 * step
    assert memory.generation == 0


def test_an_empty_grid_is_left_out(bind: Bind) -> None:
    bound, _ = bind(program(("n // 64", "1", "1")))
    assert bound.prepare({"n": 3}, {"x": (0x7000, 12)}).calls == []


def test_growing_the_arena_has_a_generation(bind: Bind, driver: NullDriver) -> None:
    bound, memory = bind()
    bound.prepare({"n": 10}, {"x": (0x7000, 40)})
    before = memory.generation
    bound.prepare({"n": 10}, {"x": (0x7000, 40)})
    assert memory.generation == before
    memory.ensure(("draws", ""), 64)  # a new region moves nothing
    assert memory.generation == before
    bound.prepare({"n": 500}, {"x": (0x7000, 2000)})
    assert memory.generation == before + 1 and len(driver.of("free")) == 1


@pytest.mark.parametrize(
    ("symbols", "x_bytes", "sentence"),
    [
        ({"n": 100}, 399, r"input x: expected 0 \+ 400 bytes within 399"),
        ({"n": 2**31 - 1}, 2**40, "expected a grid within|memory"),
        ({}, 0, "expected a value for n"),
    ],
)
def test_sizes_beyond_memory_are_refused(
    bind: Bind, symbols: dict[str, int], x_bytes: int, sentence: str
) -> None:
    bound, _ = bind()
    with pytest.raises(DeviceError, match=sentence):
        bound.prepare(symbols, {"x": (0x7000, x_bytes)})


def test_numbers_beyond_32_bits_are_refused(bind: Bind) -> None:
    call = Call("add", ("1", "1", "1"), (Arg("i32", "n * n"),))
    made = program(buckets=(Bucket(None, (call,)),))
    driver = NullDriver()
    kernels = {"add": PackedKernel({"num_warps": 1, "params": ["i32"]}, b"")}
    table = KernelTable(driver, kernels, "pack")
    memory = DeviceMemory(driver, "stream")
    memory.allocate(("state", "kv"), 64)
    memory.allocate(("output", "y"), 64)
    bound = BoundProgram(driver, "stream", encode(made), table, memory, 1)
    with pytest.raises(DeviceError, match="expected arguments within 32 bits, got 4295098369"):
        bound.prepare({"n": 65537}, {"x": (0, 0)})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"params": PARAMS[:-1]}, r"expected arguments \['pointer', .*, got \["),
        ({"params": ["tensordesc<bf16[128,64]>"]}, "expected parameters of the kinds"),
        ({"num_warps": 64}, "expected a whole number in 1..32"),
        ({"kind": "fatbin"}, "expected one of"),
        ({"profile_scratch": 8}, "without profiling"),
    ],
)
def test_a_kernel_that_does_not_fit_its_call_is_refused(
    bind: Bind, changes: dict[str, object], sentence: str
) -> None:
    bound, _ = bind(**changes)
    with pytest.raises(ArtifactError, match=sentence):
        bound.prepare({"n": 3}, {"x": (0x7000, 12)})


def test_a_missing_kernel_is_refused_at_load(driver: NullDriver) -> None:
    table = KernelTable(driver, {}, "a.sglk: sm_90")
    with pytest.raises(ArtifactError, match="expected the kernel mul, got 0 others"):
        BoundProgram(driver, "s", encode(program()), table, DeviceMemory(driver, "s"), 1)


def test_equal_layers_share_words_and_equal_code_its_module(driver: NullDriver) -> None:
    call = program().buckets[0].calls[0]
    code = encode(program(buckets=(Bucket(None, (call,) * 50),)))
    assert len(code.sizes) == len(encode(program()).sizes)
    assert code.buckets[0].slots.shape == (50 * 8, 4) and len(code.ops) == 1
    kernels = {name: PackedKernel(meta(), b"same") for name in ("a", "b")}
    table = KernelTable(driver, kernels, "pack")
    assert table["a"].symbol == "a" and table["b"].symbol == "b"
    assert len(driver.of("module")) == 1 and len(driver.of("function")) == 2


def test_words_are_kept_alive_with_their_launches(bind: Bind) -> None:
    bound, _ = bind()
    launches = bound.prepare({"n": 4}, {"x": (0x7000, 16)})
    assert launches.pointers[0] == launches.words.ctypes.data
    assert np.diff(launches.pointers.astype(np.int64)).tolist() == [8] * 7
    assert launches.ops == (("mul", ""),)
