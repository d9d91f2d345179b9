"""Running an entry that is no decoder step: arrays by name in, arrays by name out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import ArtifactError, DeviceError
from ...artifact import Buffer
from ...artifact.border_types import BORDER_TYPES
from ...dim_code import parse
from .bound_program import BoundProgram
from .driver import Driver
from .memory import DeviceMemory, aligned
from .reader import Reader


def run_named(
    driver: Driver,
    memory: DeviceMemory,
    reader: Reader,
    program: BoundProgram,
    inputs: Mapping[str, NDArray[Any]],
) -> dict[str, NDArray[Any]]:
    """Run a program once and wait for it; symbols come from the shapes of the inputs."""
    buffers = {buffer.name: buffer for buffer in program.code.inputs}
    if set(inputs) != set(buffers):
        raise DeviceError(
            f"{driver.where}: program {program.entry}: expected inputs {sorted(buffers)},"
            f" got {sorted(inputs)}"
        )
    symbols = _symbols(program, buffers, inputs, driver.where)
    for name, array in inputs.items():
        memory.ensure(("input", name), aligned(array.nbytes))
        raw = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        reader.write(memory.address(("input", name)), raw)
    for name, num_bytes in program.output_bytes(symbols).items():
        memory.ensure(("output", name), num_bytes)
    places = {
        name: (memory.address(("input", name)), memory.num_bytes(("input", name)))
        for name in inputs
    }
    launches = program.prepare(symbols, places)  # holds the arguments that its calls point to
    driver.launch(launches.calls)
    return {
        buffer.name: _read(memory, reader, program, buffer, symbols)
        for buffer in program.code.outputs
    }


def _symbols(
    program: BoundProgram,
    buffers: Mapping[str, Buffer],
    inputs: Mapping[str, NDArray[Any]],
    where: str,
) -> dict[str, int]:
    """Symbol values that the shapes of the inputs give; every shape and type is checked."""
    symbols: dict[str, int] = {}
    for name, buffer in buffers.items():
        for text, extent in zip(buffer.shape, inputs[name].shape, strict=False):
            if text in program.code.own_symbols:
                symbols.setdefault(text, extent)
    missing = [name for name in program.code.own_symbols if name not in symbols]
    if missing:
        raise DeviceError(f"{where}: program {program.entry}: no input's shape gives {missing[0]}")
    for name, buffer in buffers.items():
        wanted = _extents(program, buffer, symbols), _dtype(buffer)
        if (inputs[name].shape, inputs[name].dtype) != wanted:
            raise DeviceError(
                f"{where}: input {name}: expected {wanted[1]} of shape {wanted[0]},"
                f" got {inputs[name].dtype} of shape {inputs[name].shape}"
            )
    return symbols


def _extents(program: BoundProgram, buffer: Buffer, symbols: Mapping[str, int]) -> tuple[int, ...]:
    known = (*program.code.own_symbols, "num_pages")
    return tuple(program.evaluate(parse(text, known), symbols) for text in buffer.shape)


def _dtype(buffer: Buffer) -> np.dtype[np.generic]:
    if buffer.dtype not in BORDER_TYPES:
        raise ArtifactError(
            f"cuda: {buffer.kind} {buffer.name}: expected a type of {sorted(BORDER_TYPES)},"
            f" got {buffer.dtype}"
        )
    return BORDER_TYPES[buffer.dtype]


def _read(
    memory: DeviceMemory,
    reader: Reader,
    program: BoundProgram,
    buffer: Buffer,
    symbols: Mapping[str, int],
) -> NDArray[Any]:
    shape, dtype = _extents(program, buffer, symbols), _dtype(buffer)
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    return reader.read(memory.address(("output", buffer.name)), size).view(dtype).reshape(shape)
