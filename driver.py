"""Compile, whole: model -> Graph -> legal Graph -> Program -> Artifact, with a report."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__, knobs
from .compiled import Compiled
from .errors import LoweringError, SglkError
from .ir.few_bits import FORMS, tolerance_of

if TYPE_CHECKING:
    from .frontend import Captured
    from .ir.dtype import DType
    from .ir.graph import Graph
    from .ir.target import Target
    from .passes.pipeline import PipelineReport
    from .targets.artifact.program import Program
    from .targets.assemble import Library
    from .targets.backend import Backend
    from .targets.lowering import Lowering
    from .targets.selftest import Case, ForwardCase

log = logging.getLogger(__name__)
Progress = Callable[[str, int, int], None]
DTYPES = ("bf16", "fp16", "fp32", *FORMS)
QUANTS = ("keep", "none")
WEIGHTS = ("stored", "dummy")
KV_DTYPES = ("f16", "bf16", "f32")
ACTIVATIONS = ("f32", "bf16", "int8")


@dataclass(frozen=True)
class Options:
    """What the user can choose, checked when made."""

    dtype: str = "bf16"
    """Storage of unquantized matrices; arithmetic is f32. One of `FORMS` is for the weights of
    linears but the last; other matrices are bf16 then."""
    kv_dtype: str | None = None
    """Storage of the KV cache; None: f32 for ``fp32``, bf16 for rounded activations, else f16."""
    activations: str = "f32"
    """What products multiply (`compile` takes the target's default): ``f32``, exact; ``bf16``,
    several times as fast, rounded; ``int8``, faster still for weights of block types (others: as
    bf16), and rounded more."""
    round_weights: bool = False
    """With activations of bf16 or int8: with 32 rows or more products round weights to bf16,
    and x instead of making it int8. Prompts are faster; a token's result then depends on how many
    are computed with it."""
    batch_invariant: bool = False
    """One order of sums whatever is computed beside a token, where that costs speed (CUDA)."""
    handwritten: bool = True
    """Whether kernels written by hand may be chosen over compiled ones."""
    quant: str = "keep"
    """``keep`` stored block types as they are, or ``none``: dequantize to ``dtype``."""
    weights: str = "stored"
    """The model's ``stored`` numbers, or ``dummy``: random ones that are made on load, so that a
    config is enough."""
    strict: bool = False
    """Refuse ops that no kernel of the target does, instead of letting the host do them."""
    arches: tuple[str, ...] = ()
    """What to build for among the target's instruction sets or chips; empty: its default."""
    tuning: str = ""
    """A file of times that ``sglk tune`` measured, to choose kernels by; empty: what we ship."""
    candidates: int = 0
    """Ways to do each piece of work that are put into the artifact for ``sglk tune`` to measure."""
    selftest: bool = True
    """Put self-test vectors into the artifact and run them at the end."""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("dtype", self.dtype, DTYPES),
            ("quant", self.quant, QUANTS),
            ("weights", self.weights, WEIGHTS),
            ("kv-dtype", self.cache_dtype, KV_DTYPES),
            ("activations", self.activations, ACTIVATIONS),
        ):
            if value not in known:
                raise SglkError(f"--{name}: expected one of {', '.join(known)}, got {value!r}")
        if self.dtype == "fp32" and self.activations != "f32":
            raise SglkError(
                f"--activations: expected f32 with --dtype fp32, got {self.activations} "
                "(--dtype bf16 goes with it)"
            )
        if self.round_weights and self.activations == "f32":
            raise SglkError(
                "--round-weights: expected --activations bf16 or int8, got f32 "
                "(exact products have no rounded form)"
            )
        if self.round_weights and self.batch_invariant:
            raise SglkError("--batch-invariant: expected no --round-weights, got both")

    @property
    def cache_dtype(self) -> str:
        """The KV cache's dtype, the default worked out."""
        if self.kv_dtype:
            return self.kv_dtype
        if self.dtype == "fp32":
            return "f32"
        return "f16" if self.activations == "f32" else "bf16"

    @property
    def tolerance(self) -> float:
        """Largest relative L2 error of self-test logits."""
        return tolerance_of(self.dtype, self.cache_dtype, self.activations)


@dataclass
class Clock:
    """Seconds per stage, in order of first use."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
            log.info("%s: %.2f s", name, seconds)


def compile(
    model: Any,
    example_inputs: Sequence[Any] = (),
    target: str = "cpu",
    output: str | Path | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dims: Mapping[str, Mapping[int, str]] | None = None,
    const: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Compiled:
    """Compile a Hugging Face folder, a .gguf, .onnx or .pt2 file or a torch module.

    A module that is no transformers causal LM needs example inputs, ``kwargs`` those by name;
    ``dims`` names the sizes that stay symbolic: ``{"x": {0: "batch"}}``. What comes back is called
    as the module is. Of an ONNX model ``const`` fixes inputs to numbers and ``sizes`` named sizes:
    ``{"batch": 1}``. Load the artifact with `sglk.load_forward`, decoders with `sglk.load`.
    ``options`` are the fields of `Options`. The default output is the model's name with ``.sglk``
    in the current folder. ``target`` is a chip, with arches after a colon: ``cpu``,
    ``cpu:x86_64_v3,x86_64_v4``. Errors are `SglkError` sentences; nothing half-made is left behind.
    """
    from .targets.backend import check_choices, open_backend

    if not isinstance(example_inputs, tuple | list):
        got = f"got a {type(example_inputs).__name__} (one input: (x,); a target: target=...)"
        raise SglkError(f"example_inputs: expected a tuple of the module's inputs, {got}")
    name, colon, arches = target.partition(":")
    backend = open_backend(name)
    options.setdefault("arches", tuple(arches.split(",")) if colon else ())
    if options.get("activations") is None:
        options["activations"] = backend.activations
    chosen = Options(**options)
    check_choices(backend, chosen)
    path = Path(output) if output else Path(f"{_name(model)}.sglk")
    fixed = {"dims": dims, "const": const, "sizes": sizes}
    example = {"args": example_inputs, "kwargs": kwargs, **fixed}
    return _Compile(model, example, backend, chosen, progress or _silent).run(path)


def _name(model: Any) -> str:
    """A name for the artifact of a path or module; folders may have dots: ``Qwen3-0.6B``."""
    from .frontend import Captured

    if isinstance(model, Captured):
        return model.info.name
    if not isinstance(model, str | Path):
        return type(model).__name__
    path = Path(model).resolve()
    if path.name == "config.json":
        return path.parent.name
    return path.stem if path.suffix in (".gguf", ".pt2", ".onnx", ".json") else path.name


def _silent(stage: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


def optimize(captured: Captured, target: Target, options: Options) -> tuple[Graph, PipelineReport]:
    """A captured graph made legal for a target, with the dtypes that the options ask for."""
    from .ir.dtype import BF16, F32, I8, dtype
    from .ir.few_bits import weight_types
    from .ir.rewrite import clone
    from .passes.pipeline import StepOptions, forward_pipeline, run_pipeline, step_pipeline
    from .targets.lowering import is_decoder

    plain, form = weight_types(options.dtype, target)
    infos = [captured.weights.info(name) for name in captured.weights.names()]
    blocks = [(info.name, dtype(info.dtype)) for info in infos if dtype(info.dtype).is_block]
    stored = tuple(blocks) if options.quant == "keep" else ()
    activations = {"f32": F32, "bf16": BF16, "int8": I8}[options.activations]
    chosen = StepOptions(plain, dtype(options.cache_dtype), stored, activations, form)
    graph = clone(captured.graph)
    pipeline = step_pipeline if is_decoder(graph) else forward_pipeline
    return graph, run_pipeline(graph, pipeline(target, chosen))


@dataclass
class _Compile:
    """One compile: the stages in order."""

    model: Any
    example: Mapping[str, Any]
    backend: Backend
    options: Options
    progress: Progress
    clock: Clock = field(default_factory=Clock)
    passes: list[Any] = field(default_factory=list)

    def run(self, path: Path) -> Compiled:
        from .frontend import load_model
        from .targets.artifact import ArtifactWriter
        from .targets.backend import facts_of
        from .targets.expanded import add_expansions
        from .targets.lowering import entry_of, symbols_of_entry
        from .targets.ttir import write_texts

        report: dict[str, Any] = {}
        with ArtifactWriter(path) as writer:  # an unwritable place is refused before any work
            with self.clock.stage("capture"):
                has_weights = self.options.weights != "dummy"
                given = {**self.example, "has_weights": has_weights, "progress": self.progress}
                captured = load_model(self.model, **given)
            target = facts_of(self.backend, self.options, self.options.strict)
            step = self._optimize(captured, target)
            with self.clock.stage("lower"):
                lowering = self.backend.lower(step, target)
                entry = entry_of(step)
                program = lowering.program(entry, symbols_of_entry(step, entry))
                add_expansions(self.backend, lowering, target, self._type_of(captured))
            if folder := knobs.get().dump:
                write_texts(Path(folder), {"program.txt": program.as_text()})
            with self.clock.stage("kernels"):
                libraries = self.backend.build(lowering, self.options, self.progress)
            cases = self._make_cases(captured, step, program, target)
            parts = self._parts(captured, step, target, program, lowering, libraries, cases)
            report = self._write(writer, parts, captured)
        if cases:
            report["selftest"] = self._prove(path)
        report["seconds"] = dict(self.clock.seconds)
        return Compiled(path, report, captured.signature)

    @contextmanager
    def _watched(self, stage: str) -> Iterator[None]:
        """A stage that reports no steps of its own."""
        self.progress(stage, 0, 1)
        with self.clock.stage(stage):
            yield
        self.progress(stage, 1, 1)

    def _optimize(self, captured: Captured, target: Target) -> Graph:
        """The step graph, with the dtypes that the options ask for."""
        with self._watched("passes"):
            graph, report = optimize(captured, target, self.options)
        if report.stopped_after:
            raise SglkError(f"stopped after {report.stopped_after}, as SGLK_STOP_AFTER asks")
        self.passes = list(report.records)
        return graph

    def _type_of(self, captured: Captured) -> Callable[[str], str] | None:
        """Types of stored tensors, where weights of block types are to stay as they are."""
        from .targets.expanded import ExpandsBlocks

        keeps = self.options.quant == "keep" and self.options.weights == "stored"
        if not keeps or not isinstance(self.backend, ExpandsBlocks):
            return None
        return lambda name: captured.weights.info(name).dtype

    def _make_cases(
        self, captured: Captured, step: Graph, program: Program, target: Target
    ) -> Sequence[Case | ForwardCase]:
        from .ir.dtype import F32
        from .targets.selftest import make_cases, make_forward_cases
        from .targets.weights import dense_reader

        if not self.options.selftest or self.options.weights == "dummy":
            return []  # the reference would need the numbers
        dtypes: dict[str, DType] = {v.name: F32 for v in captured.graph.params}
        dtypes |= {v.name: v.type.dtype for v in step.params}
        read = dense_reader(dtypes, captured.weights.read)
        with self._watched("self-test reference"):
            if program.entry != "step":
                return make_forward_cases(captured.graph, [b.name for b in program.outputs], read)
            sizes = captured.info.vocab_size, target.page_size
            return make_cases(captured.graph, read, *sizes, has_slots=program.has_slots)

    def _parts(
        self,
        captured: Captured,
        step: Graph,
        target: Target,
        program: Any,
        lowering: Lowering,
        libraries: Sequence[Library],
        cases: Sequence[Case | ForwardCase],
    ) -> Any:
        from .targets.assemble import Parts
        from .targets.backend import candidates_of
        from .targets.dummy_weights import dummy_fill
        from .targets.host_calls import is_batch_invariant
        from .targets.selftest import num_pages
        from .tokenizer_members import tokenizer_members

        model = {**vars(captured.info), "dtype": self.options.dtype, "quant": self.options.quant}
        model["kv_dtype"] = self.options.cache_dtype
        model["activations"] = self.options.activations
        model["batch_invariant"] = is_batch_invariant(target, lowering.selection)
        return Parts(
            model=model,
            target=target.name,
            page_size=target.page_size,
            program=program,
            lowering=lowering,
            libraries=libraries,
            graph_text=step.as_text(),
            files=tokenizer_members(captured.tokenizer) if captured.tokenizer else {},
            plans=self.backend.plans(program),
            members=candidates_of(self.backend, lowering, self.options, self.progress),
            selftest=cases,
            selftest_tolerance=self.options.tolerance,
            selftest_pages=num_pages(target.page_size),
            producer=f"sglk {__version__}",
            fill=partial(dummy_fill, row_granule=self.backend.row_granule)
            if self.options.weights == "dummy"
            else None,
            type_of=self._type_of(captured),
            read_stored=captured.weights.read,
        )

    def _write(self, writer: Any, parts: Any, captured: Captured) -> dict[str, Any]:
        from .targets.assemble import write_artifact
        from .targets.report import make_report
        from .targets.weight_record import source_record
        from .targets.weights import typed_reader

        report: dict[str, Any] = {}

        def finish_report() -> dict[str, Any]:
            report.update(make_report(parts, captured.graph, self.passes, self.clock.seconds))
            report.update(source_record(parts, captured.weights, read.rounding))
            return report

        read = typed_reader(parts.lowering.graph, captured.weights.read)
        with self.clock.stage("weights"):
            pack = self.backend.pack_weight
            write_artifact(writer, parts, read, pack, finish_report, self.progress)
        return report

    def _prove(self, path: Path) -> list[str]:
        """Run the self-test if this machine can run a variant; a failure removes the artifact."""
        from .runtime.selftest import run_selftest
        from .targets.artifact import Artifact
        from .targets.backend import HasEmulator

        if reason := self.backend.why_not_here(self.options):
            return [f"not run: {reason}"]
        try:
            with self._watched("self-test"), Artifact.open(path) as artifact:
                device = self.backend.emulator if isinstance(self.backend, HasEmulator) else None
                results = list(run_selftest(artifact, device=device))
            for wrong in (r for r in results if not r.passed):
                raise LoweringError(
                    f"self-test: {wrong.name}: expected an error of at most {wrong.tolerance:g}, "
                    f"got {wrong.error:.3g} (a kernel or pass is wrong; the artifact was removed)"
                )
        except BaseException:  # an interrupt too: what is not proved does not stay
            path.unlink(missing_ok=True)
            raise
        worst = max(r.error for r in results)
        allowed = f"at most {results[0].tolerance:g}"
        return [f"{len(results)} passed, largest relative error {worst:.1e} ({allowed})"]
