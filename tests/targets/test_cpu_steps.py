"""Compiled step graphs on the CPU device against the reference interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sglk.ir.dtype import BF16, F32, I8, Q4_1, Q8_0, DType
from sglk.ir.graph import Graph
from sglk.ir.interpret import interpret
from sglk.ir.op import Array
from sglk.ir.rewrite import clone
from sglk.ir.testing import assert_close, random_array
from sglk.passes.quantize_activations import QuantizeActivations
from sglk.passes.round_activations import RoundActivations
from sglk.passes.round_attention import RoundAttention
from sglk.targets.artifact import Artifact, ArtifactWriter
from sglk.targets.assemble import Library, Parts, write_artifact
from sglk.targets.cpu.build import build_library
from sglk.targets.cpu.compile import lower
from sglk.targets.cpu.facts import PAGE_SIZE, cpu_target
from sglk.targets.cpu.packing import pack_weight
from sglk.targets.device import Executable, StepBatch
from sglk.targets.lowering import STEP_SYMBOLS
from sglk.targets.registry import open_device
from sglk.targets.tilec import KernelCache, native_isa
from sglk.targets.weights import typed_reader

MakeStep = Callable[..., Graph]
NUM_PAGES = 24


def compiled(graph: Graph, params: dict[str, Array], path: Path, handwritten: bool = True) -> Path:
    """Compile ``graph`` for this machine."""
    isa = native_isa().name
    lowering = lower(graph, replace(cpu_target(isa), handwritten=handwritten))
    program = lowering.program("step", STEP_SYMBOLS)
    kernels = list(lowering.kernels.values())
    library = build_library(kernels, isa, KernelCache(), lambda stage, done, total: None)
    parts = Parts(
        model={"name": "toy", "architecture": "toy", "vocab_size": 96},
        target="cpu",
        page_size=PAGE_SIZE,
        program=program,
        lowering=lowering,
        libraries=[Library(isa, library)],
        graph_text=graph.as_text(),
        producer="test",
    )
    read = typed_reader(graph, params.__getitem__)
    with ArtifactWriter(path) as writer:
        write_artifact(writer, parts, read, pack_weight, dict, lambda stage, done, total: None)
    return path


@contextmanager
def loaded(path: Path, threads: int = 2) -> Iterator[Executable]:
    with Artifact.open(path) as artifact:
        executable = open_device("cpu").load(
            artifact, num_pages=NUM_PAGES, max_tokens=128, num_threads=threads
        )
        yield executable
        executable.close()


def batch(chunks: list[tuple[int, list[int], int]], pages: dict[int, list[int]]) -> StepBatch:
    """(sequence, tokens, tokens before) for each chunk; logits of every chunk's last token."""
    spans = [np.arange(before, before + len(tokens)) for _, tokens, before in chunks]
    table = np.zeros((len(chunks), 4), np.int32)
    for row, (sequence, _, _) in enumerate(chunks):
        table[row, : len(pages[sequence])] = pages[sequence]
    slots = [
        row[span // PAGE_SIZE] * PAGE_SIZE + span % PAGE_SIZE
        for row, span in zip(table, spans, strict=True)
    ]
    starts = np.cumsum([0, *(len(s) for s in spans)])
    return StepBatch(
        token_ids=np.array([t for _, tokens, _ in chunks for t in tokens], np.int32),
        positions=np.concatenate(spans).astype(np.int32),
        slots=np.concatenate(slots).astype(np.int32),
        query_start=starts.astype(np.int32),
        seq_lens=np.array([s[-1] + 1 for s in spans], np.int32),
        page_table=table,
        logit_rows=(starts[1:] - 1).astype(np.int32),
    )


class Reference:
    """The interpreter with its own state."""

    def __init__(self, graph: Graph, params: dict[str, Array]) -> None:
        self.graph, self.params = graph, params
        slots = NUM_PAGES * PAGE_SIZE
        shape = graph.states[0].type.concrete({"kv_slots": slots})
        self.state = np.zeros(shape, np.float32)

    def step(self, step: StepBatch) -> np.ndarray:
        sizes = {
            "tokens": len(step.token_ids),
            "seqs": len(step.seq_lens),
            "pages": step.page_table.shape[1],
            "rows": len(step.logit_rows),
            "kv_slots": NUM_PAGES * PAGE_SIZE,
        }
        graph = clone(self.graph, sizes)
        last = [n for n in graph.nodes if n.op.name == "rope_write_kv"][-1].outputs[1]
        graph.outputs = [*graph.outputs, last]
        logits, self.state = interpret(graph, {**vars(step), "kv": self.state}, self.params)
        return np.asarray(logits)


def make_params(graph: Graph, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {v.name: random_array(v.type, rng, {}) for v in graph.params}


STEPS = [
    [(0, list(range(3, 45)), 0)],
    [(0, [7], 42)],
    [(0, [9], 43), (1, list(range(20)), 0), (2, [5], 0)],
    [(0, [9], 44), (1, [2, 3, 4], 20), (2, [8], 1), (3, list(range(70)), 0)],
    [(i, [i], n) for i, n in enumerate([45, 23, 2, 70])],
]
PAGES = {0: [3, 1], 1: [5], 2: [7], 3: [9, 2, 11]}


@pytest.mark.parametrize(
    ("weight", "kv", "products", "rtol"),
    [
        (F32, F32, F32, 2e-5),
        (BF16, F32, F32, 2e-5),
        (Q4_1, F32, F32, 2e-5),
        (Q8_0, BF16, F32, 2e-3),
        (F32, BF16, BF16, 4e-3),
        (BF16, BF16, BF16, 6e-2),  # these weights are large: one rounding of x goes far
        (Q4_1, BF16, BF16, 4e-3),
        (Q4_1, BF16, I8, 4e-3),
        (Q8_0, BF16, I8, 2e-2),  # larger weights, as above
    ],
    ids=str,
)
@pytest.mark.parametrize("handwritten", [True, False], ids=["c++", "tilec"])
def test_steps_equal_the_interpreter(
    llama_step: MakeStep,
    tmp_path: Path,
    weight: DType,
    kv: DType,
    products: DType,
    rtol: float,
    handwritten: bool,
) -> None:
    graph = llama_step(weight=weight, kv=kv)
    if products == I8:
        QuantizeActivations().run(graph)
    if products != F32:
        RoundActivations().run(graph)
    if products != F32 and handwritten:
        RoundAttention().run(graph)  # attention in Triton leaves q as it is
    params = make_params(graph)
    reference = Reference(graph, params)
    path = compiled(graph, params, tmp_path / "toy.sglk", handwritten)
    with loaded(path) as executable:
        for number, chunks in enumerate(STEPS):
            step = batch(chunks, PAGES)
            assert_close(executable.step(step), reference.step(step), rtol, f"step {number}")


@pytest.mark.parametrize("products", [F32, BF16, I8], ids=str)
@pytest.mark.parametrize("handwritten", [True, False], ids=["c++", "tilec"])
def test_rows_are_bit_equal_alone_batched_and_chunked(
    llama_step: MakeStep, tmp_path: Path, products: DType, handwritten: bool
) -> None:
    """With a bf16 cache by the attention written by hand, where this machine has AVX-512."""
    graph = llama_step(weight=Q4_1, kv=F32 if products == F32 else BF16)
    if products == I8:
        QuantizeActivations().run(graph)
    if products != F32:
        RoundActivations().run(graph)
    RoundAttention().run(graph)
    path = compiled(graph, make_params(graph), tmp_path / "toy.sglk", handwritten)
    tokens = [int(t) for t in np.random.default_rng(1).integers(0, 96, 50)]
    with loaded(path) as executable:
        whole = np.array(executable.step(batch([(0, tokens, 0)], PAGES)))
    for chunk in (1, 3, 16, 33):
        with loaded(path, threads=1) as executable:
            for start in range(0, 50, chunk):
                part = tokens[start : start + chunk]
                others = [(1, [5, 6, 7], 0)] if start else []
                chunks = [(0, part, start), *others]
                logits = executable.step(batch(chunks, PAGES))[0].copy()
        np.testing.assert_array_equal(logits, whole[0], err_msg=f"chunks of {chunk}")
