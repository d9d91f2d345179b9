"""A copy with weights is the same artifact, and its load is timed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sglk.bench import load_rate
from sglk.targets.artifact import FORMAT, Artifact, ArtifactWriter
from sglk.targets.artifact.fill import FEATURE, fill_for


@pytest.fixture
def dummy(tmp_path: Path) -> Path:
    path = tmp_path / "dummy.sglk"
    with ArtifactWriter(path) as writer:
        writer.add_bytes("report.json", b"{}")
        weights = {
            name: {
                "fill": fill_for(name, 0.0, 1.0).to_json(), "bytes": 2 * size, "dtype": "bf16",
                "shape": [size], "layout": "row", "sections": {},
            }
            for name, size in (("a", 5000), ("b", 7), ("c", 5000))
        }  # fmt: skip
        writer.finish({
            "format": list(FORMAT), "features": [FEATURE], "producer": "test",
            "model": {"name": "w", "architecture": "w"},
            "target": {"name": "cpu", "variants": []}, "programs": {}, "weights": weights,
        })  # fmt: skip
    return path


def test_a_copy_holds_what_is_made_on_load(dummy: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    path, is_copy = load_rate.with_weights(dummy, folder)
    assert is_copy and load_rate.with_weights(path, folder) == (path, False)
    with Artifact.open(dummy) as one, Artifact.open(path) as other:
        assert other.manifest["features"] == []
        assert other.read("report.json") == b"{}"
        for name in one.weights:
            assert other.blob_bytes(name) == one.weights[name]["bytes"]
            assert np.array_equal(one.weight(name), other.weight(name))
        other.verify_weights()


def test_cold_and_warm_are_told_apart(tiny_artifact: Path) -> None:
    rows = load_rate.measure(tiny_artifact, "cpu")
    assert [row["what"] for row in rows] == ["read", "load"] * 2
    assert all(float(str(row["gb_per_s"])) > 0 for row in rows)
    assert "GB/s" in load_rate.table(rows)[0]
