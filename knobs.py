"""Debugging switches: typed, read from ``SGLK_*`` variables and refused when malformed.

`override` changes them for a ``with`` block.

>>> with override(verify=True):
...     get().verify
True
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any

from .errors import SglkError

_TRUTH = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False, "": False}


@dataclasses.dataclass(frozen=True)
class Knobs:
    """Every switch, with its default. ``SGLK_<FIELD IN CAPITALS>`` sets it."""

    debug: int = 0
    """Log: 1 stages, 2 also passes, 3 also kernels, 4 also the steps of a device."""
    dump: str = ""
    """Folder that receives the graph after each pass that changed it, the program, the kernels."""
    verify: bool = False
    """Run the reference interpreter before and after each pass."""
    stop_after: str = ""
    """Name of the pass after which the pipeline stops."""
    cache: str = ""
    """Folder of the content-addressed kernel cache; empty: the user's cache folder."""
    threads: int = 0
    """Worker threads of the CPU target; 0: as many as the process may use."""
    kunlun_config: str = ""
    """JSON file of facts of the Kunlun chip that replace ours, by name."""
    kunlun_hazards: str = ""
    """Silent errors of the vendor's compiler to put into emulated kernels, by name, or all."""
    kunlun_emulator: str = ""
    """Settings of the Kunlun emulator, as in ``devices=2,main_bytes=1e6``."""
    kunlun_adapter: str = ""
    """Library that calls the vendor's operators on a chip, with the face of `vendor_adapter.h`."""
    kunlun_python: str = ""
    """Python of the environment that has the vendor's Triton, for ``sglk finish``."""
    graphs: str = "check"
    """CUDA graphs: check (each bucket's first one against plain launches), trust, or off."""


def _parse(field: dataclasses.Field[object], text: str) -> object:
    variable = f"SGLK_{field.name.upper()}"
    if isinstance(field.default, bool):
        if text.lower() not in _TRUTH:
            raise SglkError(f"{variable}: expected one of 0, 1, on, off, true, false, got {text!r}")
        return _TRUTH[text.lower()]
    if isinstance(field.default, int):
        if not text.isdecimal():
            raise SglkError(f"{variable}: expected a whole number, got {text!r}")
        return int(text)
    return text


def from_environment(environ: Mapping[str, str] = os.environ) -> Knobs:
    """Read every ``SGLK_*`` variable; a malformed value or an unknown name raises `SglkError`."""
    fields = {f"SGLK_{field.name.upper()}": field for field in dataclasses.fields(Knobs)}
    unknown = [name for name in environ if name.startswith("SGLK_") and name not in fields]
    if unknown:
        raise SglkError(f"{unknown[0]}: no such switch (known: {', '.join(sorted(fields))})")
    given: dict[str, Any] = {
        field.name: _parse(field, environ[name])
        for name, field in fields.items()
        if name in environ
    }
    return Knobs(**given)


_current: contextvars.ContextVar[Knobs | None] = contextvars.ContextVar("sglk_knobs", default=None)


def get() -> Knobs:
    """The switches in force: the innermost `override`, else the environment."""
    return _current.get() or from_environment()


@contextlib.contextmanager
def override(**changes: object) -> Iterator[Knobs]:
    """Change switches for a ``with`` block: ``with knobs.override(verify=True): ...``."""
    token = _current.set(dataclasses.replace(get(), **changes))  # type: ignore[arg-type]
    try:
        yield get()
    finally:
        _current.reset(token)
