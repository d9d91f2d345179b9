"""The container: what a zip tool sees, and how every damage is refused."""

from __future__ import annotations

import re
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sglk.errors import ArtifactError
from sglk.targets.artifact import Artifact
from sglk.targets.artifact.container import (
    COMMENT_BYTES,
    ZipContainer,
    check_member_name,
    make_comment,
)
from sglk.targets.artifact.zip_layout import (
    ALIGNMENT,
    CENTRAL_MAGIC,
    Member,
    central_entry,
    data_offset_for,
    end_records,
    local_header,
)


def _content(path: Path) -> dict[str, bytes]:
    """Everything a loader can read from the artifact, with all hashes checked."""
    with Artifact.open(path) as artifact:
        artifact.verify_weights()
        artifact.program("forward")
        return {name: artifact.read(name) for name in artifact.names}


def test_any_zip_tool_reads_it(tiny: Path) -> None:
    with zipfile.ZipFile(tiny) as archive:
        assert archive.testzip() is None
        for info in archive.infolist():
            assert info.compress_type == zipfile.ZIP_STORED
            assert archive.read(info) == _content(tiny)[info.filename]


def test_data_is_aligned_and_blobs_are_kept_once(tiny: Path) -> None:
    container = ZipContainer(tiny)
    assert all(m.data_offset % ALIGNMENT == 0 for m in container._members.values())
    assert len(container.sizes()) == 4


def test_equal_content_gives_equal_bytes(tiny: Path, tiny_bytes: bytes) -> None:
    assert tiny.read_bytes() == tiny_bytes


def test_folder_form_holds_the_same(tiny: Path, folder: Path) -> None:
    assert _content(folder) == _content(tiny)


def test_sizes_above_four_gib_need_no_reading(tmp_path: Path) -> None:
    path, big = tmp_path / "big.zip", 5 * 2**30
    first = Member("a", 0, data_offset_for("a", 0), big, 7)
    start = first.data_offset + big
    second = Member("b/c", start, data_offset_for("b/c", start), 3, 9)
    entries = central_entry(first) + central_entry(second)
    with path.open("wb") as file:
        for member in (first, second):
            file.seek(member.header_offset)
            file.write(local_header(member))
        directory = second.data_offset + second.size
        file.seek(directory)
        file.write(entries + end_records(2, directory, len(entries), make_comment("0" * 64)))
    assert ZipContainer(path).sizes() == {"a": big, "b/c": 3}
    with zipfile.ZipFile(path) as archive:
        assert [(i.filename, i.file_size) for i in archive.infolist()] == [("a", big), ("b/c", 3)]


@settings(
    max_examples=400,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_damage_is_refused_or_harmless(
    data: st.DataObject, tmp_path: Path, tiny_bytes: bytes
) -> None:
    """Damage aims at headers: most of a small artifact is padding."""
    damaged = bytearray(tiny_bytes)
    central = tiny_bytes.index(CENTRAL_MAGIC)
    headers = [m.start() for m in re.finditer(b"PK\x03\x04", tiny_bytes)]
    place = st.one_of(
        st.integers(0, len(damaged) - 1),
        st.integers(central, len(damaged) - 1),
        st.builds(int.__add__, st.sampled_from(headers), st.integers(0, 60)),
    )
    for _ in range(data.draw(st.integers(0, 3))):
        damaged[data.draw(place)] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del damaged[data.draw(st.integers(0, len(damaged))) :]
    path, original = tmp_path / "damaged.sglk", tmp_path / "original.sglk"
    path.write_bytes(damaged)
    original.write_bytes(tiny_bytes)
    try:
        content = _content(path)
    except ArtifactError as error:
        assert "\n" not in str(error)
    else:
        assert content == _content(original)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "noise.sglk"
    path.write_bytes(data + make_comment("0" * 64))
    with pytest.raises(ArtifactError):
        Artifact.open(path)


def _patch(data: bytes, record: bytes, field: int, form: str, value: int) -> bytes:
    offset = data.index(record) + field
    raw = struct.pack(form, value)
    return data[:offset] + raw + data[offset + len(raw) :]


@pytest.mark.parametrize(
    ("field", "form", "value", "message"),
    [
        (10, "<H", 8, "expected a stored member, got method 8"),
        (8, "<H", 1, "expected a stored member"),
        (20, "<I", 5, "expected equal sizes, got 5"),
        (24, "<I", 2**31, "expected equal sizes"),
        (42, "<I", 2**31, "expected the header of member"),
        (42, "<I", 1, "expected the header of a stored member"),
        (16, "<I", 1, "same name and checksum in both headers"),
        (46, "<B", ord("/"), "expected a plain member name, got '/"),
        (46, "<B", 200, "member names in ASCII"),
        (28, "<H", 5000, "an entry of the central directory"),
    ],
)
def test_a_false_directory_entry_is_named(
    tmp_path: Path, tiny_bytes: bytes, field: int, form: str, value: int, message: str
) -> None:
    path = tmp_path / "false.sglk"
    path.write_bytes(_patch(tiny_bytes, CENTRAL_MAGIC, field, form, value))
    with pytest.raises(ArtifactError, match=message):
        Artifact.open(path)


def test_repeated_and_overlapping_members_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "false.zip"
    member = Member("a", 0, data_offset_for("a", 0), 6000, 7)
    inside = Member("b", member.data_offset, data_offset_for("b", member.data_offset), 6000, 7)
    body = bytearray(local_header(member) + bytes(20000))
    body[inside.header_offset : inside.data_offset] = local_header(inside)
    for members, message in [((member, member), "is there twice"), ((member, inside), "overlaps")]:
        entries = b"".join(central_entry(m) for m in members)
        end = end_records(2, len(body), len(entries), make_comment("0" * 64))
        path.write_bytes(bytes(body) + entries + end)
        with pytest.raises(ArtifactError, match=message):
            ZipContainer(path)


@pytest.mark.parametrize("name", ["../a", "a/../b", "/a", "a//b", "", ".a", "a\\b", "a b", "é"])
def test_names_that_could_leave_the_folder_are_refused(name: str) -> None:
    with pytest.raises(ArtifactError, match="plain member name"):
        check_member_name("x", name)


def test_other_files_are_no_artifact(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot open the artifact: No such file"):
        Artifact.open(tmp_path / "none.sglk")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(ArtifactError, match="not an sglk artifact"):
        Artifact.open(tmp_path / "empty")
    with pytest.raises(ArtifactError, match=r"manifest\.sha256"):
        Artifact.open(tmp_path)


def test_links_in_a_folder_are_refused(folder: Path) -> None:
    (folder / "extra").symlink_to("/etc/passwd")
    with pytest.raises(ArtifactError, match="plain files only"):
        Artifact.open(folder)


def test_comment_has_its_length() -> None:
    assert len(make_comment("0" * 64)) == COMMENT_BYTES
