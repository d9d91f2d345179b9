"""An artifact on a Kunlun device, real or emulated: memory placed, kernels loaded."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self, cast

import numpy as np
from numpy.typing import NDArray

from .... import knobs
from ....errors import ArtifactError, DeviceError
from ...artifact import Artifact, Program
from ...artifact.host_ops import HostOps
from ...artifact.kernel_pack import PackedKernel
from ...device import HostCount, Int32s, StepBatch
from ...dim_code import parse
from .bound_program import Array, Block, BoundProgram
from .error_table import LOST
from .launch_list import Region
from .library import XreDeviceError, XreLibrary
from .player import PLAYER_MEMBER, Player
from .step_inputs import check_shapes, check_values
from .vendor import PREFIX, VendorAdapter
from .xpu import Xpu

log = logging.getLogger(__name__)
STEP = "step"


class KunlunExecutable:
    """Implements `Executable` and `HasArgmax`. Not thread-safe."""

    def __init__(
        self,
        artifact: Artifact,
        xpu: Xpu,
        kernels: Mapping[str, PackedKernel],
        *,
        num_pages: int,
        max_tokens: int,
        player: Player | None = None,
    ) -> None:
        self.num_pages = num_pages
        self.max_tokens = max_tokens
        self.page_size = _size(artifact, "target", "page_size")
        self.vocab_size = _size(artifact, "model", "vocab_size")
        self._xpu: Xpu | None = xpu
        self._lost = ""
        self._logits = np.zeros((0, self.vocab_size), np.float32)
        programs = [artifact.program(entry) for entry in artifact.entries]
        host = HostOps.of(artifact)
        self.host_counts: Mapping[str, HostCount] = host.counts
        named = dict.fromkeys(name for program in programs for name in program.kernels)
        operators = [name for name in named if name.startswith(PREFIX)]
        vendor = open_adapter(xpu.library, operators)
        needed = [name for name in named if name not in host and name not in operators]
        missing = [name for name in needed if name not in kernels]
        if missing:
            raise ArtifactError(f"{artifact.path}: its kernels lack {missing[:5]}")
        self._player = player
        loaded = {name: xpu.load_kernel(name, kernels[name]) for name in needed}
        check_capacity(artifact, xpu, programs, num_pages)
        self._regions = self._weights(artifact, xpu, programs) | self._states(xpu, programs)
        arena = Block(xpu)
        self._programs = {
            program.entry: BoundProgram(
                program,
                xpu,
                loaded,
                self._regions,
                arena,
                num_pages,
                self._player,
                host,
                vendor,
            )
            for program in programs
        }

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
        """Give memory and kernels back; safe to call twice."""
        if self._xpu is not None:
            xpu, self._xpu = self._xpu, None
            self._programs = {}
            self._logits = np.zeros((0, 0), np.float32)
            if self._player is not None:
                self._player.close()
            xpu.close()
            xpu.library.close()

    def step(self, batch: StepBatch) -> NDArray[np.float32]:
        """Run one step; the logits [L, V] are a view that is valid until the next step."""
        program = self._program(STEP)
        arrays, sizes = check_shapes(batch, self.max_tokens)
        check_values(
            arrays, sizes,
            page_size=self.page_size, num_pages=self.num_pages, vocab_size=self.vocab_size,
        )  # fmt: skip
        inputs = {buffer.name: arrays[buffer.name] for buffer in program.program.inputs}
        with self._watch():
            (logits,) = program.run(inputs, sizes).values()
        self._logits = cast("NDArray[np.float32]", logits)
        return self._logits

    def argmax(self, rows: Int32s) -> Int32s:
        """The id of the largest logit in each of these rows of the last step; see `HasArgmax`."""
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(self._logits):
            raise DeviceError(
                f"kunlun: argmax: expected rows of the last step's {len(self._logits)} logits,"
                f" got {rows.tolist()[:20]}"
            )
        ids = np.array([self._logits[row].argmax() for row in rows.tolist()], np.int32)
        ids[~np.isfinite(self._logits[rows, ids])] = -1
        return ids

    def run(self, entry: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run an entry that is no decoder step on arrays by name; returns its outputs by name."""
        program = self._program(entry)
        symbols = program.symbols_of(inputs)
        with self._watch():
            return {name: view.copy() for name, view in program.run(inputs, symbols).items()}

    def counters(self, kernel: str | None = None) -> dict[str, float]:
        """The emulator's counts since they were reset, of one kernel or of all; {} on a chip."""
        return self._device().counters(kernel)

    def memory_bytes(self) -> int:
        """Device memory in use."""
        return self._device().used_bytes

    @contextlib.contextmanager
    def _watch(self) -> Iterator[None]:
        """Remembers a failure after which the device no longer works."""
        try:
            yield
        except XreDeviceError as error:
            if error.code in LOST:
                self._lost = str(error)
            raise

    def _device(self) -> Xpu:
        if self._xpu is None:
            raise DeviceError("kunlun: the executable is closed (load the artifact again)")
        if self._lost:
            raise DeviceError(f"kunlun: the device was lost: {self._lost}")
        return self._xpu

    def _program(self, entry: str) -> BoundProgram:
        self._device()
        if entry not in self._programs:
            raise DeviceError(f"kunlun: no program {entry!r} (has: {sorted(self._programs)})")
        return self._programs[entry]

    def _weights(
        self, artifact: Artifact, xpu: Xpu, programs: list[Program]
    ) -> dict[tuple[str, str], Region]:
        """One allocation per different blob: a kernel that leaves its weight is seen."""
        regions: dict[tuple[str, str], Region] = {}
        placed: dict[str, int] = {}
        for name in dict.fromkeys(n for program in programs for n in program.weights):
            array = artifact.weight(name)
            blob = str(artifact.weights[name].get("blob", name))
            if blob not in placed:
                placed[blob] = xpu.allocate(array.nbytes)
                xpu.upload(placed[blob], array)
            regions["weight", name] = (placed[blob], array.nbytes)
        return regions

    def _states(self, xpu: Xpu, programs: list[Program]) -> dict[tuple[str, str], Region]:
        """Zeroed memory for each state; entries that name the same state share it."""
        regions: dict[tuple[str, str], Region] = {}
        for state in (state for program in programs for state in program.states):
            size, key = state_bytes(state.bytes, self.num_pages), ("state", state.name)
            if regions.setdefault(key, (0, size))[1] != size:
                raise ArtifactError(f"kunlun: state {state.name} has two sizes in the programs")
            if not regions[key][0]:
                regions[key] = (xpu.allocate(size), size)
                zero_fill(xpu, *regions[key])
        return regions


def open_adapter(library: XreLibrary, operators: Sequence[str]) -> VendorAdapter | None:
    """What calls the vendor's operators, if an artifact does."""
    if not operators:
        return None
    adapter = VendorAdapter(library, knobs.get().kunlun_adapter)
    adapter.require(operators)
    return adapter


def open_player(artifact: Artifact, library: XreLibrary) -> Player | None:
    """The player that the artifact carries, if it does."""
    if PLAYER_MEMBER not in artifact.names:
        return None
    return Player(f"{artifact.path}: player", artifact.view(PLAYER_MEMBER), library)


CHUNK = 16 << 20


def zero_fill(xpu: Xpu, address: int, num_bytes: int) -> None:
    """The runtime has no memset: copies of zeros."""
    zeros = np.zeros(min(CHUNK, num_bytes), np.uint8)
    for at in range(0, num_bytes, CHUNK):
        xpu.upload(address + at, zeros[: min(CHUNK, num_bytes - at)])


def state_bytes(text: str, num_pages: int) -> int:
    """Bytes of a state with so many pages."""
    return parse(text, ["num_pages"]).evaluate({"num_pages": num_pages})


def check_capacity(artifact: Artifact, xpu: Xpu, programs: list[Program], num_pages: int) -> None:
    """Refuse more pages than the device has memory for, with the number that fits."""
    total = xpu.attribute("main_bytes")
    weights = artifact.weight_bytes({name for program in programs for name in program.weights})
    states = {state.name: state.bytes for program in programs for state in program.states}
    wanted = sum(state_bytes(text, num_pages) for text in states.values())
    if weights + wanted <= total:
        return
    per_page = sum(state_bytes(t, 2) - state_bytes(t, 1) for t in states.values())
    fits = max(0, total - weights) // per_page if per_page else 0
    raise DeviceError(
        f"kunlun: expected {weights} bytes of weights and {wanted} of states within the device's"
        f" {total}; {fits} pages of {per_page} bytes fit, got {num_pages} (use fewer pages)"
    )


def _size(artifact: Artifact, section: str, key: str) -> int:
    value = cast(dict[str, object], artifact.manifest[section]).get(key)
    return value if isinstance(value, int) else 0
