"""A small artifact with a program, a library and two weights that share a blob."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from sglk.targets.artifact import FORMAT, Arg, ArtifactWriter, Bucket, Buffer, Call, Program

WEIGHT = bytes(range(256)) * 20


def write_tiny(path: Path, *, directory: bool = False, **changes: Any) -> None:
    """Write the small artifact; `changes` replace keys of its manifest."""
    call = Call("scale", ("n", "1", "1"), (Arg("weight", "w"), Arg("buffer", "y"), Arg("i32", "n")))
    program = Program(
        entry="forward",
        symbols=("n",),
        inputs=(),
        outputs=(Buffer("y", "f32", ("n",), "output", "0", "n * 4"),),
        temps=(),
        states=(),
        arena_bytes="0",
        buckets=(Bucket(None, (call,)),),
    )
    entry = {
        "blob": f"weights/{hashlib.sha256(WEIGHT).hexdigest()}",
        "bytes": len(WEIGHT),
        "dtype": "f32",
        "shape": [1280],
        "layout": "dense",
        "sections": {"q": [0, 4096], "d": [4096, 1024]},
        "sha256": hashlib.sha256(WEIGHT).hexdigest(),
    }
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "features": [],
        "producer": "test",
        "model": {"name": "tiny", "architecture": "none", "vocab_size": 10},
        "target": {
            "name": "cpu",
            "page_size": 32,
            "variants": [{"isa": "generic", "library": "lib/generic.so", "symbols": ["scale"]}],
        },
        "programs": {"forward": "programs/forward.json"},
        "weights": {"w": entry, "tied": entry},
        "shards": {"ranks": 1, "rank": 0, "spec": {}, "collectives": []},
    }
    with ArtifactWriter(path, directory=directory) as writer:
        writer.add_bytes("programs/forward.json", program.to_json())
        writer.add_bytes("lib/generic.so", b"\x7fELF and so on")
        assert writer.add_blob([WEIGHT[:1000], WEIGHT[1000:]]) == entry["blob"]
        assert writer.add_blob([WEIGHT]) == entry["blob"]
        writer.finish(manifest | changes)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.sglk"
    write_tiny(path)
    return path


@pytest.fixture
def rewrite(tmp_path: Path) -> Any:
    """Write the small artifact with a changed manifest; returns its path."""

    def make(**changes: Any) -> Path:
        write_tiny(tmp_path / "changed.sglk", **changes)
        return tmp_path / "changed.sglk"

    return make


@pytest.fixture(scope="session")
def tiny_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("artifact") / "tiny.sglk"
    write_tiny(path)
    return path.read_bytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "tiny-folder"
    write_tiny(path, directory=True)
    return path
