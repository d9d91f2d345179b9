"""Memory of the executable: zeroed by the system, backed only once touched, grown when needed."""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

from ....errors import DeviceError

PAGE_BYTES = mmap.PAGESIZE
# Reserving address space must not count as using memory: most of it stays untouched.
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)


class Memory:
    """A region that only grows. Growing gives a new region and loses the content."""

    def __init__(self, name: str, num_bytes: int = 0) -> None:
        self.name = name
        self.array: NDArray[np.uint8] = np.zeros(0, np.uint8)
        self.address = 0
        self.ensure(num_bytes)

    @property
    def num_bytes(self) -> int:
        """Size of the region."""
        return len(self.array)

    def ensure(self, num_bytes: int) -> None:
        """Make the region at least this large."""
        if num_bytes <= len(self.array):
            return
        # Half more than before at least, so that slowly growing steps do not map anew each time.
        rounded = max(num_bytes, len(self.array) * 3 // 2)
        rounded = -(-rounded // PAGE_BYTES) * PAGE_BYTES
        try:
            region = mmap.mmap(-1, rounded, flags=_FLAGS)
        except (OSError, ValueError, OverflowError) as error:
            raise DeviceError(
                f"cpu: no memory for {self.name}: {rounded / 2**20:,.1f} MiB asked"
                " (use fewer pages or a smaller batch)"
            ) from error
        self.array = np.frombuffer(region, np.uint8)
        self.address = self.array.ctypes.data
