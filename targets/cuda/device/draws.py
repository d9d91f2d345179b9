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
        pinned = self._ensure(count)
        stride = count * _FIELD_BYTES
        for number, (name, dtype) in enumerate(self.dtypes.items()):
            start = number * stride
            view = pinned.array[start : start + count * dtype.itemsize].view(dtype)
            view[:] = LIKELIEST[name]
            view[rows["row"]] = rows[name]
        launches = self._prepared(count, stride)
        num_bytes = len(self.dtypes) * stride
        driver.copy_in(self._memory.address(PARAMETERS), pinned.address, num_bytes, self._stream)
        driver.launch(launches.calls)
        driver.copy_out(pinned.address, self._memory.address(IDS), 4 * count, self._stream)
        driver.synchronize(self._stream)
        ids: Int32s = pinned.array[: 4 * count].view(np.int32)
        chosen: Int32s = ids[rows["row"]]
        return chosen

    def _ensure(self, count: int) -> Pinned:
        num_bytes = len(DRAW_FIELDS) * count * _FIELD_BYTES
        self._memory.ensure(PARAMETERS, num_bytes)
        if self._pinned is None or len(self._pinned.array) < num_bytes:
            self.close()
            self._pinned = self._driver.allocate_pinned(num_bytes, "sampling")
        return self._pinned

    def _prepared(self, count: int, stride: int) -> Launches:
        if self._generation != self._memory.generation:
            self._launches.clear()
        if count not in self._launches:
            start = self._memory.address(PARAMETERS)
            places = {n: (start + i * stride, stride) for i, n in enumerate(self.dtypes)}
            places["logits"] = (self._memory.address(LOGITS), self._memory.num_bytes(LOGITS))
            self._launches[count] = self._program.prepare({"rows": count}, places)
        self._generation = self._memory.generation
        return self._launches[count]

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
