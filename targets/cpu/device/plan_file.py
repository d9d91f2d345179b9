"""A `PlanCode` as a member of the artifact: encoded when the model is compiled, not at each load.

    8 bytes      length of the head, little endian
    head         JSON: names and sizes, everything of `PlanCode` but the words
    zeros        up to a multiple of 8
    words        int64, little endian (native/player.h has their form)

The program's JSON stays beside it: `sglk show` prints it, and a plan follows from it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....errors import ArtifactError
from ...artifact import LOAD_SYMBOLS, Artifact, Buffer
from ...artifact.schema import as_int, as_list, as_name, as_record, as_text, load_json
from .plan_code import PlanCode, encode

_LENGTH_BYTES = 8
_MAX_HEAD = 1 << 28
_HEAD = (
    "entry", "symbols", "own_symbols", "bases", "kernels", "inputs", "outputs", "states",
    "arena_bytes", "ops", "calls",
)  # fmt: skip
_BUFFER = tuple(field.name for field in dataclasses.fields(Buffer))


def plan_of(artifact: Artifact, entry: str) -> PlanCode:
    """The plan of an entry point: as the artifact has it, else encoded from its program."""
    member = artifact.plans.get(entry)
    if member is None:
        return encode(artifact.program(entry))
    where = f"{artifact.path}: {member}"
    plan = from_bytes(artifact.view(member), where)
    missing = [name for name in plan.weights if name not in artifact.weights]
    if plan.entry != entry or missing:
        what = f"no weight {missing[0]!r}" if missing else f"it calls itself {plan.entry!r}"
        raise ArtifactError(f"{where}: the plan does not fit: {what}")
    return plan


def to_bytes(plan: PlanCode) -> bytes:
    """The member's content."""
    ops = list(dict.fromkeys(op for calls in plan.calls for _, op in calls))
    kernels = {name: number for number, name in enumerate(plan.kernels)}
    numbers = {op: number for number, op in enumerate(ops)}
    head: dict[str, Any] = {key: getattr(plan, key) for key in _HEAD if key != "ops"}
    for key in ("inputs", "outputs", "states"):
        head[key] = [dataclasses.asdict(buffer) for buffer in head[key]]
    head["ops"] = ops
    head["calls"] = [[[kernels[k], numbers[op]] for k, op in calls] for calls in plan.calls]
    text = json.dumps(head, separators=(",", ":")).encode()
    length = len(text).to_bytes(_LENGTH_BYTES, "little")
    return length + text + bytes(-len(text) % 8) + plan.words.astype("<i8").tobytes()


def from_bytes(data: bytes | memoryview, where: str = "plan") -> PlanCode:
    """Read what `to_bytes` wrote; the player checks the words again when it takes them."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + length + -length % 8
    if length > _MAX_HEAD or start > len(data) or (len(data) - start) % 8:
        raise ArtifactError(f"{where}: expected a head and whole words, got {len(data)} bytes")
    value = load_json(where, bytes(data[_LENGTH_BYTES : _LENGTH_BYTES + length]))
    head = as_record(where, value, _HEAD)
    kernels = _names(f"{where}: kernels", head["kernels"])
    plan = PlanCode(
        entry=as_name(f"{where}: entry", head["entry"]),
        words=np.frombuffer(data[start:], "<i8").astype(np.int64),
        symbols=_names(f"{where}: symbols", head["symbols"]),
        own_symbols=_names(f"{where}: own_symbols", head["own_symbols"]),
        bases=tuple(_base(f"{where}: bases", item) for item in as_list(where, head["bases"])),
        kernels=kernels,
        inputs=_buffers(f"{where}: inputs", head["inputs"]),
        outputs=_buffers(f"{where}: outputs", head["outputs"]),
        states=_buffers(f"{where}: states", head["states"]),
        arena_bytes=as_text(f"{where}: arena_bytes", head["arena_bytes"]),
        calls=_calls(f"{where}: calls", head["calls"], kernels, head["ops"]),
    )
    _check_counts(plan, where)
    return plan


def _check_counts(plan: PlanCode, where: str) -> None:
    """The words count on as many symbols, bases and kernels as there are names."""
    found = [len(plan.symbols), len(plan.bases), len(plan.kernels), len(plan.calls)]
    counted = plan.words[[2, 4, 5, 6]].tolist() if len(plan.words) > 6 else []
    needed = [(b.kind, b.name) for b in (*plan.inputs, *plan.outputs, *plan.states)]
    if found != counted or set(needed) - set(plan.bases) or len(set(plan.bases)) != found[1]:
        raise ArtifactError(
            f"{where}: expected symbols, bases, kernels and buckets {counted}, got {found}"
        )
    own = len(plan.own_symbols)
    if plan.symbols[:own] != plan.own_symbols or set(plan.symbols[own:]) - set(LOAD_SYMBOLS):
        raise ArtifactError(f"{where}: expected {plan.own_symbols} first, got {plan.symbols}")


def _names(where: str, value: object) -> tuple[str, ...]:
    return tuple(as_name(where, item) for item in as_list(where, value))


def _base(where: str, value: object) -> tuple[str, str]:
    kind, name = as_list(where, value, 2)
    return as_name(where, kind), as_text(where, name)


def _buffers(where: str, value: object) -> tuple[Buffer, ...]:
    return tuple(_buffer(where, item) for item in as_list(where, value))


def _buffer(where: str, value: object) -> Buffer:
    record = as_record(where, value, _BUFFER)
    texts = {key: as_text(where, item) for key, item in record.items() if key != "shape"}
    shape = tuple(as_text(where, item) for item in as_list(where, record["shape"]))
    return Buffer(shape=shape, **texts)


def _calls(
    where: str, value: object, kernels: Sequence[str], ops: object
) -> tuple[tuple[tuple[str, str], ...], ...]:
    names = [as_text(where, op, 512) for op in as_list(where, ops)]
    buckets = []
    for bucket in as_list(where, value):
        pairs = [as_list(where, pair, 2) for pair in as_list(where, bucket)]
        buckets.append(tuple((_at(where, kernels, k), _at(where, names, o)) for k, o in pairs))
    return tuple(buckets)


def _at(where: str, names: Sequence[str], number: object) -> str:
    return names[as_int(where, number, high=len(names) - 1)]
