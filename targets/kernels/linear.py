"""Dense linear layers: y[M, N] = epilogue(x[M, K] @ W[N, K]^T), f32 accumulation.

Layouts
  x         f32 [M, K], rows contiguous
  w         f32, bf16 or f16, packed "n64": [cdiv(N, 64), K, 64], element [nb, k, lane] is
            W[64 * nb + lane, k]; lanes beyond N are zero (`packing.pack_dense`)
  bias      f32 [N] or None; residual f32 [M, N] or None; y f32 [M, N] (may alias residual)
  Arguments that are None are given as constants (`constants={"bias": None}`) and are then no
  parameters of the compiled kernel.
Grid: (cdiv(M, BLOCK_M), cdiv(N, 64), 1). Tiles of M run fastest, so the programs that follow each
  other read the same weights.
Limits: BLOCK_M a power of two from 1 to 64; any K, N; BLOCK_K a power of two. rows = M is an i32.
Numerics: each output is one chain of fma over ascending k from 0, whatever BLOCK_M and BLOCK_K:
  a row has the same bits in every tile size. Epilogue order: + bias, activation, + residual.
"""

import triton
import triton.language as tl

from .activation import activate

LANES = tl.constexpr(64)  # outputs of one packed column block


@triton.jit
def load_x(x, m, k, rows, K: tl.constexpr, BLOCK_M: tl.constexpr, EVEN_K: tl.constexpr):
    """Tile of x at rows m and columns k; zero outside. A tile of one row is always inside."""
    pointers = x + m[:, None] * K + k[None, :]
    if BLOCK_M == 1:
        if EVEN_K:
            tile = tl.load(pointers)
        else:
            tile = tl.load(pointers, mask=k[None, :] < K, other=0.0)
    elif EVEN_K:
        tile = tl.load(pointers, mask=m[:, None] < rows, other=0.0)
    else:
        tile = tl.load(pointers, mask=(m[:, None] < rows) & (k[None, :] < K), other=0.0)
    return tile.to(tl.float32)


@triton.jit
def store_y(y, tile, m, n, rows, N: tl.constexpr, BLOCK_M: tl.constexpr):
    pointers = y + m[:, None] * N + n[None, :]
    if N % n.shape[0] == 0:
        if BLOCK_M == 1:
            tl.store(pointers, tile)
        else:
            tl.store(pointers, tile, mask=m[:, None] < rows)
    else:
        tl.store(pointers, tile, mask=(m[:, None] < rows) & (n[None, :] < N))


@triton.jit
def load_y(p, m, n, rows, N: tl.constexpr, BLOCK_M: tl.constexpr):
    """A tile of a matrix of y's shape (the residual)."""
    pointers = p + m[:, None] * N + n[None, :]
    if N % n.shape[0] != 0:
        tile = tl.load(pointers, mask=(m[:, None] < rows) & (n[None, :] < N), other=0.0)
    elif BLOCK_M == 1:
        tile = tl.load(pointers)
    else:
        tile = tl.load(pointers, mask=m[:, None] < rows, other=0.0)
    return tile.to(tl.float32)


@triton.jit
def load_row(p, n, N: tl.constexpr):
    """A per-output vector (bias) at columns n."""
    if N % n.shape[0] == 0:
        row = tl.load(p + n)
    else:
        row = tl.load(p + n, mask=n < N, other=0.0)
    return row


@triton.jit
def finish(
    acc, bias, residual, y, m0, m, n, rows,
    N: tl.constexpr, ACT: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """The epilogue: bias, activation, residual, store. m counts from the row m0."""
    if bias is not None:
        acc += load_row(bias, n, N)[None, :]
    acc = activate(acc, ACT)
    left = rows - m0
    if residual is not None:
        acc += load_y(residual + m0.to(tl.int64) * N, m, n, left, N, BLOCK_M)
    store_y(y + m0.to(tl.int64) * N, acc, m, n, left, N, BLOCK_M)


@triton.jit
def dot_step(
    acc, x, w, m, k0, rows,
    K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """acc + x[m, k0:k0+BLOCK_K] @ (the same rows of one packed column block)."""
    k = k0 + tl.arange(0, BLOCK_K)
    lane = tl.arange(0, LANES)
    xs = load_x(x, m, k, rows, K, BLOCK_M, K % BLOCK_K == 0)
    if K % BLOCK_K == 0:
        ws = tl.load(w + k[:, None] * LANES + lane[None, :])
    else:
        ws = tl.load(w + k[:, None] * LANES + lane[None, :], mask=k[:, None] < K, other=0.0)
    return tl.dot(xs, ws.to(tl.float32), acc, input_precision="ieee")


@triton.jit
def linear(
    x, w, bias, residual, y, rows,
    K: tl.constexpr, N: tl.constexpr, ACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """y = act(x @ W^T + bias) + residual."""
    m0 = tl.program_id(0) * BLOCK_M
    block = tl.program_id(1)
    m = tl.arange(0, BLOCK_M)
    x += m0.to(tl.int64) * K
    w += block.to(tl.int64) * (K * LANES)
    acc = tl.zeros((BLOCK_M, LANES), tl.float32)
    for k0 in range(0, K, BLOCK_K):
        acc = dot_step(acc, x, w, m, k0, rows - m0, K, BLOCK_M, BLOCK_K)
    n = block * LANES + tl.arange(0, LANES)
    finish(acc, bias, residual, y, m0, m, n, rows, N, ACT, BLOCK_M)


@triton.jit
def gated_linear(
    x, w, y, rows,
    K: tl.constexpr, N: tl.constexpr, ACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """y[M, N] = act(x @ G^T) * (x @ U^T).

    w holds the column blocks of G, then those of U: `pack_dense` of the concatenation when
    N % 64 == 0, else the two packed parts one after the other.
    """
    m0 = tl.program_id(0) * BLOCK_M
    block = tl.program_id(1)
    m = tl.arange(0, BLOCK_M)
    x += m0.to(tl.int64) * K
    gate = w + block.to(tl.int64) * (K * LANES)
    up = gate + (N + LANES - 1) // LANES * (K * LANES)
    acc_gate = tl.zeros((BLOCK_M, LANES), tl.float32)
    acc_up = tl.zeros((BLOCK_M, LANES), tl.float32)
    for k0 in range(0, K, BLOCK_K):
        acc_gate = dot_step(acc_gate, x, gate, m, k0, rows - m0, K, BLOCK_M, BLOCK_K)
        acc_up = dot_step(acc_up, x, up, m, k0, rows - m0, K, BLOCK_M, BLOCK_K)
    n = block * LANES + tl.arange(0, LANES)
    acc = activate(acc_gate, ACT) * acc_up
    store_y(y + m0.to(tl.int64) * N, acc, m, n, rows - m0, N, BLOCK_M)
