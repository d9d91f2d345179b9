"""Reading device memory on the host, through pinned memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ....errors import DeviceError
from .driver import Driver, Handle, Pinned

BOUNCE_BYTES = 4 << 20


class Reader:
    """Copies from and to the device that the caller waits for."""

    def __init__(self, driver: Driver, stream: Handle) -> None:
        self._driver = driver
        self._stream = stream
        self._pinned: Pinned | None = None

    def _bounce(self) -> Pinned:
        if self._pinned is None:
            self._pinned = self._driver.allocate_pinned(BOUNCE_BYTES, "copies")
        return self._pinned

    def read(self, address: int, num_bytes: int) -> NDArray[np.uint8]:
        """The content of a range after all work queued so far."""
        self._driver.use()
        bounce = self._bounce()
        found = np.empty(num_bytes, np.uint8)
        for start in range(0, num_bytes, BOUNCE_BYTES):
            size = min(BOUNCE_BYTES, num_bytes - start)
            self._driver.copy_out(bounce.address, address + start, size, self._stream)
            self._driver.synchronize(self._stream)
            found[start : start + size] = bounce.array[:size]
        return found

    def write(self, address: int, data: NDArray[np.uint8]) -> None:
        """Set a range after all work queued so far."""
        self._driver.use()
        bounce = self._bounce()
        for start in range(0, len(data), BOUNCE_BYTES):
            part = data[start : start + BOUNCE_BYTES]
            bounce.array[: len(part)] = part
            self._driver.copy_in(address + start, bounce.address, len(part), self._stream)
            self._driver.synchronize(self._stream)

    def close(self) -> None:
        """Free the pinned memory; safe to call twice."""
        if self._pinned is not None:
            self._driver.free_pinned(self._pinned)
            self._pinned = None


class DeviceLogits:
    """Implements `Logits`: rows come to the host when they are asked for."""

    def __init__(self, reader: Reader, address: int, rows: int, vocab_size: int) -> None:
        self.shape = (rows, vocab_size)
        self._reader = reader
        self._address = address
        self._is_valid = True

    def expire(self) -> None:
        """The memory has other content from now on."""
        self._is_valid = False

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, row: int, /) -> NDArray[np.float32]:
        rows, vocab_size = self.shape
        at = row + rows if row < 0 else row
        if not 0 <= at < rows:
            raise IndexError(f"logits: expected a row below {rows}, got {row}")
        self._check()
        num_bytes = 4 * vocab_size
        return self._reader.read(self._address + at * num_bytes, num_bytes).view(np.float32)

    def __array__(
        self, dtype: np.dtype[np.generic] | None = None, copy: bool | None = None
    ) -> NDArray[np.float32]:
        self._check()
        rows, vocab_size = self.shape
        found = self._reader.read(self._address, 4 * rows * vocab_size).view(np.float32)
        return found.reshape(self.shape).astype(dtype or np.float32, copy=False)

    def _check(self) -> None:
        if not self._is_valid:
            raise DeviceError("cuda: these logits are gone: a later step has overwritten them")
