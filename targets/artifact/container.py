"""Reading the members of an artifact: a zip through one mmap, or the same tree as a folder.

The zip reader trusts nothing: every offset and size is checked against the file before use, members
may not overlap, repeat, be compressed or point outside, and both headers of a member must agree.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from pathlib import Path, PurePosixPath
from typing import Protocol

from ...errors import ArtifactError
from .page_in import prefer_huge_pages, start_caching, start_reading
from .schema import shorten
from .zip_layout import (
    ALIGNMENT,
    CENTRAL,
    CENTRAL_MAGIC,
    END,
    END64,
    END64_MAGIC,
    END_MAGIC,
    EXTRA,
    EXTRA_ZIP64,
    LOCAL,
    LOCAL_MAGIC,
    LOCATOR64,
    LOCATOR64_MAGIC,
    MAX16,
    MAX32,
    VERSION,
    Member,
)

COMMENT = re.compile(rb"sglk artifact, manifest sha256 ([0-9a-f]{64})\n")
COMMENT_BYTES = 96
DIGEST_FILE = "manifest.sha256"
"""What the zip comment is to the zip form, this file is to the folder form."""
MANIFEST = "manifest.json"
MAX_MEMBERS = 1 << 20
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]*")


def make_comment(manifest_sha256: str) -> bytes:
    """The zip comment, or the content of `DIGEST_FILE`: the hash that anchors all others."""
    return f"sglk artifact, manifest sha256 {manifest_sha256}\n".encode()


def check_member_name(where: str, name: str) -> str:
    """A relative path of plain parts; `..`, hidden files and absolute paths are refused."""
    if len(name) > 255 or not all(_PART.fullmatch(part) for part in name.split("/")):
        raise ArtifactError(f"{where}: expected a plain member name, got {shorten(name)}")
    return name


class Container(Protocol):
    """Members by name."""

    manifest_sha256: str

    def sizes(self) -> dict[str, int]:
        """Size in bytes of every member."""

    def view(self, name: str) -> memoryview:
        """Content of a member, read-only and without a copy."""

    def read_into(self, name: str, start: int, target: memoryview) -> None:
        """Copy a member's bytes from ``start`` on, as many as the target holds; any thread may."""

    def prefetch(self) -> None:
        """Ask the system to read everything ahead and to map it, without waiting for it."""

    def read_ahead(self) -> None:
        """Ask the system to read everything ahead, for `read_into`, without waiting for it."""

    def close(self) -> None:
        """Give up the file; views that are still in use keep their memory alive."""


def open_container(path: Path) -> Container:
    """The zip or folder at `path`; everything wrong with it is an `ArtifactError`."""
    try:
        return FolderContainer(path) if path.is_dir() else ZipContainer(path)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot open the artifact: {error.strerror}") from error


def map_file(path: Path) -> memoryview:
    """Whole file as read-only memory."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            return memoryview(b"")
        region = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        prefer_huge_pages(region)
        return memoryview(region)


def _identity(status: os.stat_result) -> tuple[int, ...]:
    """What changes when another file takes a name."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _read_file(path: Path, known: tuple[int, ...], at: int, target: memoryview) -> None:
    """Copy part of a file that is still the one that was opened."""
    try:
        with path.open("rb", buffering=0) as file:
            if _identity(os.fstat(file.fileno())) != known:
                raise ArtifactError(f"{path}: it was replaced while it was read (load it again)")
            while target:
                count = os.preadv(file.fileno(), [target], at)
                if not count:
                    raise ArtifactError(f"{path}: it ends at byte {at} (copy it again)")
                at, target = at + count, target[count:]
    except OSError as error:
        raise ArtifactError(f"{path}: cannot read it: {error.strerror}") from error


class ZipContainer:
    """A zip of stored members."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity = _identity(path.stat())
        self._map = map_file(path)
        self.manifest_sha256, start, count, self._directory_end = self._read_end()
        members = self._read_directory(start, count)
        self._check_overlaps(members, start)
        self._members = {member.name: member for member in members}

    def sizes(self) -> dict[str, int]:
        """Size in bytes of every member."""
        return {name: member.size for name, member in self._members.items()}

    def view(self, name: str) -> memoryview:
        """Content of a member, read-only and without a copy."""
        member = self._members[name]
        return self._map[member.data_offset : member.data_offset + member.size]

    def read_into(self, name: str, start: int, target: memoryview) -> None:
        """Copy a member's bytes from ``start`` on, as many as the target holds; any thread may."""
        at = self._members[name].data_offset + start
        _read_file(self.path, self._identity, at, target)

    def prefetch(self) -> None:
        """Ask the system to read everything ahead and to map it, without waiting for it."""
        if start_reading(self._map) is None:
            self.read_ahead()

    def read_ahead(self) -> None:
        """Ask the system to read everything ahead, for `read_into`, without waiting for it."""
        start_caching([self.path])

    def close(self) -> None:
        """Give up the file; views that are still in use keep their memory alive."""
        self._map = memoryview(b"")
        self._members = {}

    def fail(self, reason: str) -> ArtifactError:
        return ArtifactError(
            f"{self.path}: {reason} (the file is damaged: compile or copy it again)"
        )

    def _unpack(self, form: struct.Struct, offset: int, what: str) -> tuple[bytes | int, ...]:
        if offset < 0 or offset + form.size > len(self._map):
            raise self.fail(f"expected {what} within {len(self._map)} bytes, got offset {offset}")
        return form.unpack_from(self._map, offset)

    def _read_end(self) -> tuple[str, int, int, int]:
        """Manifest hash, start of the directory, number of members, end of the directory."""
        comment = COMMENT.fullmatch(self._map[-COMMENT_BYTES:])
        offset = len(self._map) - COMMENT_BYTES - END.size
        if comment is None or offset < 0:
            raise ArtifactError(
                f"{self.path}: not an sglk artifact, or cut short"
                " (expected a file that sglk-compile wrote)"
            )
        magic, disk, start_disk, here, count, size, start, length = self._unpack(
            END, offset, "the end record"
        )
        if magic != END_MAGIC or length != COMMENT_BYTES or (disk, start_disk) != (0, 0):
            raise self.fail("expected the end record of a zip before its comment")
        end = offset
        if MAX16 in (count, here) or MAX32 in (size, start):
            start, size, count, here, end = self._read_end64(offset)
        if here != count or int(start) + int(size) != end or int(count) > MAX_MEMBERS:
            raise self.fail("expected a central directory that fills the room before its end")
        return comment[1].decode(), int(start), int(count), end

    def _read_end64(self, end: int) -> tuple[int, int, int, int, int]:
        where = end - LOCATOR64.size
        magic, disk, offset, disks = self._unpack(LOCATOR64, where, "the zip64 locator")
        if magic != LOCATOR64_MAGIC or (disk, disks) != (0, 1) or offset != where - END64.size:
            raise self.fail("expected a zip64 locator before the end record")
        record = self._unpack(END64, int(offset), "the zip64 end record")
        magic, length, _, _, disk, start_disk, here, count, size, start = record
        if magic != END64_MAGIC or length != END64.size - 12 or (disk, start_disk) != (0, 0):
            raise self.fail("expected a zip64 end record")
        return int(start), int(size), int(count), int(here), int(offset)

    def _read_directory(self, start: int, count: int) -> list[Member]:
        members: list[Member] = []
        names: set[str] = set()
        offset = start
        for _ in range(count):
            member, offset = self._read_entry(offset)
            if member.name in names:
                raise self.fail(f"member {member.name} is there twice")
            names.add(member.name)
            members.append(member)
        if offset != self._directory_end:
            raise self.fail(f"expected {count} members in the central directory, got more")
        return members

    def _read_entry(self, offset: int) -> tuple[Member, int]:
        (magic, _, needed, flags, method, _, _, crc, packed, size, name_len, extra_len, comment_len,
         disk, _, _, header) = self._unpack(CENTRAL, offset, "a directory entry")  # fmt: skip
        name_at = offset + CENTRAL.size
        end = name_at + int(name_len) + int(extra_len) + int(comment_len)
        if magic != CENTRAL_MAGIC or end > self._directory_end:
            raise self.fail("expected an entry of the central directory")
        name = self._text(name_at, int(name_len))
        if method != 0 or int(flags) & ~0x800 or int(needed) > VERSION or disk != 0:
            raise self.fail(f"member {name}: expected a stored member, got method {int(method)}")
        extra = self._map[name_at + int(name_len) : name_at + int(name_len) + int(extra_len)]
        fields = [int(size), int(packed), int(header)]
        size, packed, header = self._widen(name, extra, fields)
        if size != packed:
            raise self.fail(f"member {name}: expected equal sizes, got {packed} and {size}")
        return self._locate(name, header, size, int(crc)), end

    def _text(self, offset: int, length: int) -> str:
        try:
            name = bytes(self._map[offset : offset + length]).decode("ascii")
        except UnicodeDecodeError as error:
            raise self.fail("expected member names in ASCII") from error
        return check_member_name(str(self.path), name)

    def _widen(self, name: str, extra: memoryview, fields: list[int]) -> list[int]:
        """Replace the numbers that a zip64 extra field holds in 64 bits."""
        position = 0
        while position + EXTRA.size <= len(extra):
            kind, length = EXTRA.unpack_from(extra, position)
            body = extra[position + EXTRA.size : position + EXTRA.size + length]
            position += EXTRA.size + length
            wide = [index for index, value in enumerate(fields) if value == MAX32]
            if kind != EXTRA_ZIP64 or not wide:
                continue
            if len(body) < 8 * len(wide):
                raise self.fail(f"member {name}: expected {len(wide)} numbers of zip64")
            for slot, index in enumerate(wide):
                fields[index] = int(struct.unpack_from("<Q", body, 8 * slot)[0])
            return fields
        return fields

    def _locate(self, name: str, header: int, size: int, crc: int) -> Member:
        record = self._unpack(LOCAL, header, f"the header of member {name}")
        magic, _, flags, method, _, _, local_crc, packed, local_size, name_len, extra_len = record
        name_at = header + LOCAL.size
        data = name_at + int(name_len) + int(extra_len)
        if magic != LOCAL_MAGIC or method != 0 or int(flags) & ~0x800:
            raise self.fail(f"member {name}: expected the header of a stored member")
        if self._map[name_at : name_at + int(name_len)] != name.encode() or local_crc != crc:
            raise self.fail(f"member {name}: expected the same name and checksum in both headers")
        extra = self._map[name_at + int(name_len) : data]
        sizes = self._widen(name, extra, [int(local_size), int(packed)])
        if sizes != [size, size]:
            raise self.fail(f"member {name}: expected {size} bytes in both headers, got {sizes}")
        if data % ALIGNMENT or data + size > len(self._map):
            raise self.fail(f"member {name}: expected aligned data in the file, got offset {data}")
        return Member(name, header, data, size, crc)

    def _check_overlaps(self, members: list[Member], directory: int) -> None:
        end = 0
        for member in sorted(members, key=lambda m: m.header_offset):
            if member.header_offset < end:
                raise self.fail(f"member {member.name} overlaps the one before it")
            end = member.data_offset + member.size
        if end > directory:
            raise self.fail("the last member overlaps the central directory")


class FolderContainer:
    """The same members as files of a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        digest = path / DIGEST_FILE
        if not digest.is_file():  # first: any folder may be given, with anything in it
            raise ArtifactError(
                f"{path}: not an sglk artifact (expected a folder with {DIGEST_FILE})"
            )
        self._files = {name: file for name, file in self._walk() if name != DIGEST_FILE}
        self._identities = {name: _identity(file.stat()) for name, file in self._files.items()}
        comment = COMMENT.fullmatch(digest.read_bytes())
        if comment is None:
            raise ArtifactError(f"{digest}: expected the hash of the manifest (compile again)")
        self.manifest_sha256 = comment[1].decode()

    def _walk(self) -> list[tuple[str, Path]]:
        files = []
        for file in sorted(self.path.rglob("*")):
            if file.is_symlink() or not (file.is_dir() or file.is_file()):
                raise ArtifactError(
                    f"{file}: expected plain files only (copy it with links followed)"
                )
            if file.is_file():
                name = str(PurePosixPath(file.relative_to(self.path)))
                files.append((check_member_name(str(self.path), name), file))
        return files

    def sizes(self) -> dict[str, int]:
        """Size in bytes of every member."""
        return {name: file.stat().st_size for name, file in self._files.items()}

    def view(self, name: str) -> memoryview:
        """Content of a member, read-only and without a copy."""
        try:
            return map_file(self._files[name])
        except OSError as error:
            raise ArtifactError(f"{self._files[name]}: {error.strerror}") from error

    def read_into(self, name: str, start: int, target: memoryview) -> None:
        """Copy a member's bytes from ``start`` on, as many as the target holds; any thread may."""
        _read_file(self._files[name], self._identities[name], start, target)

    def prefetch(self) -> None:
        """Ask the system to read everything ahead, without waiting for it."""
        self.read_ahead()

    def read_ahead(self) -> None:
        """The same: files of a folder are mapped when they are asked for."""
        start_caching(self._files.values())

    def close(self) -> None:
        """Give up the files; views that are still in use keep their memory alive."""
        self._files = {}
