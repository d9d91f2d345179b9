"""How many threads to use: what the caller says, else what the process may use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from .... import knobs
from ....errors import DeviceError

MAX_THREADS = 1024
CGROUP_ROOT = Path("/sys/fs/cgroup")


def choose_num_threads(wanted: int | None = None) -> int:
    """`wanted`, else ``SGLK_THREADS``, else the cores that affinity and the cgroup quota allow."""
    if wanted is not None and not 1 <= wanted <= MAX_THREADS:
        raise DeviceError(f"num_threads: expected 1 to {MAX_THREADS}, got {wanted}")
    fixed = wanted or min(knobs.get().threads, MAX_THREADS)
    if fixed:
        return fixed
    return min(len(os.sched_getaffinity(0)), cgroup_cores(), MAX_THREADS)


def cgroup_cores(root: Path = CGROUP_ROOT, membership: Path = Path("/proc/self/cgroup")) -> int:
    """Whole cores of the tightest CPU quota that covers this process."""
    quotas = list(_quotas(root, _groups(membership)))
    return max(1, int(min(quotas))) if quotas else MAX_THREADS


def _groups(membership: Path) -> Iterator[tuple[str, str]]:
    """(controllers, path) of the groups this process is in."""
    for line in (_read(membership) or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        yield controllers, path


def _quotas(root: Path, groups: Iterator[tuple[str, str]]) -> Iterator[float]:
    for controllers, path in groups:
        if controllers == "":
            yield from _along(root, path, _quota_v2)
        elif "cpu" in controllers.split(","):
            yield from _along(root / "cpu", path, _quota_v1)


def _along(root: Path, path: str, read: Callable[[Path], float | None]) -> Iterator[float]:
    """Quotas from the group up to the root: each of them binds."""
    group = PurePosixPath("/", path)
    for place in (group, *group.parents):
        quota = read(root / place.relative_to("/"))
        if quota is not None:
            yield quota


def _quota_v2(folder: Path) -> float | None:
    quota, _, period = (_read(folder / "cpu.max") or "max 100000").partition(" ")
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(folder: Path) -> float | None:
    quota = int(_read(folder / "cpu.cfs_quota_us") or -1)
    period = int(_read(folder / "cpu.cfs_period_us") or 0)
    return quota / period if quota > 0 and period > 0 else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
