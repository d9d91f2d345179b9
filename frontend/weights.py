"""Where weights come from: named tensors, read one at a time from a memory-mapped file.

Names are Hugging Face parameter names, whatever the file calls them. `read` gives float32 for f32,
f16 and bf16 tensors (both conversions are exact; `info` tells what was stored), integers as they
are, and a `Quantized` matrix for block types and group forms. Arrays may be views of the mapped
file, hence read-only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..errors import FrontendError
from ..ir.quantized import Quantized

_EMBEDDING = "embed_tokens.weight"
FLOAT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}


@dataclass(frozen=True)
class WeightInfo:
    """A tensor as stored: its type's name, of a block type or group form where it has one."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    alias_of: str | None = None
    """The tensor that holds the numbers, when this name is a second one for it (tied embedding)."""


@runtime_checkable
class WeightSource(Protocol):
    """Named tensors of one model."""

    @property
    def where(self) -> str:
        """File or folder, for messages."""
        ...

    def names(self) -> Sequence[str]:
        """Every tensor, in file order."""
        ...

    def info(self, name: str) -> WeightInfo:
        """Type and shape, without reading the tensor."""
        ...

    def read(self, name: str) -> NDArray[Any] | Quantized:
        """The tensor; an unknown name raises `FrontendError`."""
        ...


@runtime_checkable
class HasColumns(Protocol):
    """A source some of whose matrices have sorted columns (GPTQ's ``desc_act``)."""

    def columns(self) -> Mapping[str, NDArray[np.int32]]:
        """By parameter: which input each column multiplies."""
        ...


@runtime_checkable
class HasNotes(Protocol):
    """A source that leaves something of its checkpoint aside."""

    @property
    def notes(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class AliasedSource:
    """A source with second names for some of its tensors.

    `aliases` maps the second name to the stored one. It wins over a tensor of the same name: a tied
    model ignores the copy that some checkpoints carry.
    """

    inner: WeightSource
    aliases: Mapping[str, str]

    @property
    def where(self) -> str:
        return self.inner.where

    def names(self) -> Sequence[str]:
        own = [name for name in self.inner.names() if name not in self.aliases]
        return [*own, *self.aliases]

    def info(self, name: str) -> WeightInfo:
        if name not in self.aliases:
            return self.inner.info(name)
        stored = self.aliases[name]
        return replace(self.inner.info(stored), name=name, alias_of=stored)

    def read(self, name: str) -> NDArray[Any] | Quantized:
        return self.inner.read(self.aliases.get(name, name))

    def columns(self) -> dict[str, NDArray[np.int32]]:
        """As `HasColumns`, for both names."""
        own = dict(columns_of(self.inner))
        return own | {n: own[stored] for n, stored in self.aliases.items() if stored in own}

    @property
    def notes(self) -> tuple[str, ...]:
        return notes_of(self.inner)


def columns_of(source: WeightSource) -> Mapping[str, NDArray[np.int32]]:
    """Matrices whose columns are in another order than the model's: the input of each column."""
    return source.columns() if isinstance(source, HasColumns) else {}


def notes_of(source: WeightSource) -> tuple[str, ...]:
    """What a source does otherwise than its checkpoint asks, for the report."""
    return source.notes if isinstance(source, HasNotes) else ()


def tie_embedding(source: WeightSource, tied: bool) -> WeightSource:
    """Let ``lm_head.weight`` be the token embedding when the model's config ties the two."""
    embeddings = [name for name in source.names() if name.endswith(_EMBEDDING)]
    if not tied or len(embeddings) != 1:
        return source
    return AliasedSource(source, {"lm_head.weight": embeddings[0]})


def without_false_ties(source: WeightSource, wanted: Iterable[str]) -> WeightSource:
    """``source`` without second names if the model has its head beside its embedding.

    A model that ties its head has one parameter for both names. Some hold it apart whatever the
    config says, and most configs say "tied" by default.
    """
    if isinstance(source, AliasedSource):
        own = set(wanted)
        has_embedding = any(name.endswith(_EMBEDDING) for name in own)
        if has_embedding and own & source.aliases.keys():
            return source.inner
    return source


def check_against(source: WeightSource, wanted: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a source that lacks a wanted tensor or has one of another shape, naming every one."""
    known = set(source.names())
    faults = [f"{name} is missing" for name in wanted if name not in known]
    for name in wanted:
        if name in known and source.info(name).shape != tuple(wanted[name]):
            got = list(source.info(name).shape)
            faults.append(f"{name} has shape {got} instead of {list(wanted[name])}")
    if faults:
        raise FrontendError(
            f"{source.where}: expected the {len(wanted)} tensors that the model's config asks for, "
            f"got: {'; '.join(faults)} (the weights and the config belong to different models, or "
            "the download is incomplete)"
        )


def as_float32(raw: NDArray[np.uint8], dtype: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Bytes of a float tensor as float32; a view when they are float32 already."""
    if dtype == "f32":
        return raw.view("<f4").reshape(shape)
    if dtype == "f16":
        return raw.view("<f2").astype(np.float32).reshape(shape)
    widened = raw.view("<u2").astype(np.uint32) << 16  # bf16 is the upper half of an f32
    return widened.view(np.float32).reshape(shape)


def map_file(path: Path) -> NDArray[np.uint8]:
    """The file as read-only bytes, without reading it; an unreadable one raises `FrontendError`."""
    try:
        if path.stat().st_size == 0:
            raise FrontendError(f"{path}: expected a model, got an empty file")
        return np.memmap(path, np.uint8, mode="r").view(np.ndarray)
    except OSError as error:
        raise FrontendError(f"{path}: expected a readable file, got: {error.strerror}") from error
