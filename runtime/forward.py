"""A compiled module that is no decoder: called with arrays, it gives arrays."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from ..errors import RequestError
from ..targets.artifact import Artifact
from ..targets.device import Executable, host_ops_of
from ..targets.registry import open_device

Arrays = NDArray[Any] | tuple[NDArray[Any], ...]


class ForwardModel:
    """``model(x, mask)`` or ``model(x=x, mask=mask)``: inputs by position or name, as captured."""

    def __init__(self, executable: Executable, artifact: Artifact, entry: str) -> None:
        program = artifact.program(entry)
        self.input_names = tuple(buffer.name for buffer in program.inputs)
        self._dtypes = {b.name: np.dtype(_NUMPY[b.dtype]) for b in program.inputs}
        self._outputs = tuple(buffer.name for buffer in program.outputs)
        model = cast(dict[str, Any], artifact.manifest["model"])
        limits = cast(dict[str, int], model.get("limits", {}))
        self._limits = [
            (buffer.name, axis, size, limits[size])
            for buffer in program.inputs
            for axis, size in enumerate(buffer.shape)
            if size in limits
        ]
        self._executable, self._artifact, self._entry = executable, artifact, entry

    def __call__(self, *args: NDArray[Any], **kwargs: NDArray[Any]) -> Arrays:
        """Outputs in the module's order; a single one is not wrapped."""
        given = {**dict(zip(self.input_names, args, strict=False)), **kwargs}
        if len(args) + len(kwargs) != len(given) or set(given) != set(self.input_names):
            got = f"{len(args)} by position and {sorted(kwargs)}"
            raise RequestError(f"inputs: expected {', '.join(self.input_names)}, got {got}")
        arrays = {n: fitting(a, self._dtypes[n], n) for n, a in given.items()}
        for name, axis, size, limit in self._limits:
            if arrays[name].ndim > axis and arrays[name].shape[axis] > limit:
                got = arrays[name].shape[axis]
                raise RequestError(f"input {name}: expected {size} of at most {limit}, got {got}")
        results = self._executable.run(self._entry, arrays)
        ordered = tuple(results[name] for name in self._outputs)
        return ordered[0] if len(ordered) == 1 else ordered

    def host_ops(self) -> dict[str, tuple[int, float]]:
        """Calls and seconds of ops that the host did for the device; {} on most models."""
        return host_ops_of(self._executable)

    def close(self) -> None:
        """Give the device and the file back."""
        self._executable.close()
        self._artifact.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


_NUMPY = {
    **{"f32": "f4", "f16": "f2", "i64": "i8", "i32": "i4", "i16": "i2", "i8": "i1"},
    **{"u64": "u8", "u32": "u4", "u16": "u2", "u8": "u1", "bool": "?"},
}


def fitting(array: Any, dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    """An input in the type that a graph takes; numbers that do not fit it are refused."""
    given = np.asarray(array)
    with np.errstate(over="ignore"):
        found = np.asarray(given, dtype, order="C")
    if dtype == given.dtype or not found.size:
        return found
    whole = dtype.kind in "iu"
    if not (np.array_equal(found, given) if whole else _stays_finite(given, found)):
        raise RequestError(
            f"input {name}: expected numbers that fit {dtype}, got {given.min()} to {given.max()}"
        )
    return found


def _stays_finite(given: NDArray[Any], found: NDArray[Any]) -> bool:
    if given.dtype.kind != "f" or given.dtype.itemsize <= found.dtype.itemsize:
        return True
    return np.array_equal(np.isinf(given), np.isinf(found))


def load_forward(
    path: str | Path, device: str | None = None, num_threads: int | None = None
) -> ForwardModel:
    """Load the artifact of a plain module onto a device (default: the one it was compiled for)."""
    artifact = Artifact.open(path)
    try:
        entry = artifact.entries[0]
        if entry == "step":
            raise RequestError(f"{path}: expected a plain module, got a decoder (use sglk.load)")
        target = cast(dict[str, Any], artifact.manifest["target"])
        opened = open_device(device or str(target["name"]))
        executable = opened.load(artifact, num_pages=1, max_tokens=1, num_threads=num_threads)
    except BaseException:
        artifact.close()
        raise
    return ForwardModel(executable, artifact, entry)
