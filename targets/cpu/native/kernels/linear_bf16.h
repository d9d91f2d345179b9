// y = act(x w^T + bias) + residual, and the gated form act(x wg^T) * (x wu^T), for x in bf16 and
// weights in tiles (tiles.h) or dense bf16 tiles.
//
// Per group of inputs: even and odd inputs are two chains of f32 FMA from zero; their sum S is what
// AMX gives for one tile. acc += d S, then acc += m X with X the group's sum of x. The integers are
// exact in bf16, so rounding x is the only loss. Every row goes through the same operations for any
// number of rows, so results do not depend on the batch.
#pragma once
#include "amx.h"
#include "epilogue.h"
#include "tiles.h"

namespace linear {
using namespace tilec;
using tiles::LANES;

// C: K, N (outputs), HALVES, BLOCK_N (outputs of a program), BLOCK_M (rows of a program, a multiple
// of 16), ACT, HAS_BIAS, HAS_RESIDUAL, OUT_BF16 and the type's BITS, GROUP, HAS_MIN, ZERO, SUPER.
// Types with minimums come in groups of 32 and need the sums of x over each group.
template <class C, class X = bf16_t>
struct Problem {
  static constexpr int PARTS = C::BLOCK_N / LANES;    // blocks of one half
  static constexpr int BLOCKS = PARTS * C::HALVES;    // blocks of a program
  const X* x;
  const uint8_t* w;
  const float* bias;
  const float* residual;
  const float* sums;  // [rows, K / 32]
  void* y;
  int64_t rows;

  explicit Problem(const int64_t* args) {
    x = (const X*)args[0];
    w = (const uint8_t*)args[1];
    y = (void*)args[2];
    rows = int32_t(args[3]);
    int next = 4;
    sums = C::HAS_MIN ? (const float*)args[next++] : nullptr;
    bias = C::HAS_BIAS ? (const float*)args[next++] : nullptr;
    residual = C::HAS_RESIDUAL ? (const float*)args[next] : nullptr;
  }

  // Block b of a program whose first output is n0; past the last output: the last block again.
  int block_index(int64_t n0, int b) const {
    const int blocks = (C::N + LANES - 1) / LANES;
    const int part = int(n0 / LANES) + b % PARTS;
    return (b / PARTS) * blocks + (part < blocks ? part : blocks - 1);
  }

  void finish(const float (*acc)[C::BLOCK_M][LANES], int64_t m0, int count, int64_t n0) const {
    for (int r = 0; r < count; ++r)
      for (int b = 0; b < PARTS; ++b) {
        const int64_t n = n0 + b * LANES, at = (m0 + r) * C::N + n;
        if (n >= C::N) break;
        vf v = vld(acc[b][r]);
        if (C::HAS_BIAS) v = add(v, load(bias + n, n));
        v = epilogue::activate<C::ACT>(v);
        if (C::HALVES == 2) v = mul(v, vld(acc[(C::HALVES - 1) * PARTS + b][r]));
        if (C::HAS_RESIDUAL) v = add(v, load(residual + at, n));
        if (C::OUT_BF16) store((bf16_t*)y + at, v, n);
        else store((float*)y + at, v, n);
      }
  }

 private:
  // The last block of a weight may reach past its last output.
  static vf load(const float* from, int64_t n) {
    if (C::N % LANES == 0 || n + LANES <= C::N) return vld(from);
    vf v = vsplat(0.0f);
    for (int i = 0; n + i < C::N; ++i) put(v, i, from[i]);
    return v;
  }
  template <class T>
  static void store(T* to, vf v, int64_t n) {
    if (C::N % LANES == 0 || n + LANES <= C::N) return epilogue::store(to, v);
    for (int i = 0; n + i < C::N; ++i) st(to + i, get(v, i));
  }
};

// One row: weights go from memory to registers, no tile in between.
template <class C, class X>
INL void multiply_row(const Problem<C, X>& p, const uint8_t* const* blocks, int64_t m0,
                      float (*acc)[C::BLOCK_M][LANES]) {
  typedef tiles::Format<C> F;
  constexpr int BLOCKS = Problem<C>::BLOCKS, PARTS = tiles::DEPTH / C::GROUP;
  alignas(64) float x[C::K];
  for (int k = 0; k < C::K; k += LANES) vst(x + k, vld(p.x + m0 * C::K + k));
  const float* sums = C::HAS_MIN ? p.sums + m0 * F::GROUPS : nullptr;
#pragma GCC unroll 8
  for (int b = 0; b < BLOCKS; ++b) {
    vf total = vsplat(0.0f);
    for (int g = 0; g < F::GROUPS; ++g) {
      const uint8_t* record = F::record(blocks[b], g);
      for (int line = 0; line < F::RECORD; line += 64) __builtin_prefetch(record + 2048 + line);
#pragma GCC unroll 2
      for (int part = 0; part < PARTS; ++part) {
        const float* from = x + g * tiles::DEPTH + part * C::GROUP;
        vf even = vsplat(0.0f), odd = even, d, m;
#pragma GCC unroll 16
        for (int j = 0; j < C::GROUP / 2; ++j) {
          vf a, b;
          tiles::unpack_pair<C>(record, part * C::GROUP / 2 + j, a, b);
          even = fma(vsplat(from[2 * j]), a, even);
          odd = fma(vsplat(from[2 * j + 1]), b, odd);
        }
        tiles::load_scales<C>(blocks[b], g * PARTS + part, d, m);
        total = fma(add(even, odd), d, total);
        if (C::HAS_MIN) total = fma(vsplat(sums[g]), m, total);
      }
    }
    vst(acc[b][0], total);
  }
}

#ifdef HAVE_AMX
// Tiles: 0 and 1 weights of two groups, 2 and 3 rows of x, 4 to 7 results in flight.
template <class C>
INL void configure(int rows) {
  amx::Config config;
  config.set(0, C::GROUP / 2, 64);
  config.set(1, C::GROUP / 2, 64);
  config.set(2, rows, 2 * C::GROUP);
  config.set(3, rows, 2 * C::GROUP);
  for (int t = 4; t < 8; ++t) config.set(t, rows, 64);
  config.load();
}

const int BATCH = 2;        // groups whose weights are in registers at a time
const int STORE_LAG = 2;    // items between a product and its store
const int ADD_LAG = 5;      // items between a product and its use: its stores have left the buffer
const int RING = 4;

// Products of one item, a block of outputs and a tile of rows, for a batch of groups.
struct Products {
  alignas(64) float s[BATCH][16][LANES];
};

// Unpacked weights of a batch: a tile of GROUP inputs for each block and group.
template <class C>
struct Weights {
  alignas(64) uint16_t tile[Problem<C>::BLOCKS][BATCH][C::GROUP * LANES];
};

template <class C>
INL void unpack_batch(const uint8_t* block, int first, const tiles::Table<C>& table,
                      uint16_t (*to)[C::GROUP * LANES]) {
  typedef tiles::Format<C> F;
#pragma GCC unroll 2
  for (int i = 0; i < BATCH * C::GROUP / tiles::DEPTH; ++i) {
    const int g = first * C::GROUP / tiles::DEPTH + i;
    if (g >= F::GROUPS) break;
    const uint8_t* record = F::record(block, g);
    for (int line = 0; line < F::RECORD; line += 64) __builtin_prefetch(record + 2048 + line);
    tiles::unpack_record<C>(record, table, to[i * tiles::DEPTH / C::GROUP]);
  }
}

#define LINEAR_PRODUCT(g, xt, c)  \
  AMX_LOAD(xt, x, 2 * C::K);      \
  AMX_ZERO(c);                    \
  AMX_DOT_BF16(c, xt, g)

// acc += d S, += m X for the groups of a batch, in order.
template <class C, int GROUPS>
INL void add_scaled(float (*acc)[LANES], const Products& p, const float* sums, int from, int to,
                    const vf* d, const vf* m) {
  for (int r = from; r < to; ++r) {
    vf v = vld(acc[r]);
#pragma GCC unroll 2
    for (int g = 0; g < GROUPS; ++g) {
      v = fma(vld(p.s[g][r]), d[g], v);
      if (C::HAS_MIN) v = fma(vsplat(sums[r * (C::K / C::GROUP) + g]), m[g], v);
    }
    vst(acc[r], v);
  }
}

// All groups of a program for T tiles of `rows` rows (16 each, or one tile of fewer).
//
// Memory that was just stored must not be loaded at once: nothing forwards into a tile, and the
// stores of a tile leave the store buffer late. And a store that waits for its product blocks the
// scheduler. So four stages overlap: unpack the next batch of groups, multiply an item, store the
// item before the last, add up one whose stores are done.
template <class C, int T>
INL void multiply(const Problem<C>& p, const tiles::Table<C>& table, const uint8_t* const* blocks,
                  int64_t m0, int rows, float (*acc)[C::BLOCK_M][LANES]) {
  constexpr int BLOCKS = Problem<C>::BLOCKS, GROUPS = C::K / C::GROUP, ITEMS = BLOCKS * T;
  constexpr int BATCHES = (GROUPS + BATCH - 1) / BATCH, TOTAL = BATCHES * ITEMS;
  Weights<C> weights[2];
  Products ring[RING];
  const int all = T > 1 ? 16 * T : rows;
  for (int b = 0; b < BLOCKS; ++b) {
    for (int r = 0; r < all; ++r) vst(acc[b][r], vsplat(0.0f));
    unpack_batch<C>(blocks[b], 0, table, weights[0].tile[b]);
  }
  const auto has = [&](int item, int g) {  // the last batch may have one group
    return GROUPS % BATCH == 0 || g == 0 || item < TOTAL - ITEMS;
  };
  for (int item = 0; item < TOTAL + ADD_LAG; ++item) {
    const int batch = item / ITEMS, b = item % ITEMS / T, t = item % T;
    const bool live = item < TOTAL;
    if (live && t == 0) {
      const Weights<C>& now = weights[batch & 1];
      AMX_LOAD(0, now.tile[b][0], 64);
      AMX_LOAD(1, now.tile[b][1], 64);
      if (batch + 1 < BATCHES)
        unpack_batch<C>(blocks[b], (batch + 1) * BATCH, table, weights[~batch & 1].tile[b]);
    }
    const int late = item - ADD_LAG;
    vf d[BATCH], m[BATCH];
    float(*to)[LANES] = nullptr;
    const float* sums = nullptr;
    int from_group = 0;
    if (late >= 0) {
      const int lb = late % ITEMS / T, lt = late % T;
      from_group = late / ITEMS * BATCH;
      for (int g = 0; g < BATCH; ++g)
        if (has(late, g)) tiles::load_scales<C>(blocks[lb], from_group + g, d[g], m[g]);
      to = acc[lb] + 16 * lt;
      if (C::HAS_MIN) sums = p.sums + (m0 + 16 * lt) * GROUPS + from_group;
    }
    Products& out = ring[(item - STORE_LAG) & (RING - 1)];
    const bool stores = item >= STORE_LAG && item < TOTAL + STORE_LAG;
#pragma GCC unroll 2
    for (int g = 0; g < BATCH; ++g) {
      if (stores && has(item - STORE_LAG, g)) {
        if (item & 1) { if (g) { AMX_STORE(7, out.s[1], 64); } else { AMX_STORE(6, out.s[0], 64); } }
        else { if (g) { AMX_STORE(5, out.s[1], 64); } else { AMX_STORE(4, out.s[0], 64); } }
      }
      if (live && has(item, g)) {
        const bf16_t* x = p.x + (m0 + 16 * t) * C::K + (batch * BATCH + g) * C::GROUP;
        if (item & 1) { if (g) { LINEAR_PRODUCT(1, 3, 7); } else { LINEAR_PRODUCT(0, 2, 6); } }
        else { if (g) { LINEAR_PRODUCT(1, 3, 5); } else { LINEAR_PRODUCT(0, 2, 4); } }
      }
      if (late >= 0) {
        const Products& done = ring[late & (RING - 1)];
        const int low = 8 * g, high = g ? rows : (rows < 8 ? rows : 8);
        if (has(late, 1)) add_scaled<C, 2>(to, done, sums, low, high, d, m);
        else add_scaled<C, 1>(to, done, sums, low, high, d, m);
      }
    }
  }
}

template <class C>
INL void program(const Problem<C>& p, const tiles::Table<C>& table, int64_t n0, int64_t m0) {
  constexpr int BLOCKS = Problem<C>::BLOCKS, TILES = C::BLOCK_M / 16;
  alignas(64) float acc[BLOCKS][C::BLOCK_M][LANES];
  const uint8_t* blocks[BLOCKS];
  for (int b = 0; b < BLOCKS; ++b)
    blocks[b] = p.w + p.block_index(n0, b) * tiles::Format<C>::BLOCK;
  int64_t left = p.rows - m0 < C::BLOCK_M ? p.rows - m0 : C::BLOCK_M;
  if (left == C::BLOCK_M && TILES > 1 && TILES <= 4) {
    configure<C>(16);
    multiply<C, TILES>(p, table, blocks, m0, 16, acc);
    p.finish(acc, m0, C::BLOCK_M, n0);
    return;
  }
  for (; left > 1; left -= 16, m0 += 16) {
    const int rows = left < 16 ? int(left) : 16;
    configure<C>(rows);
    multiply<C, 1>(p, table, blocks, m0, rows, acc);
    p.finish(acc, m0, rows, n0);
  }
  if (left == 1) {
    multiply_row<C>(p, blocks, m0, acc);
    p.finish(acc, m0, 1, n0);
  }
}
#endif

// R rows of a group: even and odd inputs are a chain each.
template <class C, int R>
INL void multiply_group(const float (*x)[C::GROUP], const float (*w)[C::GROUP / 2][LANES],
                        const float* sums, vf d, vf m, float (*acc)[LANES]) {
  vf even[R], odd[R];
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) even[i] = odd[i] = vsplat(0.0f);
  for (int j = 0; j < C::GROUP / 2; ++j) {
    const vf low = vld(w[0][j]), high = vld(w[1][j]);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      even[i] = fma(vsplat(x[i][2 * j]), low, even[i]);
      odd[i] = fma(vsplat(x[i][2 * j + 1]), high, odd[i]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
    vf v = fma(add(even[i], odd[i]), d, vld(acc[i]));
    if (C::HAS_MIN) v = fma(vsplat(sums[i * (C::K / C::GROUP)]), m, v);
    vst(acc[i], v);
  }
}

// A program in vector registers.
template <class C, class X>
INL void program_fma(const Problem<C, X>& p, int64_t n0, int64_t m0) {
  typedef tiles::Format<C> F;
  constexpr int BLOCKS = Problem<C>::BLOCKS, GROUP = C::GROUP, R = TC_NL == 16 ? 8 : 2;
  alignas(64) float acc[BLOCKS][C::BLOCK_M][LANES];
  alignas(64) float x[C::BLOCK_M][GROUP];
  alignas(64) float w[2][GROUP / 2][LANES];
  const uint8_t* blocks[BLOCKS];
  for (int b = 0; b < BLOCKS; ++b) blocks[b] = p.w + p.block_index(n0, b) * F::BLOCK;
  const int here = p.rows - m0 < C::BLOCK_M ? int(p.rows - m0) : C::BLOCK_M;
  if (here == 1) {
    multiply_row<C>(p, blocks, m0, acc);
    return p.finish(acc, m0, 1, n0);
  }
  for (int b = 0; b < BLOCKS; ++b)
    for (int r = 0; r < here; ++r) vst(acc[b][r], vsplat(0.0f));
  for (int g = 0; g < C::K / GROUP; ++g) {
    for (int r = 0; r < here; ++r)
      for (int k = 0; k < GROUP; k += LANES)
        vst(x[r] + k, vld(p.x + (m0 + r) * C::K + g * GROUP + k));
    const float* sums = C::HAS_MIN ? p.sums + m0 * (C::K / GROUP) + g : nullptr;
    for (int b = 0; b < BLOCKS; ++b) {
      const int first = g * GROUP % tiles::DEPTH / 2;
      const uint8_t* record = F::record(blocks[b], g * GROUP / tiles::DEPTH);
      for (int line = 0; line < F::RECORD; line += 64) __builtin_prefetch(record + 2048 + line);
      vf d, m;
      tiles::load_scales<C>(blocks[b], g, d, m);
#pragma GCC unroll 16
      for (int j = 0; j < GROUP / 2; ++j) {
        vf even, odd;
        tiles::unpack_pair<C>(record, first + j, even, odd);
        vst(w[0][j], even);
        vst(w[1][j], odd);
      }
      int r = 0;
      for (; r + R <= here; r += R)
        multiply_group<C, R>(x + r, w, sums + r * (C::K / GROUP), d, m, acc[b] + r);
      for (; r + 2 <= here; r += 2)
        multiply_group<C, 2>(x + r, w, sums + r * (C::K / GROUP), d, m, acc[b] + r);
      if (r < here) multiply_group<C, 1>(x + r, w, sums + r * (C::K / GROUP), d, m, acc[b] + r);
    }
  }
  p.finish(acc, m0, here, n0);
}

}  // namespace linear

// args: x, w, y, rows, then sums, bias and residual where there are any. grid: blocks of N, blocks of M.
template <class C>
void linear_bf16(const int64_t* args, const int32_t* grid, int64_t begin, int64_t end) {
  const linear::Problem<C> p(args);
#ifdef HAVE_AMX
  const tiles::Table<C> table;
#endif
  for (int64_t id = begin; id < end; ++id) {
    const int64_t n0 = id % grid[0] * C::BLOCK_N, m0 = id / grid[0] * C::BLOCK_M;
#ifdef HAVE_AMX
    linear::program<C>(p, table, n0, m0);
#else
    linear::program_fma<C>(p, n0, m0);
#endif
  }
#ifdef HAVE_AMX
  amx::release();
#endif
}
