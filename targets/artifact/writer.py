"""Writing an artifact: under a temporary name beside the target, synced, then renamed.

Weights are streamed: the hash that names a blob is known only at its end, so the name in its local
header, which has a fixed length, is filled in afterwards; a blob that is already there is cut off
again. Whatever goes wrong, no half-made artifact stays behind.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from ...errors import ArtifactError
from .container import DIGEST_FILE, MANIFEST, check_member_name, make_comment
from .page_in import drop_from_cache
from .zip_layout import Member, central_entry, data_offset_for, end_records, local_header

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

WEIGHTS = "weights/"
Chunk: TypeAlias = "ReadableBuffer | NDArray[np.generic]"
"""Bytes of any kind; an array must be contiguous."""


class _Form(Protocol):
    """Where members go: a zip or a folder."""

    def add(self, name: str, data: Chunk) -> int: ...
    def add_hashed(self, prefix: str, chunks: Iterable[Chunk]) -> tuple[str, int]: ...
    def finish(self, comment: bytes) -> None: ...
    def abandon(self) -> None: ...


class ArtifactWriter:
    """Context manager; leaving it before `finish` removes everything.

    `directory` writes the folder form, which must not exist yet; a file is replaced at the end.
    """

    def __init__(self, path: Path | str, *, directory: bool = False) -> None:
        self.path = Path(path)
        self._members: dict[str, dict[str, object]] = {}
        self._finished = False
        with _failures(self.path):
            self._form: _Form = (_FolderForm if directory else _ZipForm)(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._finished:
            self._form.abandon()

    def add_bytes(self, name: str, data: Chunk) -> None:
        """Add a member under `name`."""
        check_member_name(str(self.path), name)
        if name in self._members or name.startswith(WEIGHTS) or name == MANIFEST:
            raise ArtifactError(f"{self.path}: member {name} is there already or reserved")
        size = self._form.add(name, data)
        self._members[name] = {"sha256": hashlib.sha256(_as_bytes(data)).hexdigest(), "bytes": size}

    def add_blob(self, chunks: Iterable[Chunk]) -> str:
        """Stream a blob to disk, kept once; returns its name, ``weights/<sha256>``."""
        name, size = self._form.add_hashed(WEIGHTS, chunks)
        self._members[name] = {"sha256": name.removeprefix(WEIGHTS), "bytes": size}
        return name

    def blob_bytes(self, name: str) -> int:
        """Size of a member added before."""
        return int(str(self._members[name]["bytes"]))

    def finish(self, manifest: Mapping[str, object]) -> None:
        """Add the manifest (with its ``members`` filled in), sync, and take the final name."""
        complete = {**manifest, "members": self._members}
        data = json.dumps(complete, indent=1, allow_nan=False).encode()
        self._form.add(MANIFEST, data)
        with _failures(self.path):
            self._form.finish(make_comment(hashlib.sha256(data).hexdigest()))
        self._finished = True


@contextlib.contextmanager
def _failures(path: Path) -> Iterator[None]:
    """Turn what the file system refuses into one sentence."""
    try:
        yield
    except OSError as error:
        raise ArtifactError(f"{path}: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return "the disk is full (free some space, or write the artifact elsewhere)"
        case errno.EFBIG:
            return "the file system takes no file of this size (write the artifact elsewhere)"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return "no permission to write here (choose another output)"
        case errno.ENOENT | errno.ENOTDIR:
            return "the folder does not exist (create it, or choose another output)"
        case errno.EISDIR | errno.EEXIST | errno.ENOTEMPTY:
            return "something is in the way (remove it, or choose another output)"
    return f"cannot write: {error.strerror or error}"


def _temporary(path: Path) -> Path:
    if not path.name:
        raise ArtifactError(f"{path}: expected the name of an output file")
    return path.parent / f".{path.name}.{os.getpid()}.partial"


def _sync_folder(path: Path) -> None:
    """Make the rename itself survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _as_bytes(chunk: Chunk) -> memoryview:
    view = memoryview(cast("ReadableBuffer", chunk))
    return view.cast("B") if view.nbytes else memoryview(b"")


def _write_all(path: Path, file: FileIO, view: memoryview) -> None:
    """Write to the unbuffered `file`, which may take the bytes in several pieces."""
    with _failures(path):
        while len(view):
            view = view[file.write(view) :]


def _open_unnamed(folder: Path) -> int | None:
    """A file without a name, which even a killed process leaves nothing of; None: not offered."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o666)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            return None
        raise


class _ZipForm:
    def __init__(self, path: Path) -> None:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "a folder")
        self._path = path
        self._temporary = _temporary(path)
        unnamed = _open_unnamed(path.parent)
        self._is_named = unnamed is None
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        descriptor = os.open(self._temporary, flags, 0o666) if unnamed is None else unnamed
        self._file = os.fdopen(descriptor, "r+b", buffering=0)
        self._members: dict[str, Member] = {}
        self._end = 0

    def add(self, name: str, data: Chunk) -> int:
        member = self._stream(name, [data], hashlib.sha256())
        self._keep(member)
        return member.size

    def add_hashed(self, prefix: str, chunks: Iterable[Chunk]) -> tuple[str, int]:
        digest = hashlib.sha256()
        draft = self._stream(prefix + "0" * 64, chunks, digest)
        name = prefix + digest.hexdigest()
        if name in self._members:
            with _failures(self._path):
                self._file.truncate(draft.header_offset)
        else:
            self._keep(Member(name, draft.header_offset, draft.data_offset, draft.size, draft.crc))
        return name, draft.size

    def _stream(self, name: str, chunks: Iterable[Chunk], digest: hashlib._Hash) -> Member:
        """Write the data where it belongs; the header in front of it follows in `_keep`."""
        data = data_offset_for(name, self._end)
        self._file.seek(data)
        size = crc = 0
        for view in map(_as_bytes, chunks):
            digest.update(view)
            crc = zlib.crc32(view, crc)
            size += len(view)
            _write_all(self._path, self._file, view)
        return Member(name, self._end, data, size, crc)

    def _keep(self, member: Member) -> None:
        self._file.seek(member.header_offset)
        _write_all(self._path, self._file, memoryview(local_header(member)))
        self._members[member.name] = member
        self._end = member.data_offset + member.size

    def finish(self, comment: bytes) -> None:
        directory = b"".join(central_entry(member) for member in self._members.values())
        end = end_records(len(self._members), self._end, len(directory), comment)
        self._file.seek(self._end)
        _write_all(self._path, self._file, memoryview(directory + end))
        self._file.truncate()
        os.fsync(self._file.fileno())
        drop_from_cache(self._file.fileno())
        self._give_name()
        self._file.close()
        self._temporary.replace(self._path)
        _sync_folder(self._path.parent)

    def _give_name(self) -> None:
        if self._is_named:
            return
        self._temporary.unlink(missing_ok=True)
        folder = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY)
        try:  # only with a folder descriptor does Python follow the link to the unnamed file
            os.link(f"/proc/self/fd/{self._file.fileno()}", self._temporary.name, dst_dir_fd=folder)
        finally:
            os.close(folder)
        self._is_named = True

    def abandon(self) -> None:
        self._file.close()
        if self._is_named:
            self._temporary.unlink(missing_ok=True)


class _FolderForm:
    def __init__(self, path: Path) -> None:
        if path.exists():
            raise FileExistsError(errno.EEXIST, "exists")
        self._path = path
        self._temporary = _temporary(path)
        self._temporary.mkdir()

    def add(self, name: str, data: Chunk) -> int:
        return self._stream(name, [data], hashlib.sha256())

    def add_hashed(self, prefix: str, chunks: Iterable[Chunk]) -> tuple[str, int]:
        digest = hashlib.sha256()
        draft = f"{prefix}draft"
        size = self._stream(draft, chunks, digest)
        name = prefix + digest.hexdigest()
        (self._temporary / draft).replace(self._temporary / name)
        return name, size

    def _stream(self, name: str, chunks: Iterable[Chunk], digest: hashlib._Hash) -> int:
        target = self._temporary / name
        with _failures(self._path):
            target.parent.mkdir(parents=True, exist_ok=True)
            file = target.open("wb", buffering=0)
        with file:
            for view in map(_as_bytes, chunks):
                digest.update(view)
                _write_all(self._path, file, view)
            with _failures(self._path):
                os.fsync(file.fileno())
            drop_from_cache(file.fileno())
            return file.tell()

    def finish(self, comment: bytes) -> None:
        self.add(DIGEST_FILE, comment)
        self._temporary.rename(self._path)
        _sync_folder(self._path.parent)

    def abandon(self) -> None:
        shutil.rmtree(self._temporary, ignore_errors=True)
