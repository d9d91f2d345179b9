"""What an executable refuses: programs that are no step, rows that a step has not."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from ....errors import ArtifactError, DeviceError
from ...device import STEP_FIELDS, StepSizes
from .program_code import ProgramCode

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


def check_place(code: ProgramCode, where: str) -> None:
    """Refuse artifacts whose steps cannot go on by themselves, as those of older versions."""
    inputs = sorted(buffer.name for buffer in code.inputs)
    if "turn" not in inputs:
        raise ArtifactError(
            f"{where}: place_tokens: expected an input turn, got {inputs} (compile the model again)"
        )


def check_rows(rows: NDArray[Any], count: int, where: str) -> None:
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < count:
        raise DeviceError(
            f"{where}: expected rows of the last step's {count} logits, got {rows.tolist()[:20]}"
        )
