"""Steps on a null driver: padding, pages, graphs, tokens that stay on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk import knobs
from sglk.errors import DeviceError
from sglk.targets.cuda.device import CudaExecutable, recipes
from sglk.targets.cuda.device.driver import Grid
from sglk.targets.cuda.device.null_driver import NullDriver
from sglk.targets.device import SAMPLED_ROW, HasArgmax, HasSample, RunsAhead, WarmsUp

Load = Callable[..., CudaExecutable]
PROMPTS = [[3, 5, 7], [1], [2, 2, 2, 2, 2, 2, 2], [9, 8], [11, 0, 4, 6, 1]]
FIRST_PAGES = [1, 11, 21, 31, 41]


def rows_of(num: int) -> NDArray[np.int32]:
    return np.arange(num, dtype=np.int32)


def greedy(toy: Any, prompt: Sequence[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(toy.next_token(tokens))
    return tokens[len(prompt) :]


def decode(
    toy: Any, executable: CudaExecutable, texts: list[list[int]], pages: Sequence[int]
) -> None:
    """One token more for each text."""
    chunks = [([t[-1]], len(t) - 1, page) for t, page in zip(texts, pages, strict=True)]
    executable.step(toy.batch(chunks))
    for text, token in zip(texts, executable.argmax(rows_of(len(texts))), strict=True):
        text.append(int(token))


def prefill(toy: Any, executable: CudaExecutable, prompts: Sequence[list[int]]) -> list[list[int]]:
    chunks = [(p, 0, page) for p, page in zip(prompts, FIRST_PAGES, strict=False)]
    executable.step(toy.batch(chunks))
    ids = executable.argmax(rows_of(len(prompts)))
    return [[*p, int(token)] for p, token in zip(prompts, ids, strict=True)]


def test_it_offers_what_the_runtime_asks_for(load: Load) -> None:
    executable = load()
    assert isinstance(executable, HasArgmax) and isinstance(executable, HasSample)
    assert isinstance(executable, RunsAhead) and executable.can_run_ahead and executable.can_sample


@pytest.mark.parametrize("mode", ["check", "trust", "off"])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_tokens_are_right_in_any_batch(load: Load, toy: Any, mode: str, count: int) -> None:
    with knobs.override(graphs=mode):
        executable = load()
    texts = prefill(toy, executable, PROMPTS[:count])
    for _ in range(9):
        decode(toy, executable, texts, FIRST_PAGES[:count])
    for prompt, text in zip(PROMPTS, texts, strict=False):
        assert text == prompt + greedy(toy, prompt, 10)


def test_a_decode_step_is_one_copy_and_one_graph(load: Load, toy: Any, driver: NullDriver) -> None:
    executable = load()
    texts = prefill(toy, executable, PROMPTS)
    for _ in range(2):
        decode(toy, executable, texts, FIRST_PAGES)
    driver.records.clear()
    decode(toy, executable, texts, FIRST_PAGES)
    kinds = [record.kind for record in driver.records if record.kind != "launch"]
    assert kinds == ["copy in", "graph", "record", "wait"]


def test_a_first_graph_is_compared_and_later_ones_of_the_bucket_are_not(
    load: Load, toy: Any, driver: NullDriver
) -> None:
    executable = load()
    texts = prefill(toy, executable, PROMPTS[:3])
    driver.records.clear()
    decode(toy, executable, texts, FIRST_PAGES[:3])
    assert [len(driver.of("capture")), len(driver.of("graph"))] == [1, 1]
    assert len([r for r in driver.of("launch") if r.what == "head"]) == 2
    for _ in range(12):  # until the context takes more pages than the first class has
        decode(toy, executable, texts, FIRST_PAGES[:3])
    assert len(driver.of("capture")) == 2
    assert len([r for r in driver.of("launch") if r.what == "head"]) == 14


def test_a_graph_that_differs_is_refused(load: Load, toy: Any, driver: NullDriver) -> None:
    calls = 0

    def changing(grid: Grid, words: Sequence[int]) -> None:
        nonlocal calls
        calls += 1
        toy.head(grid, words)
        toy.floats(words[3], 1)[0] = calls

    executable = load()
    texts = prefill(toy, executable, PROMPTS[:1])
    driver.kernels = {**driver.kernels, "head": changing}
    with pytest.raises(DeviceError, match=r"expected the results of plain .* \(set SGLK_GRAPHS"):
        decode(toy, executable, texts, FIRST_PAGES[:1])


def test_logits_are_read_when_asked_for_and_not_after_the_next_step(
    load: Load, toy: Any, driver: NullDriver
) -> None:
    executable = load()
    logits = executable.step(toy.batch([(PROMPTS[0], 0, 1), (PROMPTS[1], 0, 11)]))
    driver.records.clear()
    assert logits.shape == (2, toy.VOCAB) and len(logits) == 2 and not driver.records
    row = logits[1]
    assert row.argmax() == toy.next_token(PROMPTS[1])
    assert [r.num_bytes for r in driver.of("copy out")] == [4 * toy.VOCAB]
    assert np.asarray(logits).argmax(1).tolist() == [toy.next_token(p) for p in PROMPTS[:2]]
    executable.step(toy.batch([(PROMPTS[0], 0, 1)]))
    with pytest.raises(DeviceError, match="a later step has overwritten them"):
        np.asarray(logits)


def test_a_chunk_without_logits_leaves_the_head_out(
    load: Load, toy: Any, driver: NullDriver
) -> None:
    executable = load()
    step = toy.batch([([4, 5, 6, 7], 0, 1)])
    step.logit_rows = step.logit_rows[:0]
    executable.step(step)
    assert not [r for r in driver.of("launch") if r.what in ("head", "best")]
    texts = [[4, 5, 6, 7, 8]]
    decode(toy, executable, texts, [1])
    assert texts[0][-1] == toy.next_token([4, 5, 6, 7, 8])


def test_without_the_extra_programs_the_host_chooses(load: Load, toy: Any) -> None:
    executable = load(programs=toy.PROGRAMS[:1])
    assert not executable.can_sample and not executable.can_run_ahead
    texts = prefill(toy, executable, PROMPTS[:2])
    assert [t[-1] for t in texts] == [toy.next_token(p) for p in PROMPTS[:2]]
    with pytest.raises(DeviceError, match="cannot run steps ahead"):
        executable.submit(toy.batch([([1], 0, 1)]), np.zeros(1, SAMPLED_ROW))


def draws(top_k: Sequence[int]) -> NDArray[np.void]:
    rows = np.zeros(len(top_k), SAMPLED_ROW)
    rows["row"], rows["top_k"], rows["temperature"] = range(len(top_k)), top_k, 1
    return rows


@pytest.mark.parametrize("top_k", [1, 3])
def test_steps_run_ahead_of_the_host(load: Load, toy: Any, top_k: int) -> None:
    """Three steps, the tokens of the second and third are known to the device alone."""
    executable = load()
    rows = draws([top_k, 1])
    executable.submit(toy.batch([(PROMPTS[0], 0, 1), (PROMPTS[2], 0, 21)]), rows)
    chunks = [([-1], len(PROMPTS[0]), 1), ([-2], len(PROMPTS[2]), 21)]
    executable.submit(toy.batch(chunks), rows)
    found = [executable.collect().tolist()]
    executable.submit(toy.batch([([-1], len(PROMPTS[0]) + 1, 1)]), rows[:1])
    found += [executable.collect().tolist(), executable.collect().tolist()]
    first, second = list(PROMPTS[0]), list(PROMPTS[2])
    for step in found:
        first.append((toy.next_token(first) + top_k - 1) % toy.VOCAB)
        second.append(toy.next_token(second))
        assert step == [first[-1], second[-1]][: len(step)]
    with pytest.raises(DeviceError, match="no step is in flight"):
        executable.collect()


def test_layouts_share_memory_without_minding_each_other(load: Load, toy: Any) -> None:
    """Words between the inputs of one layout are inputs of another one, negative tokens too."""
    executable = load()
    for count in (5, 1, 4, 2, 3, 1, 5):
        chunks = [([3, 1], 0, page) for page in FIRST_PAGES[:count]]
        executable.submit(toy.batch(chunks), draws([1] * count))
        chunks = [([-1 - row], 2, page) for row, page in enumerate(FIRST_PAGES[:count])]
        executable.submit(toy.batch(chunks), draws([1] * count))
        assert executable.collect().tolist() == [toy.next_token([3, 1])] * count
        assert executable.collect().tolist() == [toy.next_token([3, 1, 6])] * count


def test_three_steps_in_flight_are_one_too_many(load: Load, toy: Any) -> None:
    executable = load()
    step = toy.batch([([1], 0, 1)])
    for _ in range(2):
        executable.submit(step, draws([1]))
    with pytest.raises(DeviceError, match="at most 2 steps in flight"):
        executable.submit(step, draws([1]))


def test_a_failed_step_takes_the_one_behind_it_along(
    load: Load, toy: Any, driver: NullDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable = load()
    step = toy.batch([([1], 0, 1)])
    executable.submit(step, draws([1]))
    executable.submit(step, draws([1]))

    def fail(event: object) -> None:
        raise DeviceError("cuda:null: wait for the device: a kernel failed")

    with monkeypatch.context() as broken:
        broken.setattr(driver, "wait", fail)
        with pytest.raises(DeviceError, match="a kernel failed"):
            executable.collect()
    with pytest.raises(DeviceError, match="no step is in flight"):
        executable.collect()


def test_some_rows_of_a_step_are_drawn(load: Load, toy: Any) -> None:
    executable = load()
    executable.step(toy.batch([(p, 0, page) for p, page in zip(PROMPTS, FIRST_PAGES, strict=True)]))
    rows = draws([4, 2])
    rows["row"] = [3, 1]
    wanted = [toy.next_token(PROMPTS[3]) + 3, toy.next_token(PROMPTS[1]) + 1]
    assert executable.sample(rows).tolist() == [token % toy.VOCAB for token in wanted]


@pytest.mark.parametrize("count", [255, 257, 300])
def test_more_rows_than_usual(load: Load, toy: Any, driver: NullDriver, count: int) -> None:
    """Classes above 256 are no powers of two; tokens of steps ahead must not move for them."""
    executable = load(num_pages=400, max_tokens=300)
    prompts = [([n % toy.VOCAB, 1], 0, 1 + n) for n in range(count)]
    for start in range(0, count, 150):
        executable.step(toy.batch(prompts[start : start + 150]))
    executable.submit(toy.batch([([5], 2, 1 + n) for n in range(count)]), draws([1] * count))
    executable.submit(toy.batch([([-1 - n], 3, 1 + n) for n in range(count)]), draws([2] * count))
    first = [toy.next_token([n % toy.VOCAB, 1, 5]) for n in range(count)]
    assert executable.collect().tolist() == first
    second = [
        (toy.next_token([n % toy.VOCAB, 1, 5, t]) + 1) % toy.VOCAB for n, t in enumerate(first)
    ]
    assert executable.collect().tolist() == second
    executable.step(toy.batch([(prompts[n][0], 0, 1 + n) for n in range(min(count, 150))]))
    executable.step(toy.batch([([5], 2, 1 + n) for n in range(count)]))
    rows = draws([3] * count)[::-7].copy()
    wanted = [(first[row] + 2) % toy.VOCAB for row in rows["row"].tolist()]
    assert executable.sample(rows).tolist() == wanted


def test_warming_up_makes_every_decode_graph(load: Load, toy: Any, driver: NullDriver) -> None:
    executable = load()
    assert isinstance(executable, WarmsUp)
    executable.warm_up(max_seqs=5, max_context=40)
    made = len(driver.of("capture"))
    assert made == 4 * 3  # 1, 2, 4 and 8 sequences; 4, 8 and 16 pages of 4 tokens
    texts = prefill(toy, executable, PROMPTS)
    for _ in range(20):
        decode(toy, executable, texts, FIRST_PAGES)
    assert len(driver.of("capture")) == made
    assert texts[2] == PROMPTS[2] + greedy(toy, PROMPTS[2], 21)


@pytest.mark.parametrize(("num_pages", "classes"), [(1, 0), (2, 1), (4, 3)])
def test_warming_up_takes_the_pages_there_are(
    load: Load, driver: NullDriver, num_pages: int, classes: int
) -> None:
    load(num_pages=num_pages).warm_up(max_seqs=32, max_context=16)
    assert len(driver.of("capture")) == classes


def test_the_class_that_rested_longest_makes_room(
    load: Load, toy: Any, driver: NullDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes, "MAX_RECIPES", 2)
    monkeypatch.setattr(recipes, "MAX_KNOWN_SIZES", 3)
    executable = load()
    texts = prefill(toy, executable, PROMPTS)
    for count in (1, 2, 1, 3, 1, 5, 2, 4, 1):  # classes 1, 2, 1, 4, 1, 8, 2, 4, 1
        decode(toy, executable, texts[:count], FIRST_PAGES[:count])
    assert len(executable._book._recipes) == 2
    assert len(driver.of("capture")) - len(driver.of("free graph")) == 2
    for prompt, text in zip(PROMPTS, texts, strict=True):
        assert text == prompt + greedy(toy, prompt, len(text) - len(prompt))


def test_larger_steps_move_memory_and_void_what_was_prepared(
    load: Load, toy: Any, driver: NullDriver
) -> None:
    executable = load(max_tokens=32)
    texts = prefill(toy, executable, PROMPTS[:2])
    decode(toy, executable, texts, FIRST_PAGES[:2])
    before = len(driver.of("allocate"))
    executable._memory.ensure(("arena", ""), 1 << 20)
    decode(toy, executable, texts, FIRST_PAGES[:2])
    assert len(driver.of("allocate")) == before + 1 and len(driver.of("free graph")) == 1
    for prompt, text in zip(PROMPTS, texts, strict=False):
        assert text == prompt + greedy(toy, prompt, 3)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("token_ids", 29, r"token_ids: expected values in 0\.\.28, got 29 at 0"),
        ("token_ids", -1, r"token_ids: expected values in 0\.\.28, got -1 at 0"),
        ("slots", 256, r"slots: expected values in 0\.\.255, got 256"),
        ("page_table", -1, r"page_table: expected values in 0\.\.63, got -1"),
        ("seq_lens", 1, "expected query_start to grow by at most seq_lens"),
        ("logit_rows", 3, r"logit_rows: expected values in 0\.\.2, got 3"),
        ("query_start", 4, r"query_start: expected values in 0\.\.3|to grow by"),
    ],
)
def test_values_that_point_outside_are_refused(
    load: Load, toy: Any, name: str, value: int, sentence: str
) -> None:
    executable = load()
    step = toy.batch([(PROMPTS[0], 0, 1)])
    getattr(step, name).reshape(-1)[0] = value
    with pytest.raises(DeviceError, match=sentence):
        executable.step(step)
    assert prefill(toy, executable, PROMPTS[:1])[0][-1] == toy.next_token(PROMPTS[0])


def test_shapes_are_checked(load: Load, toy: Any) -> None:
    executable = load(max_tokens=4)
    with pytest.raises(DeviceError, match="expected 1 to 4 tokens"):
        executable.step(toy.batch([(PROMPTS[2], 0, 1)]))
    step = toy.batch([([1], 0, 1)])
    step.slots = step.slots.astype(np.int64)
    with pytest.raises(DeviceError, match="slots: expected contiguous int32"):
        executable.step(step)
    step = toy.batch([([1], 0, 1), ([2], 0, 11)])
    step.slots = np.repeat(step.slots, 2)[::2]
    with pytest.raises(DeviceError, match="slots: expected contiguous int32"):
        executable.step(step)
    with pytest.raises(DeviceError, match="expected rows of the last step's 0 logits"):
        executable.argmax(rows_of(1))
    step = toy.batch([([1], 0, 1)])
    executable.step(step)
    step.slots = step.slots.astype(np.int64)  # no more one of the arrays that were looked at
    with pytest.raises(DeviceError, match="slots: expected contiguous int32"):
        executable.step(step)


def test_launches_can_be_timed_one_by_one(load: Load, toy: Any, driver: NullDriver) -> None:
    executable = load()
    texts = prefill(toy, executable, PROMPTS[:2])
    executable.start_profile()
    driver.records.clear()
    for _ in range(2):
        decode(toy, executable, texts, FIRST_PAGES[:2])
    assert [len(driver.of(kind)) for kind in ("graph", "launch")] == [0, 10]
    assert [(t.kernel, t.op) for t in executable.profile() if t.kernel] == [
        ("write", "write_kv"), ("attend", "attention"), ("head", "linear"), ("place", "place"),
        ("best", "argmax"),
    ]  # fmt: skip
    driver.records.clear()
    decode(toy, executable, texts, FIRST_PAGES[:2])
    assert driver.of("graph")  # as before


def test_a_server_steps_in_a_thread_of_its_own(load: Load, toy: Any) -> None:
    executable = load()
    with ThreadPoolExecutor(max_workers=1) as pool:
        texts = pool.submit(prefill, toy, executable, PROMPTS[:2]).result()
        pool.submit(decode, toy, executable, texts, FIRST_PAGES[:2]).result()
    decode(toy, executable, texts, FIRST_PAGES[:2])
    assert texts[0] == PROMPTS[0] + greedy(toy, PROMPTS[0], 3)


def test_closing_gives_everything_back(load: Load, toy: Any, driver: NullDriver) -> None:
    executable = load()
    prefill(toy, executable, PROMPTS)
    executable.sample(draws([1]))
    executable.close()
    executable.close()
    assert driver.allocated_bytes == 0 and not driver.is_open
    with pytest.raises(DeviceError, match="closed"):
        executable.step(toy.batch([([1], 0, 1)]))


def test_an_unknown_mode_of_graphs_is_refused(load: Load, driver: NullDriver) -> None:
    with (
        knobs.override(graphs="maybe"),
        pytest.raises(DeviceError, match="SGLK_GRAPHS: expected one of check, trust, off"),
    ):
        load()
    assert driver.allocated_bytes == 0 and not driver.is_open
