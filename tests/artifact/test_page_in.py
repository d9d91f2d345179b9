"""Hints to the system: they never fail, and reading ahead maps every page."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import pytest
from sglk.targets.artifact import page_in
from sglk.targets.artifact.container import map_file


def _resident(path: Path) -> int:
    """Kilobytes of the file that this process has mapped and touched."""
    found, total = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            found = line.endswith(str(path))
        elif found and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


def test_every_page_is_mapped_without_being_touched(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(9 << 20))
    view = map_file(path)
    thread = page_in.start_reading(view)
    assert thread is not None
    thread.join()
    assert _resident(path) in (0, 9 << 10)  # 0: a system before Linux 5.14
    assert page_in._populate(view) in (0, errno.EINVAL)


def test_what_does_not_fit_well_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(9 << 20))
    view = map_file(path)
    assert page_in.start_reading(view[: 7 << 20]) is None
    monkeypatch.setattr(os, "sysconf", lambda name: 4096 if name == "SC_PAGE_SIZE" else 1)
    assert page_in.start_reading(view) is None


def test_hints_that_the_system_refuses_are_no_errors(tmp_path: Path) -> None:
    page_in.drop_from_cache(-1)
    region = mmap.mmap(-1, 4096)
    page_in.prefer_huge_pages(region)
    region.close()
    page_in.prefer_huge_pages(region)
