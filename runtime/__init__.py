"""Runs artifacts: pages, prefix cache, scheduler, sampler, text. Loads no compiler.

Lazy, so that ``import sglk.runtime`` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .answer import Output
    from .engine import Engine
    from .forward import ForwardModel, load_forward
    from .llm import LLM, Generation, Stream
    from .loading import load
    from .request import SamplingParams

_HOMES = {
    "Engine": ".engine",
    "Generation": ".llm",
    "LLM": ".llm",
    "Output": ".answer",
    "SamplingParams": ".request",
    "Stream": ".llm",
    "ForwardModel": ".forward",
    "load": ".loading",
    "load_forward": ".forward",
}
__all__ = [
    "LLM",
    "Engine",
    "ForwardModel",
    "Generation",
    "Output",
    "SamplingParams",
    "Stream",
    "load",
    "load_forward",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)
