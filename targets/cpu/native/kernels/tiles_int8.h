// Products of 8-bit activations with AMX, for several rows: as linear_bf16.h, but that a tile of
// results holds exact integers, which are scaled when they are added up.
#pragma once
#include "linear_int8_problem.h"

#ifdef HAVE_AMX
namespace int8 {

const int BATCH = 2;      // groups whose weights are in registers at a time
const int STORE_LAG = 2;  // items between a product and its store
const int ADD_LAG = 5;    // items between a product and its use: its stores have left the buffer
const int RING = 4;

// Integer sums of one item, a block of outputs and a tile of rows, for a batch of groups.
struct Products {
  alignas(64) int32_t s[BATCH][16][LANES];
};

// Unpacked weights of a batch: a tile of GROUP inputs for each block and group.
template <class C>
struct Weights {
  alignas(64) int8_t tile[Problem<C>::BLOCKS][BATCH][C::GROUP * LANES];
};

// Tiles: 0 and 1 weights of two groups, 2 and 3 rows of x, 4 to 7 results in flight.
template <class C>
INL void configure(int rows) {
  amx::Config config;
  for (int t = 0; t < 2; ++t) config.set(t, C::GROUP / 4, 64);
  for (int t = 2; t < 4; ++t) config.set(t, rows, C::GROUP);
  for (int t = 4; t < 8; ++t) config.set(t, rows, 64);
  config.load();
}

// Integers less the type's zero, so that products need no correction.
template <class C>
INL void unpack_batch(const uint8_t* block, int first, int8_t (*to)[C::GROUP * LANES]) {
  typedef tiles::Format<C> F;
#pragma GCC unroll 2
  for (int i = 0; i < BATCH * C::GROUP / tiles::DEPTH; ++i) {
    const int g = first * C::GROUP / tiles::DEPTH + i;
    if (g >= F::GROUPS) break;
    const uint8_t* record = F::record(block, g);
    for (int line = 0; line < F::RECORD; line += 64) __builtin_prefetch(record + 2048 + line);
    vi q[8];
    tiles::unpack_quads<C>(record, q);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      __m512i v = (__m512i)q[j].p[0];
      if (Problem<C>::ZERO) v = _mm512_sub_epi8(v, _mm512_set1_epi8(char(Problem<C>::ZERO)));
      _mm512_store_si512(to[i * tiles::DEPTH / C::GROUP] + 64 * j, v);
    }
  }
}

#define INT8_PRODUCT(g, xt, c) \
  AMX_LOAD(xt, x, C::K);       \
  AMX_ZERO(c);                 \
  AMX_DOT_SS8(c, xt, g)

// What is added up for rows from `from` to `to`: the sums of GROUPS groups, in order.
template <class C, int GROUPS>
INL void add_scaled(float (*acc)[LANES], const Products& p, const float* scales,
                    const float* moments, int from, int to, const vf* d, const vf* m) {
  typedef Problem<C> P;
  for (int r = from; r < to; ++r) {
    vf v = vld(acc[r]);
#pragma GCC unroll 2
    for (int g = 0; g < GROUPS; ++g) {
      const int at = r * P::SCALES + g / P::PARTS;
      v = fma(to_f(vld(p.s[g][r])), mul(d[g], vsplat(scales[at])), v);
      if (C::HAS_MIN) v = fma(m[g], vsplat(moments[at]), v);
    }
    vst(acc[r], v);
  }
}

// All groups of a program for T tiles of `rows` rows (16 each, or one tile of fewer) from `at` on.
// Four stages overlap, for the reasons that linear_bf16.h gives.
template <class C, int T>
INL void multiply_tiles(const Problem<C>& p, const Sums<C>& row_sums, const uint8_t* const* blocks,
                        int at, int rows, float (*acc)[C::BLOCK_M][LANES]) {
  typedef Problem<C> P;
  constexpr int BLOCKS = P::BLOCKS, GROUPS = C::K / C::GROUP, ITEMS = BLOCKS * T;
  constexpr int BATCHES = (GROUPS + BATCH - 1) / BATCH, TOTAL = BATCHES * ITEMS;
  Weights<C> weights[2];
  Products ring[RING];
  const int all = T > 1 ? 16 * T : rows;
  const int64_t m0 = row_sums.m0 + at;
  for (int b = 0; b < BLOCKS; ++b) {
    for (int r = 0; r < all; ++r) vst(acc[b][at + r], vsplat(0.0f));
    unpack_batch<C>(blocks[b], 0, weights[0].tile[b]);
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
        unpack_batch<C>(blocks[b], (batch + 1) * BATCH, weights[~batch & 1].tile[b]);
    }
    const int late = item - ADD_LAG;
    vf d[BATCH], m[BATCH];
    float(*to)[LANES] = nullptr;
    const float *scales = nullptr, *moments = nullptr;
    if (late >= 0) {
      const int lb = late % ITEMS / T, lt = late % T, from = late / ITEMS * BATCH;
      for (int g = 0; g < BATCH; ++g)
        if (has(late, g)) tiles::load_scales<C>(blocks[lb], from + g, d[g], m[g]);
      to = acc[lb] + at + 16 * lt;
      scales = p.scales + (m0 + 16 * lt) * P::SCALES + from / P::PARTS;
      if (C::HAS_MIN) moments = row_sums.moments[at + 16 * lt] + from;
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
        const int8_t* x = p.integers + (m0 + 16 * t) * C::K + (batch * BATCH + g) * C::GROUP;
        if (item & 1) { if (g) { INT8_PRODUCT(1, 3, 7); } else { INT8_PRODUCT(0, 2, 6); } }
        else { if (g) { INT8_PRODUCT(1, 3, 5); } else { INT8_PRODUCT(0, 2, 4); } }
      }
      if (late >= 0) {
        const Products& done = ring[late & (RING - 1)];
        const int low = 8 * g, high = g ? rows : (rows < 8 ? rows : 8);
        if (has(late, 1)) add_scaled<C, 2>(to, done, scales, moments, low, high, d, m);
        else add_scaled<C, 1>(to, done, scales, moments, low, high, d, m);
      }
    }
  }
}

}  // namespace int8
#endif
