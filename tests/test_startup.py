"""What a first token costs before any model: the modules that `sglk run` loads."""

from __future__ import annotations

import subprocess
import sys

RUN = "import sys, sglk.cli.run, sglk.targets.cpu.device, tokenizers, jinja2.ext, jinja2.sandbox"
SLOW = {
    "asyncio", "email", "http", "multiprocessing", "ssl", "socket", "sqlite3", "unittest", "xml",
    "pydantic", "starlette", "uvicorn", "torch", "triton", "sympy", "transformers", "onnx",
    "numpy.testing", "numpy.f2py", "huggingface_hub", "requests", "sglk.ir", "sglk.passes",
    "sglk.frontend", "sglk.driver", "sglk.runtime.server",
}  # fmt: skip
"""Each takes milliseconds to import, and none has work to do before a token."""


def test_a_run_loads_nothing_slow_that_it_does_not_need() -> None:
    command = [sys.executable, "-c", f"{RUN}; print(*sys.modules)"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not SLOW & set(run.stdout.split())
