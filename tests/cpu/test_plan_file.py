"""Plans as members of an artifact: they come back as they were, and damage is one sentence."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from sglk.errors import ArtifactError
from sglk.targets.artifact import Artifact, ArtifactWriter, Bucket, Program
from sglk.targets.cpu.device import CpuDevice
from sglk.targets.cpu.device.plan_code import PlanCode, encode
from sglk.targets.cpu.device.plan_file import from_bytes, plan_of, to_bytes


def _program(toy: Any) -> Program:
    """y = x + w * 0.5 up to four elements, twice that for more."""
    buffers = [
        toy.buffer("input", "x", "f32", "tokens"),
        toy.buffer("output", "y", "f32", "tokens"),
        toy.buffer("temp", "t", "f32", "tokens"),
        toy.buffer("state", "kv", "i32", "num_pages"),
    ]
    half = toy.call(
        "add", "cdiv(tokens, 3)", "buffer x", "weight w", "buffer y", "i32 tokens", "f32 0.5"
    )
    one = toy.call(
        "add", "cdiv(tokens, 3)", "buffer x", "weight w", "buffer y", "i32 tokens", "f32 1"
    )
    program: Program = toy.program(
        "forward", "tokens", buffers, Bucket(4, (half,)), Bucket(None, (half, one)),
        arena="tokens * 4",
    )  # fmt: skip
    return program


def _same(a: PlanCode, b: PlanCode) -> bool:
    plain = {f.name: getattr(a, f.name) == getattr(b, f.name)
             for f in dataclasses.fields(a) if f.name != "words"}  # fmt: skip
    return all(plain.values()) and bool(np.array_equal(a.words, b.words))


def test_a_plan_comes_back_as_it_was(toy: Any) -> None:
    plan = encode(_program(toy))
    assert _same(plan, from_bytes(to_bytes(plan)))


def test_a_stored_plan_runs_as_the_program_does(toy: Any) -> None:
    program = _program(toy)
    x = np.arange(7, dtype=np.float32)
    with toy.load(program) as executable:
        expected = executable.run("forward", {"x": x})["y"]
    path = toy.write(program)
    with Artifact.open(path) as artifact:
        manifest = {k: v for k, v in artifact.manifest.items() if k != "members"}
        members = {n: artifact.read(n) for n in artifact.names if n != "manifest.json"}
    members["programs/forward.json"] = b"{}"  # not read: the plan has everything
    with ArtifactWriter(path) as writer:
        for name, data in members.items():
            if name.startswith("weights/"):
                writer.add_blob([data])
            else:
                writer.add_bytes(name, data)
        writer.add_bytes("plans/forward.plan", to_bytes(encode(program)))
        writer.finish(manifest | {"plans": {"forward": "plans/forward.plan"}})
    with Artifact.open(path) as artifact:
        executable = CpuDevice().load(artifact, num_pages=2, max_tokens=8, num_threads=2)
    with executable:
        np.testing.assert_array_equal(executable.run("forward", {"x": x})["y"], expected)
        executable.start_profile()
        executable.run("forward", {"x": x})
        assert [(t.bucket, t.kernel) for t in executable.profile("forward")] == [
            (0, "add"), (1, "add"), (1, "add"),
        ]  # fmt: skip


def _with_head(data: bytes, **changes: Any) -> bytes:
    length = int.from_bytes(data[:8], "little")
    head = json.dumps(json.loads(data[8 : 8 + length]) | changes).encode()
    words = data[8 + length + -length % 8 :]
    return len(head).to_bytes(8, "little") + head + bytes(-len(head) % 8) + words


@pytest.mark.parametrize(
    "changes",
    [
        {"symbols": ["tokens"]},
        {"symbols": ["num_pages", "tokens"]},
        {"own_symbols": ["tokens", "more"]},
        {"bases": [["arena", ""]]},
        {"bases": [["arena", ""]] * 5},
        {"kernels": ["add", "add"]},
        {"calls": [[[0, 0]]]},
        {"calls": [[[1, 0]], [[0, 0], [0, 0]]]},
        {"inputs": 3},
        {"arena_bytes": None},
        {"more": 1},
    ],
)
def test_heads_that_do_not_fit_the_words_are_refused(toy: Any, changes: dict[str, Any]) -> None:
    data = to_bytes(encode(_program(toy)))
    with pytest.raises(ArtifactError, match="plan: "):
        from_bytes(_with_head(data, **changes))


@pytest.mark.parametrize("cut", [0, 7, 8, 100, -1, -8])
def test_plans_cut_short_are_refused(toy: Any, cut: int) -> None:
    data = to_bytes(encode(_program(toy)))
    assert from_bytes(_with_head(data)).entry == "forward"
    if cut == -8:  # whole words: the player sees that some are missing
        assert len(from_bytes(data[:cut]).words) == len(from_bytes(data).words) - 1
        return
    with pytest.raises(ArtifactError, match="plan: expected"):
        from_bytes(data[:cut])


def test_a_plan_of_other_weights_is_refused(toy: Any) -> None:
    program = _program(toy)
    plan = encode(program)
    data = to_bytes(dataclasses.replace(plan, bases=(*plan.bases[:-1], ("weight", "v"))))
    path = toy.write(program)
    with Artifact.open(path) as artifact:
        artifact.manifest["plans"] = {"forward": "programs/forward.json"}
        artifact.view = lambda name: memoryview(data)  # type: ignore[method-assign]
        with pytest.raises(ArtifactError, match="does not fit: no weight 'v'"):
            plan_of(artifact, "forward")
