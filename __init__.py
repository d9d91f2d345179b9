"""sglk: compile an LLM for a chip ahead of time, run it with a slim runtime.

The root stays lazy: importing it loads nothing else, so serving never pays for the compiler.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "compile": ".driver",
    "load": ".runtime",
    "load_forward": ".runtime",
    "SglkError": ".errors",
}
__all__ = ["SglkError", "__version__", "compile", "load", "load_forward"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)
