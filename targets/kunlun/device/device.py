"""Kunlun devices: the chip through the vendor's runtime, or the emulator inside the artifact."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from typing import cast

from .... import knobs
from ....errors import ArtifactError, DeviceError
from ...artifact import Artifact
from ...artifact.kernel_pack import PackedKernel, read_pack
from .executable import KunlunExecutable, open_player, state_bytes
from .library import VENDOR_LIBRARY, XreLibrary
from .xpu import Xpu

log = logging.getLogger(__name__)
EMULATOR_MEMBER = "emulator/libxpurt_emulator.so"
MAX_PAGES = 2**31 - 1


class KunlunDevice:
    """Implements `Device` over the library of one runtime."""

    name = "kunlun"
    label = "kunlun"
    """How `targets.registry` names it."""
    kinds: tuple[str, ...] = ("xpubin",)
    """Kinds of kernels that this device runs."""

    def open_library(self, artifact: Artifact) -> XreLibrary:
        """The vendor's runtime."""
        return XreLibrary.vendor(VENDOR_LIBRARY)

    def load(
        self, artifact: Artifact, *, num_pages: int, max_tokens: int, num_threads: int | None = None
    ) -> KunlunExecutable:
        """Bind an artifact: load kernels, place weights, allocate ``num_pages`` pages."""
        if not 1 <= num_pages <= MAX_PAGES or max_tokens < 1:
            raise DeviceError(
                f"{self.label}: expected at least one page and one token,"
                f" got num_pages {num_pages} and max_tokens {max_tokens}"
            )
        kernels = self.choose_kernels(artifact)
        with contextlib.ExitStack() as undo:
            library = self.open_library(artifact)
            undo.callback(library.close)
            if library.is_emulated:
                threads = num_threads or len(os.sched_getaffinity(0))
                for settings in filter(None, (f"threads={threads}", knobs.get().kunlun_emulator)):
                    library.call("xpuemu_configure", settings.encode())
            xpu = Xpu(library)
            undo.callback(xpu.close)
            player = open_player(artifact, library)
            if player is not None:
                undo.callback(player.close)
            executable = KunlunExecutable(
                artifact, xpu, kernels,
                num_pages=num_pages, max_tokens=max_tokens, player=player,
            )  # fmt: skip
            undo.pop_all()
        log.info("%s: %s, %d bytes on the device", artifact.path, self.label, xpu.used_bytes)
        return executable

    def kv_bytes_per_page(self, artifact: Artifact) -> int:
        """Bytes that one page takes over all layers."""
        if "step" not in artifact.entries:
            return 0
        states = artifact.program("step").states
        return sum(state_bytes(s.bytes, 2) - state_bytes(s.bytes, 1) for s in states)

    def choose_kernels(self, artifact: Artifact) -> dict[str, PackedKernel]:
        """The kernels of the first variant that this device runs."""
        target = cast(dict[str, object], artifact.manifest["target"])
        if target["name"] != "kunlun":
            raise ArtifactError(
                f"{artifact.path}: expected an artifact for the target kunlun, got one for"
                f" {target['name']} (compile it with --target kunlun)"
            )
        found: set[str] = set()
        for variant in cast(Sequence[dict[str, object]], target["variants"]):
            member = str(variant["library"])
            pack = read_pack(artifact.view(member), f"{artifact.path}: {member}")
            kinds = {str(kernel.meta.get("kind")) for kernel in pack.values()}
            if kinds <= set(self.kinds):
                return pack
            found |= kinds
        raise ArtifactError(
            f"{artifact.path}: expected kernels of kind {' or '.join(self.kinds)} for the device"
            f" {self.label}, got {sorted(found)} (sglk finish makes xpubin kernels where the"
            " vendor's toolchain is; --device emulator runs emulated ones)"
        )


class EmulatorDevice(KunlunDevice):
    """The same chip, by the library that the artifact carries."""

    label = "emulator"
    kinds = ("emulated",)

    def open_library(self, artifact: Artifact) -> XreLibrary:
        """The emulator's runtime."""
        if EMULATOR_MEMBER not in artifact.names:
            raise ArtifactError(
                f"{artifact.path}: expected {EMULATOR_MEMBER} inside (compile it again)"
            )
        where = f"{artifact.path}: emulator"
        return XreLibrary.from_bytes(where, artifact.view(EMULATOR_MEMBER))


def open_device() -> KunlunDevice:
    """What `targets.registry` calls for ``kunlun``."""
    return KunlunDevice()
