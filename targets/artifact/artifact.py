"""Opening an artifact: what is wrong with it is known, in one sentence, before anything runs.

`Artifact.open` checks sizes and offsets of every member, the hash of the manifest, and the hash of
every member but the weights, whose gigabytes `verify_weights` reads when asked.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import numpy as np
from numpy.typing import NDArray

from ...errors import ArtifactError
from .container import MANIFEST, Container, open_container
from .expand import Expand
from .fill import DTYPES as FILLED
from .fill import Fill, fill_array
from .manifest import check_manifest
from .program import Program
from .schema import as_dict, load_json
from .writer import WEIGHTS


class Artifact:
    """An open artifact; a context manager. Views stay valid as long as they are referenced."""

    def __init__(self, path: Path, container: Container) -> None:
        self.path = path
        self._container = container
        self._sizes = container.sizes()
        self.manifest: dict[str, object] = self._read_manifest()
        self._check_members()

    @staticmethod
    def open(path: Path | str) -> Artifact:
        """Open the zip file or folder at `path`; raises `ArtifactError` when anything is wrong."""
        path = Path(path)
        return Artifact(path, open_container(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give up the file."""
        self._container.close()
        self._sizes = {}

    def prefetch(self) -> None:
        """Ask the system to read the weights ahead and to map them, without waiting for it."""
        self._container.prefetch()

    def read_ahead(self) -> None:
        """Ask the system to read the weights ahead, for `read_into`, without waiting for it."""
        self._container.read_ahead()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all members."""
        return tuple(self._sizes)

    @property
    def entries(self) -> tuple[str, ...]:
        """Entry points that have a program."""
        return tuple(self._section("programs"))

    @functools.cached_property
    def weights(self) -> dict[str, dict[str, object]]:
        """Manifest entry of every weight."""
        return cast(dict[str, dict[str, object]], self._section("weights"))

    def view(self, name: str) -> memoryview:
        """Content of a member, read-only and without a copy."""
        if name not in self._sizes:
            raise ArtifactError(
                f"{self.path}: no member {name!r} (has: {sorted(self._sizes)[:20]})"
            )
        return self._container.view(name)

    def read(self, name: str) -> bytes:
        """Content of a member."""
        return bytes(self.view(name))

    def weight(self, name: str) -> NDArray[np.uint8]:
        """Bytes of a weight, mapped from the file, or made now if it is a fill.

        Of a weight to `expand` they are the blocks.
        """
        if name not in self.weights:
            known = sorted(self.weights)[:20]
            raise ArtifactError(f"{self.path}: no weight {name!r} (has: {known})")
        if (fill := self.fill(name)) is not None:
            dtype, size = (self.weights[name][key] for key in ("dtype", "bytes"))
            count = int(str(size)) // FILLED[str(dtype)]
            return fill_array(fill, count, str(dtype)).view(np.uint8)
        view = self.view(str(self.weights[name]["blob"]))
        return np.frombuffer(view, np.uint8) if len(view) else np.zeros(0, np.uint8)

    def blob_bytes(self, name: str) -> int:
        """Bytes of a weight in the file: of one to `expand` those of its blocks, of a fill 0."""
        return 0 if self.fill(name) is not None else self._sizes[str(self.weights[name]["blob"])]

    def read_into(self, name: str, start: int, target: NDArray[np.uint8]) -> None:
        """Copy a blob's bytes from ``start`` on into an array; faster than from the map, and any
        thread may."""
        self._container.read_into(str(self.weights[name]["blob"]), start, target.data)

    def fill(self, name: str) -> Fill | None:
        """How a weight is made on load; None when the file holds it."""
        record = self.weights[name].get("fill")
        return None if record is None else Fill.from_json(f"{self.path}: {name}", record)

    def expand(self, name: str) -> Expand | None:
        """How a weight is made of blocks on load; None when its blob is the weight."""
        record = self.weights[name].get("expand")
        return None if record is None else Expand.from_json(f"{self.path}: {name}", record)

    def weight_bytes(self, names: Iterable[str]) -> int:
        """Bytes of these weights in memory; a blob that several share counts once."""
        named = {name: self.weights[name] for name in names}
        sizes = {str(w.get("blob", n)): int(str(w["bytes"])) for n, w in named.items()}
        return sum(sizes.values())

    def program(self, entry: str) -> Program:
        """The program of an entry point, checked against itself and against the weights."""
        programs = self._section("programs")
        if entry not in programs:
            raise ArtifactError(f"{self.path}: no program {entry!r} (has: {sorted(programs)})")
        program = Program.from_json(self.read(str(programs[entry])), f"{self.path}: {entry}")
        missing = [name for name in program.weights if name not in self.weights]
        if program.entry != entry or missing:
            what = f"no weight {missing[0]!r}" if missing else f"it calls itself {program.entry!r}"
            raise ArtifactError(f"{self.path}: program {entry!r} does not fit: {what}")
        return program

    @property
    def plans(self) -> dict[str, str]:
        """By entry point: the member with its launch plan, in the target's own form, if any."""
        return cast(dict[str, str], self.manifest.get("plans", {}))

    def verify_weights(self, progress: Callable[[int], None] | None = None) -> None:
        """Hash every weight; `progress` gets the bytes of each one that is done."""
        owners = {str(weight.get("blob")): name for name, weight in self.weights.items()}
        for name in filter(lambda n: n.startswith(WEIGHTS), self._sizes):
            self._check_hash(name, name.removeprefix(WEIGHTS), owners.get(name, name))
            if progress is not None:
                progress(self._sizes[name])

    def _section(self, key: str) -> dict[str, object]:
        return as_dict(f"{self.path}: {key}", self.manifest[key])

    def _read_manifest(self) -> dict[str, object]:
        if MANIFEST not in self._sizes:
            raise ArtifactError(f"{self.path}: not an sglk artifact (expected {MANIFEST} inside)")
        self._check_hash(MANIFEST, self._container.manifest_sha256, "the manifest")
        where = f"{self.path}: {MANIFEST}"
        return check_manifest(str(self.path), load_json(where, self.read(MANIFEST)))

    def _check_members(self) -> None:
        listed = cast(dict[str, dict[str, object]], self._section("members"))
        for name in self._sizes:
            if name not in listed and name != MANIFEST:
                raise ArtifactError(f"{self.path}: member {name} is not in the manifest")
        for name, record in listed.items():
            if self._sizes.get(name) != record["bytes"]:
                raise ArtifactError(
                    f"{self.path}: member {name}: expected {record['bytes']} bytes,"
                    f" got {self._sizes.get(name, 'none')} (compile or copy it again)"
                )
            if not name.startswith(WEIGHTS):
                self._check_hash(name, str(record["sha256"]), name)
            elif name != WEIGHTS + str(record["sha256"]):
                raise ArtifactError(f"{self.path}: member {name} is not named by its hash")

    def _check_hash(self, name: str, expected: str, what: str) -> None:
        found = hashlib.sha256(self.view(name)).hexdigest()
        if found != expected:
            raise ArtifactError(
                f"{self.path}: {what}: expected sha256 {expected[:16]}..., got {found[:16]}..."
                " (the file is damaged or edited: compile or copy it again)"
            )
