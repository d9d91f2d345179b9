"""Weights made on load: the definition, and artifacts that hold such weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sglk.errors import ArtifactError
from sglk.ir.groups import E4M3_VALUES
from sglk.ir.quantize import e4m3_bytes
from sglk.targets.artifact import Artifact
from sglk.targets.artifact.fill import CHUNK, FEATURE, Fill, fill_array, fill_for


def by_hand(fill: Fill, i: int) -> np.float32:
    """One element in Python's integers."""
    mask = 2**32 - 1
    h = ((i & mask) * 0x9E3779B1 + (i >> 32) * 0x85EBCA77 + fill.seed) & mask
    h ^= h >> 16
    h = h * 0x21F0AAAD & mask
    h ^= h >> 15
    h = h * 0x735A2D97 & mask
    h ^= h >> 15
    return np.float32((h >> 8) - 2**23) * np.float32(fill.step) + np.float32(fill.mean)


def test_every_element_follows_its_index() -> None:
    fill = fill_for("w", 0.5, 0.02)
    values = fill_array(fill, CHUNK + 3, "f32")
    for i in (0, 1, 77, CHUNK - 1, CHUNK, CHUNK + 2):
        assert values[i] == by_hand(fill, i)


def test_numbers_are_even_and_unrelated() -> None:
    a, b = (fill_array(fill_for(name, 0.0, 0.02), 1 << 20, "f32") for name in ("a", "b"))
    assert abs(float(a.mean())) < 1e-4
    assert abs(float(a.std()) - 0.02) < 1e-4
    for x, y in ((a, b), (a[1:], a[:-1]), (a[4096:], a[:-4096])):
        assert abs(float(np.corrcoef(x, y)[0, 1])) < 5e-3


def test_bf16_is_the_rounded_value() -> None:
    fill = fill_for("w", 1.0, 0.02)
    wide = fill_array(fill, 1000, "f32")
    narrow = (fill_array(fill, 1000, "bf16").astype(np.uint32) << 16).view(np.float32)
    assert np.all(np.abs(narrow - wide) <= np.abs(wide) * 2.0**-8)


def test_small_types_hold_the_rounded_and_the_cut_value() -> None:
    fill = fill_for("w", 0.0, 200.0)
    wide, codes = fill_array(fill, 4000, "f32"), fill_array(fill, 4000, "e4m3")
    assert np.array_equal(codes, e4m3_bytes(wide))
    assert float(np.abs(E4M3_VALUES[codes] - wide).max()) <= 16.0  # half a step near 448
    cut = Fill(1, 127.75, 127.7 / (1 << 23))
    assert np.array_equal(fill_array(cut, 999, "u8"), np.floor(fill_array(cut, 999, "f32")))


def _record(**changes: Any) -> dict[str, Any]:
    fill = {"seed": 3, "mean": 0.0, "step": 0.25}
    fixed = {"dtype": "f32", "shape": [5, 2], "layout": "row", "sections": {"w": [0, 40]}}
    return {"w": {"fill": fill, "bytes": 40, **fixed, **changes}}


def test_an_artifact_makes_its_fills_when_they_are_read(tiny: Path, rewrite: Any) -> None:
    with Artifact.open(rewrite(weights=_record(), features=[FEATURE])) as artifact:
        made = artifact.weight("w").view(np.float32)
        assert np.array_equal(made, fill_array(Fill(3, 0.0, 0.25), 10, "f32"))
        assert artifact.weight_bytes(["w"]) == 40
        artifact.verify_weights()
    with Artifact.open(tiny) as artifact:
        assert artifact.fill("w") is None
        assert artifact.weight_bytes(["w", "tied"]) == 5120  # one blob


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "q4_1"}, "expected a fill of f32, f16, bf16, e4m3, u8, got 40 bytes of q4_1"),
        ({"bytes": 41, "sections": {}}, "got 41 bytes of f32"),
        ({"fill": {"seed": -1, "mean": 0, "step": 0}}, "seed: expected a whole number"),
        ({"fill": {"seed": 1, "mean": True, "step": 0}}, "mean: expected a number"),
        ({"sections": {"w": [0, 44]}}, "section w: expected an end within 40"),
    ],
)
def test_a_wrong_fill_is_refused(rewrite: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArtifactError, match=re.escape(message)):
        Artifact.open(rewrite(weights=_record(**changes)))
