"""Fixtures that several rooms share."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import hypothesis
import pytest

# Shared machines stall, so no deadline; the same examples every time, so a failure is the code's.
hypothesis.settings.register_profile("sglk", deadline=None, derandomize=True)
hypothesis.settings.load_profile("sglk")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The SmolLM2-135M-Instruct GGUF; see `examples/fetch_smollm2.py` for where it comes from."""
    spec = importlib.util.spec_from_file_location("_", ROOT / "examples" / "fetch_smollm2.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    path: Path = script.fetch()
    return path
