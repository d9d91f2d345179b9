"""A decoder lowered for sm_90, run by Triton's interpreter on a null driver's memory.

``TRITON_INTERPRET=1 interpreted_decoder.py FORM`` compiles for weights of a form, packs random
ones, runs the self-test and prints the largest error. Nothing of the way to a GPU is left out but
the compiler: lowering, packing, tables, memory, step classes.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton.language as tl
from sglk import knobs
from sglk.driver import Options
from sglk.ir.dtype import BF16, F32, dtype
from sglk.ir.graph import Graph
from sglk.ir.rewrite import clone
from sglk.passes.pipeline import StepOptions, run_pipeline, step_pipeline
from sglk.runtime.selftest import run_selftest
from sglk.targets.artifact import Artifact, ArtifactWriter
from sglk.targets.artifact.kernel_pack import PackedKernel, write_pack
from sglk.targets.assemble import Library, Parts, write_artifact
from sglk.targets.conformance.decoder import Shape, decoder_graph
from sglk.targets.cuda.backend import CudaBackend
from sglk.targets.cuda.device.device import CudaDevice
from sglk.targets.cuda.device.driver import Grid
from sglk.targets.cuda.device.null_driver import ALIGNMENT, NullDriver
from sglk.targets.kernel import Kernel
from sglk.targets.lowering import STEP, STEP_SYMBOLS
from sglk.targets.selftest import make_cases, num_pages
from sglk.targets.weights import dense_reader, typed_reader
from triton.runtime import interpreter

SHAPE = Shape("test", heads=2, kv_heads=1, head_dim=64, pairs=32, hidden=64, inner=96, vocab=40)
TYPES = {
    "*fp32": torch.float32, "*bf16": torch.bfloat16, "*fp16": torch.float16, "*i32": torch.int32,
    "*u8": torch.uint8, "*fp8e4nv": torch.float8_e4m3fn,
}  # fmt: skip
MAX_TOKENS = 64
CASES = 2
"""Steps of the self-test: a prompt, and a token after it."""
BUCKETS = (1, 16)
"""Single tokens, few, and many: what the steps of the self-test need."""


def widened(handle: Any) -> np.ndarray:
    """Operands of a product in f32: the interpreter multiplies the bits of bf16."""
    data = np.ascontiguousarray(handle.data)
    if handle.dtype == tl.bfloat16:
        return (data.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    if handle.dtype == tl.float8e4nv:
        return torch.from_numpy(data).view(torch.float8_e4m3fn).float().numpy()
    return data.astype(np.float32)


def dot(_: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
    product = np.matmul(widened(a), widened(b)) + d.data
    return interpreter.TensorHandle(product, d.dtype.scalar)


def memory_at(driver: NullDriver, address: int, kind: str) -> torch.Tensor:
    """From an address to the end of what was allocated there."""
    spans = ((at, at + len(memory) - ALIGNMENT) for at, memory in driver._memory.items())
    end = next(high for low, high in spans if low <= address < high)
    size = TYPES[kind].itemsize
    count = (end - address) // size * size
    view = (ctypes.c_uint8 * count).from_address(address)
    return torch.frombuffer(view, dtype=torch.uint8).view(TYPES[kind])


def stand_in(kernel: Kernel, driver: NullDriver) -> Callable[[Grid, Sequence[int]], None]:
    """The kernel as a function of a launch's words."""
    function = kernel.load()
    constants = {name: 0 if name == "PDL" else value for name, value in kernel.constants}

    def run(grid: Grid, words: Sequence[int]) -> None:
        given: dict[str, Any] = {}
        for (name, kind), word in zip(kernel.signature, words, strict=False):
            low = (word & 0xFFFFFFFF).to_bytes(4, "little")
            if kind.startswith("*"):
                given[name] = memory_at(driver, word, kind)
            else:
                given[name] = struct.unpack("<f" if kind == "fp32" else "<i", low)[0]
        if grid.x and grid.y and grid.z:
            function[(grid.x, grid.y, grid.z)](**given, **constants)

    return run


def write(path: Path, form: str, captured: Graph) -> dict[str, Kernel]:
    """The artifact with its self-test, kernels unmade; the kernels by symbol."""
    backend, graph, rng = CudaBackend(), clone(captured), np.random.default_rng(0)
    scale = {1: 0.1, 2: 0.05}
    params = {
        v.name: (rng.normal(size=v.type.concrete({})) * scale[v.type.rank]).astype(np.float32)
        + np.float32(v.type.rank == 1)
        for v in captured.params
    }
    given = StepOptions(BF16, BF16, (), BF16, dtype(form))
    target = backend.target(Options(arches=("sm90",), activations="bf16"))
    target = replace(target, token_buckets=BUCKETS)
    run_pipeline(graph, step_pipeline(target, given))
    lowering = backend.lower(graph, target)
    program = lowering.program(STEP, STEP_SYMBOLS)
    kinds = {v.name: F32 for v in captured.params} | {v.name: v.type.dtype for v in graph.params}
    read = dense_reader(kinds, params.__getitem__)
    kernels = {
        symbol: PackedKernel(
            {"entry": symbol, "num_warps": 4, "params": [t for _, t in kernel.signature],
             "global_scratch": 384}, b"",
        )
        for symbol, kernel in lowering.kernels.items()
    }  # fmt: skip
    parts = Parts(
        model={"name": "d", "architecture": "d", "vocab_size": SHAPE.vocab, "context_length": 4096},
        target="cuda",
        page_size=target.page_size,
        program=program,
        lowering=lowering,
        libraries=[Library("sm_90", write_pack(kernels), ".pack")],
        graph_text="",
        plans=backend.plans(program),
        selftest=make_cases(captured, read, SHAPE.vocab, target.page_size)[:CASES],
        selftest_tolerance=1.0,
        selftest_pages=num_pages(target.page_size),
    )
    typed = typed_reader(graph, params.__getitem__)
    with ArtifactWriter(path) as writer:
        write_artifact(writer, parts, typed, backend.pack_weight, dict, lambda *_: None)
    return lowering.kernels


def largest_error(form: str) -> float:
    """Of the self-test's logits."""
    interpreter.InterpreterBuilder.create_dot = dot
    driver = NullDriver(total_bytes=1 << 33)
    device = CudaDevice(open_driver=lambda _: driver)
    with tempfile.TemporaryDirectory() as folder, knobs.override(graphs="off", verify=False):
        path = Path(folder) / "decoder.sglk"
        kernels = write(path, form, decoder_graph(SHAPE))
        driver.kernels = {symbol: stand_in(k, driver) for symbol, k in kernels.items()}
        pages = num_pages(64)
        with (
            Artifact.open(path) as artifact,
            device.load(artifact, num_pages=pages, max_tokens=MAX_TOKENS) as executable,
        ):
            results = run_selftest(artifact, executable=executable)
            return max(result.error for result in results)


if __name__ == "__main__":
    print(largest_error(sys.argv[1]))
