"""The compile-time face of a chip: what the driver asks of a target, and targets by name.

Our own targets are listed here; an installed package adds one with an entry point in the group
``sglk.backends``: its name is the target, its object a function without arguments that returns a
`Backend`. (The run-time face has a group of its own, ``sglk.targets``: serving loads no compiler.)
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from ..errors import LoweringError
from ..ir.dtype import DType
from ..ir.graph import Graph
from ..ir.op import Array
from ..ir.target import Target
from ..passes.select_rows import HOST_OPS
from .artifact.program import Program
from .assemble import Library
from .lowering import Lowering

Progress = Callable[[str, int, int], None]
GROUP = "sglk.backends"
_OURS = {"cpu": ".cpu.backend", "cuda": ".cuda.backend", "kunlun": ".kunlun.backend"}
"""Module of each target of ours, with a function `open_backend`."""


class Choices(Protocol):
    """What a user may choose that a target looks at: fields of `driver.Options`."""

    @property
    def arches(self) -> tuple[str, ...]:
        """What stands after the colon of ``--target NAME:ARCH,ARCH``; empty: the default."""

    @property
    def activations(self) -> str:
        """``f32``, ``bf16`` or ``int8``."""

    @property
    def handwritten(self) -> bool:
        """Whether kernels written by hand may be chosen."""

    @property
    def batch_invariant(self) -> bool:
        """Whether a token's result may not depend on what is computed beside it, at any price."""

    @property
    def round_weights(self) -> bool:
        """Whether weights may be rounded where many rows are multiplied."""

    @property
    def tuning(self) -> str:
        """A file of times measured on the chip, for a backend that `Tunes`; "": none."""

    @property
    def candidates(self) -> int:
        """How many ways to do a piece of work the artifact is to have, for `Tunes`."""


class Packed(Protocol):
    """Bytes of one weight; ``sections`` maps a plane's name to its offset and length."""

    @property
    def data(self) -> np.ndarray: ...

    @property
    def sections(self) -> Mapping[str, tuple[int, int]]: ...


class Backend(Protocol):
    """A target as the driver uses it, stage by stage."""

    name: str
    activations: str
    """What products multiply where the user does not say: ``f32``, ``bf16`` or ``int8``."""

    def check(self, choices: Choices) -> None:
        """Refuse with `LoweringError`, before any work, what cannot end well: a missing compiler,
        an unknown arch, a choice that this chip does not have."""

    def target(self, choices: Choices) -> Target:
        """The facts that passes work with; with several arches those that hold for all."""

    def lower(self, graph: Graph, target: Target, *, partial: bool = False) -> Lowering:
        """A row for every node, or one refusal that lists all nodes without; ``partial``, for
        reports, leaves such nodes out (`select_rows` does both)."""

    def build(self, lowering: Lowering, choices: Choices, progress: Progress) -> Sequence[Library]:
        """All kernels, compiled for each arch."""

    def pack_weight(self, name: str, array: Array, dtype: DType, layout: str) -> Packed:
        """A weight in a layout that one of the rows asked for."""

    def row_granule(self, layout: str) -> int:
        """Rows that a dense matrix in this layout is padded to a multiple of."""

    def plans(self, program: Program) -> Mapping[str, bytes]:
        """Launch plans by entry, in the form of the target's device; may be empty."""

    def why_not_here(self, choices: Choices) -> str:
        """Why this machine cannot run the result (then the self-test is left for later), or ""."""


@runtime_checkable
class Explains(Protocol):
    """A backend that a lowering report can ask for more."""

    def explain(self, target: Target) -> Mapping[str, Any]:
        """Plain data: ``facts`` of the chip, ``denied`` rows, what is done on the ``host``."""


@runtime_checkable
class Tunes(Protocol):
    """A backend that chooses kernels by times which ``sglk tune`` measures on the chip."""

    def candidates(
        self, lowering: Lowering, choices: Choices, progress: Progress
    ) -> Mapping[str, bytes]:
        """Members of the artifact with up to ``choices.candidates`` ways to do each piece of work,
        for `device.Tunes` to measure."""


@runtime_checkable
class HasEmulator(Protocol):
    """A backend whose artifacts run without the chip too."""

    emulator: str
    """The device that stands in for it."""


def check_choices(backend: Backend, choices: Choices) -> None:
    """Refuse with `LoweringError`, before any work, what a target does not have."""
    check_tunes(backend, choices)
    backend.check(choices)


def check_tunes(backend: Backend, choices: Choices) -> None:
    """Refuse measured times where nothing is chosen by them."""
    if choices.candidates < 0:
        raise LoweringError(f"--candidates: expected 0 or more, got {choices.candidates}")
    for name in ("tuning", "candidates"):
        if getattr(choices, name) and not isinstance(backend, Tunes):
            raise LoweringError(
                f"--{name}: expected a target whose kernels are chosen by measured times, as those"
                f" of cuda are, got {backend.name}"
            )


def candidates_of(
    backend: Backend, lowering: Lowering, choices: Choices, progress: Progress
) -> Mapping[str, bytes]:
    """What `sglk tune` will measure; empty where nobody asked for it."""
    if not choices.candidates or not isinstance(backend, Tunes):
        return {}
    return backend.candidates(lowering, choices, progress)


def facts_of(backend: Backend, choices: Choices, strict: bool) -> Target:
    """The target's facts; ``strict``: without ops that the host does for it."""
    check_tunes(backend, choices)
    facts = backend.target(choices)
    return replace(facts, features=facts.features - {HOST_OPS}) if strict else facts


def known_backends() -> tuple[str, ...]:
    """Names that `open_backend` takes, ours first."""
    return tuple(dict.fromkeys([*_OURS, *sorted(_plugins())]))


def open_backend(name: str) -> Backend:
    """The compile-time face of a target; an unknown name raises `LoweringError`.

    >>> open_backend("cpu").name
    'cpu'
    """
    if name in _OURS:
        module = importlib.import_module(_OURS[name], __package__)
        return cast("Backend", module.open_backend())
    plugins = _plugins()
    if name not in plugins:
        known = ", ".join(known_backends())
        raise LoweringError(f"--target: expected one of {known}, got {name!r}")
    return _open_plugin(plugins[name])


def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _open_plugin(point: EntryPoint) -> Backend:
    """Whatever a plug-in raises while loading becomes one sentence with its name and cause."""
    try:
        backend = point.load()()
    except Exception as error:
        raise LoweringError(
            f"--target {point.name}: its plug-in {point.value} failed: {error} (reinstall it)"
        ) from error
    missing = [name for name in ("lower", "build", "pack_weight") if not hasattr(backend, name)]
    if missing:
        raise LoweringError(
            f"--target {point.name}: expected a backend from {point.value}, got {backend!r} "
            f"without {missing[0]}"
        )
    return cast("Backend", backend)
