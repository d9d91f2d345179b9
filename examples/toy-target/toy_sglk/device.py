"""The run-time face: memory, launches and checks. Loads no compiler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sglk.errors import ArtifactError, DeviceError
from sglk.targets.artifact import Artifact, Call, Program
from sglk.targets.artifact.kernel_pack import read_pack
from sglk.targets.device import StepBatch
from sglk.targets.dim_code import parse

from .kernels import KERNELS

Bytes = NDArray[np.uint8]
TYPES = {"f32": np.float32, "i32": np.int32}
POINTERS = {"*fp32": np.float32, "*fp16": np.float16, "*bf16": np.uint16, "*i32": np.int32}
MAX_BYTES = 1 << 33
"""Memory of the chip."""


class ToyDevice:
    """See `sglk.targets.device.Device`."""

    name = "toy"

    def load(
        self, artifact: Artifact, *, num_pages: int, max_tokens: int, num_threads: int | None = None
    ) -> ToyExecutable:
        if num_pages < 1 or max_tokens < 1:
            raise DeviceError(f"toy: expected pages and tokens, got {num_pages} and {max_tokens}")
        return ToyExecutable(artifact, num_pages, max_tokens)

    def kv_bytes_per_page(self, artifact: Artifact) -> int:
        if "step" not in artifact.entries:
            return 0
        states = artifact.program("step").states
        return sum(
            size(s.bytes, {"num_pages": 2}) - size(s.bytes, {"num_pages": 1}) for s in states
        )


def open_device() -> ToyDevice:
    return ToyDevice()


def size(text: str, symbols: Mapping[str, int]) -> int:
    return parse(text, tuple(symbols)).evaluate(symbols)


class ToyExecutable:
    """See `sglk.targets.device.Executable`."""

    def __init__(self, artifact: Artifact, num_pages: int, max_tokens: int) -> None:
        target: Any = artifact.manifest["target"]
        if target["name"] != "toy" or not target["variants"]:
            raise ArtifactError(f"{artifact.path}: expected an artifact for toy, got {target}")
        model: Any = artifact.manifest["model"]
        self.page_size, self.vocab_size = int(target["page_size"]), int(model["vocab_size"])
        self.num_pages, self.max_tokens = num_pages, max_tokens
        self._kernels = read_pack(artifact.view(target["variants"][0]["library"]))
        self._programs = {entry: artifact.program(entry) for entry in artifact.entries}
        self._weights = {name: artifact.weight(name) for name in artifact.weights}
        sizes = {
            state.name: size(state.bytes, {"num_pages": num_pages})
            for program in self._programs.values()
            for state in program.states
        }
        if sum(sizes.values()) > MAX_BYTES:
            raise DeviceError(f"toy: expected states of at most {MAX_BYTES} bytes, got {sizes}")
        self._states = {name: np.zeros(n, np.uint8) for name, n in sizes.items()}

    def step(self, batch: StepBatch) -> NDArray[np.float32]:
        self._check(batch)
        (logits,) = self.run("step", vars(batch)).values()
        return logits

    def run(self, entry: str, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        if entry not in self._programs:
            raise DeviceError(f"toy: expected one of {[*self._programs]}, got {entry!r}")
        program = self._programs[entry]
        symbols = self._symbols(program, inputs)
        memory: dict[tuple[str, str], Bytes] = {
            ("buffer", b.name): as_bytes(inputs[b.name]) for b in program.inputs
        }
        memory |= {("state", name): array for name, array in self._states.items()}
        memory |= {("weight", name): array for name, array in self._weights.items()}
        for buffer in (*program.outputs, *program.temps):
            memory["buffer", buffer.name] = np.zeros(size(buffer.bytes, symbols), np.uint8)
        tokens = symbols.get("tokens", 0)
        calls = next(b.calls for b in program.buckets if tokens <= (b.tokens_max or tokens))
        for call in calls:
            self._launch(call, memory, symbols)
        return {
            b.name: memory["buffer", b.name].view(TYPES[b.dtype]).reshape(
                [size(d, symbols) for d in b.shape]
            )
            for b in program.outputs
        }  # fmt: skip

    def close(self) -> None:
        self._programs, self._weights, self._states = {}, {}, {}

    def _launch(
        self, call: Call, memory: Mapping[tuple[str, str], Bytes], symbols: Mapping[str, int]
    ) -> None:
        meta: Any = self._kernels[call.kernel].meta
        arguments: list[Any] = []
        for arg, kind in zip(call.args, meta["params"], strict=True):
            if arg.kind in ("i32", "i64"):
                arguments.append(size(arg.value, symbols))
            elif arg.kind == "f32":
                arguments.append(arg.number())
            else:
                bytes_ = memory[arg.kind, arg.value][size(arg.offset, symbols) :]
                arguments.append(widened(bytes_.view(POINTERS[kind])))
        KERNELS[meta["function"]](*arguments, **meta["constants"])

    def _symbols(self, program: Program, inputs: Mapping[str, NDArray[Any]]) -> dict[str, int]:
        """Sizes that the shapes of the inputs give; each shape is checked against them."""
        symbols = {"num_pages": self.num_pages}
        for buffer in program.inputs:
            if buffer.name not in inputs or inputs[buffer.name].ndim != len(buffer.shape):
                raise DeviceError(f"toy: input {buffer.name}: expected {buffer.shape}")
            for text, extent in zip(buffer.shape, inputs[buffer.name].shape, strict=True):
                if text.isidentifier():
                    symbols.setdefault(text, extent)
        for buffer in program.inputs:
            array = inputs[buffer.name]
            shape = tuple(size(text, symbols) for text in buffer.shape)
            is_plain = array.dtype == TYPES[buffer.dtype] and array.flags.c_contiguous
            if array.shape != shape or not is_plain:
                raise DeviceError(
                    f"toy: input {buffer.name}: expected contiguous {buffer.dtype}{list(shape)},"
                    f" got {array.dtype}{list(array.shape)}"
                )
        return symbols

    def _check(self, batch: StepBatch) -> None:
        """A wrong index would read or write memory of somebody else."""
        tokens, (_, columns) = len(batch.token_ids), batch.page_table.shape
        for name, low, high in (
            ("token_ids", 0, self.vocab_size),
            ("slots", 0, self.num_pages * self.page_size),
            ("page_table", 0, self.num_pages),
            ("logit_rows", 0, tokens),
            ("query_start", 0, tokens + 1),
            ("seq_lens", 0, columns * self.page_size + 1),
        ):
            array = getattr(batch, name)
            if array.size and not (low <= array.min() and array.max() < high):
                raise DeviceError(f"toy: {name}: expected {low} to {high - 1}, got {array}")
        lengths = np.diff(batch.query_start)
        if not 1 <= tokens <= self.max_tokens or (lengths > batch.seq_lens).any():
            raise DeviceError(f"toy: expected 1 to {self.max_tokens} tokens, got {tokens}")


def as_bytes(array: NDArray[Any]) -> Bytes:
    return array.reshape(-1).view(np.uint8)


def widened(array: NDArray[Any]) -> NDArray[Any]:
    """bf16, which NumPy does not know, as f32; such memory is only read."""
    if array.dtype != np.uint16:
        return array
    return (array.astype(np.uint32) << 16).view(np.float32)
