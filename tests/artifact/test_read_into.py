"""Blobs read into memory of the caller: from the very file that was opened, or not at all."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk.errors import ArtifactError
from sglk.targets.artifact import FORMAT, Artifact, ArtifactWriter

DATA = np.random.default_rng(1).integers(0, 256, 3_000_000, np.uint8)


def write(path: Path, data: NDArray[np.uint8], directory: bool = False) -> Path:
    with ArtifactWriter(path, directory=directory) as writer:
        blob = writer.add_blob([data])
        weight = {
            "blob": blob, "bytes": len(data), "dtype": "u8", "shape": [len(data)],
            "layout": "row", "sections": {}, "sha256": blob.rpartition("/")[2],
        }  # fmt: skip
        writer.finish({
            "format": list(FORMAT), "features": [], "producer": "test",
            "model": {"name": "w", "architecture": "w"},
            "target": {"name": "cuda", "variants": []},
            "programs": {}, "weights": {"w": weight},
        })  # fmt: skip
    return path


@pytest.mark.parametrize("directory", [False, True])
def test_parts_are_read_wherever_they_lie(tmp_path: Path, directory: bool) -> None:
    with Artifact.open(write(tmp_path / "a.sglk", DATA, directory)) as artifact:
        assert artifact.blob_bytes("w") == len(DATA)
        artifact.read_ahead()
        for start, size in ((0, len(DATA)), (1, 5), (len(DATA) - 7, 7), (12345, 0)):
            target = np.zeros(size, np.uint8)
            artifact.read_into("w", start, target)
            assert np.array_equal(target, DATA[start : start + size])
    for thread in threading.enumerate():
        if thread.name == "sglk-read-ahead":
            thread.join()


def test_another_file_of_the_same_name_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.sglk", DATA)
    with Artifact.open(path) as artifact:
        write(path, DATA[::-1].copy())
        with pytest.raises(ArtifactError, match="replaced while it was read"):
            artifact.read_into("w", 0, np.zeros(8, np.uint8))
        path.unlink()
        with pytest.raises(ArtifactError, match="cannot read it: No such file"):
            artifact.read_into("w", 0, np.zeros(8, np.uint8))


def test_a_file_that_ends_early_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.sglk", DATA)
    with (
        Artifact.open(path) as artifact,
        pytest.raises(ArtifactError, match=f"it ends at byte {path.stat().st_size}"),
    ):
        artifact.read_into("w", 0, np.zeros(path.stat().st_size, np.uint8))
