"""The CPU as a device: picks the variant for this machine and loads it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import cast

from ....errors import ArtifactError, DeviceError
from ...artifact import Artifact
from .executable import STEP, CpuExecutable, state_bytes
from .isa import Machine, choose, library_machine, this_machine
from .library import Library
from .plan_file import plan_of
from .threads import choose_num_threads

MAX_PAGES = 2**31 - 1
_log = logging.getLogger(__name__)


class CpuDevice:
    """Implements `Device`."""

    name = "cpu"

    def load(
        self,
        artifact: Artifact,
        *,
        num_pages: int,
        max_tokens: int,
        num_threads: int | None = None,
        num_slots: int = 0,
    ) -> CpuExecutable:
        """Bind an artifact: load kernels, map weights, allocate pages and slots of states."""
        if not (1 <= num_pages <= MAX_PAGES and 0 <= num_slots <= MAX_PAGES) or max_tokens < 1:
            raise DeviceError(
                "cpu: expected at least one page and one token, got num_pages"
                f" {num_pages}, num_slots {num_slots} and max_tokens {max_tokens}"
            )
        _check_target(artifact)
        artifact.prefetch()
        threads = choose_num_threads(num_threads)
        variant = choose_variant(artifact, this_machine())
        member = str(variant["library"])
        library = Library(f"{artifact.path}: {member}", artifact.view(member))
        with contextlib.ExitStack() as undo:
            undo.callback(library.close)
            executable = CpuExecutable(
                artifact,
                library,
                num_pages=num_pages,
                max_tokens=max_tokens,
                num_threads=threads,
                isa=str(variant["isa"]),
                num_slots=num_slots,
            )
            undo.pop_all()
        sizes = ", ".join(f"{k} {v / 2**20:.1f} MiB" for k, v in executable.memory_bytes().items())
        _log.info("%s: %s, %d threads, %s", artifact.path, executable.isa, threads, sizes)
        return executable

    def kv_bytes_per_page(self, artifact: Artifact) -> int:
        """Bytes that one page takes over all layers."""
        if STEP not in artifact.entries:
            return 0
        states = plan_of(artifact, STEP).states
        return sum(state_bytes(s.bytes, 2) - state_bytes(s.bytes, 1) for s in states)


def open_device() -> CpuDevice:
    """What `targets.registry` calls."""
    return CpuDevice()


def _check_target(artifact: Artifact) -> None:
    target = cast(dict[str, object], artifact.manifest["target"])
    if target["name"] != "cpu":
        raise ArtifactError(
            f"{artifact.path}: expected an artifact for the target cpu, got one for"
            f" {target['name']} (compile it with --target cpu)"
        )
    shards = cast(dict[str, int], artifact.manifest.get("shards", {"ranks": 1}))
    if shards["ranks"] != 1:
        raise ArtifactError(
            f"{artifact.path}: expected one rank, got {shards['ranks']} (cpu runs unsharded)"
        )


def choose_variant(artifact: Artifact, machine: Machine) -> dict[str, object]:
    """The fastest variant of the artifact that `machine` runs."""
    target = cast(dict[str, object], artifact.manifest["target"])
    variants = cast(Sequence[dict[str, object]], target["variants"])
    fitting = {
        str(variant["isa"]): variant
        for variant in variants
        if library_machine(artifact.view(str(variant["library"]))) == machine.name
    }
    isa = choose(machine, fitting)
    if isa is not None:
        return fitting[isa]
    inside = [str(variant["isa"]) for variant in variants]
    raise ArtifactError(
        f"{artifact.path}: expected code for this machine, {machine.name} with {machine.best},"
        f" got only {inside} (compile with --cpu-isa {machine.best})"
    )
