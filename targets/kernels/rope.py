"""Rotary position embedding and writes to the paged KV cache.

Layouts
  positions i32 [T]; inv_freq f32 [HALF]; cos, sin f32 [T, HALF], HALF = rotary dims / 2
  x, y      f32 [T, HEADS, D]
  qkv       f32 [T, (HEADS + 2 * KV_HEADS) * D]: all q heads, then k heads, then v heads
  slots     i32 [T], slot = page * PAGE + offset in the page; page 0 is the one for padded rows
  k_cache   f32, bf16 or f16 [pages, KV_HEADS, D, PAGE] (keys along lanes)
  v_cache   the same type    [pages, KV_HEADS, PAGE, D]
  A narrow cache rounds to nearest even. f16 holds up to 65504; from 65520 on a value becomes
  infinity (nothing saturates), and attention to that key gives NaN: such a model needs bf16 or f32.
The first 2 * HALF dims of a head rotate, the rest pass through. INTERLEAVED = False pairs dim i
with i + HALF (Llama, "neox"); True pairs 2i with 2i + 1.
Grid: (T, 1, 1), one program per token.
Limits: BLOCK_HALF = next power of two of HALF, BLOCK_D of D.
"""

import triton
import triton.language as tl


@triton.jit
def rope_table(positions, inv_freq, cos, sin, scale, HALF: tl.constexpr, BLOCK_HALF: tl.constexpr):
    """cos, sin of position * inv_freq, times scale (f32 argument; 1.0 except for YaRN and kin)."""
    t = tl.program_id(0)
    i = tl.arange(0, BLOCK_HALF)
    inside = i < HALF
    angle = tl.load(positions + t).to(tl.float32) * tl.load(inv_freq + i, mask=inside, other=0.0)
    row = t.to(tl.int64) * HALF
    tl.store(cos + row + i, tl.cos(angle) * scale, mask=inside)
    tl.store(sin + row + i, tl.sin(angle) * scale, mask=inside)


@triton.jit
def rotate_head(
    x, w, y, cos, sin, eps,
    D: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr, STRIDE: tl.constexpr,
    BLOCK_HALF: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One head from x to y, whose dims are STRIDE apart; with w, RMS-normalized before."""
    scale = 1.0
    if w is not None:
        d = tl.arange(0, BLOCK_D)
        head = tl.load(x + d, mask=d < D, other=0.0)
        scale = 1.0 / tl.sqrt(tl.sum(head * head, 0) / D + eps)
    i = tl.arange(0, BLOCK_HALF)
    if INTERLEAVED:
        first, second = 2 * i, 2 * i + 1
    else:
        first, second = i, i + HALF
    c = tl.load(cos + i, mask=i < HALF, other=0.0)
    s = tl.load(sin + i, mask=i < HALF, other=0.0)
    a = load_dims(x, w, first, i < HALF, scale)
    b = load_dims(x, w, second, i < HALF, scale)
    kind = y.dtype.element_ty
    tl.store(y + first * STRIDE, (a * c - b * s).to(kind), mask=i < HALF)
    tl.store(y + second * STRIDE, (b * c + a * s).to(kind), mask=i < HALF)
    if 2 * HALF < D:
        d = tl.arange(0, BLOCK_D)
        rest = (d >= 2 * HALF) & (d < D)
        tl.store(y + d * STRIDE, load_dims(x, w, d, rest, scale).to(kind), mask=rest)


@triton.jit
def load_dims(x, w, d, mask, scale):
    value = tl.load(x + d, mask=mask, other=0.0)
    if w is not None:
        value = value * scale * tl.load(w + d, mask=mask, other=0.0).to(tl.float32)
    return value


@triton.jit
def rope(
    x, cos, sin, y,
    HEADS: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr,
    BLOCK_HALF: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """y = x rotated by its row of the table. y must not be x."""
    t = tl.program_id(0).to(tl.int64)
    for head in range(HEADS):
        at = (t * HEADS + head) * D
        rotate_head(
            x + at, None, y + at, cos + t * HALF, sin + t * HALF, 0.0,
            D, HALF, INTERLEAVED, 1, BLOCK_HALF, BLOCK_D,
        )  # fmt: skip


@triton.jit
def copy_head(x, y, D: tl.constexpr, STRIDE: tl.constexpr, BLOCK_D: tl.constexpr):
    d = tl.arange(0, BLOCK_D)
    if D == BLOCK_D:
        tl.store(y + d * STRIDE, tl.load(x + d).to(y.dtype.element_ty))
    else:
        value = tl.load(x + d, mask=d < D, other=0.0)
        tl.store(y + d * STRIDE, value.to(y.dtype.element_ty), mask=d < D)


@triton.jit
def rope_write_kv(
    qkv, cos, sin, q_norm, k_norm, slots, q, k_cache, v_cache, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_HALF: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """q[T, HEADS, D] = rotated q; rotated k and plain v go to their slots.

    q_norm, k_norm [D]: weights of a per-head RMSNorm before rotation, or None. eps (f32 argument)
    is theirs; it stays a parameter when there is none.
    """
    t = tl.program_id(0).to(tl.int64)
    x = qkv + t * ((HEADS + 2 * KV_HEADS) * D)
    cos += t * HALF
    sin += t * HALF
    for head in range(HEADS):
        rotate_head(
            x + head * D, q_norm, q + (t * HEADS + head) * D, cos, sin, eps,
            D, HALF, INTERLEAVED, 1, BLOCK_HALF, BLOCK_D,
        )  # fmt: skip
    slot = tl.load(slots + t)
    page = (slot // PAGE).to(tl.int64)
    offset = slot % PAGE
    for head in range(KV_HEADS):
        at = (page * KV_HEADS + head) * (D * PAGE)
        k = x + (HEADS + head) * D
        rotate_head(
            k, k_norm, k_cache + at + offset, cos, sin, eps,
            D, HALF, INTERLEAVED, PAGE, BLOCK_HALF, BLOCK_D,
        )  # fmt: skip
        copy_head(k + KV_HEADS * D, v_cache + at + offset * D, D, 1, BLOCK_D)


@triton.jit
def write_kv(
    k, v, slots, k_cache, v_cache,
    KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """k, v f32 [T, KV_HEADS, D] to their slots, as they are."""
    t = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + t)
    page = (slot // PAGE).to(tl.int64)
    offset = slot % PAGE
    for head in range(KV_HEADS):
        row = (t * KV_HEADS + head) * D
        at = (page * KV_HEADS + head) * (D * PAGE)
        copy_head(k + row, k_cache + at + offset, D, PAGE, BLOCK_D)
        copy_head(v + row, v_cache + at + offset * D, D, 1, BLOCK_D)
