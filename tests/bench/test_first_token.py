"""Time to the first token from the start of the process, and mixed load for minutes."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from sglk.bench import cpu_vs_peers, first_token, mixed_load
from sglk.bench.contest import Contender, environment


def test_the_first_byte_is_timed_and_the_rest_is_read() -> None:
    script = "import sys; print('x' * 100000)"
    got = first_token.first_output([sys.executable, "-c", script], environment(1))
    assert got["seconds"] > 0 and got["peak_rss_bytes"] > 1e6


@pytest.mark.parametrize("script", ["raise SystemExit(2)", "pass"])
def test_a_command_without_output_is_a_fault(script: str) -> None:
    got = first_token.first_output([sys.executable, "-c", script], environment(1))
    assert "printed nothing" in got["fault"]


def test_rounds_alternate_and_the_first_is_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([9.0, 9.0, 0.2, 0.4, 0.3, 0.6])

    def first_output(command: Any, environment: Any) -> dict[str, float]:
        return {"seconds": next(seconds), "peak_rss_bytes": 100e6}

    monkeypatch.setattr(first_token, "first_output", first_output)
    monkeypatch.setattr(first_token, "llama_completion", lambda: "/bin/llama-completion")
    names = ("sglk:a", "llama.cpp-plain:q4_0", "transformers")
    contenders = [Contender(name, "model", "python") for name in names]
    got = first_token.measure_first_tokens(contenders, threads=1, rounds=2)
    assert got["sglk:a"]["seconds"] == 0.25 and got["llama.cpp-plain:q4_0"]["seconds"] == 0.5
    bits = {"sglk:a": 4, "llama.cpp-plain:q4_0": 4}
    lines = cpu_vs_peers.start_verdicts(got, bits)
    assert "holds" in lines[0] and "+0 MB to llama.cpp" in lines[1]
    assert len(cpu_vs_peers.start_verdicts(got, bits | {"sglk:a": 16})) == 1, "other weights"


def test_the_first_and_the_last_minute_are_compared() -> None:
    now = [0.0]

    def work(batch: Any) -> None:
        now[0] += 1.0 if now[0] < 300 else 2.0

    result = mixed_load.run_cycles(work, 600, clock=lambda: now[0])
    assert result["change"] == pytest.approx(-0.5)
    assert result["minutes"] >= 10
    assert "MISSED" in mixed_load.soak_lines(result, 0.03)[1]


def test_every_cycle_is_the_same_work_on_new_tokens() -> None:
    turning = mixed_load.cycles()
    one, two = next(turning), next(turning)
    shape = [[(len(prompt), new) for prompt in prompts] for prompts, new in one]
    assert shape == [[(len(prompt), new) for prompt in prompts] for prompts, new in two]
    assert one != two
