"""An artifact with emulated kernels -> the same with the vendor's binaries beside them.

Weights, programs and everything else are copied as they are; the new variant comes first, so the
chip takes it, and the emulator still finds its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ...errors import ArtifactError
from ..artifact import Artifact, ArtifactWriter
from ..artifact.kernel_pack import PackedKernel, read_pack, write_pack
from ..artifact.schema import as_dict, as_record, load_json
from .toolchain import BINARY, Toolchain, Versions, xpu_target

Progress = Callable[[str, int, int], None]
SOURCE_SUFFIX = ".source.json"
SOURCE_FORMAT = 1
COPIED_META = ("params", "kinds", "param_bytes", "lm_bytes", "sm_bytes", "uni_sram_bytes")
"""What a launch needs of a kernel, and our model of its memory: as in the emulated pack."""


@dataclass(frozen=True)
class Sources:
    """What the compiler left for the vendor's toolchain: one arch of an artifact."""

    arch: str
    modules: Mapping[str, str]
    kernels: Mapping[str, Mapping[str, Any]]

    @property
    def steps(self) -> list[str]:
        """What remains to be done, and how, where the toolchain is not at hand."""
        return [
            f"remaining: {len(self.kernels)} kernels for {self.arch}, from Triton source to "
            f"{BINARY}, by the vendor's Triton",
            "on a machine that has it (FlagTree with FLAGTREE_BACKEND=xpu, and XTDK):",
            "  sglk finish ARTIFACT --python /path/to/that/environment/bin/python",
            "or set SGLK_KUNLUN_PYTHON to that Python",
        ]


def read_sources(artifact: Artifact) -> Sources:
    """The source record of the artifact's first arch, checked."""
    names = [name for name in artifact.names if name.endswith(SOURCE_SUFFIX)]
    if not names:
        target = cast(dict[str, object], artifact.manifest["target"])
        raise ArtifactError(
            f"{artifact.path}: expected kernel sources that wait for a toolchain, got none "
            f"(an artifact for {target['name']} is complete as it is)"
        )
    where = f"{artifact.path}: {names[0]}"
    record = as_record(
        where, load_json(where, artifact.read(names[0])), ["format", "arch", "modules", "kernels"],
        None,
    )  # fmt: skip
    if record["format"] != SOURCE_FORMAT:
        raise ArtifactError(
            f"{where}: expected format {SOURCE_FORMAT}, got {record['format']!r} (upgrade sglk)"
        )
    kernels = {
        symbol: as_record(
            f"{where}: {symbol}", kernel, ["function", "signature", "constants"], None
        )
        for symbol, kernel in as_dict(f"{where}: kernels", record["kernels"]).items()
    }
    modules = as_dict(f"{where}: modules", record["modules"])
    wrong = [name for name in modules if not name.isidentifier()]
    if wrong:  # they become files where the toolchain is
        raise ArtifactError(f"{where}: modules: expected names of modules, got {wrong[0]!r}")
    return Sources(str(record["arch"]), {k: str(v) for k, v in modules.items()}, kernels)


def compile_sources(
    sources: Sources, toolchain: Toolchain, progress: Progress
) -> tuple[Versions, dict[str, PackedKernel]]:
    """Every kernel through the toolchain; metadata as the compiler states it."""
    target = xpu_target(sources.arch)
    versions = toolchain.hello(target)
    toolchain.modules(sources.modules)
    made: dict[str, PackedKernel] = {}
    for done, (symbol, kernel) in enumerate(sorted(sources.kernels.items())):
        binary = toolchain.compile(symbol, kernel, target)
        made[symbol] = PackedKernel(dict(binary.metadata), binary.data)
        progress("compiling kernels", done + 1, len(sources.kernels))
    return versions, made


def finish(artifact: Artifact, output: Path, toolchain: Toolchain, progress: Progress) -> Versions:
    """Write ``output``: the artifact with a variant of the vendor's binaries."""
    sources = read_sources(artifact)
    emulated = _emulated(artifact, sources.arch)
    missing = [symbol for symbol in sources.kernels if symbol not in emulated]
    if missing:
        raise ArtifactError(
            f"{artifact.path}: expected the kernel {missing[0]} among those of {sources.arch},"
            f" got {len(emulated)} others (compile the model again)"
        )
    versions, made = compile_sources(sources, toolchain, progress)
    with ArtifactWriter(output) as writer:
        pack = {
            symbol: PackedKernel(_meta(emulated[symbol].meta, kernel.meta, versions), kernel.data)
            for symbol, kernel in made.items()
        }
        _write(artifact, writer, sources.arch, write_pack(pack), versions)
    return versions


def _emulated(artifact: Artifact, arch: str) -> dict[str, PackedKernel]:
    """The kernels that the compiler made, of which the new ones are twins."""
    target = cast(dict[str, Any], artifact.manifest["target"])
    members = [v["library"] for v in target["variants"] if v["isa"] == arch]
    if any(member.endswith(f".{BINARY}.pack") for member in members):
        raise ArtifactError(f"{artifact.path}: expected an unfinished artifact, got a finished one")
    if not members:
        raise ArtifactError(f"{artifact.path}: expected kernels for {arch}, got none")
    return read_pack(artifact.view(members[0]), f"{artifact.path}: {members[0]}")


def _meta(
    emulated: Mapping[str, object], vendor: Mapping[str, object], versions: Versions
) -> dict[str, object]:
    """What the driver launches by: kinds of parameters are ours, the rest is the compiler's."""
    return {
        **{name: emulated[name] for name in COPIED_META if name in emulated},
        "kind": BINARY,
        "engine": int(bool(vendor.get("is_sdnn", emulated.get("engine", 0)))),
        "printf_offset": vendor.get("printf_buf_offset") or 0,
        "triton": versions.triton,
        "vendor": dict(vendor),
    }


def _write(
    old: Artifact, writer: ArtifactWriter, arch: str, pack: bytes, versions: Versions
) -> None:
    for name in cast(dict[str, object], old.manifest["members"]):
        if name.startswith("weights/"):
            writer.add_blob([old.view(name)])
        else:
            writer.add_bytes(name, old.view(name))
    member = f"kernels/{arch}.{BINARY}.pack"
    writer.add_bytes(member, pack)
    stated = json.dumps(vars(versions), indent=1).encode()
    writer.add_bytes(f"kernels/{arch}.toolchain.json", stated)
    target = cast(dict[str, Any], old.manifest["target"])
    symbols = next(v["symbols"] for v in target["variants"] if v["isa"] == arch)
    first = {"isa": arch, "library": member, "symbols": symbols}
    writer.finish({**old.manifest, "target": {**target, "variants": [first, *target["variants"]]}})
