"""Weights of few bits inside tiles of products: integers to what tensor cores multiply, and scales;
inlined, no kernel.

Forms of a weight [N, K], row-major (FORM of the kernels)
  "same"  x and w have one type: bf16, or e4m3 each
  "wide"  w is e4m3 and becomes x's bf16, exactly
  "i8"    u8, value q - zero, -255 to 255: exact in bf16
  "i4"    u8 [N, K / 2]: byte r of 16 for each 32 columns holds q of column r and, above, of 16 + r
  w_scale f32, f16 or bf16: [N] where GROUP is 0, else [N, K / GROUP]; None where FORM is "same" of
          bf16. The sum over a group's columns is exact but for the order of f32 sums, and is
          multiplied by the scale then: no weight is rounded.
  w_zero  u8 like w_scale, or None: 8 of "i4", 128 of "i8"
  x_scale f32 [M] or None: what a row of e4m3 x is multiplied by
"""

import triton
import triton.language as tl

MAGIC = tl.constexpr(0x4B000000)  # 2^23 as f32: integers below it are its low bits
MAGIC_VALUE = tl.constexpr(8388608.0)


@triton.jit
def centered(q, zero, FORM: tl.constexpr):
    """q - zero in f32, exactly; zero None: the middle of the form's range."""
    wide = (q.to(tl.int32) | MAGIC).to(tl.float32, bitcast=True)
    if zero is not None:
        value = wide - (zero.to(tl.float32) + MAGIC_VALUE)
    elif FORM == "i4":
        value = wide - (MAGIC_VALUE + 8.0)
    else:
        value = wide - (MAGIC_VALUE + 128.0)
    return value


@triton.jit
def low_columns(lane):
    """Columns of the low numbers of bytes: 0 to 15, 32 to 47, ..."""
    return lane // 16 * 32 + lane % 16


@triton.jit
def multiply(xs, ws, acc, SWAP: tl.constexpr):
    if SWAP:
        acc = tl.dot(ws, xs.T, acc)
    else:
        acc = tl.dot(xs, ws.T, acc)
    return acc


@triton.jit
def add_product(xs, ws, acc, zero, FORM: tl.constexpr, SWAP: tl.constexpr):
    """acc + xs @ ws^T, ws as loaded; zero [BLOCK_N] or None. Of "i4" xs is a pair."""
    if FORM == "i4":
        column = None if zero is None else zero[:, None]
        low = centered(ws & 15, column, FORM).to(xs[0].dtype)
        acc = multiply(xs[0], low, acc, SWAP)
        high = centered(ws >> 4, column, FORM).to(xs[1].dtype)
        acc = multiply(xs[1], high, acc, SWAP)
    elif FORM == "i8":
        column = None if zero is None else zero[:, None]
        acc = multiply(xs, centered(ws, column, FORM).to(xs.dtype), acc, SWAP)
    else:
        acc = multiply(xs, ws.to(xs.dtype), acc, SWAP)
    return acc


@triton.jit
def by_weights(acc, w_scale, at, exists, SWAP: tl.constexpr):
    """acc times a scale for each row of w, at these places."""
    scale = tl.load(w_scale + at, mask=exists, other=0.0).to(tl.float32)
    return acc * (scale[:, None] if SWAP else scale[None, :])


@triton.jit
def add_group(
    xs, ws, acc, w_scale, w_zero, n, exists, k,
    K: tl.constexpr, FORM: tl.constexpr, GROUP: tl.constexpr, SWAP: tl.constexpr,
):  # fmt: skip
    """acc + xs @ ws^T times the scales of the columns from k on, all of one group."""
    zero = None
    if GROUP == 0:
        if w_zero is not None:
            zero = tl.load(w_zero + n, mask=exists, other=0)
        acc = add_product(xs, ws, acc, zero, FORM, SWAP)
    else:
        at = n.to(tl.int64) * ((K + GROUP - 1) // GROUP) + k // GROUP
        if w_zero is not None:
            zero = tl.load(w_zero + at, mask=exists, other=0)
        part = add_product(xs, ws, tl.zeros_like(acc), zero, FORM, SWAP)
        acc += by_weights(part, w_scale, at, exists, SWAP)
    return acc


@triton.jit
def scaled(
    acc, x_scale, w_scale, m, rows, n, exists, GROUP: tl.constexpr, SWAP: tl.constexpr
):  # fmt: skip
    """The sums of a tile, times the scales that are equal for all of K."""
    if w_scale is not None and GROUP == 0:
        acc = by_weights(acc, w_scale, n, exists, SWAP)
    if x_scale is not None:
        scale = tl.load(x_scale + m, mask=m < rows, other=0.0)
        acc *= scale[None, :] if SWAP else scale[:, None]
    return acc
