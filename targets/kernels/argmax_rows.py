"""The largest logit of each row, for GPUs: a row is shared by many programs.

Layouts: logits f32 or bf16 [rows, VOCAB]; bests f32 and places i32 [rows, PARTS]; tokens i32
[rows], PARTS = cdiv(VOCAB, CHUNK). The tokens also go to a slot of `landing` i32 [slots, rows of
each], which may be memory of the host; `turn` says which one, and is left as the step after this
one needs it (`step_inputs.py`).
Grid: best_of_parts (PARTS, rows, 1), then best_of_row (rows, 1, 1).
Ties go to the lowest id; a row with a NaN, or whose largest is not finite, gives -1.
Limits: CHUNK and BLOCK powers of two, BLOCK >= PARTS.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

NONE = tl.constexpr(2147483647)


@triton.jit
def nan_as_infinity(x):
    """NaN becomes inf, which no finite row holds: both make a row fail."""
    return tl.where(x == x, x, float("inf"))


@triton.jit
def best_of_parts(
    logits, bests, places, VOCAB: tl.constexpr, CHUNK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """The largest of each CHUNK and its id."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    part = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    i = part * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits + row * VOCAB + i, mask=i < VOCAB, other=float("-inf")).to(tl.float32)
    x = nan_as_infinity(x)
    best = tl.max(x, 0)
    at = row * tl.num_programs(0) + part
    tl.store(bests + at, best)
    tl.store(places + at, tl.min(tl.where(x == best, i, NONE), 0))


@triton.jit
def best_of_row(
    bests, places, turn, landing, tokens,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The first of the largest of a row's parts."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0)
    part = tl.arange(0, BLOCK)
    at = row.to(tl.int64) * PARTS + part
    x = tl.load(bests + at, mask=part < PARTS, other=float("-inf"))
    place = tl.load(places + at, mask=part < PARTS, other=NONE)
    best = tl.max(x, 0)
    token = tl.min(tl.where(x == best, place, NONE), 0)
    token = tl.where(tl.abs(best) < float("inf"), token, -1)
    tl.store(tokens + row, token)
    slot = tl.load(turn + 5)
    tl.store(landing + slot * tl.load(turn + 4) + row, token)
    if row == 0:
        tl.store(turn, 1)
        tl.store(turn + 2, (slot + 1) % tl.load(turn + 3))
