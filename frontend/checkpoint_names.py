"""Checkpoints whose tensors are named or cut otherwise than the model's parameters.

transformers knows for each model what a published checkpoint looks like: names that changed,
experts stored one by one and held as one tensor, projections stored apart and held fused. Its own
table and operations are applied here, one tensor of the model at a time, so that a model larger
than memory still converts. Shapes are found by running the operations on tensors without data.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import FrontendError
from ..ir.dtype import dtype
from ..ir.quantized import Quantized
from .weights import WeightInfo, WeightSource, columns_of, notes_of


@dataclass(frozen=True, eq=False)
class _Group:
    """Stored tensors that one conversion reads together, and what it makes of them."""

    first: str
    converter: Any
    """`transformers.core_model_loading.WeightConverter`, or None where only the name differs."""
    stored: dict[str, list[str]] = field(default_factory=dict)
    """Pattern -> names in the checkpoint, in order."""

    def run(self, tensors: Mapping[str, list[torch.Tensor]], model: Any) -> dict[str, torch.Tensor]:
        """The model's tensors by name."""
        if self.converter is None:
            return {self.first: next(iter(tensors.values()))[0]}
        converter = copy.deepcopy(self.converter)
        for pattern, values in tensors.items():
            converter.collected_tensors[pattern] = values
        made = converter.convert(self.first, model=model, config=model.config)
        return {n: v[0] if isinstance(v, list) else v for n, v in made.items()}


def with_model_names(source: WeightSource, model: torch.nn.Module) -> WeightSource:
    """``source`` under the names of the model's own state dict."""
    wanted: dict[str, torch.Tensor] = model.state_dict(keep_vars=True)  # tied ones are the same
    groups = {group.first: group for group in _groups(source, model, wanted)}
    made: dict[str, _Group] = {}
    infos: dict[str, WeightInfo] = {}
    for group in groups.values():
        for name, tensor in group.run(_empty(source, group), model).items():
            made[name] = group
            stored = next(iter(group.stored.values()))[0]
            infos[name] = WeightInfo(name, _dtype(source, group, stored), tuple(tensor.shape))
    for name, tensor in wanted.items():
        twin = next((n for n in made if wanted.get(n) is tensor), None)
        if name not in made and twin is not None:
            made[name], infos[name] = made[twin], WeightInfo(name, *_rest(infos[twin]), twin)
    return ConvertedSource(source, model, made, infos)


def _dtype(source: WeightSource, group: _Group, stored: str) -> str:
    """What `ConvertedSource` gives: tensors that are cut or joined are made of plain numbers."""
    kind = source.info(stored).dtype
    return "f32" if group.converter is not None and dtype(kind).is_block else kind


def _rest(info: WeightInfo) -> tuple[str, tuple[int, ...]]:
    return info.dtype, info.shape


def _groups(
    source: WeightSource, model: Any, wanted: Mapping[str, torch.Tensor]
) -> Iterator[_Group]:
    """Each stored tensor in the group of the parameter that it becomes (part of)."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import (
        WeightConverter,
        WeightRenaming,
        dot_natural_key,
        rename_source_key,
    )

    table = get_model_conversion_mapping(model)
    renamings = [entry for entry in table if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in table if isinstance(entry, WeightConverter)]
    by_pattern = {pattern: c for c in converters for pattern in c.source_patterns}
    groups: dict[str, _Group] = {}
    prefix = model.base_model_prefix
    for key in sorted(source.names(), key=dot_natural_key):
        name, pattern = rename_source_key(key, renamings, converters, prefix, dict(wanted))
        if name not in wanted and key in wanted:
            name, pattern = key, None
        converter = None if pattern is None else by_pattern[pattern]
        group = groups.setdefault(name, _Group(name, converter))
        group.stored.setdefault(pattern or key, []).append(key)
    yield from (group for name, group in groups.items() if name in wanted)


def _empty(source: WeightSource, group: _Group) -> dict[str, list[torch.Tensor]]:
    return {
        pattern: [torch.empty(source.info(key).shape, device="meta") for key in keys]
        for pattern, keys in group.stored.items()
    }


@dataclass(eq=False)
class ConvertedSource:
    """A checkpoint under the model's names; each tensor is made when it is read."""

    inner: WeightSource
    model: torch.nn.Module
    groups: Mapping[str, _Group]
    infos: Mapping[str, WeightInfo]
    _last: tuple[_Group, dict[str, torch.Tensor]] | None = None
    """What the last conversion made: several tensors may come of one."""

    @property
    def where(self) -> str:
        return self.inner.where

    def names(self) -> Sequence[str]:
        return list(self.infos)

    def info(self, name: str) -> WeightInfo:
        if name not in self.infos:
            raise FrontendError(f"{self.where}: expected a tensor {name}, got none of that name")
        return self.infos[name]

    def read(self, name: str) -> NDArray[Any] | Quantized:
        info = self.info(name)
        group = self.groups[info.alias_of or name]
        if group.converter is None:
            return self.inner.read(next(iter(group.stored.values()))[0])
        if self._last is None or self._last[0] is not group:
            self._last = None  # before the next one is made
            self._last = (group, group.run(self._tensors(group), self.model))
        array: NDArray[np.float32] = self._last[1][info.alias_of or name].numpy()
        return array

    def _tensors(self, group: _Group) -> dict[str, list[torch.Tensor]]:
        return {p: [self._tensor(key) for key in keys] for p, keys in group.stored.items()}

    def _tensor(self, key: str) -> torch.Tensor:
        array = self.inner.read(key)
        if isinstance(array, Quantized):
            return torch.from_numpy(array.dequantize())
        return torch.from_numpy(np.array(array))  # a copy: mapped files are read-only

    def columns(self) -> dict[str, NDArray[np.int32]]:
        """As `HasColumns`; joined tensors with sorted columns are refused."""
        own = columns_of(self.inner)
        found = {}
        for name, group in self.groups.items():
            stored = [key for keys in group.stored.values() for key in keys if key in own]
            if stored and group.converter is not None:
                raise FrontendError(
                    f"{self.where}: {name}: expected layers with columns in order, got desc_act"
                )
            if stored:
                found[name] = own[stored[0]]
        return found

    @property
    def notes(self) -> tuple[str, ...]:
        """What is expanded, and what the checkpoint's own source says."""
        wide = [n for n, g in self.groups.items() if g.converter is not None and self._is_block(g)]
        note = f"expanded to --dtype, because the model joins or cuts them: {', '.join(wide[:4])}"
        more = f" and {len(wide) - 4} more" if len(wide) > 4 else ""
        return (*notes_of(self.inner), *([note + more] if wide else []))

    def _is_block(self, group: _Group) -> bool:
        stored = next(iter(group.stored.values()))[0]
        return dtype(self.inner.info(stored).dtype).is_block
