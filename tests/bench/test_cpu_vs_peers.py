"""The comparison with other runtimes: same ids for all, rounds that alternate, ratios, faults."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from sglk.bench import contest, cpu_vs_peers, peers, standings
from sglk.bench.contest import Contender, Scenario
from sglk.bench.standings import Demand

ALONE = Scenario(16, 8, 1)


def contender(name: str, bits: int | None = None) -> Contender:
    return Contender(name, "model", sys.executable, bits)


def summary(**decode: float) -> dict[str, Any]:
    empty = dict.fromkeys(contest.FIGURES)
    return {name: {**empty, "decode_tokens_per_s": value} for name, value in decode.items()}


def test_requests_share_what_they_should_and_nothing_else() -> None:
    work = peers.Work("m", prompt=40, new=4, concurrency=3, shared=16, threads=1)
    ids = work.ids()
    assert [len(row) for row in ids] == [40, 40, 40]
    assert ids[0][:16] == ids[1][:16] == ids[2][:16]
    assert len({tuple(row[16:]) for row in ids}) == 3
    assert ids == work.ids()
    assert all(peers.FIRST_ID <= i < peers.LAST_ID for row in ids for i in row)
    warm = work.warm_ids()
    assert [len(row) for row in warm] == [40, 40, 40]
    assert not {tuple(row[:4]) for row in warm} & {tuple(row[:4]) for row in ids}


def test_what_some_got_before_all_had_a_first_token_is_no_decode_speed() -> None:
    work = peers.Work("m", prompt=10, new=3, concurrency=2, shared=0, threads=1)
    rates = work.rates_of([[1.0, 1.5, 3.0], [2.0, 3.0, 4.0]], load_s=0.5)
    assert rates["ttft_s"] == 2.0
    assert rates["prefill_tokens_per_s"] == 10.0
    assert rates["decode_tokens_per_s"] == 3 / 2
    assert rates["output_tokens_per_s"] == 6 / 4
    even = work.rates(prefill_s=2.0, decode_s=1.0, load_s=None)
    assert even["decode_tokens_per_s"] == 4.0 and even["itl_s"] == 0.5


def test_rounds_alternate_and_medians_are_compared() -> None:
    order: list[str] = []

    def measure(contender: Contender, scenario: Any, threads: int) -> dict[str, Any] | str:
        order.append(contender.name)
        if contender.name == "transformers":
            return "out of memory"
        speed = 100.0 if contender.is_ours else 50.0
        speed *= (3, 1, 2)[order.count(contender.name) - 1]
        return {"decode_tokens_per_s": speed, "ttft_s": 1 / speed, "peak_rss_bytes": 10.0}

    all_three = [contender(n, 4) for n in ("sglk:q4", "llama.cpp:q4_0", "transformers")]
    result = contest.compare(all_three, ALONE, threads=2, rounds=3, measure=measure)
    assert order == ["sglk:q4", "llama.cpp:q4_0", "transformers"] + 2 * order[:2]
    assert result["medians"]["sglk:q4"]["decode_tokens_per_s"] == 200
    assert result["faults"] == {"transformers": "out of memory"}
    result["ratios"] = standings.ratios(result["medians"], all_three)
    ours = result["ratios"]["sglk:q4"]
    assert ours["decode_tokens_per_s"]["class"] == {"peer": "llama.cpp:q4_0", "ratio": 2.0}
    assert ours["ttft_s"]["any"]["ratio"] == 2.0
    assert ours["peak_rss_bytes"]["any"]["ratio"] == 1.0
    text = "\n".join(standings.table_lines(result, all_three))
    assert "1 x 16 tokens, 8 new" in text and "transformers: out of memory" in text
    assert "sglk:q4 / best of its bits" in text


@pytest.mark.parametrize(
    ("name", "model", "bits"),
    [
        ("openvino-genai:int4", "ov/model", 4),
        ("llama.cpp", "SmolLM2.Q8_0.gguf", 8),
        ("llama.cpp:q4_k_m", "x.gguf", 4),
        ("vllm:bf16", "smollm2-135m", 16),
        ("transformers", "smollm2-135m", None),
    ],
)
def test_the_weight_class_comes_from_label_or_file(name: str, model: str, bits: int) -> None:
    assert contest.make_contender(name, model, "python").bits == bits


def test_a_demand_is_held_against_its_class_or_against_all() -> None:
    everyone = [contender("sglk:q4", 4), contender("a:q4", 4), contender("b:q8", 8)]
    comparison = {
        "scenario": vars(ALONE),
        "medians": summary(**{"sglk:q4": 120.0, "a:q4": 100.0, "b:q8": 110.0}),
    }
    own_class = Demand(ALONE, "decode_tokens_per_s", 1.15, bits=4)
    held = standings.verdict(own_class, comparison, everyone)
    assert held and held["peer"] == "a:q4" and held["holds"]
    against_all = Demand(ALONE, "decode_tokens_per_s", 1.15, bits=4, any_peer=True)
    missed = standings.verdict(against_all, comparison, everyone)
    assert missed and missed["peer"] == "b:q8" and not missed["holds"]
    assert standings.verdict(Demand(Scenario(1, 1, 1), "x", 1, 4), comparison, everyone) is None
    assert standings.verdict(Demand(ALONE, "ttft_s", 1, 16), comparison, everyone) is None
    lines = standings.verdict_lines([held, missed])
    assert "holds" in lines[2] and "MISSED" in lines[3]


def test_a_measurement_reports_the_figures_and_the_peak_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = json.dumps({"decode_tokens_per_s": 7.0})
    script = f"print('noise'); print({record!r})"
    monkeypatch.setattr(Contender, "command", lambda *_: [sys.executable, "-c", script])
    got = contest.measure(contender("llama.cpp"), ALONE, 1)
    assert isinstance(got, dict)
    assert got["decode_tokens_per_s"] == 7.0
    assert got["peak_rss_bytes"] > 1e6  # Linux counts what this process had when it forked


def test_a_peer_that_fails_gives_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "raise SystemExit('no such model')"
    monkeypatch.setattr(Contender, "command", lambda *_: [sys.executable, "-c", script])
    assert contest.measure(contender("llama.cpp"), ALONE, 1) == "no such model"


def test_a_peer_that_loads_for_long_keeps_its_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "peer.py"
    script.write_text(
        "import os, sys\n"
        "print('loading')\n"
        "for line in sys.stdin:\n"
        "    if line.startswith('[9'): sys.exit(7)\n"
        "    print('{\"decode_tokens_per_s\": %d}' % os.getpid(), flush=True)\n"
    )
    monkeypatch.setattr(peers, "__file__", str(script))
    with contest.Residents() as residents:
        vllm = contender("vllm", 16)
        first, again = (residents.measure(vllm, ALONE, 1) for _ in range(2))
        assert isinstance(first, dict) and first == again
        assert residents.measure(vllm, Scenario(9, 1, 1), 1) == "ended with 7"
        assert residents.measure(vllm, ALONE, 1) == "ended with 7"


def test_an_unknown_peer_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"expected one of sglk, llama\.cpp, .*got tgi"):
        cpu_vs_peers.pairs_of(["tgi:bf16=path"], "--model")


def test_a_lineup_names_models_and_interpreters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.Q4_0.gguf").touch()
    entry = {"contenders": {"llama.cpp:q4_0": str(tmp_path / "model.Q4_0.gguf")}, "slack": 0.1}
    lineup = tmp_path / "lineup.json"
    lineup.write_text(json.dumps({"pythons": {"vllm": "/no"}, "models": {"tiny": entry}}))
    monkeypatch.setenv("LLAMA_BATCHED_BENCH", sys.executable)
    options = cpu_vs_peers.make_parser().parse_args(["--lineup", str(lineup)])
    (field,) = cpu_vs_peers.find_fields(options)
    assert field.model == "tiny" and field.slack == 0.1
    assert [(c.name, c.bits) for c in field.contenders] == [("llama.cpp:q4_0", 4)]


def test_a_preset_may_be_run_with_fewer_new_tokens() -> None:
    parse = cpu_vs_peers.make_parser().parse_args
    usual = cpu_vs_peers.find_scenarios(parse(["--preset", "full"]))
    short = cpu_vs_peers.find_scenarios(parse(["--preset", "full", "--new", "8"]))
    assert len(usual) == len(short) == 6
    assert {s.new for s in usual} == {128} and {s.new for s in short} == {8}
    listed = cpu_vs_peers.find_scenarios(parse(["--prompt=4,8", "--concurrency=1,2"]))
    assert [(s.prompt, s.concurrency) for s in listed] == [(4, 1), (4, 2), (8, 1), (8, 2)]
