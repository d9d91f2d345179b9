"""Mixture of experts: routing, expert layers, weighted sum.

Layouts
  logits   f32 [T, EXPERTS];  ids i32 [T, TOP_K], largest score first;  weights f32 [T, TOP_K]
  w        dense n64 per expert: [EXPERTS, cdiv(N, 64), K, 64], f32, bf16 or f16; for the
           gated layer each expert holds the column blocks of its gate, then of its up part
  a pair p = t * TOP_K + j is token t at its j-th expert; x of expert_linear is [T * TOP_K, K]
  (SHARED = False) or [T, K] (SHARED = True: row p // TOP_K)
Limits: EXPERTS >= TOP_K, any N, K % BLOCK_K == 0; BLOCK_E = next power of two of EXPERTS.
Numerics: an expert row is one fma chain over ascending k, as in linear.py; the sum over j ascends.
"""

import triton
import triton.language as tl

from .activation import activate, sigmoid
from .linear import LANES, dot_step, store_y


@triton.jit
def route_topk(
    logits, bias, ids, weights, scale,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, SCORE: tl.constexpr, RENORMALIZE: tl.constexpr,
    BLOCK_E: tl.constexpr,
):  # fmt: skip
    """The TOP_K best experts of a token and their weights times scale (an f32). Grid (T, 1, 1).

    SCORE: softmax or sigmoid of the logits. bias f32 [EXPERTS] or None is added to the score for
    the choice only (DeepSeek-V3). RENORMALIZE: the chosen weights sum to scale. Of equal scores
    the lower expert wins.
    """
    t = tl.program_id(0)
    e = tl.arange(0, BLOCK_E)
    inside = e < EXPERTS
    x = tl.load(logits + t * EXPERTS + e, mask=inside, other=float("-inf"))
    if SCORE == "softmax":
        score = tl.exp(x - tl.max(x, 0))
        score = score / tl.sum(score, 0)
    else:
        tl.static_assert(SCORE == "sigmoid")
        score = sigmoid(x)
    choice = score
    if bias is not None:
        choice += tl.load(bias + e, mask=inside, other=0.0)
    choice = tl.where(inside, choice, float("-inf"))
    total = tl.zeros((), tl.float32)
    for j in range(TOP_K):
        best = tl.max(choice, 0)
        chosen = tl.min(tl.where(choice == best, e, BLOCK_E), 0)
        weight = tl.sum(tl.where(e == chosen, score, 0.0), 0)
        total += weight
        tl.store(ids + t * TOP_K + j, chosen)
        tl.store(weights + t * TOP_K + j, weight * scale)
        choice = tl.where(e == chosen, float("-inf"), choice)
    if RENORMALIZE:
        for j in range(TOP_K):
            at = weights + t * TOP_K + j
            tl.store(at, tl.load(at) / total)


@triton.jit
def expert_linear(
    x, w, ids, y,
    K: tl.constexpr, N: tl.constexpr, TOP_K: tl.constexpr, SHARED: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """y[p] = x[row of p] @ W[ids[p]]^T. Grid (T * TOP_K, cdiv(N, 64), 1)."""
    pair = tl.program_id(0)
    block = tl.program_id(1)
    row = pair // TOP_K if SHARED else pair
    blocks = (N + LANES - 1) // LANES
    w += (tl.load(ids + pair).to(tl.int64) * blocks + block) * (K * LANES)
    x += row.to(tl.int64) * K
    one = tl.arange(0, 1)
    acc = tl.zeros((1, LANES), tl.float32)
    for k0 in range(0, K, BLOCK_K):
        acc = dot_step(acc, x, w, one, k0, 1, K, 1, BLOCK_K)
    n = block * LANES + tl.arange(0, LANES)
    store_y(y + pair.to(tl.int64) * N, acc, one, n, 1, N, 1)


@triton.jit
def gated_expert_linear(
    x, w, ids, y,
    K: tl.constexpr, N: tl.constexpr, TOP_K: tl.constexpr, ACT: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """y[p] = ACT(x[p // TOP_K] @ G[ids[p]]^T) * (the same with U); grid as expert_linear."""
    pair = tl.program_id(0)
    block = tl.program_id(1)
    blocks = (N + LANES - 1) // LANES
    gate = w + (tl.load(ids + pair).to(tl.int64) * (2 * blocks) + block) * (K * LANES)
    up = gate + blocks * (K * LANES)
    x += (pair // TOP_K).to(tl.int64) * K
    one = tl.arange(0, 1)
    acc_gate = tl.zeros((1, LANES), tl.float32)
    acc_up = tl.zeros((1, LANES), tl.float32)
    for k0 in range(0, K, BLOCK_K):
        acc_gate = dot_step(acc_gate, x, gate, one, k0, 1, K, 1, BLOCK_K)
        acc_up = dot_step(acc_up, x, up, one, k0, 1, K, 1, BLOCK_K)
    n = block * LANES + tl.arange(0, LANES)
    store_y(y + pair.to(tl.int64) * N, activate(acc_gate, ACT) * acc_up, one, n, 1, N, 1)


@triton.jit
def combine(x, weights, y, N: tl.constexpr, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """y[t] = sum over j of weights[t, j] * x[t * TOP_K + j]. Grid (T, cdiv(N, BLOCK), 1)."""
    t = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x += t.to(tl.int64) * (TOP_K * N)
    acc = tl.zeros((BLOCK,), tl.float32)
    for j in range(TOP_K):
        acc += tl.load(weights + t * TOP_K + j) * tl.load(x + j * N + i, mask=i < N, other=0.0)
    tl.store(y + t.to(tl.int64) * N + i, acc, mask=i < N)
