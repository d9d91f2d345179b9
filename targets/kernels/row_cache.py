"""Rotary embedding and a KV cache of one row per key, on whole tiles: nothing masked.

Layouts
  positions i32 [T]; inv_freq f32 [HALF]; cos, sin f32 [T, HALF], HALF = rotary dims / 2
  x, y      f32 [T, HEADS, D]
  qkv       f32 [T, (HEADS + 2 * KV_HEADS) * D]: all q heads, then k heads, then v heads
  slots     i32 [T], slot = page * PAGE + offset in the page; page 0 is the one for padded rows
  k_cache, v_cache   f32, bf16 or f16 [pages, KV_HEADS, PAGE, D]
  q_norm, k_norm     f32 [D], weights of an RMS norm of each head before it rotates, or None
A narrow cache rounds to nearest even; f16 holds up to 65504.
The first 2 * HALF dims of a head rotate, the rest pass through. INTERLEAVED = False pairs dim i
with i + HALF (Llama, "neox"); True pairs 2i with 2i + 1.
Tiles: BLOCK_C dims (a divisor of HALF), BLOCK_R of those that pass through (of D - 2 HALF), BLOCK_V
  of D, BLOCK_H heads of q, BLOCK_KVH of k. The last tile of heads moves back; a tile with more
  heads than there are holds the last one again.
Grid: rope_table (cdiv(T, BLOCK_T), 1, 1), T with memory for BLOCK_T; the others (T, 1, 1).
Limits: blocks are powers of two.
Numerics: a norm adds squares by dim modulo BLOCK_V, then the BLOCK_V sums.
"""

import triton
import triton.language as tl


@triton.jit
def rope_table(
    positions, inv_freq, cos, sin, count, scale,
    HALF: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """cos, sin of position * inv_freq, times scale (1.0 except for YaRN and kin)."""
    t0 = tl.maximum(tl.minimum(tl.program_id(0) * BLOCK_T, count - BLOCK_T), 0)
    t = tl.arange(0, BLOCK_T)
    position = tl.load(positions + t0 + t).to(tl.float32)
    row = t0.to(tl.int64) * HALF
    for c0 in range(0, HALF, BLOCK_C):
        c = c0 + tl.arange(0, BLOCK_C)
        angle = position[:, None] * tl.load(inv_freq + c)[None, :]
        at = t[:, None] * HALF + c[None, :]
        tl.store(cos + row + at, tl.cos(angle) * scale)
        tl.store(sin + row + at, tl.sin(angle) * scale)


@triton.jit
def head_tile(h0, HEADS: tl.constexpr, BLOCK_H: tl.constexpr):
    """BLOCK_H heads from h0 on, all of them there."""
    if BLOCK_H > HEADS:
        h = tl.minimum(tl.arange(0, BLOCK_H), HEADS - 1)
    else:
        h = tl.minimum(h0, HEADS - BLOCK_H) + tl.arange(0, BLOCK_H)
    return h


@triton.jit
def load_scaled(x, w, h, d, scale, D: tl.constexpr):
    """Dims d of heads h, in f32, times the head's scale and the weights where there are such."""
    tile = tl.load(x + h[:, None] * D + d[None, :]).to(tl.float32)
    if w is not None:
        tile = tile * scale[:, None] * tl.load(w + d)[None, :]
    return tile


@triton.jit
def head_scale(
    x, w, h, eps, D: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_V: tl.constexpr
):  # fmt: skip
    """1 / sqrt(mean(x^2) + eps) of each head; ones without a norm."""
    scale = tl.full((BLOCK_H,), 1.0, tl.float32)
    if w is not None:
        d = tl.arange(0, BLOCK_V)
        tile = tl.load(x + h[:, None] * D + d[None, :]).to(tl.float32)
        squares = tile * tile
        for d0 in range(BLOCK_V, D, BLOCK_V):
            tile = tl.load(x + h[:, None] * D + (d0 + d)[None, :]).to(tl.float32)
            squares += tile * tile
        scale = scale / tl.sqrt(tl.sum(squares, 1) / D + eps)
    return scale


@triton.jit
def rotate_heads(
    x, w, y, cos, sin, eps,
    HEADS: tl.constexpr, STRIDE: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Heads of one token from x (D apart) to y (STRIDE apart)."""
    kind = y.dtype.element_ty
    for h0 in range(0, HEADS, BLOCK_H):
        h = head_tile(h0, HEADS, BLOCK_H)
        scale = head_scale(x, w, h, eps, D, BLOCK_H, BLOCK_V)
        for c0 in range(0, HALF, BLOCK_C):
            c = c0 + tl.arange(0, BLOCK_C)
            cs = tl.load(cos + c)[None, :]
            sn = tl.load(sin + c)[None, :]
            if INTERLEAVED:
                first = 2 * c
                second = 2 * c + 1
            else:
                first = c
                second = c + HALF
            a = load_scaled(x, w, h, first, scale, D)
            b = load_scaled(x, w, h, second, scale, D)
            out = y + h[:, None] * STRIDE
            tl.store(out + first[None, :], (a * cs - b * sn).to(kind))
            tl.store(out + second[None, :], (b * cs + a * sn).to(kind))
        if 2 * HALF < D:
            for d0 in range(2 * HALF, D, BLOCK_R):
                d = d0 + tl.arange(0, BLOCK_R)
                rest = load_scaled(x, w, h, d, scale, D)
                tl.store(y + h[:, None] * STRIDE + d[None, :], rest.to(kind))


@triton.jit
def copy_heads(
    x, y, HEADS: tl.constexpr, STRIDE: tl.constexpr, D: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    for h0 in range(0, HEADS, BLOCK_H):
        h = head_tile(h0, HEADS, BLOCK_H)
        for d0 in range(0, D, BLOCK_V):
            d = d0 + tl.arange(0, BLOCK_V)
            tile = tl.load(x + h[:, None] * D + d[None, :])
            tl.store(y + h[:, None] * STRIDE + d[None, :], tile.to(y.dtype.element_ty))


@triton.jit
def rope(
    x, cos, sin, y,
    HEADS: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """y = x rotated by its row of the table. y must not be x."""
    t = tl.program_id(0).to(tl.int64)
    rotate_heads(
        x + t * (HEADS * D), None, y + t * (HEADS * D), cos + t * HALF, sin + t * HALF, 0.0,
        HEADS, D, D, HALF, INTERLEAVED, BLOCK_H, BLOCK_C, BLOCK_R, BLOCK_C,
    )  # fmt: skip


@triton.jit
def slot_rows(slots, t, KV_HEADS: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr):
    """Offset of a token's row in the first head's pages; heads are PAGE * D apart."""
    slot = tl.load(slots + t)
    page = (slot // PAGE).to(tl.int64)
    return page * (KV_HEADS * PAGE * D) + (slot % PAGE) * D


@triton.jit
def rope_write_kv(
    qkv, cos, sin, q_norm, k_norm, slots, q, k_cache, v_cache, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr, PAGE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_KVH: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """q[T, HEADS, D] = rotated q; rotated k and plain v go to their slots."""
    t = tl.program_id(0).to(tl.int64)
    x = qkv + t * ((HEADS + 2 * KV_HEADS) * D)
    cos += t * HALF
    sin += t * HALF
    rotate_heads(
        x, q_norm, q + t * (HEADS * D), cos, sin, eps,
        HEADS, D, D, HALF, INTERLEAVED, BLOCK_H, BLOCK_C, BLOCK_R, BLOCK_V,
    )  # fmt: skip
    at = slot_rows(slots, t, KV_HEADS, PAGE, D)
    k = x + HEADS * D
    rotate_heads(
        k, k_norm, k_cache + at, cos, sin, eps,
        KV_HEADS, PAGE * D, D, HALF, INTERLEAVED, BLOCK_KVH, BLOCK_C, BLOCK_R, BLOCK_V,
    )  # fmt: skip
    copy_heads(k + KV_HEADS * D, v_cache + at, KV_HEADS, PAGE * D, D, BLOCK_KVH, BLOCK_V)


@triton.jit
def write_kv(
    k, v, slots, k_cache, v_cache,
    KV_HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_KVH: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """k, v f32 [T, KV_HEADS, D] to their slots, as they are."""
    t = tl.program_id(0).to(tl.int64)
    at = slot_rows(slots, t, KV_HEADS, PAGE, D)
    row = t * (KV_HEADS * D)
    copy_heads(k + row, k_cache + at, KV_HEADS, PAGE * D, D, BLOCK_KVH, BLOCK_V)
    copy_heads(v + row, v_cache + at, KV_HEADS, PAGE * D, D, BLOCK_KVH, BLOCK_V)
