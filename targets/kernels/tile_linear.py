"""Linear layers of bf16 or i8 activations on weights in tiles: y[M, N] = epilogue(x @ W[N, K]^T).

Layouts
  x         bf16 [M, K], or i8 with WITH_SCALES
  side      f32 [M, K/32] by group of 32 inputs: of bf16 x its sums, None for types without minimum;
            WITH_SCALES: what x is scaled by
  w         u8, tiles of 16 outputs x 32 inputs, `targets/cpu/tiles.py`: a block of 16 outputs is
            a run of records, a record the integers of 32 inputs and their scales. bf16 weights: u8
            bytes of [N/16, K/32, 16 pairs of inputs, 16, 2].
  bias      f32 [N] or None;  residual f32 [M, N] or None;  y f32 or bf16 [M, N]
  Arguments that are None are given as constants and are no parameters of the compiled kernel.
Grid: (cdiv(M, BLOCK_M), cdiv(N, BLOCK_N), 1).
Limits: BLOCK_M a power of two, BLOCK_N one of at least 16; K % 32 == 0, K % 256 == 0 for SUPER;
  any N, for a gated product N % 16 == 0. rows = M is an i32.
Numerics: `tl.dot` of bf16 by bf16: per group of inputs the even and the odd ones are two chains of
  f32 fma from 0, S = even + odd. Integers are exact in bf16. acc = fma(S, d, acc), then
  fma(sum of x, m, acc): the same bits for every BLOCK_M, and those of the kernels written by hand.
  WITH_SCALES: x is exact in bf16 too and S, below 2^24, the exact sum of the products of integers;
  acc = fma(S, d dx, acc), then fma(m, dx (exact sum of integer x), acc).
  gather_tiles gives ggml's values. round_rows sums halves of a group, then halves of those.
"""

import triton
import triton.language as tl

from .activation import activate
from .linear import finish, store_y

TILE = tl.constexpr(16)  # outputs of a block
DEPTH = tl.constexpr(32)  # inputs of a record


@triton.jit
def record_words(BITS: tl.constexpr, HAS_MIN: tl.constexpr, SUPER: tl.constexpr):
    """32-bit words of one record: a vector of 16 for each bit plane, then the scales."""
    words: tl.constexpr = BITS * 16 + (16 if HAS_MIN and not SUPER else 8)
    return words


@triton.jit
def header_words(HAS_MIN: tl.constexpr, SUPER: tl.constexpr):
    """32-bit words in front of the eight records of a super-block: its scales."""
    words: tl.constexpr = 0 if not SUPER else 16 if HAS_MIN else 8
    return words


@triton.jit
def block_words(K: tl.constexpr, BITS: tl.constexpr, HAS_MIN: tl.constexpr, SUPER: tl.constexpr):
    """32-bit words of 16 outputs."""
    records: tl.constexpr = K // 32 * record_words(BITS, HAS_MIN, SUPER)
    words: tl.constexpr = records + K // 256 * header_words(HAS_MIN, SUPER)
    return words


@triton.jit
def interleave_k(even, odd, PAIRS: tl.constexpr, COLUMNS: tl.constexpr):
    """Two [PAIRS, COLUMNS] as [2 * PAIRS, COLUMNS]: even rows from one, odd from the other."""
    both = tl.permute(tl.join(even, odd), (0, 2, 1))
    return tl.reshape(both, (2 * PAIRS, COLUMNS))


@triton.jit
def unpack(
    words, FIRST: tl.constexpr, PAIRS: tl.constexpr, COLUMNS: tl.constexpr,
    BITS: tl.constexpr, ZERO: tl.constexpr,
):  # fmt: skip
    """bf16 [2 * PAIRS, COLUMNS]: q - ZERO of PAIRS pairs of inputs of a record, from FIRST on.

    Exact. words: pointers to the lanes of the record's first vector.
    """
    j = FIRST + tl.arange(0, PAIRS)
    if BITS == 8:
        both = tl.load(words[None, :] + ((j // 4 * 2 + j % 2) * 16)[:, None])
        low = (j % 4 // 2 * 8)[:, None]
        even = ((both >> low) & 255) - 128
        odd = ((both >> (low + 16)) & 255) - 128
    else:
        both = tl.load(words[None, :] + (j // 4 * 16)[:, None])
        low = (j % 4 * 4)[:, None]
        even = (both >> low) & 15
        odd = (both >> (low + 16)) & 15
        if BITS > 4:
            PER: tl.constexpr = 16 // (BITS - 4)
            MASK: tl.constexpr = (1 << (BITS - 4)) - 1
            high = tl.load(words[None, :] + (64 + j // PER * 16)[:, None])
            at = (j % PER * (BITS - 4))[:, None]
            even = even | (((high >> at) & MASK) << 4)
            odd = odd | (((high >> (at + 16)) & MASK) << 4)
        even = even - ZERO
        odd = odd - ZERO
    return interleave_k(even.to(tl.bfloat16), odd.to(tl.bfloat16), PAIRS, COLUMNS)


@triton.jit
def tile_scales(
    w, words, lane, record, header, PART: tl.constexpr, BITS: tl.constexpr,
    GROUP: tl.constexpr, HAS_MIN: tl.constexpr, SUPER: tl.constexpr,
):  # fmt: skip
    """Scale of a group, and what is added per unit of input; f32 [lanes].

    record, header: where they start, in words from w; lane: words from there to each output's.
    """
    at = record + BITS * 16
    halves = w.to(tl.pointer_type(tl.float16))
    minimum = tl.zeros(lane.shape, tl.float32)
    if not SUPER:
        d = tl.load(halves + (2 * (words + at) + lane)).to(tl.float32)
        if HAS_MIN:
            minimum = tl.load(halves + (2 * (words + at) + 16 + lane)).to(tl.float32)
    else:
        scale = tl.load(halves + (2 * (words + header) + lane)).to(tl.float32)
        if HAS_MIN:
            d = scale * tl.load(w + (4 * (words + at) + lane)).to(tl.float32)
            least = tl.load(halves + (2 * (words + header) + 16 + lane)).to(tl.float32)
            minimum = -(least * tl.load(w + (4 * (words + at) + 16 + lane)).to(tl.float32))
        else:
            signed = w.to(tl.pointer_type(tl.int8))
            d = scale * tl.load(signed + (4 * (words + at) + 16 * PART + lane)).to(tl.float32)
    return d, minimum


@triton.jit
def places(g, BITS: tl.constexpr, HAS_MIN: tl.constexpr, SUPER: tl.constexpr):
    """Where record g and the header of its super-block start, in words."""
    header = g // 8 * (8 * record_words(BITS, HAS_MIN, SUPER) + header_words(HAS_MIN, SUPER))
    record = g * record_words(BITS, HAS_MIN, SUPER)
    if SUPER:
        record += (g // 8 + 1) * header_words(HAS_MIN, SUPER)
    return record, header


@triton.jit
def add_group(
    acc, x, w, side, block, m, g, rows, PART: tl.constexpr,
    K: tl.constexpr, BLOCK_N: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    HAS_MIN: tl.constexpr, ZERO: tl.constexpr, SUPER: tl.constexpr, WITH_SCALES: tl.constexpr,
):  # fmt: skip
    """acc + x @ W of one group of inputs: the PART of record g."""
    words = block.to(tl.int64) * block_words(K, BITS, HAS_MIN, SUPER)
    lane = tl.arange(0, BLOCK_N) % 16
    record, header = places(g, BITS, HAS_MIN, SUPER)
    first = w.to(tl.pointer_type(tl.int32)) + (words + record + lane)
    ws = unpack(first, PART * (GROUP // 2), GROUP // 2, BLOCK_N, BITS, ZERO)
    k = g * 32 + PART * GROUP + tl.arange(0, GROUP)
    xs = load_rows(x + m[:, None] * K + k[None, :], m, rows)
    product = tl.dot(xs.to(tl.bfloat16), ws)
    d, minimum = tile_scales(w, words, lane, record, header, PART, BITS, GROUP, HAS_MIN, SUPER)
    if WITH_SCALES:
        scale = load_rows(side + m * (K // 32) + g, m, rows)
        acc = tl.fma(product, d[None, :] * scale[:, None], acc)
        if HAS_MIN:
            total = scale * tl.sum(xs.to(tl.float32), 1)
            acc = tl.fma(total[:, None], minimum[None, :], acc)
    else:
        acc = tl.fma(product, d[None, :], acc)
        if HAS_MIN:
            total = load_rows(side + m * (K // 32) + g, m, rows)
            acc = tl.fma(total[:, None], minimum[None, :], acc)
    return acc


@triton.jit
def load_rows(pointers, m, rows):
    """A vector or tile with one row for each m, zero from `rows` on; one row is always inside."""
    if m.shape[0] == 1:
        tile = tl.load(pointers)
    elif len(pointers.shape) == 1:
        tile = tl.load(pointers, mask=m < rows, other=0.0)
    else:
        tile = tl.load(pointers, mask=m[:, None] < rows, other=0.0)
    return tile


@triton.jit
def blocks_of(first, N: tl.constexpr, BLOCK_N: tl.constexpr):
    """The block of 16 outputs of each lane; past the last output: the last block again."""
    block = first // 16 + tl.arange(0, BLOCK_N) // 16
    if N % BLOCK_N != 0:
        block = tl.minimum(block, (N - 1) // 16)
    return block


@triton.jit
def add_dense(
    acc, x, w, block, m, k0, rows,
    K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """acc + x @ W of BLOCK_K inputs of bf16 weights."""
    words = block.to(tl.int64) * (K * 8) + k0 * 8 + tl.arange(0, BLOCK_N) % 16
    pairs = tl.arange(0, BLOCK_K // 2)
    first = w.to(tl.pointer_type(tl.int32)) + words
    both = tl.load(first[None, :] + (pairs * 16)[:, None])
    even = both.to(tl.int16).to(tl.bfloat16, bitcast=True)
    odd = (both >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    ws = interleave_k(even, odd, BLOCK_K // 2, BLOCK_N)
    k = k0 + tl.arange(0, BLOCK_K)
    xs = load_rows(x + m[:, None] * K + k[None, :], m, rows)
    return tl.dot(xs, ws, acc)


@triton.jit
def tile_linear(
    x, w, side, bias, residual, y, rows,
    K: tl.constexpr, N: tl.constexpr, ACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    HAS_MIN: tl.constexpr, ZERO: tl.constexpr, SUPER: tl.constexpr, WITH_SCALES: tl.constexpr,
):  # fmt: skip
    """y = act(x @ W^T + bias) + residual."""
    m0 = tl.program_id(0) * BLOCK_M
    n0 = tl.program_id(1) * BLOCK_N
    m = tl.arange(0, BLOCK_M)
    x += m0.to(tl.int64) * K
    if HAS_MIN or WITH_SCALES:
        side += m0.to(tl.int64) * (K // 32)
    block = blocks_of(n0, N, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for g in range(K // 32):
        for part in tl.static_range(32 // GROUP):
            acc = add_group(
                acc, x, w, side, block, m, g, rows - m0, part,
                K, BLOCK_N, BITS, GROUP, HAS_MIN, ZERO, SUPER, WITH_SCALES,
            )  # fmt: skip
    finish(acc, bias, residual, y, m0, m, n0 + tl.arange(0, BLOCK_N), rows, N, ACT, BLOCK_M)


@triton.jit
def gated_tile_linear(
    x, w, side, y, rows,
    K: tl.constexpr, N: tl.constexpr, ACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    HAS_MIN: tl.constexpr, ZERO: tl.constexpr, SUPER: tl.constexpr, WITH_SCALES: tl.constexpr,
):  # fmt: skip
    """y[M, N] = act(x @ G^T) * (x @ U^T); w holds G's blocks, then U's."""
    m0 = tl.program_id(0) * BLOCK_M
    n0 = tl.program_id(1) * BLOCK_N
    m = tl.arange(0, BLOCK_M)
    x += m0.to(tl.int64) * K
    if HAS_MIN or WITH_SCALES:
        side += m0.to(tl.int64) * (K // 32)
    gate = blocks_of(n0, N, BLOCK_N)
    up = gate + N // 16
    acc_gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    acc_up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for g in range(K // 32):
        for part in tl.static_range(32 // GROUP):
            acc_gate = add_group(
                acc_gate, x, w, side, gate, m, g, rows - m0, part,
                K, BLOCK_N, BITS, GROUP, HAS_MIN, ZERO, SUPER, WITH_SCALES,
            )  # fmt: skip
            acc_up = add_group(
                acc_up, x, w, side, up, m, g, rows - m0, part,
                K, BLOCK_N, BITS, GROUP, HAS_MIN, ZERO, SUPER, WITH_SCALES,
            )  # fmt: skip
    acc = activate(acc_gate, ACT) * acc_up
    n = n0 + tl.arange(0, BLOCK_N)
    store_y(y + m0.to(tl.int64) * N, acc, m, n, rows - m0, N, BLOCK_M)


@triton.jit
def dense_tile_linear(
    x, w, bias, residual, y, rows,
    K: tl.constexpr, N: tl.constexpr, ACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """y = act(x @ W^T + bias) + residual for bf16 weights; K % BLOCK_K == 0."""
    m0 = tl.program_id(0) * BLOCK_M
    n0 = tl.program_id(1) * BLOCK_N
    m = tl.arange(0, BLOCK_M)
    x += m0.to(tl.int64) * K
    block = blocks_of(n0, N, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k0 in range(0, K, BLOCK_K):
        acc = add_dense(acc, x, w, block, m, k0, rows - m0, K, BLOCK_N, BLOCK_K)
    finish(acc, bias, residual, y, m0, m, n0 + tl.arange(0, BLOCK_N), rows, N, ACT, BLOCK_M)


@triton.jit
def gated_dense_tile_linear(
    x, w, y, rows,
    K: tl.constexpr, N: tl.constexpr, ACT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """y[M, N] = act(x @ G^T) * (x @ U^T) for bf16 weights: G's blocks, then U's."""
    m0 = tl.program_id(0) * BLOCK_M
    n0 = tl.program_id(1) * BLOCK_N
    m = tl.arange(0, BLOCK_M)
    x += m0.to(tl.int64) * K
    gate = blocks_of(n0, N, BLOCK_N)
    acc_gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    acc_up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k0 in range(0, K, BLOCK_K):
        acc_gate = add_dense(acc_gate, x, w, gate, m, k0, rows - m0, K, BLOCK_N, BLOCK_K)
        acc_up = add_dense(acc_up, x, w, gate + N // 16, m, k0, rows - m0, K, BLOCK_N, BLOCK_K)
    acc = activate(acc_gate, ACT) * acc_up
    n = n0 + tl.arange(0, BLOCK_N)
    store_y(y + m0.to(tl.int64) * N, acc, m, n, rows - m0, N, BLOCK_M)


@triton.jit
def gather_tiles(
    table, ids, y, K: tl.constexpr, BITS: tl.constexpr,
    GROUP: tl.constexpr, HAS_MIN: tl.constexpr, ZERO: tl.constexpr, SUPER: tl.constexpr,
):  # fmt: skip
    """Rows of a table in tiles by index, f32 [T, K]; one program per row."""
    t = tl.program_id(0)
    row = tl.load(ids + t)
    words = (row // 16).to(tl.int64) * block_words(K, BITS, HAS_MIN, SUPER)
    lane = row % 16 + tl.arange(0, 1)
    y += t.to(tl.int64) * K
    for g in range(K // 32):
        record, header = places(g, BITS, HAS_MIN, SUPER)
        first = table.to(tl.pointer_type(tl.int32)) + (words + record + lane)
        for part in tl.static_range(32 // GROUP):
            q = unpack(first, part * (GROUP // 2), GROUP // 2, 1, BITS, ZERO).to(tl.float32)
            d, minimum = tile_scales(
                table, words, lane, record, header, part, BITS, GROUP, HAS_MIN, SUPER
            )
            value = q * d[None, :]
            if HAS_MIN:
                value += minimum[None, :]
            k = g * 32 + part * GROUP + tl.arange(0, GROUP)
            tl.store(y + k[:, None], value)


@triton.jit
def round_rows(x, rounded, sums, K: tl.constexpr):
    """x in bf16, and its sums by group of 32; one program per row."""
    t = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, 32)
    for g in range(K // 32):
        group = tl.load(x + (t * K + g * 32) + k).to(tl.bfloat16)
        tl.store(rounded + (t * K + g * 32) + k, group)
        tl.store(sums + (t * (K // 32) + g), tl.sum(group.to(tl.float32)))


@triton.jit
def quantize_rows(x, integers, scales, K: tl.constexpr):
    """x as i8 by group of 32, and the scales, absmax / 127; one program per row.

    As `ir.ops.activations.QuantizeRows`: a group below 2^-100 is zeros with scale 0, one with NaN
    or infinity zeros with scale NaN. Adding and taking off 1.5 * 2^23 rounds to nearest, ties to
    even.
    """
    t = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, 32)
    for g in range(K // 32):
        group = tl.load(x + (t * K + g * 32) + k)
        # Of magnitudes the greater has the greater bits, infinity and NaN greater than all.
        most = tl.max(group.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0)
        largest = most.to(tl.float32, bitcast=True)
        is_tiny = most < 0x0D800000
        is_usable = (most >= 0x0D800000) & (most < 0x7F800000)
        safe = tl.where(is_usable, largest, 1.0)
        scaled = tl.where(is_usable, group, 0.0) * (127.0 / safe)
        whole = (scaled + 12582912.0) - 12582912.0
        tl.store(integers + (t * K + g * 32) + k, whole.to(tl.int8))
        odd = tl.where(is_tiny, 0.0, float("nan"))
        tl.store(scales + (t * (K // 32) + g), tl.where(is_usable, safe / 127.0, odd))
