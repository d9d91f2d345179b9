"""Layers that carry a state from token to token: causal convolutions and gated recurrences.

Captured, a call holds all tokens of its sequences. In a step, tokens of many sequences lie flat,
and each sequence owns a slot of a state ``f32[layers, num_slots, ...]``: its tokens go on from what
the slot holds, or from zeros when they are its first (``seq_lens`` counts no others). Slot 0 is
reserved, as page 0 is. The physical layout of a slot belongs to the target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..dim import Dim, as_dim, dim
from ..dtype import F32
from ..op import Array, Cost, Op, expect
from ..types import TensorType

STATE_SLOTS = dim("num_slots")
"""Slots of a state, the reserved one included: known when a program is loaded."""


def convolve(
    history: np.ndarray, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None
) -> np.ndarray:
    """history [K - 1, C], x [T, C], weight [C, K] -> [T, C]; the last tap is the token itself."""
    width = weight.shape[1]
    whole = np.concatenate([history, x]).astype(np.float64)
    parts = [whole[j : j + len(x)] * weight[:, j] for j in range(width)]
    total = np.sum(parts, axis=0)
    return np.asarray(total if bias is None else total + bias, np.float32)


def recur(
    state: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    decay: np.ndarray,
    rate: np.ndarray | None,
    beta: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """One sequence in f64, from ``state`` [H, K, V]: y [T, H, V] and the state after it."""
    heads, state = v.shape[1], state.astype(np.float64)
    q, k = (np.repeat(a.astype(np.float64), heads // a.shape[1], axis=1) for a in (q, k))
    factors = decay.astype(np.float64).reshape(*decay.shape[:2], -1)
    if rate is not None:
        factors = np.exp(factors * rate)
    y = np.zeros(v.shape)
    for t in range(len(v)):
        state = state * factors[t][..., None]
        added = v[t].astype(np.float64)
        if beta is not None:
            added = (added - np.einsum("hkv,hk->hv", state, k[t])) * beta[t][:, None]
        state = state + k[t][..., None] * added[:, None]
        y[t] = np.einsum("hkv,hk->hv", state, q[t])
    return y.astype(np.float32), state.astype(np.float32)


def chunks_of(
    state: Array, query_start: Array, seq_lens: Array, slots: Array
) -> Iterator[tuple[int, slice, np.ndarray]]:
    """(slot, its rows of the flat tokens, what it holds before them) of each sequence."""
    for s, slot in enumerate(slots.tolist()):
        rows = slice(int(query_start[s]), int(query_start[s + 1]))
        is_new = int(seq_lens[s]) == rows.stop - rows.start
        yield slot, rows, np.zeros_like(state[slot]) if is_new else state[slot]


def _check_slots(
    where: str, layer: int, state: TensorType, places: Sequence[TensorType], slot: tuple[Dim, ...]
) -> None:
    known = state.shape[0] if state.rank else 0
    expect(
        state.dtype == F32 and state.rank == 2 + len(slot) and state.shape[2:] == slot,
        f"{where}: expected a state f32[layers, slots, {', '.join(map(str, slot))}], got {state}",
    )
    expect(
        layer >= 0 and not (isinstance(known, int) and layer >= known),
        f"{where}: expected a state with layer {layer}, got {state}",
    )
    start, lengths, slots = places
    good = all(p.dtype.is_integer and p.rank == 1 for p in places)
    good = good and lengths.shape == slots.shape and start.shape[0] == as_dim(slots.shape[0] + 1)
    expect(
        good, f"{where}: expected query_start [S + 1], seq_lens [S], slots [S], got {list(places)}"
    )


def _check_convolution(
    where: str, channels: Dim, weight: TensorType, bias: tuple[TensorType, ...], has_bias: bool
) -> int:
    """Taps of the filter."""
    good = weight.rank == 2 and weight.shape[0] == channels and isinstance(weight.shape[1], int)
    expect(good, f"{where}: expected a weight [{channels}, K], got {weight}")
    expect(
        len(bias) == has_bias and all(b.shape == (channels,) for b in bias),
        f"{where}: expected {'a bias' if has_bias else 'no bias'}, got {list(bias)}",
    )
    return int(weight.shape[1])


@dataclass(frozen=True)
class CausalConv(Op):
    """As captured: (x [B, C, T], weight [C, K], [bias [C]]) -> [B, C, T], each channel by its own
    filter over a token and the K - 1 before it, zeros before the first."""

    has_bias: bool = False
    name: ClassVar[str] = "causal_conv"

    def infer(self, x: TensorType, weight: TensorType, *bias: TensorType) -> tuple[TensorType, ...]:
        expect(x.rank == 3 and x.dtype == F32, f"causal_conv: expected x f32[B, C, T], got {x}")
        _check_convolution("causal_conv", x.shape[1], weight, bias, self.has_bias)
        return (x,)

    def reference(self, x: Array, weight: Array, *bias: Array) -> Array:
        history = np.zeros((weight.shape[1] - 1, x.shape[1]), np.float32)
        rows = [convolve(history, item.T, weight, bias[0] if bias else None).T for item in x]
        return np.stack(rows)

    def cost(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Cost:
        x, weight, *_ = inputs
        return Cost(as_dim(2 * x.size * weight.shape[1]), as_dim(2 * x.bytes + weight.bytes))


@dataclass(frozen=True)
class SlotConv(Op):
    """(state [layers, slots, K - 1, C], query_start, seq_lens, state_slots, x [T, C], weight
    [C, K], [bias [C]]) -> y [T, C] and the state: a slot holds its sequence's last K - 1 inputs."""

    layer: int
    has_bias: bool = False
    name: ClassVar[str] = "slot_conv"

    def infer(
        self,
        state: TensorType,
        query_start: TensorType,
        seq_lens: TensorType,
        slots: TensorType,
        x: TensorType,
        weight: TensorType,
        *bias: TensorType,
    ) -> tuple[TensorType, ...]:
        expect(x.rank == 2 and x.dtype == F32, f"slot_conv: expected x f32[T, C], got {x}")
        taps = _check_convolution("slot_conv", x.shape[1], weight, bias, self.has_bias)
        slot = (taps - 1, x.shape[1])
        _check_slots("slot_conv", self.layer, state, (query_start, seq_lens, slots), slot)
        return x, state

    def reference(
        self,
        state: Array,
        query_start: Array,
        seq_lens: Array,
        slots: Array,
        x: Array,
        weight: Array,
        *bias: Array,
    ) -> tuple[Array, ...]:
        y, state = np.zeros_like(x), state.copy()
        layer = state[self.layer]
        for slot, rows, history in chunks_of(layer, query_start, seq_lens, slots):
            y[rows] = convolve(history, x[rows], weight, bias[0] if bias else None)
            whole = np.concatenate([history, x[rows]])
            layer[slot] = whole[len(whole) - len(history) :]
        return y, state

    def cost(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Cost:
        """Only the slots of the step's sequences are moved."""
        state, _, _, slots, x, weight, *_ = inputs
        moved = 2 * x.bytes + weight.bytes + 8 * slots.size * state.shape[2] * state.shape[3]
        return Cost(as_dim(2 * x.size * weight.shape[1]), as_dim(moved))


def _operands(
    op: LinearRecurrence | SlotRecurrence, rest: Sequence[Array]
) -> tuple[Array | None, Array | None]:
    """The rate and the beta among the optional operands."""
    left = list(rest)
    rate = left.pop(0) if op.has_rate else None
    return rate, left.pop(0) if op.has_beta else None


def _check_recurrence(
    op: LinearRecurrence | SlotRecurrence,
    q: TensorType,
    k: TensorType,
    v: TensorType,
    decay: TensorType,
    rest: tuple[TensorType, ...],
) -> tuple[Dim, Dim, Dim]:
    """Heads, keys and values of the state."""
    expect(
        q == k and v.rank == q.rank and q.shape[:-2] == v.shape[:-2] and q.dtype == v.dtype == F32,
        f"{op.name}: expected f32 q, k [.., G, K] and v [.., H, V], got {q}, {k}, {v}",
    )
    *lead, heads, values = v.shape
    groups, keys = q.shape[-2:]
    known = isinstance(heads, int) and isinstance(groups, int)
    expect(
        not known or (groups > 0 and heads % groups == 0),
        f"{op.name}: expected heads in equal groups over {groups}, got {heads}",
    )
    expect(
        decay.shape in ((*lead, heads), (*lead, heads, keys)),
        f"{op.name}: expected a decay of each head, or of each key of it, got {decay}",
    )
    expect(len(rest) == op.has_rate + op.has_beta, f"{op.name}: got {len(rest)} more operands")
    rate, beta = _operands(op, rest)
    expect(
        rate is None or (rate.shape == (heads, keys) and len(decay.shape) == v.rank - 1),
        f"{op.name}: expected a rate [{heads}, {keys}] and a decay of each head, got {rate}",
    )
    expect(
        beta is None or beta.shape == (*lead, heads),
        f"{op.name}: expected a beta of each head, got {beta}",
    )
    return heads, keys, values


@dataclass(frozen=True)
class LinearRecurrence(Op):
    """As captured: (q, k [B, T, G, K], v [B, T, H, V], decay [B, T, H] or [B, T, H, K], [rate
    [H, K]], [beta [B, T, H]]) -> [B, T, H, V].

    A head keeps a matrix S [K, V], zero before the first token, and does with each token

        S = S * decay                         or, with a rate, S * exp(decay * rate)
        S = S + k v^T                         or, with a beta, S + k (beta (v - S^T k))^T
        y = S^T q

    ``H / G`` heads share q and k. Selective scans (Mamba 1: V = 1, a rate), state space duality
    (Mamba 2), linear attention, real-gated recurrences (K = V = 1) and delta rules are cases of it.
    """

    has_rate: bool = False
    has_beta: bool = False
    name: ClassVar[str] = "linear_recurrence"

    def infer(
        self, q: TensorType, k: TensorType, v: TensorType, decay: TensorType, *rest: TensorType
    ) -> tuple[TensorType, ...]:
        expect(v.rank == 4, f"linear_recurrence: expected v [B, T, H, V], got {v}")
        _check_recurrence(self, q, k, v, decay, rest)
        return (v,)

    def reference(self, q: Array, k: Array, v: Array, decay: Array, *rest: Array) -> Array:
        rate, beta = _operands(self, rest)
        fresh = np.zeros((v.shape[2], k.shape[3], v.shape[3]), np.float32)
        betas = [None] * len(v) if beta is None else beta
        rows = zip(q, k, v, decay, betas, strict=True)
        return np.stack([recur(fresh, a, b, c, d, rate, e)[0] for a, b, c, d, e in rows])

    def cost(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Cost:
        moved = sum((t.bytes for t in (*inputs, *outputs)), start=0)
        return Cost(_flops(self, inputs[1], inputs[2]), as_dim(moved))


@dataclass(frozen=True)
class SlotRecurrence(Op):
    """(state [layers, slots, H, K, V], query_start, seq_lens, state_slots, q, k [T, G, K], v
    [T, H, V], decay, [rate], [beta]) -> y [T, H, V] and the state, as `LinearRecurrence`."""

    layer: int
    has_rate: bool = False
    has_beta: bool = False
    name: ClassVar[str] = "slot_recurrence"

    def infer(
        self,
        state: TensorType,
        query_start: TensorType,
        seq_lens: TensorType,
        slots: TensorType,
        q: TensorType,
        k: TensorType,
        v: TensorType,
        decay: TensorType,
        *rest: TensorType,
    ) -> tuple[TensorType, ...]:
        expect(v.rank == 3, f"slot_recurrence: expected v [T, H, V], got {v}")
        slot = _check_recurrence(self, q, k, v, decay, rest)
        _check_slots("slot_recurrence", self.layer, state, (query_start, seq_lens, slots), slot)
        return v, state

    def reference(
        self,
        state: Array,
        query_start: Array,
        seq_lens: Array,
        slots: Array,
        *operands: Array,
    ) -> tuple[Array, ...]:
        q, k, v, decay, *rest = operands
        rate, beta = _operands(self, rest)
        y, state = np.zeros_like(v), state.copy()
        layer = state[self.layer]
        for slot, rows, before in chunks_of(layer, query_start, seq_lens, slots):
            own = None if beta is None else beta[rows]
            y[rows], layer[slot] = recur(before, q[rows], k[rows], v[rows], decay[rows], rate, own)
        return y, state

    def cost(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Cost:
        """Only the slots of the step's sequences are moved."""
        state, _, _, slots, _, k, v, *_ = inputs
        flat = sum((t.bytes for t in (*inputs[4:], outputs[0])), start=0)
        slot = state.shape[2] * state.shape[3] * state.shape[4]
        return Cost(_flops(self, k, v), as_dim(flat + 8 * slots.size * slot))


def _flops(op: LinearRecurrence | SlotRecurrence, k: TensorType, v: TensorType) -> Dim:
    """Decay, update and read of each element of the state, and of a delta rule one read more."""
    return as_dim((5 + 2 * op.has_beta) * v.size * k.shape[-1])
