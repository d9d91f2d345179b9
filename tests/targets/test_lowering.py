"""Graph -> Program for the CPU: calls, views, buckets, weights and memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sglk.errors import PassError
from sglk.ir.dtype import BF16, F32, F64, Q4_1, Q8_0
from sglk.ir.graph import Graph
from sglk.ir.ops.elementwise import Cast
from sglk.ir.verify import verify
from sglk.targets.artifact.program import Program
from sglk.targets.cpu.compile import lower
from sglk.targets.cpu.facts import cpu_target
from sglk.targets.dim_code import parse
from sglk.targets.lowering import STEP_SYMBOLS, Lowering

MakeStep = Callable[..., Graph]
TARGET = cpu_target("x86_64_v4")


def lowered(graph: Graph) -> tuple[Lowering, Program]:
    verify(graph)
    lowering = lower(graph, TARGET)
    return lowering, lowering.program("step", STEP_SYMBOLS)


def test_every_bucket_calls_the_same_ops_in_graph_order(llama_step: MakeStep) -> None:
    graph = llama_step()
    _, program = lowered(graph)
    assert [b.tokens_max for b in program.buckets] == [1, 4, 16, None]
    ops = [n.op.name for n in graph.nodes if n.op.name != "reshape"]
    for bucket in program.buckets:
        assert list(dict.fromkeys(c.op for c in bucket.calls)) == list(dict.fromkeys(ops))


def test_program_text_reads_back(llama_step: MakeStep) -> None:
    _, program = lowered(llama_step(weight=Q4_1, kv=BF16))
    assert Program.parse(program.as_text()) == program
    assert Program.from_json(program.to_json()) == program


def test_only_one_variant_of_the_head_has_a_grid(llama_step: MakeStep) -> None:
    _, program = lowered(llama_step())
    last = program.buckets[-1]
    heads = [c for c in last.calls if c.op == "linear" and "rows" in c.grid[0]]
    assert len(heads) == 4
    for rows in (1, 2, 4, 5, 16, 17, 300):
        grids = [parse(c.grid[0], ("rows",)).evaluate({"rows": rows}) for c in heads]
        assert sum(g > 0 for g in grids) == 1, (rows, grids)


def test_tied_table_is_one_weight(llama_step: MakeStep) -> None:
    lowering, program = lowered(llama_step(weight=Q8_0))
    assert [u.name for u in lowering.weights.values()].count("embed") == 1
    assert "embed" in program.weights


def test_views_share_memory_and_temporaries_share_the_arena(llama_step: MakeStep) -> None:
    _, program = lowered(llama_step(layers=8))
    calls = program.buckets[0].calls
    number = next(i for i, c in enumerate(calls) if c.op == "paged_attention")
    written, read = ({a.value for a in c.args} for c in calls[number : number + 2])
    assert {b.name for b in program.temps} & written & read
    symbols = {"tokens": 64, "seqs": 2, "pages": 4, "rows": 2, "num_pages": 9}
    used = parse(program.arena_bytes, tuple(symbols)).evaluate(symbols)
    temps = sum(parse(b.bytes, tuple(symbols)).evaluate(symbols) for b in program.temps)
    assert used < temps / 4


def test_arena_holds_every_temporary_for_every_size(llama_step: MakeStep) -> None:
    _, program = lowered(llama_step())
    for tokens in (1, 2, 3, 16, 17, 511):
        for rows in (1, min(tokens, 7), tokens):
            symbols = {"tokens": tokens, "seqs": 3, "pages": 2, "rows": rows, "num_pages": 9}
            names = tuple(symbols)
            arena = parse(program.arena_bytes, names).evaluate(symbols)
            for temp in program.temps:
                start = parse(temp.offset, names).evaluate(symbols)
                end = start + parse(temp.bytes, names).evaluate(symbols)
                assert start % 64 == 0 and end <= arena, (temp, symbols)


def test_unsupported_ops_are_listed_at_once(llama_step: MakeStep) -> None:
    graph = llama_step(layers=1)
    graph.outputs = [graph.emit(Cast(F64), *graph.outputs, source="model.py:7")]
    missing = r"cpu:x86_64_v4: no implementation for 1 op.*cast x1.*model.py:7"
    with pytest.raises(PassError, match=missing):
        lower(graph, TARGET)


def test_state_is_sized_by_pages(llama_step: MakeStep) -> None:
    _, program = lowered(llama_step(layers=2, kv=F32))
    (state,) = program.states
    size = parse(state.bytes, ("num_pages",)).evaluate({"num_pages": 5})
    assert size == 5 * 32 * 2 * 2 * 32 * 4
