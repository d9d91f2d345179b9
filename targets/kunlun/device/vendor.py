"""The vendor's operators at run time: an adapter library with the face of `vendor_adapter.h`.

The emulator's library has that face itself; on a chip `SGLK_KUNLUN_ADAPTER` names the library. All
that an artifact calls is looked up when it is loaded: a missing operator is no surprise later.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import DeviceError
from .library import XreLibrary

PREFIX = "vendor."
"""What symbols of such calls start with."""
VERSION = 1
"""`SGLK_VENDOR_VERSION`."""
_FACE: dict[str, tuple[Any, list[Any]]] = {
    "sglk_vendor_version": (ctypes.c_int, []),
    "sglk_vendor_has": (ctypes.c_int, [ctypes.c_char_p]),
    "sglk_vendor_call": (
        ctypes.c_int, [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
    ),
    "sglk_vendor_message": (ctypes.c_char_p, []),
}  # fmt: skip


class VendorAdapter:
    """A loaded adapter beside the runtime that it works on."""

    def __init__(self, library: XreLibrary, path: str = "") -> None:
        self._library = library
        self.where = path or library.where
        handle = _opened(path) if path else library.handle
        missing = [name for name in _FACE if not hasattr(handle, name)]
        if missing:
            raise DeviceError(
                f"{self.where}: expected an adapter with {missing[0]} (the artifact calls the "
                "vendor's operators: name an adapter in SGLK_KUNLUN_ADAPTER)"
            )
        self._functions = {name: getattr(handle, name) for name in _FACE}
        for name, (result, arguments) in _FACE.items():
            self._functions[name].restype, self._functions[name].argtypes = result, arguments
        version = self._functions["sglk_vendor_version"]()
        if version != VERSION:
            raise DeviceError(
                f"{self.where}: expected an adapter of version {VERSION}, got {version}"
            )

    def require(self, symbols: Iterable[str]) -> None:
        """Refuse unless every one of these calls is there."""
        names = [symbol.removeprefix(PREFIX) for symbol in symbols]
        missing = [n for n in names if not self._functions["sglk_vendor_has"](n.encode())]
        if missing:
            raise DeviceError(
                f"{self.where}: expected the vendor's operators {', '.join(names)}, got none for "
                f"{', '.join(missing)} (update the adapter, or take them out of vendor_operators)"
            )

    def call(self, name: bytes, slots: NDArray[np.int64], stream: int) -> None:
        """Queue one call."""
        call = self._functions["sglk_vendor_call"]
        if code := call(name, stream, slots.ctypes.data, len(slots)):
            said = self._functions["sglk_vendor_message"]()
            raise self._library.error(f"vendor operator {name.decode()}", code, said)


def _opened(path: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise DeviceError(
            f"SGLK_KUNLUN_ADAPTER: expected a library at {path}, got: {error}"
        ) from error


def slots_of(values: Iterable[int | float], kinds: Iterable[str]) -> NDArray[np.int64]:
    """Pointers and integers as they are; floats in the low four bytes."""
    found = [
        int(np.float32(value).view(np.uint32)) if kind == "f32" else int(value)
        for value, kind in zip(values, kinds, strict=True)
    ]
    return np.array(found, np.int64)
