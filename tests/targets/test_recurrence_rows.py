"""Layers with a state on the CPU: kernels give the references' numbers, however cut or mixed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from sglk.errors import DeviceError
from sglk.ir.dim import dim
from sglk.ir.dtype import F32, I32
from sglk.ir.graph import Graph, Value
from sglk.ir.interpret import interpret
from sglk.ir.op import Op
from sglk.ir.ops.elementwise import Sigmoid
from sglk.ir.ops.recurrence import STATE_SLOTS, SlotConv, SlotRecurrence
from sglk.ir.ops.shape import Concat, Reshape
from sglk.ir.ops.sparse import Embedding, GatherRows
from sglk.ir.rewrite import clone
from sglk.ir.types import TensorType
from sglk.targets.artifact import Artifact, ArtifactWriter
from sglk.targets.assemble import Library, Parts, write_artifact
from sglk.targets.cpu.build import build_library
from sglk.targets.cpu.compile import lower
from sglk.targets.cpu.device import CpuDevice, CpuExecutable
from sglk.targets.cpu.facts import PAGE_SIZE, cpu_target
from sglk.targets.cpu.packing import pack_weight
from sglk.targets.device import StepBatch
from sglk.targets.lowering import STEP_SYMBOLS
from sglk.targets.tilec import KernelCache, native_isa
from sglk.targets.weights import typed_reader

T, S, P, L = dim("tokens"), dim("seqs"), dim("pages"), dim("rows")
INPUTS = {
    "token_ids": (T,),
    "query_start": (S + 1,),
    "seq_lens": (S,),
    "page_table": (S, P),
    "logit_rows": (L,),
    "state_slots": (S,),
}
VOCAB, NUM_SLOTS = 23, 4
# heads, groups, keys, values, decay of each key, rate, beta
RECURRENCES = [
    (4, 2, 3, 5, False, False, False),  # fewer values than a vector
    (2, 2, 8, 70, True, False, True),  # more than a block of them, a delta rule, decays of keys
    (70, 1, 16, 1, False, True, False),  # heads as columns, with a rate
    (5, 1, 1, 1, False, False, False),  # a number for each head
    (4, 4, 3, 1, False, True, True),  # one value, but keys of each head
    (3, 1, 4, 1, True, False, True),
]


class Model:
    """A step graph whose logits are the results of all layers side by side."""

    def __init__(self) -> None:
        self.graph, self.rng = Graph("states"), np.random.default_rng(3)
        self.params: dict[str, np.ndarray] = {}
        self.inputs = {n: self.graph.input(n, TensorType(I32, s)) for n, s in INPUTS.items()}
        places = [self.inputs[n] for n in ("query_start", "seq_lens", "state_slots")]
        self.parts: list[Value] = []
        state = self.graph.state("conv", TensorType(F32, (2, STATE_SLOTS, 3, 70)))
        for layer in range(2):
            weights = self.param(70, 4), self.param(70)
            op = SlotConv(layer, has_bias=True)
            state = self.add(op, state, *places, self.tokens(70), *weights)
        for i, case in enumerate(RECURRENCES):
            self.add_recurrence(f"s{i}", places, *case)
        joined = self.graph.emit(Concat(1), *self.parts)
        self.graph.outputs = [self.graph.emit(GatherRows(), joined, self.inputs["logit_rows"])]

    def add(self, op: Op, *inputs: Value) -> Value:
        y, state = self.graph.append(op, *inputs)
        width = y.type.size // T
        self.parts.append(self.graph.emit(Reshape((T, int(width))), y))
        return state

    def add_recurrence(
        self, name: str, places: list[Value], heads: int, groups: int, keys: int, values: int,
        by_key: bool, has_rate: bool, has_beta: bool,
    ) -> None:  # fmt: skip
        state = self.graph.state(name, TensorType(F32, (1, STATE_SLOTS, heads, keys, values)))
        q, k = self.tokens(groups, keys), self.tokens(groups, keys)
        decays = self.tokens(heads, keys) if by_key else self.tokens(heads)
        operands = [q, k, self.tokens(heads, values), self.graph.emit(Sigmoid(), decays)]
        if has_rate:
            operands.append(self.param(heads, keys, negative=True))
        if has_beta:
            operands.append(self.graph.emit(Sigmoid(), self.tokens(heads)))
        self.add(SlotRecurrence(0, has_rate, has_beta), state, *places, *operands)

    def param(self, *shape: int, negative: bool = False) -> Value:
        data = self.rng.standard_normal(shape).astype(np.float32) * 0.5
        name = f"p{len(self.params)}"
        self.params[name] = -np.abs(data) if negative else data
        return self.graph.param(name, TensorType(F32, shape))

    def tokens(self, *shape: int) -> Value:
        table = self.param(VOCAB, int(np.prod(shape)))
        rows = self.graph.emit(Embedding(), table, self.inputs["token_ids"])
        return self.graph.emit(Reshape((T, *shape)), rows)


def batch(chunks: list[tuple[int, int, int]]) -> StepBatch:
    """(sequence, first token, end) side by side; sequence s owns slot 1 + s."""
    ids = [(7 * s + 5 * t) % VOCAB for s, start, stop in chunks for t in range(start, stop)]
    ints = np.int32
    return StepBatch(
        token_ids=np.array(ids, ints),
        positions=np.zeros(len(ids), ints),
        slots=np.zeros(len(ids), ints),
        query_start=np.cumsum([0, *(b - a for _, a, b in chunks)]).astype(ints),
        seq_lens=np.array([b for _, _, b in chunks], ints),
        page_table=np.zeros((len(chunks), 2), ints),
        logit_rows=np.arange(len(ids), dtype=ints),
        state_slots=np.array([1 + s for s, _, _ in chunks], ints),
    )


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


@pytest.fixture(scope="module")
def executable(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuExecutable]:
    isa, path = native_isa().name, tmp_path_factory.mktemp("states") / "states.sglk"
    width = int(model.graph.outputs[0].type.shape[1])
    lowering = lower(model.graph, cpu_target(isa))
    program = lowering.program("step", STEP_SYMBOLS)
    assert "num_slots" in program.all_symbols
    kernels = list(lowering.kernels.values())
    library = build_library(kernels, isa, KernelCache(), lambda stage, done, total: None)
    parts = Parts(
        model={"name": "toy", "architecture": "toy", "vocab_size": width},
        target="cpu",
        page_size=PAGE_SIZE,
        program=program,
        lowering=lowering,
        libraries=[Library(isa, library)],
        graph_text=model.graph.as_text(),
        producer="test",
    )
    read = typed_reader(model.graph, model.params.__getitem__)
    with ArtifactWriter(path) as writer:
        write_artifact(writer, parts, read, pack_weight, dict, lambda stage, done, total: None)
    with Artifact.open(path) as artifact:
        loaded = CpuDevice().load(
            artifact, num_pages=2, max_tokens=64, num_threads=2, num_slots=NUM_SLOTS
        )
        yield loaded
        loaded.close()


def reference(model: Model, whole: StepBatch) -> np.ndarray:
    sizes = {"tokens": len(whole.token_ids), "seqs": len(whole.seq_lens), "pages": 2}
    sizes |= {"rows": len(whole.logit_rows), "num_slots": NUM_SLOTS}
    graph = clone(model.graph, sizes)
    states = {v.name: np.zeros(v.type.concrete(sizes), np.float32) for v in graph.states}
    (logits,) = interpret(graph, {**vars(whole), **states}, model.params)
    return np.asarray(logits)


def test_kernels_give_the_numbers_of_the_references(
    model: Model, executable: CpuExecutable
) -> None:
    whole = batch([(0, 0, 40), (2, 0, 9)])
    np.testing.assert_allclose(
        executable.step(whole), reference(model, whole), rtol=2e-4, atol=2e-5
    )


STEPS = [
    [(1, 0, 3), (0, 0, 17)],
    [(0, 17, 18)],
    [(2, 0, 2), (0, 18, 39), (1, 3, 4)],
    [(0, 39, 40), (2, 2, 9)],
]


def test_cuts_and_neighbours_do_not_change_a_bit(executable: CpuExecutable) -> None:
    alone = {s: np.array(executable.step(batch([(s, 0, n)]))) for s, n in ((0, 40), (1, 4), (2, 9))}
    for chunks in STEPS:
        rows = np.array(executable.step(batch(chunks)))
        ends = np.cumsum([b - a for _, a, b in chunks])[:-1]
        for (s, start, stop), got in zip(chunks, np.split(rows, ends), strict=True):
            np.testing.assert_array_equal(got, alone[s][start:stop])


@pytest.mark.parametrize("slots", [[], [1, 1], [0, 2], [1, NUM_SLOTS], [1]])
def test_slots_that_would_be_shared_or_lie_outside_are_refused(
    executable: CpuExecutable, slots: list[int]
) -> None:
    step = batch([(0, 0, 2), (1, 0, 2)])
    step.state_slots = np.array(slots, np.int32)
    with pytest.raises(DeviceError, match="step input state_slots: expected"):
        executable.step(step)
