"""The C player of an artifact (native/player.cpp): a step's launches in one native call."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import DeviceError
from .library import XreLibrary, load_bytes

PLAYER_MEMBER = "host/xpu_player.so"
LAUNCH = np.dtype(
    [
        ("function", np.uint64), ("block", np.int64), ("bytes", np.int64),
        ("clusters", np.int32), ("cores", np.int32),
    ]
)  # fmt: skip
"""`Launch` of native/player.cpp."""


class _Runtime(ctypes.Structure):
    _fields_ = (
        ("set_argument", ctypes.c_void_p),
        ("configure", ctypes.c_void_p),
        ("launch", ctypes.c_void_p),
    )


class Player:
    """A loaded player bound to the functions of one runtime."""

    def __init__(self, where: str, data: bytes | memoryview, library: XreLibrary) -> None:
        self._owned = contextlib.ExitStack()
        self._library = library
        handle = load_bytes(where, data, self._owned)
        try:
            self._play: Any = handle.sglk_xpu_play
        except AttributeError as error:
            self._owned.close()
            raise DeviceError(f"{where}: expected sglk_xpu_play in it (compile again)") from error
        self._play.restype = ctypes.c_int64
        pointer, count = ctypes.c_void_p, ctypes.c_int64
        self._play.argtypes = [pointer, pointer, count, pointer, pointer, pointer]
        names = ("xpu_launch_argument_set", "xpu_launch_config", "xpu_launch_async")
        functions = [ctypes.cast(library.function(n), ctypes.c_void_p).value for n in names]
        self._runtime = _Runtime(*functions)
        self._failed = ctypes.c_int64(0)

    def play(self, launches: NDArray[np.void], blocks: NDArray[np.uint8], stream: int) -> None:
        """Queue all launches; the first that fails raises with its number."""
        code = self._play(
            ctypes.byref(self._runtime), launches.ctypes.data, len(launches), blocks.ctypes.data,
            stream, ctypes.byref(self._failed),
        )  # fmt: skip
        if code:
            raise self._library.error(f"launch {self._failed.value}", code)

    def close(self) -> None:
        """Unload it; safe to call twice."""
        self._owned.close()
