"""Small Triton kernels for the emulator: plain ones, and one for each limit and hazard."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add(x, y, z, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    tl.store(z + i, tl.load(x + i, mask=inside) + tl.load(y + i, mask=inside), mask=inside)


@triton.jit
def add_whole(x, y, z, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z + i, tl.load(x + i) + tl.load(y + i))


@triton.jit
def scale(x, y, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i) * factor)


@triton.jit
def row_sum(x, y, N: tl.constexpr, BLOCK: tl.constexpr):
    """Chunks of a row in a loop, then one reduction."""
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for at in range(0, N, BLOCK):
        total += tl.load(x + row * N + at + tl.arange(0, BLOCK))
    tl.store(y + row, tl.sum(total, 0))


@triton.jit
def whole_sum(x, y, N: tl.constexpr):
    tl.store(y + tl.program_id(0), tl.sum(tl.load(x + tl.arange(0, N)), 0))


@triton.jit
def matmul(a, b, c, K, M: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr):
    """c[M, N] = a[M, K] @ b[K, N], one program."""
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    k = tl.arange(0, BLOCK_K)
    acc = tl.zeros((M, N), tl.float32)
    for at in range(0, K, BLOCK_K):
        left = tl.load(a + m[:, None] * K + at + k[None, :])
        right = tl.load(b + (at + k)[:, None] * N + n[None, :])
        acc = tl.dot(left, right, acc, input_precision="ieee")
    tl.store(c + m[:, None] * N + n[None, :], acc)


@triton.jit
def gather(x, ids, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + tl.load(ids + i)))


@triton.jit
def copy_from(x, y, offset, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + offset + i))


# ---- one per limit


@triton.jit
def double(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, (tl.load(x + i).to(tl.float64) * 2.0).to(tl.float32))


@triton.jit
def reduce_first_axis(x, y, M: tl.constexpr, N: tl.constexpr):
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    tl.store(y + n, tl.sum(tl.load(x + m[:, None] * N + n[None, :]), 0))


@triton.jit
def reduce_cube(x, y, M: tl.constexpr):
    m = tl.arange(0, M)
    at = m[:, None, None] * M * M + m[None, :, None] * M + m[None, None, :]
    tl.store(y + m[:, None] * M + m[None, :], tl.sum(tl.load(x + at), 2))


@triton.jit
def five_functions(x, y, M: tl.constexpr):
    m = tl.arange(0, M)
    at = m[:, None] * M + m[None, :]
    v = tl.load(x + at)
    v = tl.dot(v, v, input_precision="ieee")
    v = tl.exp(v) + tl.log(v) + tl.sin(v) + tl.cos(v) + tl.sqrt(v)
    tl.store(y + at, v)


@triton.jit
def strided_product(x, y, M: tl.constexpr):
    """Reads and writes every second element beside tl.dot."""
    m = tl.arange(0, M)
    at = m[:, None] * 2 * M + 2 * m[None, :]
    v = tl.load(x + m[:, None] * M + m[None, :])
    tl.store(y + at, tl.dot(v, v, input_precision="ieee"))


@triton.jit
def gathered_product(x, ids, y, M: tl.constexpr):
    """A gather without mask beside tl.dot."""
    m = tl.arange(0, M)
    at = m[:, None] * M + m[None, :]
    v = tl.load(x + at)
    row = tl.load(x + (m * m) % M)
    tl.store(y + at, tl.dot(v, v, input_precision="ieee") + row[None, :])


@triton.jit
def integer_product(x, ids, y, M: tl.constexpr):
    """Loads a tile of i32 beside tl.dot."""
    m = tl.arange(0, M)
    at = m[:, None] * M + m[None, :]
    v = tl.load(x + at)
    product = tl.dot(v, v, input_precision="ieee")
    tl.store(y + at, tl.where(tl.load(ids + at) > 0, product, 0.0))


@triton.jit
def index_product(x, y, M: tl.constexpr):
    """Casts an index to float beside tl.dot."""
    m = tl.arange(0, M)
    at = m[:, None] * M + m[None, :]
    v = tl.load(x + at)
    tl.store(y + at, tl.dot(v, v, input_precision="ieee") + m[:, None].to(tl.float32))


@triton.jit
def cube_product(x, y, M: tl.constexpr):
    m = tl.arange(0, M)
    at = m[:, None, None] * M * M + m[None, :, None] * M + m[None, None, :]
    v = tl.load(x + at)
    tl.store(y + at, tl.dot(v, v, input_precision="ieee"))


@triton.jit
def gather_bytes(x, ids, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + tl.load(ids + i)).to(tl.int32))


@triton.jit
def exchange(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.atomic_xchg(x + i, 1))


# ---- one per hazard


@triton.jit
def relies_on_other(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y, tl.sum(tl.load(x + i, mask=i < n, other=0.0), 0))


@triton.jit
def masks_again(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y, tl.sum(tl.where(i < n, tl.load(x + i, mask=i < n, other=0.0), 0.0), 0))


@triton.jit
def repeated_row(x, bias, y, M: tl.constexpr):
    """A load of stride 0 beside tl.dot."""
    m = tl.arange(0, M)
    at = m[:, None] * M + m[None, :]
    v = tl.load(x + at)
    repeated = tl.load(tl.broadcast_to(bias + m[:, None], (M, M)))
    tl.store(y + at, tl.dot(v, v, input_precision="ieee") + repeated)


@triton.jit
def where_tile(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.store(y + i, tl.where(i < n, v, v + v))


@triton.jit
def half_times_float(x, w, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i).to(tl.float32) * tl.load(w + i))


@triton.jit
def unrolled_loops(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in tl.static_range(3):
        for at in range(0, n):
            total += tl.load(x + at * BLOCK + i)
    tl.store(y + i, total)


@triton.jit
def differs_from_zero(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, (tl.load(x + i) != 0.0).to(tl.int32))


# ---- a toy model: logits of a row are the table's row of its token, plus what the state holds


@triton.jit
def remember(token_ids, slots, state):
    """state[slot] = token."""
    t = tl.program_id(0)
    tl.store(state + tl.load(slots + t), tl.load(token_ids + t).to(tl.float32))


@triton.jit
def toy_logits(token_ids, slots, logit_rows, table, state, y, VOCAB: tl.constexpr):
    row = tl.program_id(0)
    t = tl.load(logit_rows + row)
    i = tl.arange(0, VOCAB)
    held = tl.load(state + tl.load(slots + t))
    tl.store(y + row * VOCAB + i, tl.load(table + tl.load(token_ids + t) * VOCAB + i) + held)


@triton.jit
def matmul_t(a, b, c, K, M: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr):
    """c[M, N] = a[M, K] @ b[N, K]^T, one program."""
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    k = tl.arange(0, BLOCK_K)
    acc = tl.zeros((M, N), tl.float32)
    for at in range(0, K, BLOCK_K):
        left = tl.load(a + m[:, None] * K + at + k[None, :])
        right = tl.load(b + n[:, None] * K + at + k[None, :]).to(tl.float32)
        acc = tl.dot(left, tl.trans(right), acc, input_precision="ieee")
    tl.store(c + m[:, None] * N + n[None, :], acc)
