"""Ops that the host does, as functions that the player calls like kernels.

The player's threads call back into Python: the one that gets a call's only program waits for the
interpreter lock, which the thread that started the step has given up for the time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...artifact.host_ops import HostOp, HostOps

_KERNEL = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_int32), ctypes.c_int64,
    ctypes.c_int64,
)  # fmt: skip
"""The ABI of kernels: arguments, grid, first and last program."""


class HostCalls:
    """Callbacks by symbol; keeps them alive."""

    def __init__(self, ops: HostOps) -> None:
        self.ops = ops
        self._failure: Exception | None = None
        self._functions = {symbol: _KERNEL(self._caller(op)) for symbol, op in ops.ops.items()}

    @property
    def addresses(self) -> Mapping[str, int]:
        """What the player calls, by symbol."""
        casts = {s: ctypes.cast(f, ctypes.c_void_p).value for s, f in self._functions.items()}
        return {symbol: address for symbol, address in casts.items() if address is not None}

    def raise_failure(self) -> None:
        """A callback cannot raise: the step does, when it is over."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _caller(self, op: HostOp) -> Callable[[Any, Any, int, int], None]:
        def call(arguments: Any, grid: Any, begin: int, end: int) -> None:
            try:
                self._run(op, arguments)
            except Exception as error:  # noqa: BLE001  (ctypes would drop it, results be wrong)
                self._failure = error

        return call

    def _run(self, op: HostOp, arguments: Any) -> None:
        numbers = arguments[op.num_pointers : op.num_pointers + len(op.sizes)]
        sized = self.ops.sized(op.symbol, numbers)
        places = (*sized.inputs, *sized.outputs)
        memory = [place.of(_bytes_at(arguments[i], place.nbytes)) for i, place in enumerate(places)]
        results = self.ops.compute(sized, memory[: op.num_operands])
        for own, result in zip(memory[op.num_operands :], results, strict=True):
            own[...] = result


def _bytes_at(address: int, size: int) -> np.ndarray:
    if not size:
        return np.zeros(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
