"""Who writes a cache and who reads it choose the same layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from sglk.ir.dtype import BF16, F16, F32
from sglk.ir.graph import Graph
from sglk.ir.target import Target
from sglk.passes.round_attention import RoundAttention
from sglk.passes.select_rows import Selection
from sglk.targets.cpu.compile import lower
from sglk.targets.cpu.facts import cpu_target
from sglk.targets.lowering import STEP_SYMBOLS

MakeStep = Callable[..., Graph]
BEST = cpu_target("x86_64_v4_amx")
NAMES = {"rope_write_kv", "write_kv", "paged_attention"}


def rows(graph: Graph, target: Target = BEST) -> set[str]:
    """Kinds of the rows that touch the cache."""
    chosen = lower(graph, target).selection.chosen
    return {row.kind for node, row in chosen.items() if node.op.name in NAMES}


def refused(selection: Selection) -> set[str]:
    return {reason for reasons in selection.refused.values() for _, reason in reasons}


def test_bf16_products_on_a_bf16_cache_go_by_hand(llama_step: MakeStep) -> None:
    graph = llama_step(kv=BF16)
    assert RoundAttention().run(graph)
    assert not RoundAttention().run(graph)
    assert rows(graph) == {"native"}
    program = lower(graph, BEST).program("step", STEP_SYMBOLS)
    calls = [call.kernel.rpartition("_")[0] for call in program.buckets[0].calls]
    assert calls.count("paged_attention") == calls.count("combine_attention") == 2


@pytest.mark.parametrize("kv", [F16, F32, BF16], ids=str)
def test_exact_products_stay_with_triton(llama_step: MakeStep, kv: object) -> None:
    graph = llama_step(kv=kv)
    if kv != BF16:
        assert not RoundAttention().run(graph)
    assert rows(graph) == {"triton"}


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (replace(BEST, handwritten=False), "switched off"),
        (cpu_target("x86_64_v3"), "needs AVX-512, x86_64_v3 may lack it"),
    ],
)
def test_what_cannot_run_by_hand_keeps_triton(
    llama_step: MakeStep, target: Target, reason: str
) -> None:
    graph = llama_step(kv=BF16)
    RoundAttention().run(graph)
    assert rows(graph, target) == {"triton"}
    assert any(reason in text for text in refused(lower(graph, target).selection))


def test_one_exact_reader_keeps_the_whole_state_plain(llama_step: MakeStep) -> None:
    graph = llama_step(kv=BF16)
    RoundAttention().run(graph)
    last = next(n for n in reversed(graph.nodes) if n.op.name == "paged_attention")
    exact = replace(last.op, products=F32)  # type: ignore[call-arg]
    (y,) = graph.append(exact, *last.inputs, before=last)
    graph.replace(last.outputs[0], y)
    graph.erase_dead()
    assert rows(graph) == {"triton"}
