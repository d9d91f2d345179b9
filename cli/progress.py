"""Progress on standard error: bars on a terminal, one line per finished stage elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self, TextIO

from tqdm import tqdm


class ProgressBars:
    """Callable as ``progress(stage, done, total)``; a context manager that closes the last bar."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._stage = ""
        self._bar: tqdm[None] | None = None
        self._start = time.perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage != self._stage:
            self._open(stage, total)
        assert self._bar is not None
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def _open(self, stage: str, total: int) -> None:
        self._close()
        self._stage, self._start = stage, time.perf_counter()
        self._bar = tqdm(
            total=total,
            file=self._stream,
            disable=not self._stream.isatty(),
            bar_format=f"{stage:<18} {{bar:30}} {{n_fmt}}/{{total_fmt}} {{elapsed}}",
            nrows=20,  # a terminal that does not say its size would get no bar
        )

    def _close(self) -> None:
        if self._bar is None:
            return
        self._bar.close()
        if not self._stream.isatty():
            seconds = time.perf_counter() - self._start
            print(f"{self._stage}: {seconds:.1f} s", file=self._stream, flush=True)
        self._bar, self._stage = None, ""
