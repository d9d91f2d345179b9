"""Loads in turns: one server at a time, the load first that had fewest turns for its work."""

from __future__ import annotations

import argparse
import asyncio
import signal
from typing import Any, cast

import pytest
from sglk.bench import serve_shared
from sglk.bench.edges import Edges
from sglk.bench.load_client import Result, Target
from sglk.bench.server_process import Served
from sglk.bench.turns import Load, in_turns
from sglk.cli import serve


class Process:
    """Runs unless it is stopped."""

    def __init__(self) -> None:
        self.is_running = True

    def send_signal(self, number: int) -> None:
        self.is_running = number == signal.SIGCONT


class Counted(Load):
    """A load whose server gives a token per turn of the event loop while it runs."""

    def __init__(self, name: str, everyone: list[Counted], prompts: int, new: int) -> None:
        self.own, self.everyone = Process(), everyone
        self.leads: list[float] = []
        everyone.append(self)
        served = Served(cast(Any, self.own), Target("", 0, ""), 0.0)
        super().__init__(name, served, [[1, 2]] * prompts, new, {}, new)

    async def turn(self, seconds: float) -> None:
        self.leads += [self.had - other.had for other in self.everyone if not other.is_done]
        await super().turn(seconds)

    async def _ask(self, body: dict[str, Any], result: Result) -> Result:
        for _ in range(body["max_tokens"]):
            while not self.own.is_running:
                await asyncio.sleep(0)
            assert [each for each in self.everyone if each.own.is_running] == [self]
            result.num_pieces += 1
            await asyncio.sleep(0)
        return result


class Failing(Counted):
    """A load whose server answers nobody."""

    async def _ask(self, body: dict[str, Any], result: Result) -> Result:
        raise OSError("refused")


def test_one_server_runs_at_a_time_and_all_end_together(capsys: pytest.CaptureFixture[str]) -> None:
    everyone: list[Counted] = []
    large, small = Counted("a", everyone, 3, 300), Counted("b", everyone, 2, 100)
    in_turns(everyone, Edges(None), turn_s=0.0, window_s=60)
    assert large.is_done and small.is_done
    assert large.num_turns > 2 * small.num_turns > 20
    for each in everyone:
        assert each.own.is_running  # so that it can be told to end
        assert max(each.leads) <= 0 and min(each.leads) >= -1 / 100  # a turn of the small one
    assert "window 'window 1': end" in capsys.readouterr().err


def test_what_goes_wrong_is_raised_and_all_servers_run_again() -> None:
    everyone: list[Counted] = []
    Failing("a", everyone, 1, 5)
    Counted("b", everyone, 1, 5)
    with pytest.raises(OSError, match="refused"):
        in_turns(everyone, Edges(None), turn_s=0.0)
    assert all(each.own.is_running for each in everyone)


@pytest.mark.parametrize(
    ("cached", "same", "ok"),
    [(4.0, [True, True], True), (4.5, [True, True], False), (4.0, [True, False], False)],
)
def test_the_cache_must_gain_what_the_saved_tokens_cost(
    cached: float, same: list[bool], ok: bool
) -> None:
    figures = serve_shared.compared(
        num_prompt=1000, saved=800, without=12.0, price=0.01, cached=cached, same=same
    )
    assert figures["predicted_speed_up"] == 3.0 and figures["speed_up"] == round(12 / cached, 3)
    assert figures["share_of_predicted"] == round(4 / cached, 3)
    assert figures["ok"] is ok


def test_a_server_that_is_stopped_between_turns_ends_and_refuses_nothing() -> None:
    options = argparse.Namespace(running=8, kv_memory=2**20)
    given = serve_shared.server_options(options, [[1] * 600] * 40)
    asked = serve.make_parser().parse_args(["model.sglk", *given])
    assert asked.max_running == 8 and asked.max_queued == 40
    assert asked.max_queued_tokens >= 40 * 600
    stalls = ("read_timeout", "write_timeout", "queue_timeout", "request_timeout")
    assert {getattr(asked, name) for name in stalls} == {serve_shared.STALL_S}
