"""Program: text and JSON round trips, and one sentence for every malformed field."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglk.errors import ArtifactError
from sglk.targets.artifact import Arg, Bucket, Buffer, Call, Program


def _program() -> Program:
    call = Call(
        kernel="embed_f32",
        grid=("cdiv(tokens, 4)", "min(seqs, 2)", "1"),
        args=(
            Arg("buffer", "token_ids"),
            Arg("weight", "model.embed_tokens.weight|lm_head", "tokens * 64"),
            Arg("state", "kv", "3 * num_pages * 64"),
            Arg("buffer", "t0", "max(tokens, 1)"),
            Arg("i32", "tokens - 1"),
            Arg("i64", "-5"),
            Arg("f32", "1e-06"),
        ),
        op="embedding",
    )
    return Program(
        entry="step",
        symbols=("tokens", "seqs", "pages", "rows"),
        inputs=(Buffer("token_ids", "i32", ("tokens",), "input", "0", "tokens * 4"),),
        outputs=(Buffer("logits", "f32", ("rows", "100"), "output", "0", "rows * 400"),),
        temps=(Buffer("t0", "f32", ("tokens", "64"), "temp", "align(seqs, 64)", "tokens * 256"),),
        states=(Buffer("kv", "f32", ("num_pages", "64"), "state", "0", "num_pages * 256"),),
        arena_bytes="align(seqs, 64) + tokens * 256",
        buckets=(Bucket(16, (call,)), Bucket(None, (call, dataclasses.replace(call, op="")))),
    )


def _set(path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    record = json.loads(_program().to_json())
    place = record
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return dict(record)


def test_text_and_json_round_trip() -> None:
    program = _program()
    assert Program.parse(program.as_text()) == program
    assert Program.from_json(program.to_json()) == program
    assert program.weights == ("model.embed_tokens.weight|lm_head",)
    assert program.kernels == ("embed_f32",)
    assert program.all_symbols == ("tokens", "seqs", "pages", "rows", "num_pages")


CALL = ("buckets", 0, "calls", 0)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("entry",), "two words", "expected a name without spaces, got 'two words'"),
        (("symbols",), ["tokens", "tokens"], "different symbols"),
        (("symbols",), ["a b"], "expected a symbol"),
        (("arena_bytes",), "heads * 4", "arena_bytes: size 'heads * 4': unknown symbol 'heads'"),
        (("arena_bytes",), 4, "expected a text"),
        (("inputs", 0, "kind"), "temp", "expected kind input, got temp"),
        (("inputs", 0, "offset"), "4", "expected offset 0 for a input"),
        (("inputs", 0, "name"), "t0", "buffer t0 is declared twice"),
        (("inputs", 0, "shape"), ["1"] * 17, "at most 16 dimensions"),
        (
            ("states", 0, "bytes"),
            "tokens",
            "unknown symbol 'tokens' (known: ['num_pages', 'num_slots'])",
        ),
        (("buckets",), [], "at least one bucket"),
        (("buckets", 0, "tokens_max"), 0, "whole number in 1"),
        (("buckets", 0, "tokens_max"), True, "whole number in 1"),
        (("buckets", 0, "tokens_max"), None, "buckets of growing size"),
        ((*CALL, "grid"), ["1", "1"], "a list of 3"),
        ((*CALL, "grid"), ["1", "1", "1 //"], "call embed_f32 grid: size '1 //'"),
        ((*CALL, "op"), "a\nb", "op on one line"),
        ((*CALL, "args", 0, 0), "f64", "expected one of"),
        ((*CALL, "args", 0, 1), "nothing", "no buffer named 'nothing'"),
        ((*CALL, "args", 2, 1), "t0", "no state named 't0'"),
        ((*CALL, "args", 4, 2), "4", "no offset for a number"),
        ((*CALL, "args", 6, 1), "much", "expected a number, got 'much'"),
        ((*CALL, "args", 6, 1), "1e40", "within f32"),
        ((*CALL, "args", 6), ["f32"], "a list of 3"),
        ((*CALL, "surprise"), 1, "unexpected key 'surprise'"),
    ],
)
def test_every_field_is_checked(path: tuple[str | int, ...], value: Any, message: str) -> None:
    data = json.dumps(_set(path, value)).encode()
    with pytest.raises(ArtifactError, match=re.escape(message)):
        Program.from_json(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[" * 100000, "expected JSON"),
        (b"[]", "expected an object"),
        (b"{}", "expected the key 'arena_bytes'"),
        (b'{"a": NaN}', "the number NaN"),
        (b'{"a": 1, "a": 2}', "the key 'a' twice"),
        (b"\xff", "expected JSON"),
    ],
)
def test_json_that_is_no_program(data: bytes, message: str) -> None:
    with pytest.raises(ArtifactError, match=re.escape(message)):
        Program.from_json(data)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("program step", "programme step", "line 1: expected 'program"),
        ("  arena", "  area", "line 2: expected 'arena BYTES'"),
        ("embed_f32[", "embed_f32 ", "line 8: expected 'KERNEL[X, Y, Z](ARGUMENTS)'"),
        (", 1](", "](", "line 8: expected a grid of 3 sizes"),
        ("bucket {", "bucket any {", "expected a buffer, a bucket or '}'"),
        ("i32 tokens", "i33 tokens", "argument kind"),
    ],
)
def test_text_faults_name_the_line(old: str, new: str, message: str) -> None:
    text = _program().as_text()
    assert old in text
    with pytest.raises(ArtifactError, match=re.escape(message)):
        Program.parse(text.replace(old, new, 1))


@settings(max_examples=200, derandomize=True, deadline=None)
@given(data=st.data())
def test_edited_text_is_a_program_or_one_sentence(data: st.DataObject) -> None:
    text = _program().as_text()
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, min(len(text), start + 8)))
    edited = text[:start] + data.draw(st.text("{}[](),#+x1 \n", max_size=4)) + text[stop:]
    try:
        program = Program.parse(edited)
    except ArtifactError:
        return
    assert Program.parse(program.as_text()) == program
