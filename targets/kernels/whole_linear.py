"""Dense linear layers on whole tiles, nothing masked: y[M, N] = epilogue(x[M, K] @ W[N, K]^T).

For chips whose block transfers may not leave an allocation, even where a mask says no. The last
tile of rows or columns moves back to end where the matrix ends: two programs then make the same
values. So y must not be x or residual.

Layouts
  x         f32 [M, K]; w [N, K] of f32, bf16 or f16, rows contiguous, as checkpoints store it
  bias      f32 [N] or None; residual f32 [M, N] or None; y f32 [M, STRIDE], N columns of it, or
            STRIDE of N where w has rows of zeros below it (and bias memory for N)
  x, residual and y have memory for BLOCK_M rows where M is less; what lies there does not matter.
  Arguments that are None are given as constants and are no parameters of the compiled kernel.
Grid: (cdiv(M, BLOCK_M), cdiv(N, BLOCK_N), 1). Tiles of M run fastest: they share the weight.
Limits: tiles are powers of two from 16; BLOCK_N <= N; K % BLOCK_K == 0. rows = M is an i32.
Numerics: HALF multiplies in f16 (w is f16), else in f32; each output is one chain of fma in f32
  over ascending k, whatever the tile. Epilogue order: + bias, activation, + residual.
"""

import triton
import triton.language as tl

from .activation import activate


@triton.jit
def first_row(rows, BLOCK_M: tl.constexpr):
    """Where this program's tile of rows starts; 0 where there are fewer rows than a tile has."""
    return tl.maximum(tl.minimum(tl.program_id(0) * BLOCK_M, rows - BLOCK_M), 0)


@triton.jit
def dot_whole(
    acc, xs, w, k0,
    K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """acc + xs @ W[:, k0 : k0 + BLOCK_K]^T of the BLOCK_N rows from w on."""
    n = tl.arange(0, BLOCK_N)
    k = k0 + tl.arange(0, BLOCK_K)
    ws = tl.load(w + n[:, None] * K + k[None, :])
    if HALF:
        acc = tl.dot(xs.to(tl.float16), tl.trans(ws), acc)
    else:
        acc = tl.dot(xs, tl.trans(ws.to(tl.float32)), acc, input_precision="ieee")
    return acc


@triton.jit
def linear(
    x, w, bias, residual, y, rows,
    K: tl.constexpr, N: tl.constexpr, STRIDE: tl.constexpr, ACT: tl.constexpr, HALF: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """y = act(x @ W^T + bias) + residual."""
    m0 = first_row(rows, BLOCK_M).to(tl.int64)
    n0 = tl.minimum(tl.program_id(1) * BLOCK_N, N - BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    n = tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    x += m0 * K
    w += n0.to(tl.int64) * K
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k0 in range(0, K, BLOCK_K):
        xs = tl.load(x + m[:, None] * K + (k0 + k)[None, :])
        acc = dot_whole(acc, xs, w, k0, K, BLOCK_N, BLOCK_K, HALF)
    if bias is not None:
        acc += tl.load(bias + n0 + n)[None, :]
    acc = activate(acc, ACT)
    at = m[:, None] * STRIDE + n[None, :]
    if residual is not None:
        acc += tl.load(residual + m0 * STRIDE + n0 + at)
    y += m0 * STRIDE + n0
    if N > STRIDE:
        tl.store(y + at, acc, mask=n[None, :] < STRIDE)
    else:
        tl.store(y + at, acc)


@triton.jit
def gated_linear(
    x, w, y, rows,
    K: tl.constexpr, N: tl.constexpr, ACT: tl.constexpr, HALF: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """y[M, N] = act(x @ G^T) * (x @ U^T); w holds the N rows of G, then those of U."""
    m0 = first_row(rows, BLOCK_M).to(tl.int64)
    n0 = tl.minimum(tl.program_id(1) * BLOCK_N, N - BLOCK_N)
    m = tl.arange(0, BLOCK_M)
    n = tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    x += m0 * K
    gate = w + n0.to(tl.int64) * K
    up = gate + N * K
    acc_gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    acc_up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k0 in range(0, K, BLOCK_K):
        xs = tl.load(x + m[:, None] * K + (k0 + k)[None, :])
        acc_gate = dot_whole(acc_gate, xs, gate, k0, K, BLOCK_N, BLOCK_K, HALF)
        acc_up = dot_whole(acc_up, xs, up, k0, K, BLOCK_N, BLOCK_K, HALF)
    acc = activate(acc_gate, ACT) * acc_up
    tl.store(y + m0 * N + n0 + m[:, None] * N + n[None, :], acc)
