"""Loading: variants, instruction sets, libraries, threads; and a decoder step end to end."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sglk import knobs
from sglk.errors import ArtifactError, DeviceError
from sglk.targets.artifact import Artifact, Bucket, Program
from sglk.targets.cpu.device import CpuDevice, CpuExecutable, device
from sglk.targets.cpu.device.isa import VARIANTS, Machine, choose, library_machine, this_machine
from sglk.targets.cpu.device.threads import cgroup_cores, choose_num_threads
from sglk.targets.device import StepBatch

SAPPHIRE = Machine("x86_64", frozenset().union(*(v.flags for v in VARIANTS)))
HASWELL = Machine("x86_64", frozenset(["avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm"]))


def _step_program(toy: Any) -> Program:
    """Logits that show the token, the row and how many steps have run."""
    shapes = {
        "token_ids": ["tokens"],
        "slots": ["tokens"],
        "positions": ["tokens"],
        "query_start": ["seqs + 1"],
        "seq_lens": ["seqs"],
        "page_table": ["seqs", "pages"],
        "logit_rows": ["rows"],
    }
    buffers = [toy.buffer("input", name, "i32", *shape) for name, shape in shapes.items()]
    buffers += [
        toy.buffer("output", "logits", "f32", "rows", "3"),
        toy.buffer("state", "kv", "f32", "num_pages", "4", "8"),
    ]
    calls = (
        toy.call(
            "toy_logits",
            "rows",
            "buffer token_ids",
            "buffer logit_rows",
            "buffer logits",
            "state kv",
            "i32 3",
        ),
        toy.call("count", "1", "state kv"),
    )
    symbols = "tokens seqs pages rows"
    return toy.program("step", symbols, buffers, Bucket(None, calls))  # type: ignore[no-any-return]


def _batch(**changes: Any) -> StepBatch:
    """Two sequences: three tokens of the first, one of the second."""
    fields = {
        "token_ids": [1, 2, 0, 2],
        "positions": [0, 1, 2, 5],
        "slots": [4, 5, 6, 9],
        "query_start": [0, 3, 4],
        "seq_lens": [3, 6],
        "page_table": [[1, 0], [3, 2]],
        "logit_rows": [2, 3],
    }
    arrays = {name: np.array(value, np.int32) for name, value in fields.items()}
    return StepBatch(**(arrays | changes))


@pytest.fixture
def executable(toy: Any) -> Iterator[CpuExecutable]:
    with toy.load(_step_program(toy)) as executable:
        yield executable


def test_step_gives_logits_of_the_wanted_rows(executable: CpuExecutable) -> None:
    for step in range(3):
        logits = executable.step(_batch())
        expected = np.array([[0], [20]]) + np.arange(3)
        np.testing.assert_array_equal(logits, (expected + step).astype(np.float32))
    assert (executable.page_size, executable.num_pages, executable.vocab_size) == (4, 8, 3)
    assert executable.max_tokens == 64


def test_step_without_logit_rows_still_runs(executable: CpuExecutable) -> None:
    assert executable.step(_batch(logit_rows=np.zeros(0, np.int32))).shape == (0, 3)
    assert executable.step(_batch())[0, 0] == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": [1, 3, 0, 2]}, "token_ids: expected values in 0..2, got 3 at 1"),
        ({"positions": [0, -1, 2, 5]}, "positions: expected values in 0.."),
        ({"slots": [4, 5, 6, 32]}, "slots: expected values in 0..31, got 32 at 3"),
        ({"query_start": [0, 3, 5]}, "query_start: expected values in 0..4, got 5 at 2"),
        ({"query_start": [0, 3, 2]}, "expected query_start to grow"),
        ({"seq_lens": [2, 6]}, "expected query_start to grow by at most seq_lens"),
        ({"seq_lens": [3, 9]}, "seq_lens: expected values in 0..8, got 9 at 1"),
        ({"page_table": [[1, 0], [8, 2]]}, "page_table: expected values in 0..7, got 8 at 2"),
        ({"logit_rows": [4]}, "logit_rows: expected values in 0..3, got 4 at 0"),
        ({"positions": [0]}, "positions: expected contiguous int32 of shape (4,)"),
        ({"page_table": [1, 2]}, "expected contiguous int32 of shape"),
    ],
)
def test_step_refuses_what_points_outside(
    executable: CpuExecutable, changes: dict[str, list[int]], message: str
) -> None:
    arrays = {name: np.array(value, np.int32) for name, value in changes.items()}
    with pytest.raises(DeviceError, match=re.escape(message)):
        executable.step(_batch(**arrays))


def test_step_refuses_wrong_types_and_sizes(executable: CpuExecutable) -> None:
    with pytest.raises(DeviceError, match="token_ids: expected contiguous int32"):
        executable.step(_batch(token_ids=np.zeros(4, np.int64)))
    tokens = dict.fromkeys(("token_ids", "positions", "slots"), np.zeros(65, np.int32))
    with pytest.raises(DeviceError, match="expected 1 to 64 tokens"):
        executable.step(_batch(**tokens))


def test_what_was_chosen_is_told(toy: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "sglk"), toy.load(_step_program(toy)) as executable:
        executable.step(_batch())
        sizes = executable.memory_bytes()
    assert executable.isa == "generic"
    assert sizes == {"weights": 0, "states": 1024, "arena": 0, "outputs": 4096}
    assert "generic, 2 threads, weights 0.0 MiB" in caplog.text


def test_kv_bytes_per_page(toy: Any) -> None:
    with Artifact.open(toy.write(_step_program(toy))) as artifact:
        assert CpuDevice().kv_bytes_per_page(artifact) == 4 * 8 * 4
    with Artifact.open(toy.write()) as artifact:
        assert CpuDevice().kv_bytes_per_page(artifact) == 0


def test_state_that_does_not_fit_is_one_sentence(toy: Any) -> None:
    huge = toy.buffer("state", "kv", "f32", "num_pages", "1099511627776")
    program = dataclasses.replace(_step_program(toy), states=(huge,))
    with pytest.raises(DeviceError, match=r"no memory for state kv: .* MiB asked"):
        toy.load(program, num_pages=1000)


def _reload(toy: Any, num_pages: int = 8, **changes: Any) -> CpuExecutable:
    with Artifact.open(toy.write(_step_program(toy), **changes)) as artifact:
        return CpuDevice().load(artifact, num_pages=num_pages, max_tokens=4)


def _foreign(library: bytes) -> bytes:
    return library[:18] + struct.pack("<H", 183) + library[20:]


def _unlinkable(library: bytes) -> bytes:
    """A library that wants a symbol which no library has."""
    return library.replace(b"sched_yield", b"sched_fields"[:11])


def test_artifacts_that_do_not_fit_are_refused(toy: Any) -> None:
    best = this_machine().best
    cases: list[tuple[dict[str, Any], str]] = [
        ({"isa": "aarch64"}, f"got only ['aarch64'] (compile with --cpu-isa {best})"),
        ({"library": _foreign(toy.library)}, "expected code for this machine"),
        ({"library": b"no library"}, "expected code for this machine"),
        ({"library": toy.library[:8000]}, "expected code for this machine"),
        ({"library": _unlinkable(toy.library)}, "cannot load the kernels"),
        ({"target": {"name": "cuda", "page_size": 4, "variants": []}}, "compile it with --target"),
        ({"shards": {"ranks": 2, "rank": 0}}, "expected one rank, got 2"),
        ({"target": {"name": "cpu", "page_size": None, "variants": None}}, "expected a list"),
    ]
    for changes, message in cases:
        with pytest.raises(ArtifactError, match=re.escape(message)):
            _reload(toy, **changes)
    with pytest.raises(DeviceError, match="at least one page"):
        _reload(toy, num_pages=0)


def test_missing_kernel_is_named_and_nothing_stays_loaded(toy: Any) -> None:
    program = toy.program("forward", "", [], Bucket(None, (toy.call("absent", "1"),)))
    with pytest.raises(ArtifactError, match="expected the symbol absent in it"):
        toy.load(program)
    assert "sglk-kernels" not in Path("/proc/self/maps").read_text()


def test_step_program_with_foreign_inputs_is_refused(toy: Any) -> None:
    buffers = [toy.buffer("input", "x", "i32", "tokens")]
    program = toy.program("step", "tokens", buffers, Bucket(None, ()))
    with pytest.raises(ArtifactError, match="expected int32 inputs out of"):
        toy.load(program)


@pytest.mark.parametrize("how", ["missing", "refused"])
def test_without_memory_files_a_private_file_serves(
    toy: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def refuse(name: str) -> int:
        raise PermissionError(name)

    if how == "missing":
        monkeypatch.delattr(os, "memfd_create")
    else:
        monkeypatch.setattr(os, "memfd_create", refuse)
    with _reload(toy) as executable:
        assert executable.step(_batch()).shape == (2, 3)
        folder = next(
            Path(line.split()[-1]).parent
            for line in Path("/proc/self/maps").read_text().splitlines()
            if line.endswith("kernels.so")
        )
        assert folder.stat().st_mode & 0o77 == 0
    assert not folder.exists()


def test_the_fastest_variant_that_runs_is_chosen(toy: Any, monkeypatch: Any) -> None:
    names = [variant.name for variant in VARIANTS]
    assert SAPPHIRE.best == "x86_64_v4_amx"
    assert HASWELL.best == "x86_64_v3"
    assert choose(HASWELL, names) == "x86_64_v3"
    assert choose(HASWELL, ["x86_64_v4", "generic"]) == "generic"
    assert choose(HASWELL, ["x86_64_v4", "aarch64"]) is None
    assert Machine("riscv64", frozenset()).best == "generic"
    monkeypatch.setattr(device, "this_machine", lambda: HASWELL)
    with pytest.raises(ArtifactError, match=r"x86_64 with x86_64_v3, got only \['x86_64_v4'\]"):
        _reload(toy, isa="x86_64_v4")


def test_flags_count_only_when_every_core_has_them(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags\t\t: fma avx2\nmodel name : x\nflags\t\t: avx2 fpu\n")
    assert this_machine(cpuinfo).flags == {"avx2"}
    assert this_machine(tmp_path / "none").flags == frozenset()


def test_tile_registers_that_the_system_refuses_do_not_count(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags : avx2 amx_tile amx_bf16 amx_int8\n")
    assert "amx_tile" in this_machine(cpuinfo, lambda: True).flags
    assert this_machine(cpuinfo, lambda: False).flags == {"avx2"}
    cpuinfo.write_text("flags : avx2\n")
    assert this_machine(cpuinfo, lambda: pytest.fail("nothing to ask for")).flags == {"avx2"}


def test_where_the_system_refuses_tile_registers_the_next_variant_runs(toy: Any) -> None:
    if this_machine().best != "x86_64_v4_amx":
        pytest.skip("needs a processor with AMX")
    names = ("x86_64_v4_amx", "x86_64_v4_bf16", "generic")
    variants = [{"isa": name, "library": "lib/kernels.so", "symbols": []} for name in names]
    target = {"name": "cpu", "page_size": 4, "variants": variants}
    path = toy.write(_step_program(toy), target=target)
    command = [sys.executable, str(Path(__file__).with_name("without_tiles.py")), str(path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode == 77:
        pytest.skip("needs seccomp")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == ["x86_64_v4_bf16"] * 3


def test_machine_of_a_library(toy: Any) -> None:
    assert library_machine(toy.library) == this_machine().name
    assert library_machine(_foreign(toy.library)) == "aarch64"
    for size in (0, 63, 100, 8000):
        assert library_machine(toy.library[:size]) == ""


@pytest.fixture
def cgroup(tmp_path: Path) -> Callable[..., int]:
    """Cores for a membership text and files of the cgroup tree."""

    def cores(membership: str, **files: str) -> int:
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (tmp_path / "self").write_text(membership)
        return cgroup_cores(tmp_path, tmp_path / "self")

    return cores


def test_quota_of_any_enclosing_group_binds(cgroup: Any) -> None:
    assert cgroup("0::/a/b\n", a__b__cpu_dot_max="max 100000\n") == 1024
    assert cgroup("0::/a/b\n", a__cpu_dot_max="350000 100000\n") == 3
    assert cgroup("0::/a/b\n", cpu_dot_max="50000 100000\n") == 1
    assert cgroup("0::/\n") == 1


def test_quota_of_the_older_form(cgroup: Any) -> None:
    files = {"cpu__x__cpu_dot_cfs_quota_us": "200000", "cpu__x__cpu_dot_cfs_period_us": "100000"}
    assert cgroup("4:cpu,cpuacct:/x\n", **files) == 2
    files = {"cpu__x__cpu_dot_cfs_quota_us": "-1"}
    assert cgroup("4:cpu,cpuacct:/x\n", **files) == 1024


def test_number_of_threads() -> None:
    assert choose_num_threads(3) == 3
    with knobs.override(threads=5):
        assert choose_num_threads() == 5
        assert choose_num_threads(2) == 2
    with knobs.override(threads=0):
        assert 1 <= choose_num_threads() <= len(os.sched_getaffinity(0))
    with pytest.raises(DeviceError, match="expected 1 to 1024, got 0"):
        choose_num_threads(0)
