"""Launch built kernels on NumPy arrays, one thread: for tests and for checks at compile time.

>>> library = load(build([kernel], native_isa()))                     # doctest: +SKIP
>>> library.launch(kernel, (x, y, 1000), grid=(4,))                   # doctest: +SKIP
"""

from __future__ import annotations

import ctypes
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import LoweringError
from .lower import CppKernel

Argument = NDArray[np.generic] | int | float


class Library:
    """A loaded shared library of kernels."""

    def __init__(self, handle: ctypes.CDLL) -> None:
        self.handle = handle

    def launch(
        self,
        kernel: CppKernel,
        args: Sequence[Argument],
        grid: Sequence[int],
        programs: tuple[int, int] | None = None,
    ) -> None:
        """Run the programs of `grid` (or a range of their linear numbers) on `args`, in order."""
        if len(args) != len(kernel.params):
            raise LoweringError(
                f"{kernel.symbol}: expected {len(kernel.params)} arguments {kernel.params}, "
                f"got {len(args)}"
            )
        slots = [_slot(kernel, kind, arg) for kind, arg in zip(kernel.params, args, strict=True)]
        full = (*grid, 1, 1)[:3]
        begin, end = programs or (0, full[0] * full[1] * full[2])
        function = self.handle[kernel.symbol]
        function.restype = None
        function(
            (ctypes.c_int64 * len(slots))(*slots),
            (ctypes.c_int32 * 3)(*full),
            ctypes.c_int64(begin),
            ctypes.c_int64(end),
        )


def _slot(kernel: CppKernel, kind: str, arg: Argument) -> int:
    if kind.startswith("!tt.ptr"):
        if not isinstance(arg, np.ndarray) or not arg.flags.c_contiguous:
            raise LoweringError(
                f"{kernel.symbol}: expected a contiguous array for {kind}, got {type(arg).__name__}"
            )
        return arg.ctypes.data
    if kind == "f32":
        return int(struct.unpack("<i", struct.pack("<f", float(arg)))[0])
    return int(arg)


def load(library: bytes | Path) -> Library:
    """Load a built library; bytes go through a temporary file that is gone afterwards.

    A memfd would not do: dlopen knows libraries by path, and descriptor numbers come back.
    """
    if isinstance(library, Path):
        return Library(ctypes.CDLL(str(library)))
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(library)
        file.flush()
        return Library(ctypes.CDLL(file.name))
