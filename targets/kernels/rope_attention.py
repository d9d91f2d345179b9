"""Attention of one new token per sequence, from the product of its layer: rotary embedding, the new
key and value and their write to the paged cache in the same launch, for GPUs.

For steps of one token per sequence: token s is that of sequence s. What `rope_pages.rope_write_kv`
and then `decode_attention.decode_attention` compute, in one kernel that may read the cache before
the product is there: the new key never comes from it.

Layouts: qkv, cos, sin, slots, q_norm, k_norm as in `rope_pages.py`; the rest as in
`decode_attention.py`, with T = S. Sequences of length 0 are padding and are left alone.
Grid: (KV_HEADS, S, Z), then `combine_attention` unless splits is 1; parts as in
`decode_attention.py` with SPLIT = 0. The program of a sequence's last part writes key and value.
Limits: heads rotate whole and not interleaved, D = 2 * HALF a power of two; BLOCK_N = PAGE; no two
sequences share a slot but those of padding.
AHEAD: keys and values of so many pages (0 or a power of two) are read before the wait, and are one
step of the softmax; the pages after them follow one by one. Few programs gain by it, since nothing
else hides what their steps wait for; of many, registers for it leave no room on the chip for
others, and those hide more.
Numerics: q and k round to bf16 after the rotation, as in memory; the new key's score is an f32 sum.
PDL: lengths, pages, slots and the AHEAD pages' keys and values are read before the wait: no kernel
of a step but its first ones writes these.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .decode_attention import key_parts, leave_part
from .paged_tile import NEVER, add_block, cap_scores, exp_unit, load_block, page_of, start_softmax
from .rope_pages import place_of


@triton.jit
def turned(a, b, w, cos, sin, eps, kind, HALF: tl.constexpr):
    """Both halves of heads [.., HALF] in f32, normalized if there is a weight, rotated, rounded."""
    i = tl.arange(0, HALF)
    if w is not None:
        scale = 1.0 / tl.sqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / (2 * HALF) + eps)
        a = a * scale[:, None] * tl.load(w + i).to(tl.float32)[None, :]
        b = b * scale[:, None] * tl.load(w + HALF + i).to(tl.float32)[None, :]
    c = tl.load(cos + i)[None, :]
    s = tl.load(sin + i)[None, :]
    return (a * c - b * s).to(kind), (b * c + a * s).to(kind)


@triton.jit
def turned_heads(x, m, count, w, cos, sin, eps, HALF: tl.constexpr):
    """Rows m < count of x, 2 * HALF apart: both halves, rotated."""
    at = m[:, None] * (2 * HALF) + tl.arange(0, HALF)[None, :]
    inside = m[:, None] < count
    a = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x + at + HALF, mask=inside, other=0.0).to(tl.float32)
    return turned(a, b, w, cos, sin, eps, x.dtype.element_ty, HALF)


@triton.jit
def new_key(k, to_value, k_norm, cos, sin, eps, HALF: tl.constexpr):
    """The new token's key, rotated halves of [1, HALF], and its value, ``to_value`` behind it."""
    ka, kb = turned_heads(k, tl.arange(0, 1), 1, k_norm, cos, sin, eps, HALF)
    return ka, kb, tl.load(k + to_value + tl.arange(0, 2 * HALF))


@triton.jit
def side_by_side(a, b, M: tl.constexpr, HALF: tl.constexpr):
    """[M, 2 * HALF] from its halves."""
    return tl.permute(tl.join(a, b), (0, 2, 1)).reshape(M, 2 * HALF)


@triton.jit
def seen(first, end, length, KEYS: tl.constexpr, WINDOW: tl.constexpr):
    """Keys from `first` to before `end` that the token sees, itself left out."""
    key = first + tl.arange(0, KEYS)
    is_seen = key < tl.minimum(end, length - 1)
    if WINDOW > 0:
        is_seen = is_seen & (key > length - 1 - WINDOW)
    return is_seen[None, :]


@triton.jit
def load_pages(
    cache, table, first, head, count,
    KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """[AHEAD * PAGE, D] of K or V from a page of the table on; zero from the `count`-th key on."""
    n = tl.arange(0, AHEAD * PAGE)
    page = tl.load(table + first + n // PAGE, mask=n < count, other=0)
    cell = (page.to(tl.int64) * KV_HEADS + head) * (PAGE * D) + n % PAGE * D
    pointers = cache + cell[:, None] + tl.arange(0, D)[None, :]
    return tl.load(pointers, mask=(n < count)[:, None], other=0.0)


@triton.jit
def keep(k, v, ka, kb, value, HALF: tl.constexpr):
    """Store the new token's halves of its key, [1, HALF], and its value, [2 * HALF]."""
    one = tl.arange(0, 1)[:, None]
    half = tl.arange(0, HALF)[None, :]
    tl.store(k + one + half, ka)
    tl.store(k + HALF + one + half, kb)
    tl.store(v + tl.arange(0, 2 * HALF), value)


@triton.jit
def start_part(sinks, heads, unit, is_first, BLOCK_M: tl.constexpr):
    """Running maximum and sum of a part; sinks belong to the first."""
    best, total = start_softmax(sinks, heads, unit, BLOCK_M)
    if sinks is not None:
        best = tl.where(is_first, best, NEVER)
        total = tl.where(is_first, total, 0.0)
    return best, total


@triton.jit
def own_score(qa, qb, ka, kb, is_last, scale, SOFTCAP: tl.constexpr):
    """q of the new key, in f32; the part that has it alone sees it."""
    own = tl.sum(qa.to(tl.float32) * ka.to(tl.float32), 1)
    own += tl.sum(qb.to(tl.float32) * kb.to(tl.float32), 1)
    return tl.where(is_last, cap_scores(own, scale, SOFTCAP), float("-inf"))


@triton.jit
def add_own(own, value, best, total, unit):
    """The new key, which the last part alone has, as a step of the softmax of its own."""
    new_best = tl.maximum(best, own)
    weight = tl.exp2((own - new_best) * unit)
    total = total * tl.exp2((best - new_best) * unit) + weight
    return new_best, total, weight[:, None] * value.to(tl.float32)[None, :]


@triton.jit
def add_pages(
    best, total, acc, qs, k_cache, v_cache, table, page, low, high, head, length, pages, scale,
    unit,
    KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
):  # fmt: skip
    """Blocks low to before high, one by one; page: that of the first."""
    for block in range(low, high):
        after = page_of(table, block + 1, pages)
        left = length - 1 - block * PAGE
        ks = load_block(k_cache, page, page, head, left, KV_HEADS, D, PAGE, PAGE, D, True)
        score = cap_scores(tl.dot(qs, tl.trans(ks)), scale, SOFTCAP)
        is_seen = seen(block * PAGE, high * PAGE, length, PAGE, WINDOW)
        score = tl.where(is_seen, score, float("-inf"))
        vs = load_block(v_cache, page, page, head, left, KV_HEADS, D, PAGE, PAGE, D, True)
        best, total, acc = add_block(score, vs, best, total, acc, unit)
        page = after
    return best, total, acc


@triton.jit
def rope_attention(
    qkv, cos, sin, q_norm, k_norm, slots, k_cache, v_cache, seq_lens, page_table, sinks, y,
    partials, pages, splits, scale, eps,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, BLOCK_M: tl.constexpr, LEAST: tl.constexpr,
    AHEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """y, or partial results, of softmax(scale * q @ k^T, masked) @ v; the new k and v are kept."""
    HALF: tl.constexpr = D // 2
    HEADS: tl.constexpr = KV_HEADS * GROUP
    head, seq, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length, slot = tl.load(seq_lens + seq), tl.load(slots + seq)
    table = page_table + seq.to(tl.int64) * pages
    first, per, parts = key_parts(length, splits, WINDOW, PAGE, 0, LEAST)
    low = first + part * per
    high = tl.minimum(low + per, (length + PAGE - 1) // PAGE)
    end = high * PAGE
    if AHEAD > 0:
        count = tl.minimum(end, length - 1) - low * PAGE
        ks = load_pages(k_cache, table, low, head, count, KV_HEADS, D, PAGE, AHEAD)
        vs = load_pages(v_cache, table, low, head, count, KV_HEADS, D, PAGE, AHEAD)
    page = page_of(table, low + AHEAD, pages)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    if part < parts:
        m = tl.arange(0, BLOCK_M)
        x = qkv + seq.to(tl.int64) * ((HEADS + 2 * KV_HEADS) * D)
        cos, sin = cos + seq.to(tl.int64) * HALF, sin + seq.to(tl.int64) * HALF
        qa, qb = turned_heads(x + head * (GROUP * D), m, GROUP, q_norm, cos, sin, eps, HALF)
        new = x + (HEADS + head) * D
        ka, kb, value = new_key(new, KV_HEADS * D, k_norm, cos, sin, eps, HALF)
        is_last = part == parts - 1
        place = place_of(slot, KV_HEADS, D, PAGE) + head * (PAGE * D)
        if is_last:
            keep(k_cache + place, v_cache + place, ka, kb, value, HALF)
        unit = exp_unit(scale, SOFTCAP)
        heads = head * GROUP + m
        best, total = start_part(sinks, tl.minimum(heads, HEADS - 1), unit, part == 0, BLOCK_M)
        own = own_score(qa, qb, ka, kb, is_last, scale, SOFTCAP)
        best, total, acc = add_own(own, value, best, total, unit)
        qs = side_by_side(qa, qb, BLOCK_M, HALF)
        if AHEAD > 0:
            score = cap_scores(tl.dot(qs, tl.trans(ks)), scale, SOFTCAP)
            is_seen = seen(low * PAGE, end, length, AHEAD * PAGE, WINDOW)
            score = tl.where(is_seen, score, float("-inf"))
            best, total, acc = add_block(score, vs, best, total, acc, unit)
        best, total, acc = add_pages(
            best, total, acc, qs, k_cache, v_cache, table, page, low + AHEAD, high, head, length,
            pages, scale, unit, KV_HEADS, D, PAGE, WINDOW, SOFTCAP,
        )  # fmt: skip
        leave_part(
            y, partials, acc, best, total, seq, seq, m, heads, part, parts, splits,
            HEADS, GROUP, D, D,
        )  # fmt: skip
