"""The comparison with other runtimes: same ids for all, rounds that alternate, ratios, faults."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from sglk.bench import cpu_vs_peers as bench
from sglk.bench import peers


def test_requests_share_what_they_should_and_nothing_else() -> None:
    work = peers.Work("m", prompt=40, new=4, concurrency=3, shared=16, threads=1)
    ids = work.ids()
    assert [len(row) for row in ids] == [40, 40, 40]
    assert ids[0][:16] == ids[1][:16] == ids[2][:16]
    assert len({tuple(row[16:]) for row in ids}) == 3
    assert ids == work.ids()
    assert all(peers.FIRST_ID <= i < peers.LAST_ID for row in ids for i in row)


def test_rounds_alternate_and_medians_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def measure(contender: Any, scenario: Any, threads: int) -> dict[str, float] | str:
        order.append(contender.name)
        if contender.name == "transformers":
            return "out of memory"
        speed = 100.0 if contender.name == "sglk" else 50.0
        speed *= (3, 1, 2)[order.count(contender.name) - 1]
        return {"decode_tokens_per_s": speed, "ttft_s": 1 / speed, "peak_rss_bytes": 10.0}

    monkeypatch.setattr(bench, "measure", measure)
    names = ("sglk", "llama.cpp", "transformers")
    contenders = [bench.Contender(name, "model", "python") for name in names]
    result = bench.compare(contenders, bench.Scenario(16, 8, 1, 0), threads=2, rounds=3)
    assert order == ["sglk", "llama.cpp", "transformers", *["sglk", "llama.cpp"] * 2]
    assert result["medians"]["sglk"]["decode_tokens_per_s"] == 200
    assert result["ratios"] == {
        "llama.cpp": {"decode_tokens_per_s": 2.0, "ttft_s": 2.0, "peak_rss_bytes": 1.0}
    }
    assert result["faults"] == {"transformers": "out of memory"}
    text = "\n".join(bench.table_lines(result))
    assert "1 x 16 tokens, 8 new" in text and "transformers: out of memory" in text


def test_a_measurement_reports_the_figures_and_the_peak_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = json.dumps({"decode_tokens_per_s": 7.0})
    script = f"print('noise'); print({record!r})"
    monkeypatch.setattr(bench.Contender, "command", lambda *_: [sys.executable, "-c", script])
    contender = bench.Contender("llama.cpp", "model", "python")
    got = bench.measure(contender, bench.Scenario(1, 1, 1, 0), 1)
    assert isinstance(got, dict)
    assert got["decode_tokens_per_s"] == 7.0
    assert 1e6 < got["peak_rss_bytes"] < 1e9


def test_a_peer_that_fails_gives_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "raise SystemExit('no such model')"
    monkeypatch.setattr(bench.Contender, "command", lambda *_: [sys.executable, "-c", script])
    contender = bench.Contender("llama.cpp", "model", "python")
    assert bench.measure(contender, bench.Scenario(1, 1, 1, 0), 1) == "no such model"


def test_an_unknown_peer_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"expected one of llama\.cpp, .*got vllm"):
        bench.pairs_of(["vllm=path"], "--model")
