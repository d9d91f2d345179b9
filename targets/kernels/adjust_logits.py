"""Bias, penalties, forbidden tokens and bit masks on rows of logits, in place, for GPUs.

As runtime/sampler.py has it: bias is added, then for every token of prompt and answer (ids once
each, counts in the answer) the repetition penalty divides what is above 0 and multiplies the rest,
and counts * frequency and (counts > 0) * presence are taken off; then forbidden tokens become -inf.
Layouts: logits f32 [*, VOCAB]; rows i32 [n]: the row of logits that the i-th request adjusts. A
list of request i is entries starts[i] .. starts[i + 1] of its arrays, starts i32 [n + 1]; ids
beyond the vocabulary are passed over.
  penalties  f32 [n, 3]: repetition, frequency, presence
  masks      i32 [n, cdiv(VOCAB, 32)]: bit b of word w allows token 32 w + b
Grid: adjust_rows (n, 1, 1); mask_rows (cdiv(VOCAB, BLOCK), n, 1). Limits: BLOCK a power of two; ids
within one list differ.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def add_bias(logits, ids, values, low, high, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    for at in range(low, high, BLOCK):
        j = at + tl.arange(0, BLOCK)
        token = tl.load(ids + j, mask=j < high, other=-1)
        inside = (token >= 0) & (token < VOCAB)
        x = tl.load(logits + token, mask=inside, other=0.0)
        x += tl.load(values + j, mask=inside, other=0.0)
        tl.store(logits + token, x, mask=inside)


@triton.jit
def penalize(
    logits, ids, counts, low, high, penalties, VOCAB: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    repetition = tl.load(penalties)
    frequency = tl.load(penalties + 1)
    presence = tl.load(penalties + 2)
    for at in range(low, high, BLOCK):
        j = at + tl.arange(0, BLOCK)
        token = tl.load(ids + j, mask=j < high, other=-1)
        inside = (token >= 0) & (token < VOCAB)
        x = tl.load(logits + token, mask=inside, other=0.0)
        count = tl.load(counts + j, mask=inside, other=0.0)
        x = tl.where(x > 0.0, tl.div_rn(x, repetition), x * repetition)
        x -= count * frequency
        x -= tl.where(count > 0.0, presence, 0.0)
        tl.store(logits + token, x, mask=inside)


@triton.jit
def forbid(logits, ids, low, high, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    for at in range(low, high, BLOCK):
        j = at + tl.arange(0, BLOCK)
        token = tl.load(ids + j, mask=j < high, other=-1)
        nothing = tl.full((BLOCK,), float("-inf"), tl.float32)
        tl.store(logits + token, nothing, mask=(token >= 0) & (token < VOCAB))


@triton.jit
def adjust_rows(
    logits, rows, bias_starts, bias_ids, bias, history_starts, history_ids, counts, penalties,
    forbidden_starts, forbidden_ids,
    VOCAB: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Bias, penalties and forbidden tokens of one request; a token may be on all three lists."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    i = tl.program_id(0)
    logits += tl.load(rows + i).to(tl.int64) * VOCAB
    add_bias(
        logits, bias_ids, bias, tl.load(bias_starts + i), tl.load(bias_starts + i + 1),
        VOCAB, BLOCK,
    )  # fmt: skip
    tl.debug_barrier()
    penalize(
        logits, history_ids, counts, tl.load(history_starts + i), tl.load(history_starts + i + 1),
        penalties + 3 * i, VOCAB, BLOCK,
    )  # fmt: skip
    tl.debug_barrier()
    forbid(
        logits, forbidden_ids, tl.load(forbidden_starts + i), tl.load(forbidden_starts + i + 1),
        VOCAB, BLOCK,
    )  # fmt: skip


@triton.jit
def mask_rows(
    logits, rows, masks, VOCAB: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """-inf where the bit of a token is 0."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    i = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(masks + i * ((VOCAB + 31) // 32) + token // 32, mask=token < VOCAB, other=-1)
    is_forbidden = ((word >> (token % 32)) & 1) == 0
    logits += tl.load(rows + i).to(tl.int64) * VOCAB
    nothing = tl.full((BLOCK,), float("-inf"), tl.float32)
    tl.store(logits + token, nothing, mask=is_forbidden & (token < VOCAB))
