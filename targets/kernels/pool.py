"""Pools over windows of [planes, D, H, W] (missing axes are 1).

Layouts: x f32 [planes, d, h, w]; y f32 and ids i32 [planes, od, oh, ow], contiguous; ids count in
[d, h, w] taken as one axis. total = planes * od * oh * ow. Sizes, windows (k), strides (s), what
windows begin before x (p) and dilations (e) are i32 arguments, one for each axis.
Grid: (cdiv(total, BLOCK), 1, 1). Limits: BLOCK a power of two.
Numerics: windows are walked in ascending order; NaN wins; of equal elements the first counts.
"""

import triton
import triton.language as tl


@triton.jit
def max_pool(
    x, y, ids, total, d, h, w, od, oh, ow, kd, kh, kw, sd, sh, sw, pd, ph, pw, ed, eh, ew,
    BLOCK: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = lane // ow
    plane = row // oh
    z0 = plane % od * sd - pd
    y0 = row % oh * sh - ph
    x0 = lane % ow * sw - pw
    x += (plane // od).to(tl.int64) * d * h * w
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    where = tl.full((BLOCK,), -1, tl.int32)
    for a in range(kd):
        for b in range(kh):
            for c in range(kw):
                i, j, k = z0 + a * ed, y0 + b * eh, x0 + c * ew
                inside = (i >= 0) & (i < d) & (j >= 0) & (j < h) & (k >= 0) & (k < w)
                inside &= lane < total
                at = (i * h + j) * w + k
                value = tl.load(x + at, mask=inside, other=0.0)
                better = (value > best) | (value != value) | (where < 0)
                best = tl.where(inside & better, value, best)
                where = tl.where(inside & better, at, where)
    tl.store(y + lane, best, mask=lane < total)
    tl.store(ids + lane, where, mask=lane < total)


@triton.jit
def avg_pool(
    x, y, total, d, h, w, od, oh, ow, kd, kh, kw, sd, sh, sw, pd, ph, pw, ed, eh, ew, rd, rh, rw,
    divisor, COUNT_PADDING: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums over divisor, or where that is 0 over the places in x, or (COUNT_PADDING) in x and its
    padding of r after the end."""
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = lane // ow
    plane = row // oh
    z0 = plane % od * sd - pd
    y0 = row % oh * sh - ph
    x0 = lane % ow * sw - pw
    x += (plane // od).to(tl.int64) * d * h * w
    sum = tl.zeros((BLOCK,), tl.float32)
    count = tl.zeros((BLOCK,), tl.float32)
    for a in range(kd):
        for b in range(kh):
            for c in range(kw):
                i, j, k = z0 + a * ed, y0 + b * eh, x0 + c * ew
                inside = (i >= 0) & (i < d) & (j >= 0) & (j < h) & (k >= 0) & (k < w)
                inside &= lane < total
                sum += tl.load(x + (i * h + j) * w + k, mask=inside, other=0.0)
                if COUNT_PADDING:
                    inside = (i < d + rd) & (j < h + rh) & (k < w + rw)
                count += inside.to(tl.float32)
    whole = tl.where(divisor != 0, divisor.to(tl.float32), count)
    tl.store(y + lane, sum / whole, mask=lane < total)
