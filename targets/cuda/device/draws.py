"""Random tokens for rows of a step that has run: the program "sample" on its own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ....errors import ArtifactError, DeviceError
from ...device import Int32s
from .bound_program import BoundProgram, Launches
from .driver import Driver, Handle, Pinned
from .memory import DeviceMemory
from .recipes import IDS, LOGITS
from .step_layout import DRAW_FIELDS, LIKELIEST

PARAMETERS = ("draws", "")
_DTYPES: dict[str, np.dtype[np.generic]] = {
    name: np.dtype(kind)
    for name, kind in {"i32": np.int32, "f32": np.float32, "f64": np.float64}.items()
}
_FIELD_BYTES = 8


class Draws:
    """Parameters in, tokens out; launches for each number of rows."""

    def __init__(
        self,
        driver: Driver,
        stream: Handle,
        memory: DeviceMemory,
        program: BoundProgram,
    ) -> None:
        self._driver = driver
        self._stream = stream
        self._memory = memory
        self._program = program
        self.dtypes = _dtypes(program, driver.where)
        """By parameter: the type that the program reads."""
        self._pinned: Pinned | None = None
        self._launches: dict[int, Launches] = {}
        self._generation = memory.generation

    def sample(self, rows: NDArray[np.void], count: int) -> Int32s:
        """A token for each of these different rows of the `count` that the logits have, padded."""
        if len(rows) == 0:
            return np.zeros(0, np.int32)
        if len(set(rows["row"].tolist())) != len(rows):
            raise DeviceError(f"{self._driver.where}: sample: expected every row once")
        driver = self._driver
        pinned = self._ensure(self.num_bytes(count))
        self.fill(pinned.array, rows, count)
        launches = self.prepared(count)
        self.copy_in(pinned.address, count)
        driver.launch(launches.calls)
        driver.copy_out(pinned.address, self._memory.address(IDS), 4 * count, self._stream)
        driver.synchronize(self._stream)
        ids: Int32s = pinned.array[: 4 * count].view(np.int32)
        chosen: Int32s = ids[rows["row"]]
        return chosen

    def num_bytes(self, count: int) -> int:
        """Bytes that the parameters of so many rows take."""
        return len(self.dtypes) * count * _FIELD_BYTES

    def fill(self, block: NDArray[np.uint8], rows: NDArray[np.void], count: int) -> None:
        """Write the parameters; rows that are not named take their likeliest token."""
        for number, (name, dtype) in enumerate(self.dtypes.items()):
            start = number * count * _FIELD_BYTES
            view = block[start : start + count * dtype.itemsize].view(dtype)
            view[:] = LIKELIEST[name]
            view[rows["row"]] = rows[name]

    def copy_in(self, address: int, count: int) -> None:
        """Queue the copy of parameters from the host to where the launches read them."""
        target = self._memory.address(PARAMETERS)
        self._driver.copy_in(target, address, self.num_bytes(count), self._stream)

    def prepared(self, count: int) -> Launches:
        """What chooses tokens for so many rows of logits."""
        self._memory.ensure(PARAMETERS, self.num_bytes(count))
        if self._generation != self._memory.generation:
            self._launches.clear()
        if count not in self._launches:
            start, stride = self._memory.address(PARAMETERS), count * _FIELD_BYTES
            places = {n: (start + i * stride, stride) for i, n in enumerate(self.dtypes)}
            places["logits"] = (self._memory.address(LOGITS), self._memory.num_bytes(LOGITS))
            self._launches[count] = self._program.prepare({"rows": count}, places)
        self._generation = self._memory.generation
        return self._launches[count]

    def _ensure(self, num_bytes: int) -> Pinned:
        if self._pinned is None or len(self._pinned.array) < num_bytes:
            self.close()
            self._pinned = self._driver.allocate_pinned(num_bytes, "sampling")
        return self._pinned

    def close(self) -> None:
        """Free the pinned memory; safe to call twice."""
        if self._pinned is not None:
            self._driver.free_pinned(self._pinned)
            self._pinned = None


def _dtypes(program: BoundProgram, where: str) -> dict[str, np.dtype[np.generic]]:
    inputs = {b.name: b.dtype for b in program.code.inputs if b.name != "logits"}
    if set(inputs) - set(DRAW_FIELDS) or set(inputs.values()) - set(_DTYPES):
        raise ArtifactError(
            f"{where}: sample: expected inputs of {DRAW_FIELDS} as {', '.join(_DTYPES)},"
            f" got {inputs}"
        )
    return {name: _DTYPES[dtype] for name, dtype in inputs.items()}
