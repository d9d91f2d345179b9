"""One row of the coverage board: a model type, tiny and random, against transformers in fp32.

The cheap tier runs the passes and interprets the step graph with the ops' NumPy references; the
full tier compiles kernels and runs the artifact. Both take the same steps: prompts of 1, 17 and 130
tokens, alone, in chunks, mixed, resumed on pages that are there already, and decoded side by side.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from sglk.bench.tiny_config import FIRST_ID, VOCAB, default_config, tiny_config
from sglk.errors import SglkError
from sglk.frontend.capture import quiet
from sglk.ir.graph import Graph, Value
from sglk.ir.interpret import interpret
from sglk.ir.rewrite import clone

TOLERANCE = 1e-4
"""Largest relative L2 error of any row of logits."""
NOISE = 4.0
"""How much further ours may be where transformers' own f32 is far from its f64."""
PROMPTS = {"a": 1, "b": 17, "c": 130}
NUM_PAGES, MAX_TOKENS, NUM_SLOTS = 16, 128, 5
Step = Callable[[dict[str, np.ndarray]], np.ndarray]
"""Step inputs by name -> logits of every token."""


@dataclass(frozen=True)
class Row:
    """``status``: pass, refused, wrong, unbuilt or excluded (with the reason), or crash."""

    model_type: str
    status: str
    reason: str = ""
    error: float = 0.0


class Excluded(Exception):
    """The type does not belong on the board: why."""


class Unbuilt(Exception):
    """The rules make no configuration that transformers can run: why."""


def check(model_type: str, full: bool = False) -> Row:
    """Build, compile and compare one type. Anything but `SglkError` from our code is a crash."""
    try:
        with quiet():
            model, logits = reference(model_type)
    except (Excluded, Unbuilt) as why:
        return Row(model_type, type(why).__name__.lower(), str(why))
    try:
        config = tiny_config(model_type)
        tier = _artifact(model, config) if full else _interpreter(model, config)
        with tier as (step, page_size):
            worst, where = worst_error(step, page_size, logits)
    except SglkError as error:
        return Row(model_type, "refused", str(error))
    if worst <= TOLERANCE:
        return Row(model_type, "pass", "", worst)
    noise = own_error(model, logits)
    if worst <= NOISE * noise:
        reason = f"{worst:.1e}; transformers in f32 is {noise:.1e} away from itself in f64"
        return Row(model_type, "pass", reason, worst)
    return Row(model_type, "wrong", where, worst)


# The reference ------------------------------------------------------------------------------


def random_model(config: Any) -> Any:
    """Weights large enough that every path matters; norms, biases and correction terms random."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(noise * 0.3 if parameter.dim() > 1 else parameter + noise * 0.2)
        kept = model.state_dict()
        for name, buffer in model.named_buffers():
            if name in kept and buffer.dim() == 1 and buffer.is_floating_point():
                buffer.add_(torch.randn_like(buffer) * 0.1)
    return model.eval()


def reference(model_type: str) -> tuple[Any, dict[str, np.ndarray]]:
    """The random model and its logits for each prompt, if the type is a decoder of text."""
    try:
        model = random_model(tiny_config(model_type))
    except Exception as error:  # transformers raises what it likes about a configuration
        if (fault := default_fault(model_type)) and not isinstance(error, ImportError):
            raise Excluded(f"transformers builds none from its own default: {fault}") from error
        raise Unbuilt(f"{type(error).__name__}: {error}") from error
    try:
        logits = {name: logits_of(model, ids_of(name)) for name in PROMPTS}
    except ValueError as error:
        raise Excluded(f"cannot be called with token ids alone: {error}") from error
    except (RuntimeError, TypeError, AttributeError, IndexError) as error:
        raise Unbuilt(f"{type(error).__name__}: {error}") from error
    _expect_left_to_right(model, logits["c"])
    return model, logits


def default_fault(model_type: str) -> str:
    """Why the type's own default configuration gives no model, or ""."""
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            auto: Any = AutoModelForCausalLM
            auto.from_config(default_config(model_type))
    except Exception as error:  # noqa: BLE001 - as above
        return f"{type(error).__name__}: {error}"
    return ""


def ids_of(name: str) -> np.ndarray:
    count = PROMPTS[name]
    return np.random.default_rng(count).integers(FIRST_ID, VOCAB, count).astype(np.int32)


def logits_of(model: Any, ids: np.ndarray) -> np.ndarray:
    """transformers' logits of every position, f32[tokens, V]."""
    with torch.inference_mode():
        output = model(input_ids=torch.from_numpy(ids.astype(np.int64))[None], use_cache=False)
    return np.asarray(output.logits[0].numpy())


def own_error(model: Any, logits: dict[str, np.ndarray]) -> float:
    """How far transformers in f32 is from transformers in f64: weights may amplify roundings."""
    wide = model.double()
    return max(row_error(logits[name], logits_of(wide, ids_of(name))) for name in PROMPTS)


def row_error(got: np.ndarray, wanted: np.ndarray) -> float:
    """The relative L2 error of the worst row."""
    norms = np.linalg.norm(wanted, axis=-1)
    return float(np.max(np.linalg.norm(got - wanted, axis=-1) / norms))


def _expect_left_to_right(model: Any, logits: np.ndarray) -> None:
    """Another last token changes no earlier position."""
    ids = ids_of("c")
    if logits.ndim != 2 or len(logits) != len(ids):
        raise Excluded(f"gives logits of {logits.shape} for {len(ids)} tokens of text")
    ids[-1] = FIRST_ID if ids[-1] != FIRST_ID else FIRST_ID + 1
    moved = np.abs(logits_of(model, ids)[:-1] - logits[:-1]).max()
    if not np.isfinite(logits).all():
        raise Excluded("its logits are not finite with these weights")
    if moved > 1e-4 * np.abs(logits).max():
        raise Excluded("does not work left to right: earlier logits depend on later tokens")


# Steps --------------------------------------------------------------------------------------


@dataclass
class Sequences:
    """Pages and a slot of each sequence, taken in no particular order."""

    page_size: int
    pages: dict[str, list[int]] = field(default_factory=dict)
    free: list[int] = field(default_factory=lambda: list(range(1, NUM_PAGES)))
    slots: dict[str, int] = field(default_factory=lambda: {"a": 3, "b": 1, "c": 4})

    def inputs(self, chunks: Sequence[tuple[str, int, int]]) -> dict[str, np.ndarray]:
        """(sequence, first token, end) side by side."""
        spans = [np.arange(start, stop) for _, start, stop in chunks]
        tables = [self._table(name, stop - 1) for name, _, stop in chunks]
        page = self.page_size
        slots = [t[s // page] * page + s % page for t, s in zip(tables, spans, strict=True)]
        starts = np.cumsum([0, *map(len, spans)])
        table = np.zeros((len(chunks), max(map(len, tables))), np.int32)
        for row, own in zip(table, tables, strict=True):
            row[: len(own)] = own
        arrays = {
            "token_ids": np.concatenate([ids_of(n)[a:b] for n, a, b in chunks]),
            "positions": np.concatenate(spans),
            "slots": np.concatenate(slots),
            "query_start": starts,
            "seq_lens": np.array([stop for _, _, stop in chunks]),
            "page_table": table,
            "logit_rows": np.arange(starts[-1]),
            "state_slots": np.array([self.slots[name] for name, _, _ in chunks]),
        }
        return {name: array.astype(np.int32) for name, array in arrays.items()}

    def _table(self, name: str, last: int) -> np.ndarray:
        own = self.pages.setdefault(name, [])
        while len(own) <= last // self.page_size:
            own.append(self.free.pop(len(self.free) // 2))
        return np.array(own, np.int64)


STEPS: tuple[tuple[tuple[str, int, int], ...], ...] = (
    (("c", 0, 70),),
    (("a", 0, 1), ("c", 70, 100), ("b", 0, 9)),
    (("b", 9, 16),),
    (("c", 100, 128),),
    (("c", 128, 129),),
    (("b", 16, 17), ("a", 0, 1), ("c", 129, 130)),
)
"""No token but the first of a sequence is computed twice: a state has passed it."""


def worst_error(step: Step, page_size: int, wanted: dict[str, np.ndarray]) -> tuple[float, str]:
    """The largest error of any row, and where."""
    sequences, worst, where = Sequences(page_size), 0.0, ""
    for number, chunks in enumerate(STEPS):
        inputs = sequences.inputs(chunks)
        parts = np.split(step(inputs), inputs["query_start"][1:-1])
        for (name, start, stop), got in zip(chunks, parts, strict=True):
            error = row_error(got, wanted[name][start:stop])
            if not error <= worst:
                worst, where = error, f"step {number}, prompt of {PROMPTS[name]}: {error:.1e}"
    return worst, where


# The two tiers ------------------------------------------------------------------------------


@contextmanager
def _interpreter(model: Any, config: Any) -> Iterator[tuple[Step, int]]:
    """Capture, passes, the references of the ops; then a program for the CPU, without kernels."""
    from sglk.frontend.capture import capture_causal_lm
    from sglk.passes.pipeline import StepOptions, run_pipeline, step_pipeline
    from sglk.targets.cpu.compile import lower
    from sglk.targets.cpu.facts import cpu_target
    from sglk.targets.lowering import symbols_of_entry

    target = cpu_target("x86_64_v4")
    graph = capture_causal_lm(config)
    run_pipeline(graph, step_pipeline(target, StepOptions()))
    weights = model.state_dict()
    rows = clone(graph)
    step = GraphStepper(graph, target.page_size, lambda name: weights[name].numpy())
    yield step, target.page_size
    lowering = lower(rows, target)  # numbers first: right, but without a kernel
    lowering.program("step", symbols_of_entry(rows, "step"))


class GraphStepper:
    """A step graph run op by op; states are kept from step to step."""

    def __init__(self, graph: Graph, page_size: int, read: Callable[[str], np.ndarray]) -> None:
        self.graph, self.read = graph, read
        self.sizes = {"kv_slots": NUM_PAGES * page_size, "num_slots": NUM_SLOTS}
        self.states = {
            v.name: np.zeros(v.type.concrete(self.sizes), np.float32) for v in graph.states
        }
        self.graph.outputs = [*graph.outputs, *(_last_version(v) for v in graph.states)]

    def __call__(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        sizes = {
            "tokens": len(inputs["token_ids"]),
            "seqs": len(inputs["seq_lens"]),
            "pages": inputs["page_table"].shape[1],
            "rows": len(inputs["logit_rows"]),
            **self.sizes,
        }
        given = {v.name: inputs[v.name] for v in self.graph.inputs}
        results = interpret(clone(self.graph, sizes), {**given, **self.states}, self.read)
        self.states = dict(zip(self.states, results[1:], strict=True))
        return np.asarray(results[0])


def _last_version(state: Value) -> Value:
    """The value that a state has when the step is done."""
    while True:
        later = [v for n in state.uses for v in n.outputs if v.type == state.type]
        if not later:
            return state
        state = later[0]


@contextmanager
def _artifact(model: Any, config: Any) -> Iterator[tuple[Step, int]]:
    """Saved as a folder, compiled in fp32, loaded on the CPU."""
    import sglk
    from sglk.targets.artifact import Artifact
    from sglk.targets.device import SlotDevice, StepBatch
    from sglk.targets.registry import open_device

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        if type(config) is not type(model.config):  # the model keeps the part of it that it needs
            config.save_pretrained(folder)
        path = Path(folder) / "model.sglk"
        sglk.compile(folder, output=path, dtype="fp32", quant="none", selftest=False)
        with Artifact.open(path) as artifact:
            executable = cast(SlotDevice, open_device("cpu")).load(
                artifact,
                num_pages=NUM_PAGES,
                max_tokens=MAX_TOKENS,
                num_threads=1,
                num_slots=NUM_SLOTS,
            )
            page_size = executable.page_size
            try:
                yield lambda arrays: np.array(executable.step(StepBatch(**arrays))), page_size
            finally:
                executable.close()
