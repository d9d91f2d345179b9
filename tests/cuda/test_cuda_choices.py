"""Steps whose tokens are chosen later, by logits that the host changes without seeing them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sglk import knobs
from sglk.errors import DeviceError
from sglk.targets.cuda.device import CudaExecutable
from sglk.targets.cuda.device.null_driver import NullDriver
from sglk.targets.device import SAMPLED_ROW, ChoosesLater, LogitChanges

Load = Callable[..., CudaExecutable]
Lists = Mapping[int, Mapping[int, float]]
"""By row: tokens and what is done to them."""
NOTHING: Mapping[int, Any] = {}


def greedy(count: int) -> NDArray[np.void]:
    rows = np.zeros(count, SAMPLED_ROW)
    rows["row"], rows["top_k"], rows["temperature"], rows["top_p"] = np.arange(count), 1, 1, 1
    return rows


def ints(values: Sequence[int]) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def changes(
    bias: Lists = NOTHING, seen: Lists = NOTHING, forbidden: Mapping[int, Sequence[int]] = NOTHING,
    masks: Mapping[int, Sequence[int]] = NOTHING, words: int = 1, presence: float = 2.0,
) -> LogitChanges:  # fmt: skip
    rows = sorted({*bias, *seen, *forbidden})
    lists: list[list[Any]] = [
        [each.get(row, {}) for row in rows] for each in (bias, seen, forbidden)
    ]
    starts = [ints(np.cumsum([0, *map(len, some)]).tolist()) for some in lists]
    ids = [ints([token for each in some for token in each]) for some in lists]
    values = [
        np.array([v for each in some for v in dict(each).values()], np.float32)
        for some in lists[:2]
    ]
    allowed = np.zeros((len(masks), words), np.uint32)
    for row, tokens in zip(allowed, masks.values(), strict=True):
        for token in tokens:
            row[token // 32] |= np.uint32(1 << token % 32)
    penalties = np.tile(np.array([1, 0, presence], np.float32), (len(rows), 1))
    return LogitChanges(
        ints(rows), starts[0], ids[0], values[0], starts[1], ids[1], values[1], penalties,
        starts[2], ids[2], ints(list(masks)), allowed,
    )  # fmt: skip


@pytest.mark.parametrize(("num_programs", "can"), [(6, True), (5, False), (4, False)])
def test_it_says_whether_it_can(load: Load, toy: Any, num_programs: int, can: bool) -> None:
    executable = load(programs=toy.PROGRAMS[:num_programs])
    assert isinstance(executable, ChoosesLater) and executable.can_choose_later is can


def test_bias_penalties_bans_and_masks_decide(load: Load, toy: Any) -> None:
    executable = load()
    prompts = [[3, 5, 7], [1], [2, 2, 2], [9, 8], [11, 0]]
    likely = [toy.next_token(prompt) for prompt in prompts]
    executable.submit_unchosen(toy.batch([(p, 0, 1 + 5 * n) for n, p in enumerate(prompts)]))
    executable.choose(
        greedy(5),
        changes(
            bias={0: {4: 1.5}, 1: {5: 0.5}},
            seen={1: {likely[1]: 1.0, 6: 0.0}, 2: {likely[2]: 0.0}},
            forbidden={3: [likely[3], 0]},
            masks={4: [20, 28]},
        ),
    )
    # the likeliest token has 1, all others 0; penalties take 2 off what the answer has
    assert executable.collect().tolist() == [4, 5, likely[2], 1, 20]


def test_steps_go_on_with_tokens_chosen_later(load: Load, toy: Any, driver: NullDriver) -> None:
    """The next step is queued before the host knows its tokens; nothing but tokens is read."""
    with knobs.override(graphs="trust"):  # comparing would read logits
        executable = load()
    prompts = [[3, 5, 7], [1, 2]]
    executable.submit_unchosen(toy.batch([(p, 0, 1 + 8 * n) for n, p in enumerate(prompts)]))
    executable.choose(greedy(2), changes(masks={1: [8]}))
    texts = [list(prompt) for prompt in prompts]
    for number in range(9):
        chunks = [([-1 - n], len(text), 1 + 8 * n) for n, text in enumerate(texts)]
        executable.submit_unchosen(toy.batch(chunks))
        wanted = [toy.next_token(texts[0]), 8]
        assert executable.collect().tolist() == wanted
        texts = [[*text, token] for text, token in zip(texts, wanted, strict=True)]
        lists = {0: dict.fromkeys(range(number), 0.0)}
        executable.choose(greedy(2), changes(seen=lists, masks={1: [8]}))
    assert len(executable.collect()) == 2
    assert {record.num_bytes for record in driver.of("copy out")} == {8}


def test_drawn_rows_may_be_changed_too(load: Load, toy: Any) -> None:
    executable = load()
    executable.submit_unchosen(toy.batch([([3], 0, 1)]))
    rows = greedy(1)
    rows["top_k"] = 3  # the toy draws the token two places after the likeliest one
    executable.choose(rows, changes(bias={0: {6: 9.0}}))
    assert executable.collect().tolist() == [8]


def test_no_other_step_comes_between(load: Load, toy: Any) -> None:
    executable = load()
    step = toy.batch([([3], 0, 1)])
    executable.submit_unchosen(step)
    for call in (
        lambda: executable.step(step),
        lambda: executable.submit(step, greedy(1)),
        lambda: executable.submit_unchosen(step),
    ):
        with pytest.raises(DeviceError, match="choose them first"):
            call()
    with pytest.raises(DeviceError, match="no step is in flight, or it has no tokens"):
        executable.collect()
    executable.choose(greedy(1), changes())
    assert executable.collect().tolist() == [toy.next_token([3])]
    with pytest.raises(DeviceError, match="expected a step without tokens"):
        executable.choose(greedy(1), changes())


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (changes(bias={1: {2: 1.0}}), "rows: expected rows below 1"),
        (changes(masks={-1: [2]}), "masked_rows: expected rows below 1"),
        (changes(masks={0: [2]}, words=2), "penalties and masks of shapes"),
    ],
)
def test_changes_that_do_not_fit_are_refused(
    load: Load, toy: Any, wrong: LogitChanges, text: str
) -> None:
    executable = load()
    executable.submit_unchosen(toy.batch([([3], 0, 1)]))
    with pytest.raises(DeviceError, match=text):
        executable.choose(greedy(1), wrong)
    executable.submit(toy.batch([([3], 0, 1)]), greedy(1))
    assert executable.collect().tolist() == [toy.next_token([3])]


def test_lists_that_point_beyond_their_arrays_are_refused(load: Load, toy: Any) -> None:
    executable = load()
    executable.submit_unchosen(toy.batch([([3], 0, 1)]))
    wrong = changes(bias={0: {2: 1.0}})
    wrong.bias_starts[1] = 7
    with pytest.raises(DeviceError, match="lists one after the other"):
        executable.choose(greedy(1), wrong)
