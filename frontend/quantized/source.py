"""A quantized checkpoint as a `WeightSource`: ``x.weight`` is a `GroupArray`, made of its parts.

Which layers are quantized is what the tensors say: lists such as ``modules_to_not_convert`` and
``ignore`` name layers that have a plain ``weight``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...errors import FrontendError
from ...ir.quantized import Quantized
from ..weights import WeightInfo, WeightSource
from . import awq, compressed, gptq, scaled
from .layers import Found, Layer, LayerError, Settings, Stored, refuse_all

METHODS: Mapping[str, Callable[[Stored, Settings], Found]] = {
    "awq": awq.find,
    "gptq": gptq.find,
    "compressed-tensors": compressed.find,
    "fp8": scaled.find,
    "fbgemm_fp8": scaled.find,
    "modelopt": scaled.find,
}
ACTIVATIONS = (
    "activations are not quantized as the checkpoint asks: they have the type of --activations"
)


class StoredSource(Stored, WeightSource, Protocol):
    """Tensors as stored, and as float32."""


@dataclass(frozen=True, eq=False)
class QuantizedSource:
    """The matrices of `layers`, and every other tensor as the files have it."""

    inner: WeightSource
    layers: Mapping[str, Layer]
    hidden: frozenset[str]
    """Stored tensors that are parts of layers, or say nothing of weights."""
    notes: tuple[str, ...] = field(default=())

    @property
    def where(self) -> str:
        return self.inner.where

    def names(self) -> Sequence[str]:
        own = [n for n in self.inner.names() if n not in self.hidden and n not in self.layers]
        return [*own, *self.layers]

    def info(self, name: str) -> WeightInfo:
        if name in self.layers:
            layer = self.layers[name]
            return WeightInfo(name, layer.form.name, layer.shape)
        return self.inner.info(name)

    def read(self, name: str) -> NDArray[np.float32] | Quantized:
        if name not in self.layers:
            return self.inner.read(name)
        try:
            return self.layers[name].read()
        except LayerError as fault:
            raise FrontendError(f"{self.where}: {fault}") from fault

    def columns(self) -> dict[str, NDArray[np.int32]]:
        """For layers whose columns are sorted by group: which input each column multiplies."""
        return {n: c.columns for n, c in self.layers.items() if c.columns is not None}


def read_quantized(stored: StoredSource, settings: Settings) -> QuantizedSource:
    """Read what ``quantization_config`` says; an unknown method or layer raises `FrontendError`."""
    method = _method(stored, settings)
    found = METHODS[method](stored, settings)
    refuse_all(stored, found, method)
    hidden = scaled.unused(stored.names())
    for layer in found.layers.values():
        hidden.update(layer.tensors)
    notes = [ACTIVATIONS] if _asks_for_activations(settings) else []
    return QuantizedSource(stored, found.layers, frozenset(hidden), (*found.notes, *notes))


def _method(stored: Stored, settings: Settings) -> str:
    method = str(settings.get("quant_method", "")).lower()
    algorithm = str(settings.get("quant_algo", "FP8")).upper()
    if method not in METHODS or (method == "modelopt" and algorithm != "FP8"):
        got = f"{method or 'none'}" + (f" {algorithm}" if method == "modelopt" else "")
        raise FrontendError(
            f"{stored.where}: expected a quant_method among {', '.join(METHODS)} in "
            f"quantization_config, got {got} (save the model unquantized, or in one of these)"
        )
    return method


def _asks_for_activations(settings: Settings) -> bool:
    groups: list[Any] = list((settings.get("config_groups") or {}).values())
    dynamic = settings.get("activation_scheme") is not None
    return dynamic or any(group.get("input_activations") for group in groups)
