"""Compile, whole: model -> Graph -> legal Graph -> Program -> Artifact, with a report of what was decided.

>>> import sglk
>>> sglk.compile("no/such/model", target="cpu", output="x.sglk")
Traceback (most recent call last):
sglk.errors.FrontendError: ...
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import SglkError

Progress = Callable[[str, int, int], None]
DTYPES = ("bf16", "fp32")
QUANTS = ("keep", "none")


@dataclass(frozen=True)
class Options:
    """What the user can choose, checked when made."""

    dtype: str = "bf16"
    """Storage of unquantized matrices and of the KV cache; arithmetic is f32."""
    quant: str = "keep"
    """``keep`` stored block types as they are, or ``none``: dequantize to ``dtype``."""
    cpu_isa: str = "native"
    selftest: bool = True

    def __post_init__(self) -> None:
        for name, value, known in (("dtype", self.dtype, DTYPES), ("quant", self.quant, QUANTS)):
            if value not in known:
                raise SglkError(f"--{name}: expected one of {', '.join(known)}, got {value!r}")


@dataclass
class Compiled:
    """A finished compile: where the artifact is, and the report that is also inside it."""

    path: Path
    report: dict[str, Any]


@dataclass
class Clock:
    """Seconds per stage, in order; the stages add up to the whole."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def compile(
    model: Any,
    target: str = "cpu",
    output: str | Path | None = None,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> Compiled:
    """Compile a Hugging Face folder or a .gguf file into an artifact at ``output``.

    ``options`` are the fields of `Options`. The default output is the model's name with ``.sglk``.
    Errors are `SglkError` sentences; nothing half-made is left behind.
    """
    if target != "cpu":
        raise SglkError(f"--target: expected one of cpu, got {target!r}")
    return _Compile(model, Options(**options), progress or _silent).run(output)


class _Compile:
    """One compile: the stages in order, and what each leaves for the next."""

    def __init__(self, model: Any, options: Options, progress: Progress) -> None:
        self.model = model
        self.options = options
        self.progress = progress
        self.clock = Clock()

    def run(self, output: str | Path | None) -> Compiled:
        from .targets.artifact import ArtifactWriter

        with self.clock.stage("capture"):
            captured = self._capture()
        path = Path(output or f"{captured.info.name}.sglk")
        with ArtifactWriter(path) as writer:
            report = self._write(captured, writer)
        if self.options.selftest:
            self._prove(path)
        return Compiled(path, report)


def _silent(stage: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


def peak_rss_bytes() -> int:
    """Largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
