"""Rotary embeddings whose frequencies depend on how long a sequence is: longrope and dynamic NTK.

Such a model turns the keys of its first tokens otherwise once the sequence outgrows the context it
was trained with. Keys in a cache are turned already, and requests share them, so a compiled model
keeps the frequencies of the original context, which are exact up to it, and refuses longer ones:
its context length is the original. Linear, YaRN and Llama 3 scaling are the same at every length.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch

log = logging.getLogger(__name__)
CHANGING = ("dynamic", "longrope")


@contextlib.contextmanager
def fixed_frequencies(model: torch.nn.Module) -> Iterator[None]:
    """While it lasts, the model's rotary embeddings keep the frequencies they were built with."""
    changed = []
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        if isinstance(kind, str | Mapping):
            changed.append((module, kind))
            module.rope_type = _fixed(kind)  # type: ignore[assignment]
    try:
        yield
    finally:
        for module, kind in changed:
            module.rope_type = kind  # type: ignore[assignment]


def _fixed(kind: str | Mapping[str, str]) -> str | dict[str, str]:
    """By name, or by name for each type of layer."""
    if isinstance(kind, str):
        return "default" if kind in CHANGING else kind
    return {layers: "default" if name in CHANGING else name for layers, name in kind.items()}


def exact_context(config: Any, stated: int) -> int:
    """The longest sequence with the frequencies that short ones have; ``stated`` if all have.

    >>> from types import SimpleNamespace
    >>> rope = {"rope_type": "longrope", "original_max_position_embeddings": 4096}
    >>> exact_context(SimpleNamespace(rope_parameters=rope, model_type="phi3"), 131072)
    4096
    """
    ropes = _ropes(getattr(config, "rope_parameters", None) or {})
    changing = [rope for rope in ropes if rope.get("rope_type") == "longrope"]
    originals = [rope.get("original_max_position_embeddings") or stated for rope in changing]
    limit = min([stated, *map(int, originals)])
    if limit < stated:
        log.warning(
            "%s: longrope changes the frequencies of sequences over %d tokens: the context is %d "
            "instead of %d",
            config.model_type,
            limit,
            limit,
            stated,
        )
    return limit


def _ropes(parameters: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """One, or one for each type of layer."""
    if "rope_type" in parameters:
        return [parameters]
    return [each for each in parameters.values() if isinstance(each, Mapping)]
