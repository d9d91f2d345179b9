"""What an executable refuses: programs that are no step, rows that a step has not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numpy.typing import NDArray

from ....errors import ArtifactError, DeviceError
from ...device import STEP_FIELDS, StepSizes
from .program_code import ProgramCode
from .slots import MAX_IN_FLIGHT

STEP_SYMBOLS = frozenset({*StepSizes._fields, "num_pages"})


def check_step(code: ProgramCode, page_size: int, where: str) -> None:
    """Refuse a step program that wants other inputs than a step has."""
    inputs = {buffer.name: buffer.dtype for buffer in code.inputs}
    outputs = {buffer.name: buffer.dtype for buffer in code.outputs}
    if set(inputs) - set(STEP_FIELDS) or set(inputs.values()) - {"i32"}:
        raise ArtifactError(f"{where}: step: expected int32 inputs of {STEP_FIELDS}, got {inputs}")
    if outputs != {"logits": "f32"} or set(code.own_symbols) - STEP_SYMBOLS or page_size < 1:
        raise ArtifactError(
            f"{where}: step: expected an f32 output logits, symbols of {sorted(STEP_SYMBOLS)} and"
            f" a page_size, got {outputs}, {code.own_symbols} and {page_size}"
        )


WITH_STEPS = {"place_tokens": "turn", "argmax": "landing"}
"""Programs that run in the graph of a step alone, and an input that tells how they do."""


def check_beside(codes: Iterable[ProgramCode], where: str) -> None:
    """Refuse programs that know nothing of steps that follow, as those of older versions."""
    for code in codes:
        inputs = sorted(buffer.name for buffer in code.inputs)
        if WITH_STEPS[code.entry] not in inputs:
            raise ArtifactError(
                f"{where}: {code.entry}: expected an input {WITH_STEPS[code.entry]}, got {inputs}"
                " (compile the model again)"
            )


def check_named(entry: str, where: str) -> None:
    """Refuse to run by name what writes where words among its inputs say."""
    if entry in WITH_STEPS:
        raise DeviceError(
            f"{where}: expected a program to run by name, got {entry!r} (it runs with steps)"
        )


def check_ahead(can: bool, num_in_flight: int, num_rows: int, expected: int, where: str) -> None:
    """Refuse a step that cannot be queued."""
    if not can:
        raise DeviceError(f"{where}: this artifact cannot run steps ahead")
    if num_rows != expected:
        raise DeviceError(f"{where}: submit: expected {expected} rows, got {num_rows}")
    if num_in_flight == MAX_IN_FLIGHT:
        raise DeviceError(
            f"{where}: expected at most {MAX_IN_FLIGHT} steps in flight (collect one first)"
        )


def check_rows(rows: NDArray[Any], count: int, where: str) -> None:
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < count:
        raise DeviceError(
            f"{where}: expected rows of the last step's {count} logits, got {rows.tolist()[:20]}"
        )
