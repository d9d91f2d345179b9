"""Products of a few rows with weights of few bits that have scales by groups of columns:
y[M, N] = epilogue(x[M, K] @ W[N, K]^T), bound by reading W.

Layouts: as in `gemv.py`, but for
  w         FORM "wide", "i8", "i4" of `weight_forms.py`; w_scale, w_zero [rows of w, K / GROUP]
            (GROUP 0: one for a row)
Grid: (cdiv(N, BLOCK_N), 1, 1).
Limits: rows <= ROWS, ROWS 1 to 4; K % 32 == 0, GROUP % 32 == 0; BLOCK_N and UNITS powers of two.
  A unit is 16 bytes of w, what one thread loads at a time: 32 columns of "i4", else 16, all of one
  group. A step is UNITS of them.
Numerics: f32 sums of a unit, exact weights without their scale; these times the scale, fma over k
  in steps; one sum at the end: fixed by K and UNITS. PDL: as in `gemv.py`.
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
    """[BLOCK_N, UNITS, 16] of w, read once; WIDTH: columns of a unit."""
    at = n.to(tl.int64)[:, None, None] * (K // WIDTH * 16)
    pointers = w + at + unit[None, :, None] * 16 + tl.arange(0, 16)[None, None, :]
    if EVEN:
        tile = tl.load(pointers, eviction_policy="evict_first")
    else:
        inside = (n < N)[:, None, None] & (unit < K // WIDTH)[None, :, None]
        tile = tl.load(pointers, mask=inside, other=0.0, eviction_policy="evict_first")
    return tile


@triton.jit
def load_groups(
    p, n, unit, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """Scales or zeros of units, [BLOCK_N, UNITS]."""
    if GROUP == 0:
        pointers = p + n[:, None] + unit[None, :] * 0
    else:
        COUNT: tl.constexpr = (K + GROUP - 1) // GROUP
        pointers = p + n.to(tl.int64)[:, None] * COUNT + (unit // (GROUP // WIDTH))[None, :]
    if EVEN:
        tile = tl.load(pointers)
    else:
        inside = (n < N)[:, None] & (unit < K // WIDTH)[None, :]
        tile = tl.load(pointers, mask=inside, other=0)
    return tile.to(tl.float32)


@triton.jit
def load_columns(x, row, norm, k, K: tl.constexpr, OFFSET: tl.constexpr, EVEN: tl.constexpr):
    """(a row's x times the norm's weight, x squared) at k [UNITS, 16], f32, zero beyond K."""
    p = x + row * K + k
    xs = (tl.load(p) if EVEN else tl.load(p, mask=k < K, other=0.0)).to(tl.float32)
    squares = xs
    if norm is not None:
        squares = xs * xs
        q = norm + k
        weight = (tl.load(q) if EVEN else tl.load(q, mask=k < K, other=0.0)).to(tl.float32)
        xs *= weight + OFFSET
    return xs, squares


@triton.jit
def sum_unit(values, xs):
    """[BLOCK_N, UNITS]: over the 16 numbers of a unit, which one thread holds."""
    return tl.sum(values * xs[None, :, :], 2)


@triton.jit
def add_step(
    sums, squares, low, high, scale, zero, x, norm, unit, rows,
    K: tl.constexpr, FORM: tl.constexpr, OFFSET: tl.constexpr, ROWS: tl.constexpr,
    WIDTH: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """One step of one half of w, all rows. zero: what the middle of the range is above it."""
    new_sums, new_squares = (), ()
    k = unit[:, None] * WIDTH + tl.arange(0, 16)[None, :]
    for m in tl.static_range(ROWS):
        row = tl.minimum(m, rows - 1)
        xs, square = load_columns(x, row, norm, k, K, OFFSET, EVEN)
        part = sum_unit(low, xs)
        whole = tl.sum(xs, 1)
        if FORM == "i4":
            more, upper = load_columns(x, row, norm, k + 16, K, OFFSET, EVEN)
            part += sum_unit(high, more)
            whole += tl.sum(more, 1)
            square += upper
        if zero is not None:
            part += zero * whole[None, :]
        new_sums = new_sums + (tl.fma(part, scale, sums[m]),)  # noqa: RUF005
        new_squares = new_squares + (squares[m] + tl.sum(square, 1),)  # noqa: RUF005
    return new_sums, new_squares


@triton.jit
def add_half(
    sums, squares, w, w_scale, w_zero, x, norm, n, unit, rows,
    N: tl.constexpr, K: tl.constexpr, FORM: tl.constexpr, GROUP: tl.constexpr,
    OFFSET: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """One step of rows n of w."""
    tile = load_bytes(w, n, unit, N, K, WIDTH, EVEN)
    scale = load_groups(w_scale, n, unit, N, K, GROUP, WIDTH, EVEN)
    zero = None
    if w_zero is not None:
        MIDDLE: tl.constexpr = 8.0 if FORM == "i4" else 128.0
        zero = MIDDLE - load_groups(w_zero, n, unit, N, K, GROUP, WIDTH, EVEN)
    if FORM == "i4":
        low = centered(tile & 15, None, FORM)
        high = centered(tile >> 4, None, FORM)
    elif FORM == "i8":
        low = centered(tile, None, FORM)
        high = low
    else:
        low = tile.to(tl.float32)
        high = low
    return add_step(
        sums, squares, low, high, scale, zero, x, norm, unit, rows,
        K, FORM, OFFSET, ROWS, WIDTH, EVEN,
    )  # fmt: skip


@triton.jit
def linear(
    x, w, w_scale, w_zero, bias, norm, residual, y, rows, eps,
    K: tl.constexpr, N: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr,
    FORM: tl.constexpr, GROUP: tl.constexpr, OFFSET: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, UNITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """y = act(norm(x) @ W^T + bias) + residual, or act(gate) * up + residual."""
    WIDTH: tl.constexpr = 32 if FORM == "i4" else 16
    EVEN: tl.constexpr = N % BLOCK_N == 0 and K % (UNITS * WIDTH) == 0
    HALVES: tl.constexpr = 2 if GATED else 1
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    sums, squares = (), ()
    for _half in tl.static_range(HALVES * ROWS):
        sums = sums + (tl.zeros((BLOCK_N, UNITS), tl.float32),)  # noqa: RUF005
    for _row in tl.static_range(ROWS):
        squares = squares + (tl.zeros((UNITS,), tl.float32),)  # noqa: RUF005
    for start in range(0, K // WIDTH, UNITS):
        unit = start + tl.arange(0, UNITS)
        gates, added = add_half(
            sums[:ROWS], squares, w, w_scale, w_zero, x, norm, n, unit, rows,
            N, K, FORM, GROUP, OFFSET, ROWS, WIDTH, EVEN,
        )  # fmt: skip
        ups = sums[ROWS:]
        if GATED:
            ups, _same = add_half(
                ups, squares, w, w_scale, w_zero, x, norm, N + n, unit, rows,
                2 * N, K, FORM, GROUP, OFFSET, ROWS, WIDTH, EVEN,
            )  # fmt: skip
        sums = gates + ups
        squares = added
    inside = n < N
    for m in tl.static_range(ROWS):
        factor = 1.0
        if norm is not None:
            factor = 1.0 / tl.sqrt(tl.sum(squares[m], 0) / K + eps)
        total = activate(finish_half(tl.sum(sums[m], 1) * factor, None, bias, n, inside), ACT)
        if GATED:
            up = tl.sum(sums[ROWS + m], 1) * factor
            total *= finish_half(up, None, bias, N + n, inside)
        write = n < tl.where(m < rows, N, 0)  # no rows beyond the last
        if residual is not None:
            total += tl.load(residual + m * N + n, mask=write, other=0.0).to(tl.float32)
        tl.store(y + m * N + n, total.to(y.dtype.element_ty), mask=write)
