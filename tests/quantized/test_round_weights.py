"""``--dtype fp8`` and its like: weights of linears are rounded when a model is compiled."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sglk.driver import compile
from sglk.targets.artifact import Artifact

MOST = {"e4m3_row_f32": 0.03, "i8_row_f32": 0.01, "i4_g32_f16_z": 0.1}


@pytest.mark.parametrize(
    ("dtype", "form"),
    [("fp8", "e4m3_row_f32"), ("int8", "i8_row_f32"), ("int4", "i4_g32_f16_z")],
)
def test_a_compile_rounds_all_linears_but_the_last(tmp_path: Path, dtype: str, form: str) -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 128), torch.nn.SiLU(), torch.nn.Linear(128, 64), torch.nn.Tanh()]
    model = torch.nn.Sequential(*layers, torch.nn.LayerNorm(64), torch.nn.Linear(64, 64))
    made = compile(model, (torch.randn(3, 64),), "cpu", tmp_path / "m.sglk", dtype=dtype)
    weights = made.report["weights"]
    assert weights["forms"][form]["count"] == 2
    assert 0 < weights["rounding"][form] < MOST[form]
    with Artifact.open(made.path) as artifact:
        kinds = {name: record["dtype"] for name, record in artifact.weights.items()}
    assert kinds["5.weight"] == "bf16"
    assert made.report["selftest"]  # values of the rounded weights, as the kernels read them
