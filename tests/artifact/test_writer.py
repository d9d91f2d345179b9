"""Writing: all or nothing, whatever goes wrong."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sglk.errors import ArtifactError
from sglk.targets.artifact import ArtifactWriter, writer

MANIFEST: dict[str, object] = {"format": [1, 0]}


@pytest.fixture(params=[False, True], ids=["zip", "folder"])
def is_folder(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=[False, True], ids=["unnamed", "named"])
def no_tmpfile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once with, once without a file system that offers unnamed files."""
    if request.param:
        monkeypatch.setattr(writer, "_open_unnamed", lambda folder: None)


def test_abandoned_work_leaves_nothing(tmp_path: Path, is_folder: bool, no_tmpfile: None) -> None:
    class Stop(Exception):
        pass

    def chunks() -> Iterator[bytes]:
        yield b"abc"
        raise Stop

    with pytest.raises(Stop), ArtifactWriter(tmp_path / "a.sglk", directory=is_folder) as out:
        out.add_bytes("a", b"1")
        out.add_blob(chunks())
    assert list(tmp_path.iterdir()) == []


def test_finished_file_replaces_the_old_one(tmp_path: Path, no_tmpfile: None) -> None:
    path = tmp_path / "a.sglk"
    path.write_bytes(b"old")
    with ArtifactWriter(path) as out:
        out.add_bytes("a", b"1")
        assert path.read_bytes() == b"old"
        out.finish(MANIFEST)
    assert path.read_bytes().startswith(b"PK")
    assert list(tmp_path.iterdir()) == [path]
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_an_error_of_the_source_stays_what_it_is(tmp_path: Path, is_folder: bool) -> None:
    def chunks() -> Iterator[bytes]:
        raise FileNotFoundError("model.safetensors")
        yield b""

    with (
        pytest.raises(FileNotFoundError, match="model"),
        ArtifactWriter(tmp_path / "a.sglk", directory=is_folder) as out,
    ):
        out.add_blob(chunks())


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EFBIG, "no file of this size"),
        (errno.EIO, "cannot write"),
    ],
)
def test_a_failing_disk_is_one_sentence(
    tmp_path: Path, is_folder: bool, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with (
        pytest.raises(ArtifactError, match=message),
        ArtifactWriter(tmp_path / "a.sglk", directory=is_folder) as out,
    ):
        out.add_bytes("a", b"1")
        out.finish(MANIFEST)
    assert list(tmp_path.iterdir()) == []


CHILD = """
import resource, signal, sys
from sglk.errors import ArtifactError
from sglk.targets.artifact import ArtifactWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    with ArtifactWriter(sys.argv[1]) as out:
        out.add_blob(bytes(10_000) for _ in range(10))
except ArtifactError as error:
    print(error)
"""
KILLED = """
import os, signal, sys
from sglk.targets.artifact import ArtifactWriter
out = ArtifactWriter(sys.argv[1])
out.add_blob([bytes(10_000)])
os.kill(os.getpid(), signal.SIGKILL)
"""


def _run(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_real_write_that_the_system_refuses(tmp_path: Path) -> None:
    result = _run(CHILD, tmp_path / "a.sglk")
    assert "takes no file of this size" in result.stdout, result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_killed_compile_leaves_nothing(tmp_path: Path) -> None:
    if writer._open_unnamed(tmp_path) is None:
        pytest.skip("this file system offers no unnamed files")
    assert _run(KILLED, tmp_path / "a.sglk").returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def test_places_that_cannot_be_written_are_refused_at_once(
    tmp_path: Path, is_folder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    for path, message in [
        (tmp_path / "none" / "a.sglk", "the folder does not exist"),
        (tmp_path / "file" / "a.sglk", "the folder does not exist"),
        (tmp_path / "folder", "something is in the way"),
        (Path("/"), "in the way|expected the name"),
    ]:
        with pytest.raises(ArtifactError, match=message):
            ArtifactWriter(path, directory=is_folder)

    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ArtifactError, match="no permission to write here"):
        ArtifactWriter(tmp_path / "a.sglk", directory=is_folder)


def test_names_are_checked(tmp_path: Path) -> None:
    with ArtifactWriter(tmp_path / "a.sglk") as out:
        out.add_bytes("a", b"1")
        for name in ("a", "manifest.json", "weights/x", "../a"):
            with pytest.raises(ArtifactError, match=r"there already or reserved|plain member"):
                out.add_bytes(name, b"")


def test_arrays_of_any_shape_are_streamed(tmp_path: Path, is_folder: bool) -> None:
    with ArtifactWriter(tmp_path / "a.sglk", directory=is_folder) as out:
        grid = np.arange(6, dtype=np.float32).reshape(2, 3)
        name = out.add_blob([grid, np.zeros((0, 4), np.float16), memoryview(b"xy")])
        assert out.add_blob([grid.tobytes() + b"xy"]) == name
        assert out.blob_bytes(name) == 26
        assert out.blob_bytes(out.add_blob([])) == 0
