"""Single behaviours of the scheduler: sharing of steps, order, preemption, refusal."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from sglk.errors import RequestError, SglkError
from sglk.runtime.admission import Limits
from sglk.runtime.request import Request
from sglk.runtime.scheduler import Scheduler


def limits(**changes: int | bool) -> Limits:
    chosen = {"page_size": 4, "num_pages": 33, "max_step_tokens": 16, "max_running": 4}
    return Limits(**{**chosen, **changes})  # type: ignore[arg-type]


def prompt(length: int, start: int = 0) -> list[int]:
    return [(start + i) % 90 for i in range(length)]


def test_prefill_chunks_share_steps_with_decoding(fake: SimpleNamespace) -> None:
    bench = fake.Bench(limits())
    bench.add("short", prompt(3), 10)
    bench.step()
    bench.add("long", prompt(40, 7), 2)
    sizes = []
    for _ in range(3):
        plan = bench.scheduler.schedule()
        sizes.append({chunk.request.id: chunk.num_tokens for chunk in plan.chunks})
        bench.step()
    assert sizes == [{"short": 1, "long": 15}, {"short": 1, "long": 15}, {"short": 1, "long": 10}]
    assert len(bench.answers["short"]) == 4 and len(bench.answers["long"]) == 1


def test_arrivals_run_in_order(fake: SimpleNamespace) -> None:
    bench = fake.Bench(limits(max_running=1))
    for name in "abc":
        bench.add(name, prompt(5, ord(name)), 2)
    bench.run()
    assert list(bench.reasons) == ["a", "b", "c"]


def test_a_shared_prefix_is_computed_once(fake: SimpleNamespace) -> None:
    """Eight at once: the later ones wait a step for the first and reuse its pages."""
    bench = fake.Bench(limits(max_step_tokens=64, max_running=8))
    requests = [bench.add(f"r{i}", [*prompt(20), i], 3) for i in range(8)]
    bench.run()
    assert [request.num_cached for request in requests] == [0] + [20] * 7
    assert bench.scheduler.stats().cached_tokens == 140


def test_a_whole_cached_prompt_still_computes_a_token(fake: SimpleNamespace) -> None:
    bench = fake.Bench(limits())
    bench.add("first", prompt(16), 1)
    bench.run()
    again = bench.add("again", prompt(16), 1)
    bench.run()
    assert again.num_cached == 12
    assert bench.answers["first"] == bench.answers["again"]


def test_generated_tokens_are_reused_by_the_next_turn(fake: SimpleNamespace) -> None:
    bench = fake.Bench(limits())
    bench.add("turn1", prompt(10), 10)
    bench.run()
    turn2 = bench.add("turn2", [*prompt(10), *bench.answers["turn1"], 5], 1)
    bench.run()
    assert turn2.num_cached == 16  # 19 of the 20 tokens are computed: 4 whole pages


def test_namespaces_do_not_share(fake: SimpleNamespace) -> None:
    bench = fake.Bench(limits())
    bench.add("mine", prompt(17), 1, namespace="me")
    bench.run()
    yours = bench.add("yours", prompt(17), 1, namespace="you")
    mine = bench.add("mine again", prompt(17), 1, namespace="me")
    bench.run()
    assert (yours.num_cached, mine.num_cached) == (0, 16)


def test_a_salt_leaves_nothing_behind(fake: SimpleNamespace) -> None:
    bench = fake.Bench(limits())
    for salt in range(20):
        bench.add(f"r{salt}", prompt(2), 1, namespace=f"salt{salt}")
        bench.run()
    assert not bench.scheduler.kv.tree._roots


def test_the_latest_arrival_gives_way(fake: SimpleNamespace) -> None:
    bench = fake.Bench(limits(num_pages=9, prefix_cache=False))
    old, new = bench.add("old", prompt(8), 20), bench.add("new", prompt(8, 40), 20)
    bench.run()
    assert old.num_preemptions == 0 and new.num_preemptions > 0
    assert bench.answers["new"] == fake.expected_tokens(prompt(8, 40), 20, 97)


def test_a_preempted_request_resumes_from_what_is_still_cached(fake: SimpleNamespace) -> None:
    bench = fake.Bench(limits(num_pages=9))
    bench.add("old", prompt(8), 20)
    new = bench.add("new", prompt(8, 40), 12)
    while not new.num_preemptions:
        bench.step()
    bench.abort("old")
    bench.step()
    assert new.num_computed > new.num_tokens - 8


@pytest.mark.parametrize(
    ("length", "max_new", "message"),
    [
        (0, 1, "prompt of at least one token, got none"),
        (50, 1, "shorter than the context of 50 tokens, got 50"),
        (30, 11, r"at most 33 tokens together, got 30 \+ 11 \(lower max_tokens"),
    ],
)
def test_what_can_never_run_is_refused(length: int, max_new: int, message: str) -> None:
    scheduler = Scheduler(limits(num_pages=9, max_context=50))
    with pytest.raises(RequestError, match=f"request big: .*{message}"):
        scheduler.add(Request("big", prompt(length), max_new))
    assert not scheduler.has_work


def test_the_largest_possible_request_runs(fake: SimpleNamespace) -> None:
    bench = fake.Bench(limits(num_pages=9))
    bench.add("small", prompt(3), 9)
    bench.add("largest", prompt(20), 13)
    bench.run()
    assert bench.reasons == {"small": "length", "largest": "length"}


def test_a_prompt_that_fills_the_pool_runs_when_alone(fake: SimpleNamespace) -> None:
    bench = fake.Bench(limits(num_pages=9))
    bench.add("small", prompt(3), 9)
    bench.add("filling", prompt(32), 1)
    bench.run()
    assert bench.reasons == {"small": "length", "filling": "length"}


def test_an_admission_leaves_room_for_those_who_run(fake: SimpleNamespace) -> None:
    """The last page goes to the running request that will need it, not to a newcomer."""
    bench = fake.Bench(limits(num_pages=4, prefix_cache=False))
    old = bench.add("old", prompt(7), 4)
    bench.step()
    new = bench.add("new", prompt(4, 40), 1)
    bench.run()
    assert (old.num_preemptions, new.num_preemptions) == (0, 0)
    assert list(bench.reasons) == ["old", "new"]


def test_a_preempted_request_comes_before_later_arrivals(fake: SimpleNamespace) -> None:
    bench = fake.Bench(limits(num_pages=9, max_running=2, prefix_cache=False))
    requests = [bench.add(name, prompt(8, ord(name[0])), 20) for name in ("old", "mid", "new")]
    while not requests[1].num_preemptions:
        bench.step()
    assert list(bench.scheduler.waiting) == ["mid", "new"]
    bench.run()
    assert list(bench.reasons) == ["old", "mid", "new"]


def test_an_id_in_use_is_refused() -> None:
    scheduler = Scheduler(limits())
    scheduler.add(Request("a", [1], 1))
    with pytest.raises(RequestError, match="request a: expected a new id"):
        scheduler.add(Request("a", [1], 1))


@pytest.mark.parametrize("changes", [{"max_running": 0}, {"max_running": 17}, {"num_pages": 1}])
def test_impossible_limits_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(SglkError, match="limits: expected"):
        limits(**changes)


def test_abort_frees_pages_at_once_in_every_state(fake: SimpleNamespace) -> None:
    bench = fake.Bench(limits(max_running=2))
    for name in ("decoding", "chunked", "queued"):
        bench.add(name, prompt(3 if name == "decoding" else 30, ord(name[0])), 5)
    bench.step()
    assert bench.scheduler.stats().num_waiting == 1
    for name in ("queued", "chunked", "decoding"):
        assert bench.scheduler.abort(name)
        assert not bench.scheduler.abort(name)
    stats = bench.scheduler.stats()
    assert stats.pages_held == 0 and not bench.scheduler.has_work


def test_a_request_aborted_in_flight_gets_no_token(fake: SimpleNamespace) -> None:
    bench = fake.Bench(limits())
    bench.add("gone", prompt(3), 5)
    bench.add("stays", prompt(3, 9), 5)
    plan = bench.scheduler.schedule()
    bench.scheduler.abort("gone")
    events = bench.scheduler.commit(plan, [1, 2])
    assert [(event.request.id, event.token_id) for event in events] == [("stays", 2)]


def test_an_outdated_plan_is_refused(fake: SimpleNamespace) -> None:
    bench = fake.Bench(limits())
    bench.add("a", prompt(30), 5)
    plan = bench.scheduler.schedule()
    bench.step()
    with pytest.raises(AssertionError, match="outdated"):
        bench.scheduler.commit(plan, [])


def test_pages_of_a_running_step_are_not_visible_before_its_end(fake: SimpleNamespace) -> None:
    bench = fake.Bench(limits(max_step_tokens=64))
    first = bench.add("first", prompt(16), 1)
    bench.scheduler.schedule()
    twin = Request("twin", prompt(17), 1)
    assert bench.scheduler.kv.matched_pages(twin) == 0
    bench.run()
    assert bench.scheduler.kv.matched_pages(twin) == 4
    assert first.finish_reason == "length"


def test_those_who_share_a_prefix_decode_beside_each_other(fake: SimpleNamespace) -> None:
    """Neighbours read shared pages once; whoever came in between has a place of its own."""
    bench = fake.Bench(limits(num_pages=99, max_step_tokens=64, max_running=9))
    for i in range(9):
        bench.add(f"{'abc'[i % 3]}{i}", [*prompt(20, 30 * (i % 3)), i], 12)
    while bench.scheduler.waiting or any(
        request.num_remaining > 1 for request in bench.scheduler.running.values()
    ):
        bench.step()
    plan = bench.scheduler.schedule()
    groups = [chunk.request.id[0] for chunk in plan.chunks]
    assert len(groups) == plan.num_decoding == 9
    assert sum(a != b for a, b in itertools.pairwise(groups)) == 2
    before = [chunk.request.id for chunk in plan.chunks]
    bench.step()
    assert [chunk.request.id for chunk in bench.scheduler.schedule().chunks] == before
