"""The executable on hand-written kernels: numbers, memory, threads, refusals."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk.errors import DeviceError
from sglk.targets.artifact import Bucket, Program

SIZES = [1, 2, 3, 4, 7, 64, 1000]


def _normalize(toy: Any) -> Program:
    """y = (x + w * 0.5) / sum(x + w * 0.5): every call waits for the one before."""
    return toy.program(  # type: ignore[no-any-return]
        "forward",
        "n",
        [
            toy.buffer("input", "x", "f32", "n"),
            toy.buffer("output", "y", "f32", "n"),
            toy.buffer("temp", "t", "f32", "n"),
            toy.buffer("temp", "total", "f32", "1", offset="align(n * 4, 64)"),
        ],
        Bucket(
            None,
            (
                toy.call(
                    "add", "cdiv(n, 3)", "buffer x", "weight w", "buffer t", "i32 n", "f32 0.5"
                ),
                toy.call("sum", "1", "buffer t", "buffer total", "i64 n"),
                toy.call("divide", "n", "buffer t", "buffer total", "buffer y"),
            ),
        ),
        arena="align(n * 4, 64) + 64",
    )


def _expected(x: NDArray[np.float32]) -> NDArray[np.float32]:
    t: NDArray[np.float32] = x + np.resize(np.arange(4, dtype=np.float32), len(x)) * np.float32(0.5)
    total = np.float32(0)
    for value in t:
        total = np.float32(total + value)
    return (t / total).astype(np.float32)


def test_calls_follow_each_other_at_every_size(toy: Any, num_threads: int) -> None:
    rng = np.random.default_rng(0)
    with toy.load(_normalize(toy), num_threads=num_threads) as executable:
        for size in SIZES:
            x = rng.random(size, np.float32)
            y = executable.run("forward", {"x": x})["y"]
            np.testing.assert_array_equal(y, _expected(x))


def test_zero_rows_run_nothing(toy: Any) -> None:
    with toy.load(_normalize(toy)) as executable:
        y = executable.run("forward", {"x": np.zeros(0, np.float32)})["y"]
        assert y.shape == (0,)


def test_long_chain_of_tiny_calls_never_loses_its_order(toy: Any, num_threads: int) -> None:
    """20,000 calls that each read what all threads wrote in the call before."""
    calls = []
    for index in range(20000):
        names = ("y", "t") if index % 2 else ("t", "y")
        source = "x" if index == 0 else names[1]
        calls.append(toy.call("reverse", "n", f"buffer {source}", f"buffer {names[0]}", "i32 n"))
    program = toy.program(
        "forward",
        "n",
        [
            toy.buffer("input", "x", "i32", "n"),
            toy.buffer("output", "y", "i32", "n"),
            toy.buffer("temp", "t", "i32", "n"),
        ],
        Bucket(None, tuple(calls)),
        arena="n * 4",
    )
    with toy.load(program, num_threads=num_threads) as executable:
        x = np.arange(5, dtype=np.int32)
        y = executable.run("forward", {"x": x})["y"]
        np.testing.assert_array_equal(y, x + 20000)


def test_grids_of_three_axes_are_covered_exactly_once(toy: Any, num_threads: int) -> None:
    program = toy.program(
        "forward",
        "a b c",
        [
            toy.buffer("input", "shape", "i32", "a", "b", "c"),
            toy.buffer("output", "y", "i32", "c", "b", "a"),
        ],
        Bucket(None, (toy.call("mark", "a; b; c", "buffer y"),)),
    )
    with toy.load(program, num_threads=num_threads) as executable:
        for shape in [(1, 1, 1), (2, 1, 3), (3, 5, 2), (7, 1, 1), (1, 1, 11)]:
            before = executable._programs["forward"].output(
                executable._programs["forward"].outputs["y"], shape[::-1]
            )
            before[:] = 0
            y = executable.run("forward", {"shape": np.zeros(shape, np.int32)})["y"]
            z, yy, x = np.indices(shape[::-1])
            np.testing.assert_array_equal(y, 1 + 10 * x + 100 * yy + 1000 * z)


def test_state_starts_at_zero_and_is_shared_by_entries(toy: Any) -> None:
    def program(entry: str) -> Any:
        return toy.program(
            entry,
            "n",
            [
                toy.buffer("input", "x", "i32", "n"),
                toy.buffer("output", "y", "i32", "n"),
                toy.buffer("state", "s", "i32", "num_pages", "2"),
            ],
            Bucket(
                None,
                (
                    toy.call("count", "1", "state s + (num_pages - 1) * 8"),
                    toy.call("reverse", "1", "state s + (num_pages - 1) * 8", "buffer y", "i32 1"),
                ),
            ),
        )

    with toy.load(program("a"), program("b")) as executable:
        x = np.zeros(1, np.int32)
        found = [int(executable.run(entry, {"x": x})["y"][0]) for entry in "abba"]
    assert found == [2, 3, 4, 5]


def test_buckets_are_chosen_by_tokens(toy: Any) -> None:
    def bucket(bound: int | None, value: str) -> Bucket:
        call = toy.call("add", "1", "buffer x", "weight w + 4", "buffer y", "i32 1", f"f32 {value}")
        return Bucket(bound, (call,))

    buffers = [
        toy.buffer("input", "x", "f32", "tokens"),
        toy.buffer("output", "y", "f32", "tokens"),
    ]
    program = toy.program("forward", "tokens", buffers, bucket(1, "10"), bucket(4, "20"))
    with toy.load(program) as executable:
        for size, expected in [(1, 10), (2, 20), (4, 20)]:
            y = executable.run("forward", {"x": np.zeros(size, np.float32)})["y"]
            assert y[0] == expected
        with pytest.raises(DeviceError, match="no bucket takes 5 tokens"):
            executable.run("forward", {"x": np.zeros(5, np.float32)})


def test_arena_grows_when_a_step_needs_more(toy: Any) -> None:
    with toy.load(_normalize(toy)) as executable:
        x = np.ones(100_000, np.float32)
        y = executable.run("forward", {"x": x})["y"]
        np.testing.assert_array_equal(y, _expected(x))
        small = np.ones(3, np.float32)
        np.testing.assert_array_equal(
            executable.run("forward", {"x": small})["y"], _expected(small)
        )


def _one_call(toy: Any, grid: str, *args: str, temp_offset: str = "0", arena: str = "n * 4") -> Any:
    buffers = [
        toy.buffer("input", "x", "i32", "n"),
        toy.buffer("output", "y", "i32", "n"),
        toy.buffer("temp", "t", "i32", "n", offset=temp_offset),
    ]
    bucket = Bucket(None, (toy.call("mark", grid, *args),))
    return toy.program("forward", "n", buffers, bucket, arena=arena)


@pytest.mark.parametrize(
    ("grid", "args", "options", "message"),
    [
        ("n - 4", ["buffer y"], {}, "call 0: expected a grid of at most 2147483647"),
        ("n * 2147483648", ["buffer y"], {}, "got 6442450944"),
        ("2147483647; 2147483647; 2147483647", ["buffer y"], {}, "call 0: expected a grid"),
        ("n // (n - 3)", ["buffer y"], {}, "overflows or divides by zero"),
        ("n", ["buffer y + n * 8"], {}, "call 0: argument 0 is out of range"),
        ("n", ["buffer y + n - 4"], {}, "call 0: argument 0 is out of range"),
        ("n", ["buffer y", "i32 n * 1000000000"], {}, "call 0: argument 1 is out of range"),
        ("n", ["buffer t"], {"temp_offset": "n"}, "memory 0: expected 12 bytes at 3"),
        ("n", ["buffer t"], {"temp_offset": "-n"}, "memory 0: expected 12 bytes at -3"),
        ("n", ["weight w + 17"], {}, "call 0: argument 0 is out of range"),
    ],
)
def test_sizes_out_of_range_are_refused(
    toy: Any, grid: str, args: list[str], options: dict[str, str], message: str
) -> None:
    with (
        toy.load(_one_call(toy, grid, *args, **options)) as executable,
        pytest.raises(DeviceError, match=re.escape(message)),
    ):
        executable.run("forward", {"x": np.zeros(3, np.int32)})


def test_inputs_are_checked(toy: Any) -> None:
    with toy.load(_normalize(toy)) as executable:
        for inputs, message in [
            ({}, "expected inputs ['x'], got []"),
            ({"x": np.zeros(4, np.float64)}, "expected a contiguous array of float32, got float64"),
            ({"x": np.zeros(8, np.float32)[::2]}, "with strides (8,)"),
            ({"x": np.zeros((2, 2), np.float32)}, "expected shape (2,), got (2, 2)"),
        ]:
            with pytest.raises(DeviceError, match=re.escape(message)):
                executable.run("forward", inputs)
        with pytest.raises(DeviceError, match="no program 'step'"):
            executable.run("step", {})


def test_profile_names_every_call(toy: Any, num_threads: int) -> None:
    with toy.load(_normalize(toy), num_threads=num_threads) as executable:
        assert executable.profile("forward") == []
        executable.start_profile()
        x = np.ones(100, np.float32)
        for _ in range(3):
            y = executable.run("forward", {"x": x})["y"]
        np.testing.assert_array_equal(y, _expected(x))
        times = executable.profile("forward")
    assert [time.kernel for time in times] == ["add", "sum", "divide"]
    assert all(time.nanoseconds >= 0 and time.bucket == 0 for time in times)
    assert sum(time.nanoseconds for time in times) > 0


def test_rounding_mode_of_the_caller_does_not_leak_in(toy: Any, tmp_path: Path) -> None:
    """Denormals survive on every thread even when some library has asked to flush them."""
    buffers = [toy.buffer("input", "x", "f32", "n"), toy.buffer("output", "y", "f32", "n")]
    bucket = Bucket(None, (toy.call("subnormal", "n", "buffer y"),))
    with toy.load(toy.program("forward", "n", buffers, bucket)) as executable:
        libm = ctypes.CDLL("libm.so.6")
        upward = 0x800  # FE_UPWARD on x86-64
        libm.fesetround(upward)
        try:
            y = executable.run("forward", {"x": np.zeros(8, np.float32)})["y"]
            assert libm.fegetround() == upward
        finally:
            libm.fesetround(0)
    assert len(set(y.tolist())) == 1
    assert y[0] > 0


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_closing_ends_threads_and_unmaps_the_library(toy: Any) -> None:
    before = _threads()
    executable = toy.load(_normalize(toy), num_threads=3)
    assert _threads() == before + 2
    assert "sglk-kernels" in Path("/proc/self/maps").read_text()
    executable.close()
    executable.close()
    assert _threads() == before
    assert "sglk-kernels" not in Path("/proc/self/maps").read_text()
    with pytest.raises(DeviceError, match="the executable is closed"):
        executable.run("forward", {"x": np.ones(1, np.float32)})


def test_workers_sleep_when_no_step_has_run_for_a_while(toy: Any) -> None:
    """All of them reach the kernel's sleeping state, and the next step wakes them."""
    before = set(Path("/proc/self/task").iterdir())
    with toy.load(_normalize(toy), num_threads=3) as executable:
        workers = set(Path("/proc/self/task").iterdir()) - before
        x = np.ones(50, np.float32)
        for _ in range(3):
            np.testing.assert_array_equal(executable.run("forward", {"x": x})["y"], _expected(x))
            deadline = time.monotonic() + 10
            while {(task / "stat").read_text().split()[2] for task in workers} != {"S"}:
                assert time.monotonic() < deadline, "a worker does not go to sleep"


def test_a_dropped_executable_ends_its_threads(toy: Any) -> None:
    before = _threads()
    executable = toy.load(_normalize(toy), num_threads=3)
    executable.run("forward", {"x": np.ones(5, np.float32)})
    del executable
    gc.collect()
    assert _threads() == before


def test_two_executables_have_their_own_kernels(toy: Any) -> None:
    first = toy.load(_normalize(toy))
    second = toy.load(_normalize(toy))
    x = np.ones(9, np.float32)
    first.close()
    third = toy.load(_normalize(toy))
    for executable in (second, third):
        np.testing.assert_array_equal(executable.run("forward", {"x": x})["y"], _expected(x))
        executable.close()


def test_a_second_thread_is_refused_not_mixed_in(toy: Any) -> None:
    """Two threads at once: each step either ran alone or was refused with the reason."""
    with toy.load(_normalize(toy)) as executable:
        wrong: list[str] = []

        def work() -> None:
            for _ in range(300):
                try:
                    executable._programs["forward"].run(executable._pool, [0])
                except DeviceError as error:
                    if "a step is running already" not in str(error):
                        wrong.append(str(error))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # the fork is the test
def test_a_forked_child_is_told_to_load_again(toy: Any) -> None:
    with toy.load(_normalize(toy)) as executable:
        child = os.fork()
        if child == 0:
            try:
                executable.run("forward", {"x": np.ones(1, np.float32)})
            except DeviceError as error:
                executable.close()
                os._exit(0 if "forked" in str(error) else 2)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
