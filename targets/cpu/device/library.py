"""The kernels' library: loaded from memory, called through ctypes, unloaded when closed.

dlopen compares paths, so a descriptor must stay open as long as its library: were its number used
again, the next load would silently return the old library.
"""

from __future__ import annotations

import _ctypes
import contextlib
import ctypes
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import ArtifactError, DeviceError
from .plan_code import PLAN_VERSION, PlanCode

OK, REFUSED, ARENA_TOO_SMALL = 0, 1, 2
MESSAGE_BYTES = 256


class Step(ctypes.Structure):
    """`sglk_step` of native/player.h."""

    _fields_ = (
        ("symbols", ctypes.c_void_p),
        ("bases", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("nanoseconds", ctypes.c_void_p),
        ("bucket", ctypes.c_int64),
        ("arena_needed", ctypes.c_int64),
        ("message", ctypes.c_char * MESSAGE_BYTES),
    )


_POINTER, _INT = ctypes.c_void_p, ctypes.c_int64
_OUT, _TEXT = ctypes.POINTER(ctypes.c_void_p), ctypes.c_char_p
_PROTOTYPES: dict[str, tuple[object, list[object]]] = {
    "sglk_plan_version": (_INT, []),
    "sglk_pool_create": (_INT, [_INT, _OUT, _TEXT, _INT]),
    "sglk_pool_destroy": (None, [_POINTER]),
    "sglk_plan_create": (_INT, [_POINTER, _INT, _POINTER, _INT, _OUT, _TEXT, _INT]),
    "sglk_plan_destroy": (None, [_POINTER]),
    "sglk_plan_run": (_INT, [_POINTER, _POINTER, ctypes.POINTER(Step)]),
    "sglk_find_outside": (_INT, [_POINTER, _INT, ctypes.c_int32, ctypes.c_int32]),
}
_SOUND: list[Any] = [_POINTER, _INT, _POINTER, _POINTER, _INT]
_ROWS: list[Any] = [_POINTER, _POINTER, _INT, _POINTER, _INT, _POINTER]


class Library:
    """A loaded library with the player and the kernels of one variant."""

    def __init__(self, where: str, data: bytes | memoryview) -> None:
        self.where = where
        self._owned = contextlib.ExitStack()
        try:
            self._library = self._load(data)
            self._bind()
        except BaseException:
            self._owned.close()
            raise

    def _load(self, data: bytes | memoryview) -> ctypes.CDLL:
        try:
            path = self._memory_file(data) or self._disk_file(data)
            library = ctypes.CDLL(path)
        except OSError as error:
            raise ArtifactError(
                f"{self.where}: cannot load the kernels: {error} (compile on or for this system)"
            ) from error
        self._owned.callback(_ctypes.dlclose, library._handle)
        return library

    def _memory_file(self, data: bytes | memoryview) -> str | None:
        """Path of a file in memory; None where the system has none or runs no code from it."""
        try:
            descriptor = os.memfd_create("sglk-kernels")
        except (AttributeError, OSError):
            return None
        self._owned.callback(os.close, descriptor)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        return f"/proc/self/fd/{descriptor}"

    def _disk_file(self, data: bytes | memoryview) -> str:
        """The same in a folder that only we can read, for as long as the library is loaded."""
        folder = self._owned.enter_context(tempfile.TemporaryDirectory(prefix="sglk-"))
        path = Path(folder) / "kernels.so"
        path.write_bytes(data)
        return str(path)

    def _bind(self) -> None:
        for name, (result, arguments) in _PROTOTYPES.items():
            function = self._function(name)
            function.restype, function.argtypes = result, arguments  # type: ignore[assignment]
        self.plan_run = self._library.sglk_plan_run
        self.find_outside = self._library.sglk_find_outside
        # Libraries of the first release lack these.
        self.is_step_sound = self._newer("sglk_is_step_sound", _INT, _SOUND)
        self.argmax = self._newer("sglk_argmax", None, _ROWS)
        self.sample = self._newer("sglk_sample", None, _ROWS)
        version = self._library.sglk_plan_version()
        if version != PLAN_VERSION:
            raise ArtifactError(
                f"{self.where}: expected launch plan version {PLAN_VERSION}, got {version}"
                " (compile the model again with this sglk)"
            )

    def _newer(self, name: str, result: Any, arguments: list[Any]) -> Callable[..., Any] | None:
        """A function that older libraries may lack."""
        if not hasattr(self._library, name):
            return None
        function = self._library[name]
        function.restype, function.argtypes = result, arguments
        return function

    def _function(self, name: str) -> ctypes._NamedFuncPointer:
        try:
            return getattr(self._library, name)  # type: ignore[no-any-return]
        except AttributeError as error:
            raise ArtifactError(f"{self.where}: expected the symbol {name} in it") from error

    def addresses(self, names: Sequence[str], known: Mapping[str, int]) -> NDArray[np.int64]:
        """Addresses of kernels, some of which are ``known``."""
        return np.array([known.get(name) or self._address(name) for name in names], np.int64)

    def _address(self, name: str) -> int:
        return ctypes.cast(self._function(name), ctypes.c_void_p).value or 0

    def create_pool(self, num_threads: int) -> int:
        """A pool of `num_threads` threads, the caller's included."""
        pool = self._create(self._library.sglk_pool_create, num_threads)
        self._owned.callback(self._library.sglk_pool_destroy, pool)
        return pool

    def create_plan(self, code: PlanCode, known: Mapping[str, int] = MappingProxyType({})) -> int:
        """A plan ready to run; ``known``: addresses of functions that are not in the library."""
        kernels = self.addresses(code.kernels, known)
        words = code.words
        plan = self._create(
            self._library.sglk_plan_create,
            words.ctypes.data, len(words), kernels.ctypes.data, len(kernels),
        )  # fmt: skip
        self._owned.callback(self._library.sglk_plan_destroy, plan)
        return plan

    def _create(self, function: ctypes._NamedFuncPointer, *arguments: int) -> int:
        handle, message = ctypes.c_void_p(), ctypes.create_string_buffer(MESSAGE_BYTES)
        result = function(*arguments, ctypes.byref(handle), message, MESSAGE_BYTES)
        if result != OK or handle.value is None:
            raise DeviceError(f"{self.where}: {message.value.decode()}")
        return handle.value

    def close(self) -> None:
        """Free plans and pools, whose threads end, and unload; safe to call twice."""
        self._owned.close()
