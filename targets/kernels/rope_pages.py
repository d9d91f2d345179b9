"""Rotary position embedding and writes to a paged cache, for GPUs: heads spread over programs.

Layouts
  cos, sin          f32 [T, HALF] (`rope.rope_table`), HALF = rotary dims / 2
  x, y              [T, HEADS, D]; k, v [T, KV_HEADS, D]
  qkv               [T, (HEADS + 2 * KV_HEADS) * D]: all q heads, then k heads, then v heads
  slots             i32 [T], slot = page * PAGE + offset; page 0 is the one for padded rows
  k_cache, v_cache  [pages, KV_HEADS, PAGE, D]
Any float type each (bf16 is meant); arithmetic is f32, and each result rounds once.
The first 2 * HALF dims of a head rotate, the rest pass through; INTERLEAVED pairs 2i with 2i + 1,
else i with i + HALF. q_norm, k_norm [D] are weights of a per-head RMSNorm before the rotation, or
None; eps (f32 argument) is theirs.
Grid: (T, parts, 1) where a part is BLOCK_H heads of one kind, so that one token keeps several
multiprocessors busy: rope_write_kv cdiv(HEADS, BLOCK_H) + 2 * cdiv(KV_HEADS, BLOCK_H); rope
cdiv(HEADS, BLOCK_H); write_kv 2 * cdiv(KV_HEADS, BLOCK_H). `parts_of` counts.
Limits: BLOCK_H a power of two; BLOCK_HALF = next power of two of HALF, BLOCK_D of D; y is not x.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


def parts_of(block_h: int, *counts: int) -> int:
    """Programs per token for heads of several kinds.

    >>> parts_of(8, 32, 8, 8)
    6
    """
    return sum(-(-count // block_h) for count in counts)


@triton.jit
def norm_scale(x, first, inside, eps, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """1 / rms of each head [BLOCK_H, 1]."""
    d = tl.arange(0, BLOCK_D)
    whole = tl.load(x + first + d[None, :], mask=inside & (d[None, :] < D), other=0.0)
    whole = whole.to(tl.float32)
    return (1.0 / tl.sqrt(tl.sum(whole * whole, 1) / D + eps))[:, None]


@triton.jit
def rotate_heads(
    x, y, w, cos, sin, eps, head0, heads, step,
    D: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Heads from head0 on from x, where they are D apart, to y, where they are `step` apart."""
    h = head0 + tl.arange(0, BLOCK_H)
    inside = h[:, None] < heads
    source = h[:, None] * D
    target = h[:, None] * step
    i = tl.arange(0, BLOCK_HALF)
    here = inside & (i[None, :] < HALF)
    scale = 1.0
    if w is not None:
        scale = norm_scale(x, source, inside, eps, D, BLOCK_D)
    c = tl.load(cos + i, mask=i < HALF, other=0.0)[None, :]
    s = tl.load(sin + i, mask=i < HALF, other=0.0)[None, :]
    kind = y.dtype.element_ty
    if INTERLEAVED:
        both = tl.arange(0, 2 * BLOCK_HALF)
        pairs = inside & (both[None, :] < 2 * HALF)
        value = load_dims(x, w, source, both, pairs, both < 2 * HALF, scale)
        a, b = tl.split(value.reshape(BLOCK_H, BLOCK_HALF, 2))
        turned = tl.join(a * c - b * s, b * c + a * s).reshape(BLOCK_H, 2 * BLOCK_HALF)
        tl.store(y + target + both[None, :], turned.to(kind), mask=pairs)
    else:
        a = load_dims(x, w, source, i, here, i < HALF, scale)
        b = load_dims(x, w, source, i + HALF, here, i < HALF, scale)
        tl.store(y + target + i[None, :], (a * c - b * s).to(kind), mask=here)
        tl.store(y + target + HALF + i[None, :], (b * c + a * s).to(kind), mask=here)
    if 2 * HALF < D:
        d = tl.arange(0, BLOCK_D)
        is_rest = (d >= 2 * HALF) & (d < D)
        rest = load_dims(x, w, source, d, inside & is_rest[None, :], is_rest, scale)
        tl.store(y + target + d[None, :], rest.to(kind), mask=inside & is_rest[None, :])


@triton.jit
def load_dims(x, w, first, dims, inside, is_dim, scale):
    """[BLOCK_H, dims] of x in f32, normalized when there is a weight."""
    value = tl.load(x + first + dims[None, :], mask=inside, other=0.0).to(tl.float32)
    if w is not None:
        weight = tl.load(w + dims, mask=is_dim, other=0.0).to(tl.float32)
        value = value * scale * weight[None, :]
    return value


@triton.jit
def copy_heads(
    x, y, head0, heads, step, D: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    h = head0 + tl.arange(0, BLOCK_H)
    d = tl.arange(0, BLOCK_D)
    inside = (h[:, None] < heads) & (d[None, :] < D)
    value = tl.load(x + (h[:, None] * D + d[None, :]), mask=inside, other=0.0)
    tl.store(y + (h[:, None] * step + d[None, :]), value.to(y.dtype.element_ty), mask=inside)


@triton.jit
def rope(
    x, cos, sin, y,
    HEADS: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """y = x rotated by its row of the table."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    t = tl.program_id(0).to(tl.int64)
    at = t * (HEADS * D)
    rotate_heads(
        x + at, y + at, None, cos + t * HALF, sin + t * HALF, 0.0,
        tl.program_id(1) * BLOCK_H, HEADS, D,
        D, HALF, INTERLEAVED, BLOCK_H, BLOCK_HALF, BLOCK_D,
    )  # fmt: skip


@triton.jit
def place_of(slot, KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr):
    """Where a slot's first head lies in a cache; the next ones are PAGE * D further each."""
    return (slot // PAGE).to(tl.int64) * (KV_HEADS * PAGE * D) + slot % PAGE * D


@triton.jit
def rope_write_kv(
    qkv, cos, sin, q_norm, k_norm, slots, q, k_cache, v_cache, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """q[T, HEADS, D] = rotated q; rotated k and plain v go to their slots."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    Q_PARTS: tl.constexpr = (HEADS + BLOCK_H - 1) // BLOCK_H
    KV_PARTS: tl.constexpr = (KV_HEADS + BLOCK_H - 1) // BLOCK_H
    t = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    x = qkv + t * ((HEADS + 2 * KV_HEADS) * D)
    cos += t * HALF
    sin += t * HALF
    if part < Q_PARTS:
        rotate_heads(
            x, q + t * (HEADS * D), q_norm, cos, sin, eps, part * BLOCK_H, HEADS, D,
            D, HALF, INTERLEAVED, BLOCK_H, BLOCK_HALF, BLOCK_D,
        )  # fmt: skip
    else:
        place = place_of(tl.load(slots + t), KV_HEADS, D, PAGE)
        if part < Q_PARTS + KV_PARTS:
            rotate_heads(
                x + HEADS * D, k_cache + place, k_norm, cos, sin, eps,
                (part - Q_PARTS) * BLOCK_H, KV_HEADS, PAGE * D,
                D, HALF, INTERLEAVED, BLOCK_H, BLOCK_HALF, BLOCK_D,
            )  # fmt: skip
        else:
            copy_heads(
                x + (HEADS + KV_HEADS) * D, v_cache + place,
                (part - Q_PARTS - KV_PARTS) * BLOCK_H, KV_HEADS, PAGE * D, D, BLOCK_H, BLOCK_D,
            )  # fmt: skip


@triton.jit
def write_kv(
    k, v, slots, k_cache, v_cache,
    KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """k, v [T, KV_HEADS, D] to their slots, as they are."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    KV_PARTS: tl.constexpr = (KV_HEADS + BLOCK_H - 1) // BLOCK_H
    t = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    place = place_of(tl.load(slots + t), KV_HEADS, D, PAGE)
    at = t * (KV_HEADS * D)
    if part < KV_PARTS:
        copy_heads(k + at, k_cache + place, part * BLOCK_H, KV_HEADS, PAGE * D, D, BLOCK_H, BLOCK_D)
    else:
        first = (part - KV_PARTS) * BLOCK_H
        copy_heads(v + at, v_cache + place, first, KV_HEADS, PAGE * D, D, BLOCK_H, BLOCK_D)
