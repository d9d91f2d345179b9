"""Next tokens from logits.

Layouts: logits f32 [rows, VOCAB]; tokens i32 [rows]; per row: temperature, top_p, min_p f32 [rows]
(temperature below 1e-5: greedy; top_p 1 and min_p 0: off), top_k i32 [rows] (0: off), seeds u32
as i32 [rows, 2], request and position i32 [rows].
Grid: (rows, 1, 1). Limits: BLOCK a power of two; no NaN among the logits.
The filters, in the order of transformers' warpers, on logits / temperature:
  top-k   keeps what is not below the k-th largest logit (all of its equals)
  top-p   keeps the fewest most probable tokens whose probability, renormalized after top-k,
          reaches top_p (and all equals of the last)
  min-p   keeps what is at least min_p times as probable as the best
The draw: u = uniform(Philox4x32-10(key = seed, counter = (position, request, 0, 0))[0]) in (0, 1);
the token is the first, in vocabulary order, whose running sum of kept weights exceeds u * total.
So a request's tokens depend on seed, request number and position, not on its company.

Both thresholds come from a search over the 32 bits of an ordered float, one pass over the row per
bit: no sort, and the same answer for every row order.
"""

import triton
import triton.language as tl

from .reduce import load_or, row_argmax, row_max

LOWEST = tl.constexpr(-3.4028234663852886e38)  # stands for -inf: a finite threshold reaches it


@triton.jit
def greedy(logits, tokens, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    tl.store(tokens + row, row_argmax(logits + row.to(tl.int64) * VOCAB, VOCAB, BLOCK))


@triton.jit
def philox(key0, key1, c0, c1, c2, c3):
    """The first word of Philox4x32-10 (Salmon et al., 2011); all u32."""
    for _ in tl.static_range(10):
        wide0 = c0.to(tl.uint64) * 0xD2511F53
        wide2 = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (wide2 >> 32).to(tl.uint32) ^ c1 ^ key0
        c2 = (wide0 >> 32).to(tl.uint32) ^ c3 ^ key1
        c1 = wide2.to(tl.uint32)
        c3 = wide0.to(tl.uint32)
        key0 = (key0.to(tl.uint64) + 0x9E3779B9).to(tl.uint32)
        key1 = (key1.to(tl.uint64) + 0xBB67AE85).to(tl.uint32)
    return c0


@triton.jit
def uniform(word):
    """The upper 23 bits of a u32 as an f32 strictly between 0 and 1, on 2^23 equal steps."""
    return ((word >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07


@triton.jit
def ordered_float(bits):
    """The f32 whose rank among all floats is `bits` (an i64 in 0 .. 2^32 - 1)."""
    signed = bits - 2147483648
    pattern = tl.where(signed < 0, -1 - bits, signed)
    return pattern.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def scaled(logits, at, inverse, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """Logits times 1 / temperature, -inf only beyond the vocabulary."""
    x = load_or(logits, at, 0.0, VOCAB, BLOCK)
    x = tl.maximum(x * inverse, LOWEST)
    if VOCAB % BLOCK != 0:
        x = tl.where(at + tl.arange(0, BLOCK) < VOCAB, x, float("-inf"))
    return x


@triton.jit
def mass_above(
    logits, inverse, top, floor, threshold,
    COUNT: tl.constexpr, VOCAB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """How many, or what sum of exp(x - top), of the x >= max(floor, threshold)."""
    mass = tl.zeros((BLOCK,), tl.float32)
    for at in range(0, VOCAB, BLOCK):
        x = scaled(logits, at, inverse, VOCAB, BLOCK)
        kept = (x >= threshold) & (x >= floor)
        if COUNT:
            mass += tl.where(kept, 1.0, 0.0)
        else:
            mass += tl.where(kept, tl.exp(x - top), 0.0)
    return tl.sum(mass, 0)


@triton.jit
def largest_threshold(
    logits, inverse, top, floor, enough,
    COUNT: tl.constexpr, VOCAB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest t with mass_above(t) >= enough."""
    bits = tl.full((), 0, tl.int64)
    for step in range(32):
        candidate = bits | (tl.full((), 2147483648, tl.int64) >> step)
        threshold = ordered_float(candidate)
        mass = mass_above(logits, inverse, top, floor, threshold, COUNT, VOCAB, BLOCK)
        bits = tl.where(mass >= enough, candidate, bits)
    return ordered_float(bits)


@triton.jit
def draw(
    logits, inverse, top, floor, u, VOCAB: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The first token whose running sum passes u * total, among those not below floor."""
    total = mass_above(logits, inverse, top, floor, floor, False, VOCAB, BLOCK)
    goal = u * total
    before = tl.zeros((), tl.float32)
    chosen_before = tl.zeros((), tl.float32)
    chosen = tl.full((), -1, tl.int32)
    last = tl.full((), 0, tl.int32)  # the last chunk with any weight: where rounding ends up
    last_before = tl.zeros((), tl.float32)
    for at in range(0, VOCAB, BLOCK):
        x = scaled(logits, at, inverse, VOCAB, BLOCK)
        mass = tl.sum(tl.where(x >= floor, tl.exp(x - top), 0.0), 0)
        crosses = (chosen < 0) & (before + mass > goal)
        chosen = tl.where(crosses, at, chosen)
        chosen_before = tl.where(crosses, before, chosen_before)
        last = tl.where(mass > 0.0, at, last)
        last_before = tl.where(mass > 0.0, before, last_before)
        before += mass
    start = tl.where(chosen < 0, last, chosen)
    before = tl.where(chosen < 0, last_before, chosen_before)
    i = tl.arange(0, BLOCK)
    x = scaled(logits, start, inverse, VOCAB, BLOCK)
    weight = tl.where(x >= floor, tl.exp(x - top), 0.0)
    running = before + tl.sum(tl.where(i[None, :] <= i[:, None], weight[None, :], 0.0), 1)
    first = tl.min(tl.where((running > goal) & (weight > 0.0), i, BLOCK), 0)
    fallback = tl.max(tl.where(weight > 0.0, i, 0), 0)
    return start + tl.where(first < BLOCK, first, fallback)


@triton.jit
def sample(
    logits, temperature, top_k, top_p, min_p, seeds, request, position, tokens,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One token per row; see the top of the file."""
    row = tl.program_id(0)
    logits += row.to(tl.int64) * VOCAB
    heat = tl.load(temperature + row)
    if heat < 1e-5:
        tl.store(tokens + row, row_argmax(logits, VOCAB, BLOCK))
    else:
        inverse = 1.0 / heat
        top = row_max(logits, VOCAB, BLOCK) * inverse
        floor = tl.full((), LOWEST, tl.float32)
        k = tl.load(top_k + row)
        if (k > 0) & (k < VOCAB):
            floor = largest_threshold(
                logits, inverse, top, floor, k.to(tl.float32), True, VOCAB, BLOCK
            )
        p = tl.load(top_p + row)
        if p < 1.0:
            enough = p * mass_above(logits, inverse, top, floor, floor, False, VOCAB, BLOCK)
            enough = tl.maximum(enough, 1e-30)  # top_p 0 keeps the best
            threshold = largest_threshold(logits, inverse, top, floor, enough, False, VOCAB, BLOCK)
            floor = tl.minimum(tl.maximum(floor, threshold), top)
        share = tl.load(min_p + row)
        if share > 0.0:
            floor = tl.minimum(tl.maximum(floor, top + tl.log(share)), top)
        word = philox(
            tl.load(seeds + 2 * row).to(tl.uint32, bitcast=True),
            tl.load(seeds + 2 * row + 1).to(tl.uint32, bitcast=True),
            tl.load(position + row).to(tl.uint32, bitcast=True),
            tl.load(request + row).to(tl.uint32, bitcast=True),
            tl.full((), 0, tl.uint32),
            tl.full((), 0, tl.uint32),
        )
        token = draw(logits, inverse, top, floor, uniform(word), VOCAB, BLOCK)
        tl.store(tokens + row, token)
