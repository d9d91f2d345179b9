"""Device memory by purpose. What may grow has a generation: launches made before are then void."""

from __future__ import annotations

from ....errors import DeviceError
from .driver import Driver, Handle

ALIGNMENT = 256
"""Bytes; every region and every weight starts at a multiple."""
Name = tuple[str, str]
"""(kind, name), as in `program_code.Base`."""


def aligned(num_bytes: int) -> int:
    """Rounded up to `ALIGNMENT`."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


class DeviceMemory:
    """Named regions of one device, freed together."""

    def __init__(self, driver: Driver, stream: Handle) -> None:
        self._driver = driver
        self._stream = stream
        self._regions: dict[Name, tuple[int, int]] = {}
        self._owned: dict[Name, int] = {}
        self.generation = 0
        """Grows whenever a region moves."""

    def allocate(self, name: Name, num_bytes: int) -> int:
        """A new region; its address."""
        address = self._driver.allocate(num_bytes, " ".join(name).strip())
        self._owned[name] = address
        self._regions[name] = (address, num_bytes)
        return address

    def free(self, name: Name) -> None:
        """Give back a region that nothing uses any more."""
        self._driver.free(self._owned.pop(name))
        self._regions.pop(name)

    def place(self, name: Name, address: int, num_bytes: int) -> None:
        """Name a part of a region."""
        self._regions[name] = (address, num_bytes)

    def ensure(self, name: Name, num_bytes: int) -> None:
        """Make a region at least this large; growing loses its content and moves it."""
        if name in self._regions and num_bytes <= self._regions[name][1]:
            return
        # Half more than before at least, so that slowly growing steps do not move it each time.
        size = max(num_bytes, self.num_bytes(name) * 3 // 2)
        if name in self._owned:
            self._driver.synchronize(self._stream)
            self._driver.free(self._owned.pop(name))
            self._regions.pop(name)
            self.generation += 1
        self.allocate(name, aligned(size))

    def __contains__(self, name: Name) -> bool:
        return name in self._regions

    def address(self, name: Name) -> int:
        """Where a region is."""
        return self._region(name)[0]

    def num_bytes(self, name: Name) -> int:
        """Size of a region; 0 when there is none."""
        return self._regions[name][1] if name in self._regions else 0

    def sizes(self) -> dict[str, int]:
        """Bytes by kind of what was allocated."""
        found: dict[str, int] = {}
        for kind, name in self._owned:
            found[kind] = found.get(kind, 0) + self._regions[kind, name][1]
        return found

    def close(self) -> None:
        """Free everything; safe to call twice."""
        for address in self._owned.values():
            self._driver.free(address)
        self._owned.clear()
        self._regions.clear()

    def _region(self, name: Name) -> tuple[int, int]:
        if name not in self._regions:
            raise DeviceError(f"{self._driver.where}: no memory for {' '.join(name)}")
        return self._regions[name]
