"""A GPU as a device: picks the variant that fits it and loads it."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

from ....errors import ArtifactError, DeviceError
from ...artifact import Artifact
from ...artifact.kernel_pack import PackedKernel, read_pack
from .arch import best_of
from .capacity import pages_that_fit
from .cuda_driver import CudaDriver
from .driver import Chip, Driver
from .executable import CudaExecutable, state_bytes
from .plan_file import code_of
from .recipes import STEP
from .tune import Progress, tune

MAX_PAGES = 2**31 - 1
_log = logging.getLogger(__name__)


class CudaDevice:
    """Implements `Device`; the driver starts when something is loaded."""

    def __init__(self, index: int = 0, open_driver: Callable[[int], Driver] = CudaDriver) -> None:
        self.name = f"cuda:{index}"
        self.index = index
        self._open_driver = open_driver
        self._kept: Driver | None = None

    def load(
        self, artifact: Artifact, *, num_pages: int, max_tokens: int, num_threads: int | None = None
    ) -> CudaExecutable:
        """Bind an artifact: load kernels, place weights, allocate ``num_pages`` pages."""
        if not 1 <= num_pages <= MAX_PAGES or max_tokens < 1:
            raise DeviceError(
                f"cuda:{self.index}: expected at least one page and one token,"
                f" got num_pages {num_pages} and max_tokens {max_tokens}"
            )
        _check_target(artifact)
        artifact.read_ahead()
        # Making a context takes longer than reading the plans: do both at once.
        with ThreadPoolExecutor(max_workers=1) as pool, contextlib.ExitStack() as undo:
            opening = pool.submit(self._take_driver)
            undo.callback(_close, opening)
            codes = [code_of(artifact, entry) for entry in artifact.entries]
            driver = opening.result()
            isa, pack = choose_pack(artifact, driver.chip)
            executable = CudaExecutable(
                driver, artifact, pack, codes, num_pages=num_pages, max_tokens=max_tokens, isa=isa
            )
            undo.pop_all()
        sizes = ", ".join(f"{k} {v / 2**20:.1f} MiB" for k, v in executable.memory_bytes().items())
        _log.info("%s: %s on %s, %s", artifact.path, isa, driver.chip.name, sizes)
        return executable

    def kv_bytes_per_page(self, artifact: Artifact) -> int:
        """Bytes that one page takes over all layers."""
        if STEP not in artifact.entries:
            return 0
        states = code_of(artifact, STEP).states
        return sum(state_bytes(s.bytes, 2) - state_bytes(s.bytes, 1) for s in states)

    def pages_that_fit(self, artifact: Artifact, *, share: float, max_tokens: int) -> int:
        """Pages that fill a share of the memory that is free now; see `FitsPages`.

        The driver stays open for the load that follows: opening it takes longer than anything else.
        """
        _check_target(artifact)
        driver = self._take_driver()
        try:
            free = driver.free_bytes()[0]
            count = pages_that_fit(artifact, code_of(artifact, STEP), free, share, max_tokens)
        except BaseException:
            driver.close()
            raise
        self._kept = driver
        return count

    def _take_driver(self) -> Driver:
        kept, self._kept = self._kept, None
        return kept or self._open_driver(self.index)

    def tune(
        self, artifact: Artifact, progress: Progress, rows: Collection[int] = ()
    ) -> tuple[dict[str, object], int]:
        """Measure the ways to compute products that a compile kept for it; see `Tunes`."""
        _check_target(artifact)
        driver = self._open_driver(self.index)
        try:
            return tune(driver, artifact, progress, rows)
        finally:
            driver.close()


def open_device(number: str = "") -> CudaDevice:
    """What `targets.registry` calls for ``cuda`` and ``cuda:N``."""
    if number and not re.fullmatch(r"[0-9]{1,4}", number):
        raise DeviceError(f"cuda: expected a device number as in cuda:0, got {number!r}")
    return CudaDevice(int(number or 0))


def _close(opening: Future[Driver]) -> None:
    """Close a driver that did open."""
    if opening.exception() is None:
        opening.result().close()


def _check_target(artifact: Artifact) -> None:
    target = cast(dict[str, object], artifact.manifest["target"])
    if target["name"] != "cuda":
        raise ArtifactError(
            f"{artifact.path}: expected an artifact for the target cuda, got one for"
            f" {target['name']} (compile it with --target cuda)"
        )
    shards = cast(dict[str, int], artifact.manifest.get("shards", {"ranks": 1}))
    if shards["ranks"] != 1:
        raise ArtifactError(
            f"{artifact.path}: expected one rank, got {shards['ranks']} (cuda runs unsharded)"
        )


def choose_pack(artifact: Artifact, chip: Chip) -> tuple[str, dict[str, PackedKernel]]:
    """The variant that fits a chip best, and its kernels."""
    target = cast(dict[str, object], artifact.manifest["target"])
    variants = cast(Sequence[dict[str, object]], target["variants"])
    members = {str(variant["isa"]): str(variant["library"]) for variant in variants}
    isa = best_of(list(members), chip.capability)
    if isa is None:
        raise ArtifactError(
            f"{artifact.path}: expected kernels for {chip.arch} ({chip.name}), got only"
            f" {list(members)} (compile with --target cuda:{chip.arch.replace('_', '')})"
        )
    member = members[isa]
    return isa, read_pack(artifact.view(member), f"{artifact.path}: {member}")
