"""Products with weights of few bits on a GPU: ``tests/kernels/quantized_cases.py`` against f64."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parents[1] / "kernels" / "quantized_cases.py"


@pytest.mark.device
def test_quantized_products_on_the_gpu() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("needs tensor maps and e4m3: compute capability 9.0")
    command = [sys.executable, str(CASES), "cuda"]
    given = os.environ | {"TRITON_DEFAULT_FP_FUSION": "1"}
    run = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert (run.stdout.strip(), run.returncode) == ("", 0), run.stderr
