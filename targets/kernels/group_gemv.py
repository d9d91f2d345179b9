"""Products of a few rows with weights of few bits that have scales by groups of columns:
y[M, N] = epilogue(x[M, K] @ W[N, K]^T), bound by reading W.

Layouts: as in `gemv.py`, but for
  w         FORM "wide", "i8", "i4" of `weight_forms.py`; w_scale, w_zero [rows of w, K / GROUP]
            (GROUP 0: one for a row)
Grid: (cdiv(N, BLOCK_N), 1, 1).
Limits: rows <= ROWS, ROWS 1 to 4; K % 32 == 0, GROUP % 32 == 0; BLOCK_N and UNITS powers of two.
  A step is UNITS times 32 columns: a thread loads 16 bytes, all of one group.
Numerics: weights are multiplied out in f32, then as in `gemv.py`: f32 fma over k in steps, then one
  sum, fixed by K and UNITS. PDL: as in `gemv.py`.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .activation import activate
from .gemv import finish_half
from .weight_forms import centered


@triton.jit
def load_bytes(
    w, n, unit, N: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr
):  # fmt: skip
    """[BLOCK_N, UNITS, WIDTH] of w, read once."""
    at = n.to(tl.int64)[:, None, None] * (K * WIDTH // 32)
    pointers = w + at + unit[None, :, None] * WIDTH + tl.arange(0, WIDTH)[None, None, :]
    if EVEN:
        tile = tl.load(pointers, eviction_policy="evict_first")
    else:
        inside = (n < N)[:, None, None] & (unit < K // 32)[None, :, None]
        tile = tl.load(pointers, mask=inside, other=0.0, eviction_policy="evict_first")
    return tile


@triton.jit
def load_groups(
    p, n, unit, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr, EVEN: tl.constexpr
):  # fmt: skip
    """Scales or zeros of units, [BLOCK_N, UNITS, 1]; None stays."""
    if p is None:
        tile = None
    else:
        if GROUP == 0:
            pointers = p + n[:, None, None] + unit[None, :, None] * 0
        else:
            COUNT: tl.constexpr = (K + GROUP - 1) // GROUP
            pointers = p + n.to(tl.int64)[:, None, None] * COUNT
            pointers = pointers + (unit // (GROUP // 32))[None, :, None]
        if EVEN:
            tile = tl.load(pointers)
        else:
            inside = (n < N)[:, None, None] & (unit < K // 32)[None, :, None]
            tile = tl.load(pointers, mask=inside, other=0)
    return tile


@triton.jit
def load_columns(p, k, K: tl.constexpr, EVEN: tl.constexpr):
    """p[k] in f32, [UNITS, width]; zero beyond K."""
    v = tl.load(p + k) if EVEN else tl.load(p + k, mask=k < K, other=0.0)
    return v.to(tl.float32)


@triton.jit
def add_part(
    sums, squares, values, x, norm, k, rows,
    K: tl.constexpr, OFFSET: tl.constexpr, ROWS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """One step, all rows: values [BLOCK_N, UNITS, width] times x[k]."""
    new_sums, new_squares = (), ()
    for m in tl.static_range(ROWS):
        xs = load_columns(x + tl.minimum(m, rows - 1) * K, k, K, EVEN)
        square = squares[m]
        if norm is not None:
            square = tl.fma(xs, xs, square)
            xs *= load_columns(norm, k, K, EVEN) + OFFSET
        tile = tl.broadcast_to(xs[None, :, :], values.shape)
        new_sums = new_sums + (tl.fma(values, tile, sums[m]),)  # noqa: RUF005
        new_squares = new_squares + (square,)  # noqa: RUF005
    return new_sums, new_squares


@triton.jit
def add_step(
    sums, squares, ws, scale, zero, x, norm, unit, rows,
    K: tl.constexpr, FORM: tl.constexpr, OFFSET: tl.constexpr, ROWS: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """One step of one half of w; where norm is None squares stay as they are."""
    if FORM == "i4":
        k = unit[:, None] * 32 + tl.arange(0, 16)[None, :]
        low = centered(ws & 15, zero, FORM) * scale
        sums, squares = add_part(sums, squares, low, x, norm, k, rows, K, OFFSET, ROWS, EVEN)
        high = centered(ws >> 4, zero, FORM) * scale
        sums, squares = add_part(sums, squares, high, x, norm, k + 16, rows, K, OFFSET, ROWS, EVEN)
    else:
        k = unit[:, None] * 32 + tl.arange(0, 32)[None, :]
        if FORM == "i8":
            values = centered(ws, zero, FORM) * scale
        else:
            values = ws.to(tl.float32) * scale
        sums, squares = add_part(sums, squares, values, x, norm, k, rows, K, OFFSET, ROWS, EVEN)
    return sums, squares


@triton.jit
def total_of(sums):
    """Over units and columns."""
    return tl.sum(tl.sum(sums, 2), 1)


@triton.jit
def linear(
    x, w, w_scale, w_zero, bias, norm, residual, y, rows, eps,
    K: tl.constexpr, N: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr,
    FORM: tl.constexpr, GROUP: tl.constexpr, OFFSET: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, UNITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """y = act(norm(x) @ W^T + bias) + residual, or act(gate) * up + residual."""
    EVEN: tl.constexpr = N % BLOCK_N == 0 and K % (UNITS * 32) == 0
    WIDTH: tl.constexpr = 16 if FORM == "i4" else 32
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    first = tl.arange(0, UNITS)
    HALVES: tl.constexpr = 2 if GATED else 1
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    sums, squares = (), ()
    for _half in tl.static_range(HALVES * ROWS):
        sums = sums + (tl.zeros((BLOCK_N, UNITS, WIDTH), tl.float32),)  # noqa: RUF005
    for _row in tl.static_range(ROWS):
        squares = squares + (tl.zeros((UNITS, WIDTH), tl.float32),)  # noqa: RUF005
    for start in range(0, K // 32, UNITS):
        unit = start + first
        gates, ups = sums[:ROWS], sums[ROWS:]
        tile = load_bytes(w, n, unit, N, K, WIDTH, EVEN)
        if GATED:
            other = load_bytes(w, N + n, unit, 2 * N, K, WIDTH, EVEN)
        scale = load_groups(w_scale, n, unit, N, K, GROUP, EVEN).to(tl.float32)
        zero = load_groups(w_zero, n, unit, N, K, GROUP, EVEN)
        gates, added = add_step(
            gates, squares, tile, scale, zero, x, norm, unit, rows, K, FORM, OFFSET, ROWS, EVEN
        )
        if GATED:
            scale = load_groups(w_scale, N + n, unit, 2 * N, K, GROUP, EVEN).to(tl.float32)
            zero = load_groups(w_zero, N + n, unit, 2 * N, K, GROUP, EVEN)
            ups, _same = add_step(
                ups, squares, other, scale, zero, x, norm, unit, rows, K, FORM, OFFSET, ROWS, EVEN
            )
        sums = gates + ups
        squares = added
    inside = n < N
    for m in tl.static_range(ROWS):
        factor = 1.0
        if norm is not None:
            factor = 1.0 / tl.sqrt(tl.sum(tl.sum(squares[m], 1), 0) / K + eps)
        total = activate(finish_half(total_of(sums[m]) * factor, None, bias, n, inside), ACT)
        if GATED:
            up = total_of(sums[ROWS + m]) * factor
            total *= finish_half(up, None, bias, N + n, inside)
        write = n < tl.where(m < rows, N, 0)  # no rows beyond the last
        if residual is not None:
            total += tl.load(residual + m * N + n, mask=write, other=0.0).to(tl.float32)
        tl.store(y + m * N + n, total.to(y.dtype.element_ty), mask=write)
