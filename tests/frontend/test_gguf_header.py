"""A damaged GGUF file gives one sentence: no other exception, endless loop or huge list."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sglk.errors import FrontendError
from sglk.frontend.gguf_header import read_header
from sglk.frontend.model_files import open_model
from transformers import PreTrainedModel

U32, U64 = "<I", "<Q"


def text(value: str) -> bytes:
    return struct.pack(U64, len(value)) + value.encode()


def tensor(name: str, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    sizes = b"".join(struct.pack(U64, size) for size in dims)
    return text(name) + struct.pack(U32, len(dims)) + sizes + struct.pack("<IQ", kind, offset)


def file_of(
    tmp_path: Path,
    *tensors: bytes,
    metadata: tuple[bytes, ...] = (),
    version: int = 3,
    data: int = 4096,
    counts: tuple[int, int] | None = None,
) -> Path:
    """A GGUF file put together by hand."""
    tables = struct.pack("<QQ", *(counts or (len(tensors), len(metadata))))
    head = b"GGUF" + struct.pack(U32, version) + tables + b"".join(metadata) + b"".join(tensors)
    path = tmp_path / "made.gguf"
    path.write_bytes(head + bytes(-len(head) % 32) + bytes(data))
    return path


def refused(path: Path) -> str:
    with pytest.raises(FrontendError) as caught:
        read_header(path)
    return str(caught.value)


def test_metadata_and_tensors_equal_the_reader_of_gguf(tiny_gguf: Path) -> None:
    ours, theirs = read_header(tiny_gguf), gguf.GGUFReader(tiny_gguf)
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            value = field.contents()
            expected = pytest.approx(value, rel=1e-6) if isinstance(value, float) else value
            assert ours.metadata[key] == expected, key
    assert list(ours.tensors) == [entry.name for entry in theirs.tensors]
    for entry in theirs.tensors:
        assert ours.tensors[entry.name].start == entry.data_offset
        np.testing.assert_array_equal(ours.raw(entry.name), entry.data.reshape(-1).view(np.uint8))


def test_every_truncation_is_refused(tiny_gguf: Path, tmp_path: Path) -> None:
    whole = tiny_gguf.read_bytes()
    begin = min(entry.start for entry in read_header(tiny_gguf).tensors.values())
    path = tmp_path / "cut.gguf"
    for length in [*range(0, begin, 97), begin, begin + 1000, len(whole) - 64]:
        path.write_bytes(whole[:length])
        with pytest.raises(FrontendError, match=re.escape(str(path))):
            open_model(path)


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    edits=st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 255)), min_size=1, max_size=6),
    near_start=st.booleans(),
)
def test_a_mutated_file_opens_or_is_refused(
    tiny_gguf: Path, tmp_path: Path, edits: list[tuple[int, int]], near_start: bool
) -> None:
    content = bytearray(tiny_gguf.read_bytes())
    for position, value in edits:
        content[position % (600 if near_start else len(content))] = value
    path = tmp_path / "mutated.gguf"
    path.write_bytes(content)
    try:
        source = open_model(path).source
    except FrontendError as error:
        assert str(path) in str(error)
        return
    for name in source.names():
        source.read(name)


def test_sizes_are_multiplied_without_wrapping(tmp_path: Path) -> None:
    wraps_to_zero = tensor("t", (2**32, 2**32), 0, 0)
    assert "t: expected its" in refused(file_of(tmp_path, wraps_to_zero))
    wraps_to_64 = tensor("t", (2**63 + 8, 2), 0, 0)
    assert "inside the file" in refused(file_of(tmp_path, wraps_to_64))


def test_counts_are_believed_only_as_far_as_the_file_reaches(tmp_path: Path) -> None:
    assert "tables: expected" in refused(file_of(tmp_path, counts=(2**60, 0)))
    endless = text("k") + struct.pack("<IIQ", 9, 8, 2**50)
    assert "k: expected" in refused(file_of(tmp_path, metadata=(endless,)))
    numbers = text("k") + struct.pack("<IIQ", 9, 0, 2**62)
    assert "k: expected" in refused(file_of(tmp_path, metadata=(numbers,)))
    nested = text("k") + struct.pack("<IIQ", 9, 9, 1)
    assert "numbers or texts, got element type 9" in refused(file_of(tmp_path, metadata=(nested,)))
    strange = text("k") + struct.pack(U32, 77)
    assert "k: expected a metadata type of 0 to 12, got 77" in refused(
        file_of(tmp_path, metadata=(strange,))
    )


def test_a_wrong_tensor_table_is_refused(tmp_path: Path) -> None:
    one = tensor("a", (8,), 0, 0)
    assert "'a'" in refused(file_of(tmp_path, one, one))
    assert "a over b" in refused(
        file_of(tmp_path, tensor("a", (16,), 0, 0), tensor("b", (8,), 0, 32))
    )
    assert "multiple of 32, got offset" in refused(file_of(tmp_path, tensor("a", (8,), 0, 4)))
    assert "whole q8_0 blocks (32), got shape [2, 33]" in refused(
        file_of(tmp_path, tensor("a", (33, 2), 8, 0))
    )
    assert "positive sizes" in refused(file_of(tmp_path, tensor("a", (0,), 0, 0)))
    assert "1 to 4 dims, got 0" in refused(file_of(tmp_path, tensor("a", (), 0, 0)))
    aligned = text("general.alignment") + struct.pack("<II", 4, 24)
    assert "power of two, got 24" in refused(file_of(tmp_path, one, metadata=(aligned,)))


def test_unknown_types_are_named_together(tmp_path: Path) -> None:
    path = file_of(
        tmp_path,
        tensor("a", (256,), 11, 0),  # Q3_K
        tensor("b", (256,), 11, 256),
        tensor("c", (256,), 16, 512),  # IQ2_XXS
        tensor("d", (256,), 250, 768),
    )
    message = refused(path)
    assert "iq2_xxs (1 tensors), q3_k (2 tensors), type 250 (1 tensors)" in message


def test_other_files_are_refused(tmp_path: Path) -> None:
    note = tmp_path / "note.txt"
    note.write_text("Hello, this is no model")
    with pytest.raises(FrontendError, match=r"note\.txt: expected a GGUF file, got .*b'Hell'"):
        open_model(note)
    assert "got version 1" in refused(file_of(tmp_path, version=1))
    assert f"got version {3 << 24}" in refused(file_of(tmp_path, version=3 << 24))  # big endian
    (tmp_path / "empty.gguf").touch()
    assert "got an empty file" in refused(tmp_path / "empty.gguf")
    with pytest.raises(FrontendError, match="got no such path"):
        open_model(tmp_path / "absent.gguf")
    with pytest.raises(FrontendError, match="expected a readable file"):
        read_header(tmp_path)


def test_an_unreadable_file_is_refused(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(np, "memmap", deny)
    with pytest.raises(FrontendError, match="expected a readable file, got: Permission denied"):
        open_model(tiny_gguf)


def test_other_architectures_are_refused(
    tmp_path: Path,
    tiny_model: Callable[..., PreTrainedModel],
    write_gguf: Callable[..., Path],
) -> None:
    model = tiny_model("qwen2")
    mamba = text("general.architecture") + struct.pack(U32, 8) + text("mamba")
    with pytest.raises(FrontendError, match=r"architecture of llama, .*got 'mamba'"):
        open_model(file_of(tmp_path, metadata=(mamba,)))
    path = write_gguf(
        tmp_path / "a.gguf", model, "qwen2", extra={"blk.0.foo.weight": np.ones(32, "f4")}
    )
    with pytest.raises(FrontendError, match=r"got also blk\.0\.foo\.weight"):
        open_model(path)
    path = write_gguf(
        tmp_path / "b.gguf", model, "qwen2", extra={"blk.2.ffn_up.weight": np.ones(32, "f4")}
    )
    with pytest.raises(FrontendError, match="layers 0 to 1, got 3 layers"):
        open_model(path)
