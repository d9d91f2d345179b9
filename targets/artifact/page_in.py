"""Bringing a mapped file into memory: in huge pages where the file system has them, and early.

A step reads every weight once, and with pages of 4 KiB the processor spends a few percent of that
time on finding them. Since Linux 6.16, ext4 (xfs and btrfs before it) gives a mapping that asks for
it pages of 2 MiB, shared by all processes, if it has to read them from disk anyway. So the writer
drops what it has written from the page cache, and the first load reads it back in huge pages.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

_MADV_POPULATE_READ = 22  # since Linux 5.14; Python has no name for it
_WORTH_A_THREAD = 8 << 20
"""Bytes; less than this comes in about as fast as a thread starts."""
_HINT_BYTES = 1 << 20
"""The system takes one hint for no more than what it reads ahead anyway, a few MB at most."""
_MEMORY_SHARE = 2
"""A file larger than the memory over this is left to come in as it is read."""


def prefer_huge_pages(region: mmap.mmap) -> None:
    """Ask for huge pages; a hint that many systems ignore."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        region.madvise(mmap.MADV_HUGEPAGE)


def drop_from_cache(descriptor: int) -> None:
    """Forget the pages of a synced file, so that whoever reads it next may get huge ones."""
    with contextlib.suppress(OSError):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def start_reading(view: memoryview) -> threading.Thread | None:
    """Map all pages of a mapped file, reading what is missing, on a thread that nobody waits for.

    None when the file is small, or large for this machine.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if not _WORTH_A_THREAD <= len(view) <= memory // _MEMORY_SHARE:
        return None
    thread = threading.Thread(target=_populate, args=(view,), name="sglk-page-in", daemon=True)
    thread.start()
    return thread


def _populate(view: memoryview) -> int:
    """0, or the system's error number; the view keeps the mapping alive meanwhile."""
    madvise = ctypes.CDLL(None, use_errno=True).madvise  # unlike Python's, it lets others run
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    address = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    while madvise(address, len(view), _MADV_POPULATE_READ):
        if ctypes.get_errno() != errno.EINTR:
            return ctypes.get_errno()
    return 0


def start_caching(files: Iterable[Path]) -> None:
    """Read files into the page cache, in order; large ones on a thread that nobody waits for."""
    paths = tuple(files)
    if sum(path.stat().st_size for path in paths if path.exists()) < _WORTH_A_THREAD:
        _cache(paths)
        return
    thread = threading.Thread(target=_cache, args=(paths,), name="sglk-read-ahead", daemon=True)
    thread.start()


def _cache(paths: Sequence[Path]) -> None:
    # Only hints: where they fail, the data comes when it is asked for.
    for path in paths:
        with contextlib.suppress(OSError), path.open("rb") as file:
            for at in range(0, os.fstat(file.fileno()).st_size, _HINT_BYTES):
                os.posix_fadvise(file.fileno(), at, _HINT_BYTES, os.POSIX_FADV_WILLNEED)
