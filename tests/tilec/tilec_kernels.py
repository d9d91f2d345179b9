"""Small Triton kernels that each exercise one thing; the tests beside this file run them."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def axpy(x, y, n, a, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    tl.store(y + i, tl.load(x + i, mask=inside) * a + tl.load(y + i, mask=inside), mask=inside)


@triton.jit
def functions(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.store(y + i, tl.exp(v))
    tl.store(y + n + i, tl.log(tl.abs(v)))
    tl.store(y + 2 * n + i, tl.sin(v))
    tl.store(y + 3 * n + i, tl.cos(v))
    tl.store(y + 4 * n + i, libdevice.tanh(v))
    tl.store(y + 5 * n + i, tl.erf(v))
    tl.store(y + 6 * n + i, tl.exp2(v))
    tl.store(y + 7 * n + i, tl.sqrt(tl.abs(v)))
    tl.store(y + 8 * n + i, tl.floor(v))


@triton.jit
def row_sums(x, y, N: tl.constexpr):
    row = tl.program_id(0)
    v = tl.load(x + row * N + tl.arange(0, N))
    tl.store(y + row, tl.sum(v))


@triton.jit
def tile_reductions(x, rows_sum, columns_max, where, total, M: tl.constexpr, N: tl.constexpr):
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    v = tl.load(x + m[:, None] * N + n[None, :])
    tl.store(rows_sum + m, tl.sum(v, 1))
    tl.store(columns_max + n, tl.max(v, 0))
    tl.store(where + m, tl.argmax(v, 1))
    tl.store(total, tl.sum(v))


@triton.jit
def shapes(x, transposed, halves, joined, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    tile = tl.reshape(v, (N // 8, 8))
    tl.store(transposed + i, tl.reshape(tl.trans(tile), (N,)))
    even, odd = tl.split(tl.reshape(v, (N // 2, 2)))
    tl.store(halves + tl.arange(0, N // 2), even - odd)
    tl.store(joined + i, tl.interleave(odd, even))


@triton.jit
def sorted_and_scanned(x, in_order, running, picked, index, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    tl.store(in_order + i, tl.sort(v))
    tl.store(running + i, tl.cumsum(v, 0))
    tl.store(picked + i, tl.gather(v, tl.load(index + i), 0))


@triton.jit
def matmul(a, b, c, M, K, N: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    left = a + m[:, None] * K + k[None, :]
    right = b + k[:, None] * N + n[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, K, BK):
        x = tl.load(left, mask=(m[:, None] < M) & (k0 + k[None, :] < K), other=0.0)
        w = tl.load(right, mask=k0 + k[:, None] < K, other=0.0).to(tl.float32)
        acc = tl.dot(x, w, acc)
        left += BK
        right += BK * N
    tl.store(c + m[:, None] * N + n[None, :], acc, mask=m[:, None] < M)


@triton.jit
def matmul_bf16(
    a, b, c, M, N: tl.constexpr, K: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, ALONE: tl.constexpr,
):  # fmt: skip
    """c = a @ b in bf16; ALONE: each step's product is made alone and added."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        x = tl.load(a + m[:, None] * K + k[None, :], mask=m[:, None] < M, other=0.0)
        w = tl.load(b + k[:, None] * N + n[None, :])
        if ALONE:
            acc += tl.dot(x, w)
        else:
            acc = tl.dot(x, w, acc)
    tl.store(c + m[:, None] * N + n[None, :], acc, mask=m[:, None] < M)


@triton.jit
def scaled_products(
    a, b, y, z, steps, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BK: tl.constexpr
):
    """y = sum of (a_k @ b_k) 2^k over steps, z = y before the last; all that moves is carried."""
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, BK)
    scale = 1.0
    acc = tl.zeros((M, N), tl.float32)
    before = tl.zeros((M, N), tl.float32)
    for _ in range(steps):
        x = tl.load(a + m[:, None] * K + k[None, :])
        w = tl.load(b + k[:, None] * N + n[None, :])
        a += BK
        b += BK * N
        before = acc
        acc = acc + tl.dot(x, w) * scale
        scale = scale * 2.0
    at = m[:, None] * N + n[None, :]
    tl.store(y + at, acc)
    tl.store(z + at, before)


@triton.jit
def swapped(x, y, z, steps, M: tl.constexpr, N: tl.constexpr):
    """Two carried tiles that change places."""
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    one = tl.load(x + at)
    other = one * 2.0
    for _ in range(steps):
        one, other = other, one
    tl.store(y + at, one)
    tl.store(z + at, other)


@triton.jit
def matmul_transposed(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + m[:, None] * K + k[None, :])
    w = tl.load(b + n[:, None] * K + k[None, :])
    tl.store(c + m[:, None] * N + n[None, :], tl.dot(tl.exp(x), tl.trans(w)))


@triton.jit
def bytes_and_halves(q, s, h, b, y, N: tl.constexpr):
    i = tl.arange(0, N)
    byte, signed = tl.load(q + i), tl.load(s + i)
    tl.store(y + i, (byte & 15).to(tl.float32))
    tl.store(y + N + i, (byte >> 4).to(tl.float32))
    tl.store(y + 2 * N + i, signed.to(tl.float32) - 8)
    tl.store(y + 3 * N + i, tl.load(h + i).to(tl.float32))
    tl.store(y + 4 * N + i, (tl.load(b + i) * tl.load(b + i)).to(tl.float32))
    tl.store(y + 5 * N + i, ((byte & 15).to(tl.int32) - 8).to(tl.float32))
    tl.store(y + 6 * N + i, ((byte + byte) >> 1).to(tl.float32))
    tl.store(y + 7 * N + i, (signed >> 1).to(tl.float32))


@triton.jit
def to_narrow(x, b, h, q, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i)
    tl.store(b + i, v.to(tl.bfloat16))
    tl.store(h + i, v.to(tl.float16))
    tl.store(q + i, v.to(tl.int8))


@triton.jit
def rotate_in_place(x, N: tl.constexpr):
    i = tl.arange(0, N)
    left, right = tl.load(x + i), tl.load(x + N + i)
    tl.store(x + i, left - right)
    tl.store(x + N + i, left + right)


@triton.jit
def reverse_in_place(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + (N - 1 - i), tl.load(x + i))


@triton.jit
def collatz(x, y, n):
    """Nested while and if on scalars: steps of each number to 1."""
    for at in range(0, n):
        value = tl.load(x + at)
        steps = 0
        while value != 1:
            if value % 2 == 0:
                value = value // 2
            else:
                value = 3 * value + 1
            steps += 1
        tl.store(y + at, steps)


@triton.jit
def branch_tiles(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
    if n > 3:
        w = tl.exp(v)
        r = tl.sum(v)
    else:
        w = v * 2.0
        r = 1.0
    tl.store(y + i, w + r)


@triton.jit
def online_softmax(x, y, M: tl.constexpr, N, BLOCK: tl.constexpr):
    m = tl.arange(0, M)
    top = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    for at in range(0, N, BLOCK):
        i = at + tl.arange(0, BLOCK)
        mask = i[None, :] < N
        v = tl.load(x + m[:, None] * N + i[None, :], mask=mask, other=float("-inf"))
        new = tl.maximum(top, tl.max(v, 1))
        total = total * tl.exp(top - new) + tl.sum(tl.exp(v - new[:, None]), 1)
        top = new
    for at in range(0, N, BLOCK):
        i = at + tl.arange(0, BLOCK)
        mask = i[None, :] < N
        v = tl.load(x + m[:, None] * N + i[None, :], mask=mask, other=float("-inf"))
        p = tl.exp(v - top[:, None]) / total[:, None]
        tl.store(y + m[:, None] * N + i[None, :], p, mask=mask)


@triton.jit
def integers(x, d, y, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(d + i)
    total = tl.num_programs(0) * N
    tl.store(y + i, a // b)
    tl.store(y + total + i, a % b)
    tl.store(y + 2 * total + i, (i // 64) * 1000 + i % 64)
    tl.store(y + 3 * total + i, tl.umulhi(a.to(tl.uint32), b.to(tl.uint32)).to(tl.int32))
    tl.store(y + 4 * total + i, (a.to(tl.int64) * b.to(tl.int64) >> 7).to(tl.int32))
    tl.store(y + 5 * total + i, tl.where((a > b) ^ (a > 0), a ^ b, a | b))
    tl.store(y + 6 * total + i, tl.minimum(a.to(tl.uint32), b.to(tl.uint32)).to(tl.int32))


@triton.jit
def count(x, bins, total, N: tl.constexpr):
    v = tl.load(x + tl.program_id(0) * N + tl.arange(0, N))
    tl.atomic_add(bins + v, 1)
    tl.atomic_add(total, tl.sum(v))


@triton.jit
def philox(y, seed, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.rand(seed, i))


@triton.jit
def asks_too_much(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.device_assert(i < N)
    tl.store(x + i, tl.inline_asm_elementwise("foo", "=r,r", [i], tl.int32, True, 1))
