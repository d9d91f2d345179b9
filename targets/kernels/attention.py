"""Causal attention of flat tokens over a paged KV cache, f32.

Layouts (PAGE keys per page; GROUP = query heads per KV head)
  q, y         f32 [T, KV_HEADS * GROUP, D]
  k_cache      f32, bf16 or f16 [pages, KV_HEADS, D, PAGE]: keys along lanes for q @ k
  v_cache      the same type    [pages, KV_HEADS, PAGE, D]
  query_start  i32 [S + 1]; seq_lens i32 [S], tokens of the sequence including this step's; the
               queries of s are flat rows query_start[s] .. query_start[s+1] and its last tokens
  page_table   i32 [S, pages] (columns `pages`); sinks f32 [heads] or None (a constant then)
Arguments seqs = S and pages are i32, scale is f32.
Grid: (KV_HEADS, T * GROUP // BLOCK_M + S, 1). A program owns BLOCK_M rows of one sequence and one
KV head; a row is (query, head of the group), so any GROUP fills the tile: with BLOCK_M = 64 and
GROUP = 3 a tile holds 21 1/3 queries. Decode: BLOCK_M = next power of two of GROUP. Sequence s
owns the tiles from query_start[s] * GROUP // BLOCK_M + s on: enough for its rows, disjoint from its
neighbours', found by binary search; the few left over end at once.
Options: WINDOW (0: none) keys with key <= query - WINDOW are masked; SOFTCAP (0.0: none)
cap * tanh(score / cap). BF16: q and the softmax's weights are rounded to bf16, as
`PagedAttention.products` says, keys and values where the cache is of another type.
Limits: BLOCK_M, PAGE powers of two; BLOCK_D = next power of two of D; S < 2^16. Rows of padding
(beyond query_start[S]) and of empty sequences are not written.
Numerics: online softmax, one page per step, pages counted from the sequence's start. For a row, a
page it cannot see changes no bit (weights exactly 0, rescale exactly 1), so a row's bits depend
neither on BLOCK_M, nor on the chunk its query came in, nor on the other sequences.
"""

import triton
import triton.language as tl

from .activation import tanh

NEVER = tl.constexpr(-1e30)  # below every score, and finite: NEVER - NEVER is 0, not NaN


@triton.jit
def find_sequence(query_start, tile, seqs, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """The last sequence whose first tile is not after `tile`."""
    low = 0
    high = seqs - 1
    for _ in range(16):
        middle = (low + high + 1) // 2
        first = tl.load(query_start + middle) * GROUP // BLOCK_M + middle
        low = tl.where(first <= tile, middle, low)
        high = tl.where(first <= tile, high, tl.maximum(middle - 1, low))
    return low


@triton.jit
def product(a, b, acc, TYPE: tl.constexpr):
    """acc + a @ b, both sides as TYPE."""
    return tl.dot(a.to(TYPE), b.to(TYPE), acc, input_precision="ieee")


@triton.jit
def score_page(
    qs, k, key, position, scale,
    D: tl.constexpr, PAGE: tl.constexpr, BLOCK_D: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, BF16: tl.constexpr,
):  # fmt: skip
    """Masked scores [BLOCK_M, PAGE] of one page; `key` are the absolute positions of its keys."""
    d = tl.arange(0, BLOCK_D)
    pointers = k + d[:, None] * PAGE + tl.arange(0, PAGE)[None, :]
    if D == BLOCK_D:
        ks = tl.load(pointers)
    else:
        ks = tl.load(pointers, mask=d[:, None] < D, other=0.0)
    zero = tl.zeros((qs.shape[0], PAGE), tl.float32)
    score = product(qs, ks, zero, tl.bfloat16 if BF16 else tl.float32) * scale
    if SOFTCAP > 0.0:
        score = SOFTCAP * tanh(score / SOFTCAP)
    seen = key[None, :] <= position[:, None]
    if WINDOW > 0:
        seen = seen & (key[None, :] > position[:, None] - WINDOW)
    return tl.where(seen, score, float("-inf"))


@triton.jit
def load_values(v, key, length, D: tl.constexpr, PAGE: tl.constexpr, BLOCK_D: tl.constexpr):
    """V of one page; zero from `length` on, where memory may hold anything, NaN included."""
    d = tl.arange(0, BLOCK_D)
    pointers = v + tl.arange(0, PAGE)[:, None] * D + d[None, :]
    if D == BLOCK_D:
        vs = tl.load(pointers, mask=key[:, None] < length, other=0.0)
    else:
        vs = tl.load(pointers, mask=(key[:, None] < length) & (d[None, :] < D), other=0.0)
    return vs


@triton.jit
def paged_attention(
    q, k_cache, v_cache, query_start, seq_lens, page_table, sinks, y, seqs, pages, scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
    BF16: tl.constexpr,
):  # fmt: skip
    """y = softmax(scale * q @ k^T, masked) @ v."""
    head = tl.program_id(0)
    # Late tiles of a long prompt see the most keys: pair them with early ones, so that any
    # contiguous share of the programs holds the same work.
    turn = tl.program_id(1)
    tile = tl.where(turn % 2 == 0, turn // 2, tl.num_programs(1) - 1 - turn // 2)
    seq = find_sequence(query_start, tile, seqs, GROUP, BLOCK_M)
    start = tl.load(query_start + seq)
    queries = tl.load(query_start + seq + 1) - start
    length = tl.load(seq_lens + seq)
    row0 = (tile - (start * GROUP // BLOCK_M + seq)) * BLOCK_M
    if row0 < queries * GROUP:
        row = row0 + tl.arange(0, BLOCK_M)
        position = length - queries + row // GROUP
        d = tl.arange(0, BLOCK_D)
        base = (start.to(tl.int64) * KV_HEADS + head) * (GROUP * D)
        at = row // GROUP * (KV_HEADS * GROUP * D) + row % GROUP * D
        at = at[:, None] + d[None, :]
        inside = row[:, None] < queries * GROUP
        if D != BLOCK_D:
            inside = inside & (d[None, :] < D)
        qs = tl.load(q + base + at, mask=inside, other=0.0)
        if BF16:
            qs = qs.to(tl.bfloat16)
        if sinks is None:
            best = tl.full((BLOCK_M,), NEVER, tl.float32)
            total = tl.zeros((BLOCK_M,), tl.float32)
        else:
            best = tl.load(sinks + head * GROUP + row % GROUP)
            total = tl.full((BLOCK_M,), 1.0, tl.float32)
        acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
        first_position = length - queries + row0 // GROUP
        last_position = length - queries + (row0 + BLOCK_M - 1) // GROUP
        first_page = 0
        if WINDOW > 0:
            first_page = tl.maximum(first_position - WINDOW + 1, 0) // PAGE
        end_page = tl.minimum(last_position, length - 1) // PAGE + 1
        for p in range(first_page, end_page):
            key = p * PAGE + tl.arange(0, PAGE)
            page = tl.load(page_table + seq * pages + p).to(tl.int64)
            cell = (page * KV_HEADS + head) * (D * PAGE)
            score = score_page(
                qs, k_cache + cell, key, position, scale, D, PAGE, BLOCK_D, WINDOW, SOFTCAP, BF16,
            )  # fmt: skip
            new_best = tl.maximum(best, tl.max(score, 1))
            weight = tl.exp(score - new_best[:, None])
            shrink = tl.exp(best - new_best)
            total = total * shrink + tl.sum(weight, 1)
            vs = load_values(v_cache + cell, key, length, D, PAGE, BLOCK_D)
            acc = product(
                weight, vs, acc * shrink[:, None], tl.bfloat16 if BF16 else tl.float32
            )  # fmt: skip
            best = new_best
        tl.store(y + base + at, acc / total[:, None], mask=inside)
