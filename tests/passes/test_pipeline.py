"""The whole pipeline, its text form, and what instruments do between passes."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from sglk import knobs
from sglk.errors import PassError, VerifyError
from sglk.ir.dtype import BF16, F32, Q4_1, Q6_K, Q8_0
from sglk.ir.graph import Graph
from sglk.ir.ops.elementwise import Exp, Neg
from sglk.ir.parser import parse_graph
from sglk.ir.target import Target
from sglk.ir.verify import verify
from sglk.passes.base import PASSES, Pass, make_pass
from sglk.passes.instruments import Instrument, Verify
from sglk.passes.opt import parse_pipeline
from sglk.passes.pipeline import StepOptions, run_pipeline, step_pipeline
from sglk.passes.sample import sample_inputs
from sglk.passes.set_weight_dtypes import SetWeightDtypes

BuildLlama = Callable[..., Graph]
NEGATED = """graph g(%x: f32[tokens, 4]) {
  %a: f32[tokens, 4] = neg(%x)
  %b: f32[tokens, 4] = neg(%a)
  return %b
}
"""


def pipeline_text(target: Target, options: StepOptions) -> str:
    return ",".join(p.as_text() for p in step_pipeline(target, options))


# The step pipeline ------------------------------------------------------------------------------


def test_a_llama_layer_becomes_nine_ops(captured_llama: BuildLlama, target: Target) -> None:
    graph = captured_llama(layers=2)
    run_pipeline(graph, step_pipeline(target, StepOptions()), ())
    verify(graph)
    layer = [
        "rmsnorm", "linear", "rope_write_kv", "paged_attention", "reshape", "linear", "rmsnorm",
        "gated_linear", "linear",
    ]  # fmt: skip
    once = ["embedding", "rope_table", "gather_rows", "rmsnorm", "linear"]
    static = ["concat"] * 2  # joined weights, computed when weights are packed
    assert Counter(n.op.name for n in graph.nodes) == Counter([*layer * 2, *once, *static * 2])
    assert all(n.source for n in graph.nodes if n.op.name != "gather_rows")


@pytest.mark.parametrize("options", [{}, {"bias": True}, {"qk_norm": True}])
def test_the_step_graph_gives_the_captured_numbers(
    options: dict[str, bool],
    captured_llama: BuildLlama,
    target: Target,
    same_on_batches: Callable[[Graph, str], None],
) -> None:
    same_on_batches(captured_llama(**options), pipeline_text(target, StepOptions()))


def test_biases_join_the_projection(captured_llama: BuildLlama, target: Target) -> None:
    graph = captured_llama(layers=1, bias=True)
    run_pipeline(graph, step_pipeline(target, StepOptions()), ())
    projection = next(n for n in graph.nodes if n.op.name == "linear")
    assert len(projection.inputs) == 3
    assert "rope_write_kv" in {n.op.name for n in graph.nodes}


def test_norms_on_heads_keep_rope_and_write_apart(
    captured_llama: BuildLlama, target: Target
) -> None:
    graph = captured_llama(layers=1, qk_norm=True)
    run_pipeline(graph, step_pipeline(target, StepOptions()), ())
    names = Counter(n.op.name for n in graph.nodes)
    assert (names["rope"], names["write_kv"], names["slice"]) == (2, 1, 3)


def test_a_target_without_fused_ops_gets_plain_ones(
    captured_llama: BuildLlama, target: Target
) -> None:
    plain = dataclasses.replace(target, fused_ops=frozenset())
    graph = captured_llama(layers=1)
    run_pipeline(graph, step_pipeline(plain, StepOptions()), ())
    verify(graph)
    names = {n.op.name for n in graph.nodes}
    assert not {"gated_linear", "rope_write_kv", "add_rmsnorm"} & names
    assert {"add", "mul", "silu", "rope", "write_kv"} <= names
    assert all(n.op.name != "linear" or len(n.inputs) == 2 for n in graph.nodes)


def test_a_second_run_changes_nothing(captured_llama: BuildLlama, target: Target) -> None:
    graph = captured_llama()
    passes = step_pipeline(target, StepOptions())
    run_pipeline(graph, passes, ())
    text = graph.as_text()
    report = run_pipeline(graph, passes, ())
    assert [r.name for r in report.records if r.changed] == []
    assert graph.as_text() == text


def test_stored_types_reach_the_joined_weights(captured_llama: BuildLlama, target: Target) -> None:
    graph = captured_llama(layers=1, hidden=32, ffn=64)
    names = [v.name for v in graph.params if len(v.type.shape) == 2]
    stored = tuple((n, Q8_0 if n in ("embed", "lm_head") else Q4_1) for n in names)
    run_pipeline(graph, step_pipeline(target, StepOptions(BF16, BF16, stored)), ())
    verify(graph)
    joined = [str(n.outputs[0].type) for n in graph.nodes if n.op.name == "concat"]
    assert sorted(joined) == ["q4_1[128, 32]", "q4_1[64, 32]"]
    assert str(graph.find("kv").type.dtype) == "bf16"


def test_a_stored_type_that_the_target_cannot_read_becomes_f32(target: Target) -> None:
    passes = step_pipeline(target, StepOptions(BF16, F32, (("a", Q6_K), ("b", Q4_1))))
    (step,) = [p for p in passes if isinstance(p, SetWeightDtypes)]
    assert step.stored == (("a", F32), ("b", Q4_1))


# Text form --------------------------------------------------------------------------------------


def test_a_pipeline_reads_back_from_its_text(target: Target) -> None:
    options = StepOptions(BF16, BF16, (("model.embed", Q8_0), ("w", Q4_1)))
    passes = step_pipeline(target, options)
    assert parse_pipeline(pipeline_text(target, options)) == passes


def test_class_file_and_name_agree() -> None:
    for name, cls in PASSES.items():
        # a class that an example in a docstring makes is in no module
        if getattr(sys.modules[cls.__module__], cls.__name__, None) is not cls:
            continue
        if cls.__module__.startswith("sglk.passes"):
            assert cls.__module__ == f"sglk.passes.{name.replace('-', '_')}"
            assert cls.__name__ == "".join(part.capitalize() for part in name.split("-"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one pass"),
        ("canonicalise", "pass 'canonicalise': expected one of canonicalize, "),
        ("canonicalize{sweeps=3}", r"expected options among \['max_sweeps'\], got \['sweeps'\]"),
        ("canonicalize{max_sweeps}", "pass canonicalize: options 'max_sweeps'"),
        ("canonicalize{max_sweeps=}", "pass canonicalize: options 'max_sweeps='"),
        ("canonicalize;flat-tokens", "expected 'name' or"),
    ],
)
def test_a_malformed_pipeline_is_refused(text: str, message: str) -> None:
    with pytest.raises(PassError, match=message):
        parse_pipeline(text)


def test_a_name_cannot_be_given_twice() -> None:
    with pytest.raises(PassError, match="canonicalize: defined twice"):

        @dataclass(frozen=True)
        class Impostor(Pass):
            name: ClassVar[str] = "canonicalize"


# Instruments ------------------------------------------------------------------------------------


@pytest.fixture
def planted() -> Iterator[None]:
    """Passes that misbehave, known for one test."""
    yield
    for name in ("crash-planted", "break-planted", "spoil-planted"):
        PASSES.pop(name, None)


def plant(run: Callable[[Graph], bool], pass_name: str) -> Pass:
    body = {"name": pass_name, "run": lambda self, graph: run(graph), "__module__": __name__}
    planted: Pass = type("Planted" + pass_name.split("-")[0].capitalize(), (Pass,), body)()
    return planted


def test_dump_writes_what_changed(tmp_path: Path) -> None:
    graph = parse_graph(NEGATED)
    with knobs.override(dump=str(tmp_path / "deep" / "dump")):
        run_pipeline(graph, parse_pipeline("eliminate-dead,canonicalize,eliminate-common"))
    files = sorted((tmp_path / "deep" / "dump").iterdir())
    assert [f.name for f in files] == ["00-given.txt", "02-canonicalize.txt"]
    assert files[0].read_text() == parse_graph(NEGATED).as_text()
    assert files[1].read_text() == graph.as_text()


def test_an_unwritable_dump_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        knobs.override(dump=str(tmp_path / "file")),
        pytest.raises(PassError, match="SGLK_DUMP: cannot write"),
    ):
        run_pipeline(parse_graph(NEGATED), parse_pipeline("canonicalize"))


def test_stop_after() -> None:
    graph = parse_graph(NEGATED)
    passes = parse_pipeline("eliminate-dead,canonicalize")
    with knobs.override(stop_after="eliminate-dead"):
        report = run_pipeline(graph, passes)
    assert (report.stopped_after, len(report.records)) == ("eliminate-dead", 1)
    assert graph.as_text() == parse_graph(NEGATED).as_text()
    with (
        knobs.override(stop_after="nowhere"),
        pytest.raises(
            PassError, match="expected one of eliminate-dead, canonicalize, got 'nowhere'"
        ),
    ):
        run_pipeline(graph, passes)


def test_records_tell_time_change_and_size() -> None:
    report = run_pipeline(parse_graph(NEGATED), parse_pipeline("canonicalize,eliminate-dead"))
    assert [(r.number, r.name, r.changed, r.nodes) for r in report.records] == [
        (1, "canonicalize", True, 0),
        (2, "eliminate-dead", False, 0),
    ]
    assert all(r.seconds >= 0 for r in report.records)


def test_verify_accepts_the_whole_pipeline(captured_llama: BuildLlama, target: Target) -> None:
    options = StepOptions(BF16, BF16)
    with knobs.override(verify=True):
        run_pipeline(captured_llama(layers=1), step_pipeline(target, options))


def test_verify_refuses_other_numbers(planted: None) -> None:
    def spoil(graph: Graph) -> bool:
        node = graph.nodes[-1]
        graph.replace(node.outputs[0], graph.emit(Exp(), *node.inputs))
        graph.erase(node)
        return True

    spoiler = plant(spoil, "spoil-planted")
    with pytest.raises(VerifyError, match="pass spoil-planted: changed the numbers: output 0"):
        run_pipeline(parse_graph(NEGATED), [spoiler], [Verify()])


def test_verify_refuses_a_broken_graph(planted: None) -> None:
    def wreck(graph: Graph) -> bool:
        graph.nodes.reverse()
        return True

    with pytest.raises(VerifyError, match="before it is defined"):
        run_pipeline(parse_graph(NEGATED), [plant(wreck, "break-planted")], [Verify()])


def test_a_crash_leaves_the_graph_and_the_command_that_replays_it(
    planted: None, tmp_path: Path
) -> None:
    def crash(graph: Graph) -> bool:
        graph.emit(Neg(), graph.outputs[0])
        graph.nodes[0].inputs = []
        raise RuntimeError("planted")

    crasher = plant(crash, "crash-planted")
    with (
        knobs.override(dump=str(tmp_path)),
        pytest.raises(RuntimeError, match="planted") as caught,
    ):
        run_pipeline(parse_graph(NEGATED), [*parse_pipeline("eliminate-dead"), crasher])
    (note,) = caught.value.__notes__
    words = shlex.split(note.removeprefix("replay with: "))
    assert words[:2] == ["sglk", "opt"] and words[3:] == ["-p", "crash-planted"]
    assert Path(words[2]).read_text() == parse_graph(NEGATED).as_text()


def test_a_refusal_is_no_crash(tmp_path: Path) -> None:
    with (
        knobs.override(dump=str(tmp_path)),
        pytest.raises(PassError, match="flat-tokens: expected inputs") as caught,
    ):
        run_pipeline(parse_graph(NEGATED), [make_pass("flat-tokens", {})])
    assert not hasattr(caught.value, "__notes__")
    assert [f.name for f in tmp_path.iterdir()] == ["00-given.txt"]


def test_instruments_see_every_pass_in_order() -> None:
    class Watch(Instrument):
        def __init__(self) -> None:
            self.seen: list[str] = []

        def before(self, number: int, step: Pass, graph: Graph) -> None:
            self.seen.append(f"before {number} {step.name}")

        def after(self, number: int, step: Pass, graph: Graph, changed: bool) -> None:
            self.seen.append(f"after {number} {step.name} {changed}")

    watch = Watch()
    run_pipeline(parse_graph(NEGATED), parse_pipeline("canonicalize,eliminate-dead"), [watch])
    assert watch.seen == [
        "before 1 canonicalize", "after 1 canonicalize True",
        "before 2 eliminate-dead", "after 2 eliminate-dead False",
    ]  # fmt: skip


def test_sample_inputs_are_valid_for_a_step(captured_llama: BuildLlama, target: Target) -> None:
    graph = captured_llama(layers=1)
    run_pipeline(graph, step_pipeline(target, StepOptions()), ())
    sizes, arrays = sample_inputs(graph)
    assert set(arrays) == {v.name for v in (*graph.inputs, *graph.states)}
    assert arrays["page_table"].max() * target.page_size < sizes["kv_slots"]
    assert arrays["slots"].max() < sizes["kv_slots"]
    assert np.all(np.diff(arrays["query_start"]) > 0)
    assert arrays["query_start"][-1] < sizes["tokens"]  # the rest is padding
