"""Plans read back as they were; a damaged one is refused, whatever the damage."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sglk.errors import ArtifactError
from sglk.targets.cuda.device.plan_file import code_of, from_bytes, to_bytes
from sglk.targets.cuda.device.program_code import ProgramCode, encode


def parts(code: ProgramCode) -> tuple[object, ...]:
    """Everything of a code, tables as lists."""
    plain = [getattr(code, f.name) for f in dataclasses.fields(code) if f.name != "buckets"]
    tables = [(b.tokens_max, b.calls.tolist(), b.extents.tolist(), b.slots.tolist())
              for b in code.buckets]  # fmt: skip
    return (*plain, tables)


def test_plans_read_back(toy: Any) -> None:
    for program in toy.PROGRAMS:
        code = encode(program)
        assert parts(from_bytes(to_bytes(code))) == parts(code)


def test_an_artifact_may_bring_its_plan(tmp_path: Path, toy: Any) -> None:
    plans = {program.entry: to_bytes(encode(program)) for program in toy.PROGRAMS}
    with toy.write_artifact(tmp_path / "a.sglk", plans=plans) as artifact:
        assert parts(code_of(artifact, "step")) == parts(encode(toy.PROGRAMS[0]))
    plans["step"] = plans["argmax"]
    with (
        toy.write_artifact(tmp_path / "b.sglk", plans=plans) as artifact,
        pytest.raises(ArtifactError, match=r"the plan does not fit: it calls itself 'argmax'"),
    ):
        code_of(artifact, "step")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda data: data[:12], "expected a plan of version 1, got version 0"),
        (lambda data: b"\2" + data[1:], "got version 2"),
        (lambda data: data[:-8], r"expected \d+ words, got"),
        (lambda data: data + bytes(8), r"expected \d+ words, got"),
        (lambda data: data[:-16] + b"\xff" * 8 + data[-8:], "contradicts itself"),
        (lambda data: data.replace(b'"tokens"', b'"tocens"', 1), "unknown symbol"),
        (lambda data: data.replace(b'["arena",""]', b'["arema",""]'), "contradicts itself"),
    ],
)
def test_damage_is_refused(toy: Any, change: Any, sentence: str) -> None:
    with pytest.raises(ArtifactError, match=sentence):
        from_bytes(change(to_bytes(encode(toy.PROGRAMS[0]))))


def test_random_damage_never_gets_through_as_another_error(toy: Any) -> None:
    """A wrong word is refused, or a plan whose numbers are all within their tables."""
    data = to_bytes(encode(toy.PROGRAMS[0]))
    rng = random.Random(5)
    for _ in range(300):
        damaged = bytearray(data)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        try:
            code = from_bytes(bytes(damaged))
        except ArtifactError:
            continue
        for bucket in code.buckets:
            assert np.all(bucket.slots[:, 2] < len(code.sizes))
            assert len(bucket.kinds) == len(bucket.calls)
