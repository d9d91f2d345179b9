"""libxpurt through ctypes: the vendor's by name, or the emulator's from its bytes.

Only what the library exports is used: the driver does not know which of the two it talks to. The
emulator's own functions (`xpuemu_*`) give better sentences and counts where they exist.
"""

from __future__ import annotations

import _ctypes
import contextlib
import ctypes
import os
import tempfile
from pathlib import Path
from typing import Any

from ....errors import DeviceError
from .error_table import describe

VENDOR_LIBRARY = "libxpurt.so"
_INT, _U32, _U64, _SIZE = ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t
_POINTER, _TEXT = ctypes.c_void_p, ctypes.c_char_p
_OUT = ctypes.POINTER(ctypes.c_void_p)
_PROTOTYPES: dict[str, list[Any]] = {
    "xpu_device_count": [ctypes.POINTER(_INT)],
    "xpu_set_device": [_INT],
    "xpu_current_device": [ctypes.POINTER(_INT)],
    "xpu_device_get_attr": [ctypes.POINTER(_U64), _INT, _INT],
    "xpu_malloc": [_OUT, _U64, _INT],
    "xpu_free": [_POINTER],
    "xpu_host_alloc": [_OUT, _U64, _U32],
    "xpu_host_free": [_POINTER],
    "xpu_memcpy": [_POINTER, _POINTER, _U64, _INT],
    "xpu_memcpy_async": [_POINTER, _POINTER, _U64, _INT, _POINTER],
    "xpu_stream_create": [_OUT],
    "xpu_stream_destroy": [_POINTER],
    "xpu_stream_wait_event": [_POINTER, _POINTER],
    "xpu_wait": [_POINTER],
    "xpu_event_create": [_OUT],
    "xpu_event_destroy": [_POINTER],
    "xpu_event_record": [_POINTER, _POINTER],
    "xpu_event_wait": [_POINTER],
    "load_binary": [_TEXT, _TEXT, _U64, _INT, _U32, _OUT],
    "xpu_launch_argument_set": [_TEXT, _SIZE, _SIZE],
    "xpu_launch_config": [_INT, _INT, _POINTER],
    "xpu_launch_async": [_POINTER],
}


class Counters(ctypes.Structure):
    """`xpuemu_counters`."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in (
            "gm_read", "gm_written", "lm", "sm", "uni_sram", "descriptors", "scalars", "macs",
            "lanes", "programs", "launches", "copies", "copied_bytes",
        )),
        ("nanoseconds", ctypes.c_double),
    )  # fmt: skip


_EMULATED: dict[str, list[Any]] = {
    "xpuemu_configure": [_TEXT],
    "xpuemu_counters_of": [_TEXT, ctypes.POINTER(Counters)],
    "xpuemu_kernel_name": [_INT, ctypes.POINTER(_TEXT)],
    "xpuemu_reset_counters": [],
    "xpuemu_lose_device": [_INT, ctypes.c_int64],
}


class XreLibrary:
    """A loaded library; `call` raises where a function returns a code."""

    def __init__(self, where: str, handle: ctypes.CDLL, owned: contextlib.ExitStack) -> None:
        self.where = where
        self._handle = self.handle = handle
        self._owned = owned
        self._bind(_PROTOTYPES)
        self.is_emulated = hasattr(handle, "xpuemu_message")
        if self.is_emulated:
            self._bind(_EMULATED)
            handle.xpuemu_message.restype = _TEXT

    @staticmethod
    def vendor(name: str = VENDOR_LIBRARY) -> XreLibrary:
        """The installed runtime."""
        try:
            handle = ctypes.CDLL(name)
        except OSError as error:
            raise DeviceError(
                f"kunlun: expected {name} on this machine, got: {error}"
                " (install XRE and source its environment, or run with --device emulator)"
            ) from error
        return XreLibrary(name, handle, contextlib.ExitStack())

    @staticmethod
    def from_bytes(where: str, data: bytes | memoryview) -> XreLibrary:
        """A library that travels in an artifact."""
        owned = contextlib.ExitStack()
        return XreLibrary(where, load_bytes(where, data, owned), owned)

    def close(self) -> None:
        """Unload a library of ours; safe to call twice."""
        self._owned.close()

    def call(self, name: str, *arguments: object) -> None:
        """Call a function; a code other than 0 becomes a `DeviceError`."""
        code = getattr(self._handle, name)(*arguments)
        if code:
            raise self.error(name, code)

    def function(self, name: str) -> Any:
        """A bare function, for loops where a call must cost little."""
        return getattr(self._handle, name)

    def error(self, name: str, code: int, message: bytes | None = None) -> DeviceError:
        """What a code means, with the library's own sentence where it has one."""
        row = describe(code)
        if message is None and self.is_emulated:
            message = self._handle.xpuemu_message()
        said = (message or b"").decode(errors="replace")
        text = f"{self.where}: {name}: {row.name} ({code}): {said or row.meaning} ({row.remedy})"
        return XreDeviceError(text, code)

    def _bind(self, prototypes: dict[str, list[Any]]) -> None:
        for name, arguments in prototypes.items():
            try:
                # Not handle[name], which makes a new function each time.
                function = getattr(self._handle, name)
            except AttributeError as error:
                raise DeviceError(
                    f"{self.where}: expected the function {name} in it (update XRE)"
                ) from error
            function.restype, function.argtypes = _INT, arguments


class XreDeviceError(DeviceError):
    """A failed call; `code` is what the runtime returned."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def load_bytes(where: str, data: bytes | memoryview, owned: contextlib.ExitStack) -> ctypes.CDLL:
    """A shared library from memory; it goes when `owned` is closed."""
    try:
        path = _memory_file(data, owned) or _disk_file(data, owned)
        handle = ctypes.CDLL(path)
    except OSError as error:
        owned.close()
        raise DeviceError(
            f"{where}: expected a library for this machine, got: {error} (compile it here)"
        ) from error
    owned.callback(_ctypes.dlclose, handle._handle)
    return handle


def _memory_file(data: bytes | memoryview, owned: contextlib.ExitStack) -> str | None:
    """Path of a file in memory; None where the system has none. Open as long as it is loaded."""
    try:
        descriptor = os.memfd_create("sglk-xpurt")
    except (AttributeError, OSError):
        return None
    owned.callback(os.close, descriptor)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)
    return f"/proc/self/fd/{descriptor}"


def _disk_file(data: bytes | memoryview, owned: contextlib.ExitStack) -> str:
    folder = owned.enter_context(tempfile.TemporaryDirectory(prefix="sglk-"))
    path = Path(folder) / "libxpurt_emulator.so"
    path.write_bytes(data)
    return str(path)
