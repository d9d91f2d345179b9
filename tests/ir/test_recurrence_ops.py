"""Layers with a state: cut into steps, mixed with others, in any slot, they are the whole call."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sglk.errors import VerifyError
from sglk.ir.op import Op, result_types
from sglk.ir.ops.recurrence import CausalConv, LinearRecurrence, SlotConv, SlotRecurrence
from sglk.ir.parser import parse_type

HEADS, GROUPS, KEYS, VALUES, CHANNELS, TAPS = 4, 2, 3, 5, 6, 3
CUTS = {"a": (3, 4, 9), "b": (1, 2, 6)}
"""Where the tokens of two sequences are cut; each step takes the next part of both."""
SLOTS = {"a": 2, "b": 1}
Arrays = dict[str, np.ndarray]


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def run_in_steps(
    step: Callable[..., tuple[np.ndarray, np.ndarray]],
    state: np.ndarray,
    tokens: dict[str, list[np.ndarray]],
) -> dict[str, np.ndarray]:
    """Results of each sequence; ``tokens`` are its operands, tokens first."""
    found: dict[str, list[np.ndarray]] = {name: [] for name in tokens}
    before = dict.fromkeys(tokens, 0)
    for part in range(3):
        after = {name: CUTS[name][part] for name in tokens}
        lengths = [after[n] - before[n] for n in tokens]
        starts = np.cumsum([0, *lengths]).astype(np.int32)
        seq_lens = np.array(list(after.values()), np.int32)
        slots = np.array([SLOTS[n] for n in tokens], np.int32)
        flat = [
            np.concatenate(
                [each[before[n] : after[n]] for n, each in zip(tokens, arrays, strict=True)]
            )
            for arrays in zip(*tokens.values(), strict=True)
        ]
        y, state = step(state, starts, seq_lens, slots, *flat)
        for name, rows in zip(tokens, np.split(y, starts[1:-1]), strict=True):
            found[name].append(rows)
        before = after
    return {name: np.concatenate(rows) for name, rows in found.items()}


def test_convolution_in_steps_is_the_whole() -> None:
    rng = np.random.default_rng(0)
    weight, bias = floats(rng, CHANNELS, TAPS), floats(rng, CHANNELS)
    tokens = {name: [floats(rng, cuts[-1], CHANNELS)] for name, cuts in CUTS.items()}
    state = np.full((2, 4, TAPS - 1, CHANNELS), np.nan, np.float32)  # whoever had the slots before
    op = SlotConv(layer=1, has_bias=True)
    found = run_in_steps(lambda *a: op.reference(*a, weight, bias), state, tokens)
    for name, (x,) in tokens.items():
        whole = CausalConv(has_bias=True).reference(x.T[None], weight, bias)[0].T
        np.testing.assert_allclose(found[name], whole, rtol=1e-6)
        np.testing.assert_allclose(whole[2], (x[:3] * weight.T).sum(0) + bias, rtol=1e-5)


@pytest.mark.parametrize("has_beta", [False, True])
@pytest.mark.parametrize("kind", ["head", "key", "rate"])
def test_recurrence_in_steps_is_the_whole(kind: str, has_beta: bool) -> None:
    rng = np.random.default_rng(1)
    rate = -np.abs(floats(rng, HEADS, KEYS)) if kind == "rate" else None
    tokens = {}
    for name, (*_, count) in CUTS.items():
        decay = rng.random((count, HEADS, KEYS) if kind == "key" else (count, HEADS))
        tokens[name] = [
            floats(rng, count, GROUPS, KEYS),
            floats(rng, count, GROUPS, KEYS),
            floats(rng, count, HEADS, VALUES),
            decay.astype(np.float32),
        ] + [floats(rng, count, HEADS)] * has_beta
    op = SlotRecurrence(0, has_rate=rate is not None, has_beta=has_beta)

    def step(*a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        given = a if rate is None else (*a[:8], rate, *a[8:])
        y, state = op.reference(*given)
        return y, state

    state = np.full((1, 3, HEADS, KEYS, VALUES), np.nan, np.float32)
    found = run_in_steps(step, state, tokens)
    whole = LinearRecurrence(has_rate=rate is not None, has_beta=has_beta)
    for name, (q, k, v, decay, *beta) in tokens.items():
        rest = [x for x in (rate, *(b[None] for b in beta)) if x is not None]
        wanted = whole.reference(q[None], k[None], v[None], decay[None], *rest)[0]
        np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-5)


def test_recurrence_is_a_sum_over_the_tokens_so_far() -> None:
    """y[t] = sum over s of (q[t] . k[s]) v[s] times the decays between them."""
    rng = np.random.default_rng(2)
    q, k = floats(rng, 1, 6, 1, KEYS), floats(rng, 1, 6, 1, KEYS)
    v, decay = floats(rng, 1, 6, 1, VALUES), rng.random((1, 6, 1)).astype(np.float32)
    found = LinearRecurrence().reference(q, k, v, decay)[0, :, 0]
    for t in range(6):
        parts = [
            (q[0, t, 0] @ k[0, s, 0]) * np.prod(decay[0, s + 1 : t + 1]) * v[0, s, 0]
            for s in range(t + 1)
        ]
        np.testing.assert_allclose(found[t], np.sum(parts, 0), rtol=1e-4, atol=1e-6)


PLACES = ["i32[seqs + 1]", "i32[seqs]", "i32[seqs]"]
QKV = ["f32[1, tokens, 2, 3]", "f32[1, tokens, 2, 3]", "f32[1, tokens, 4, 5]"]
CONV = ["f32[2, num_slots, 2, 6]", *PLACES, "f32[tokens, 6]", "f32[6, 3]"]
REFUSED: list[tuple[Op, list[str], str]] = [
    (CausalConv(), ["f32[1, 6, tokens]", "f32[5, 3]"], r"expected a weight \[6, K\]"),
    (CausalConv(), ["f32[6, tokens]", "f32[6, 3]"], "expected x"),
    (CausalConv(has_bias=True), ["f32[1, 6, tokens]", "f32[6, 3]"], "expected a bias"),
    (SlotConv(2), CONV, "with layer 2"),
    (SlotConv(0), ["f32[2, num_slots, 3, 6]", *CONV[1:]], "expected a state"),
    (SlotConv(0), [CONV[0], "i32[seqs]", *CONV[2:]], "expected query_start"),
    (LinearRecurrence(), [*QKV, "f32[1, tokens, 2]"], "a decay of each head"),
    (LinearRecurrence(), [*QKV[:2], "f32[1, tokens, 3, 5]", "f32[1, tokens, 3]"], "over 2, got 3"),
    (LinearRecurrence(has_beta=True), [*QKV, "f32[1, tokens, 4]"], "0 more operands"),
    (LinearRecurrence(has_rate=True), [*QKV, "f32[1, tokens, 4]", "f32[4, 5]"], "expected a rate"),
    (
        SlotRecurrence(0),
        [
            "f32[1, num_slots, 4, 5, 3]",
            *PLACES,
            *(t.replace("1, ", "", 1) for t in QKV),
            "f32[tokens, 4]",
        ],
        "expected a state",
    ),
]


@pytest.mark.parametrize(("op", "types", "reason"), REFUSED)
def test_operands_that_do_not_fit_are_refused(op: Op, types: list[str], reason: str) -> None:
    with pytest.raises(VerifyError, match=reason):
        result_types(op, [parse_type(text) for text in types])
