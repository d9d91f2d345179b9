// y = act(x w^T + bias) + residual, and the gated form, for x and w in bf16.
//
// Weights: tiles of 16 outputs and 32 inputs, [blocks of N, K / 32][16 pairs of inputs][16][2], as a
// row of an AMX tile has them. Per tile: even and odd inputs are two chains of f32 FMA from zero,
// acc += even + odd: what AMX computes, so every machine and every number of rows gives one order.
#pragma once
#include "amx.h"
#include "linear_bf16.h"

namespace dense {
using namespace tilec;
using tiles::DEPTH;
using tiles::LANES;
const int TILE = DEPTH * LANES;  // bf16 weights of a tile

template <class C>
INL const bf16_t* block_of(const linear::Problem<C>& p, int64_t n0, int b) {
  return (const bf16_t*)p.w + int64_t(p.block_index(n0, b)) * C::K * LANES;
}

template <class C>
INL void multiply_row(const linear::Problem<C>& p, int64_t n0, int64_t m0,
                      float (*acc)[C::BLOCK_M][LANES]) {
  alignas(64) float x[C::K];
  for (int k = 0; k < C::K; k += LANES) vst(x + k, vld(p.x + m0 * C::K + k));
#pragma GCC unroll 8
  for (int b = 0; b < linear::Problem<C>::BLOCKS; ++b) {
    const int32_t* w = (const int32_t*)block_of(p, n0, b);
    vf total = vsplat(0.0f);
    for (int g = 0; g < C::K; g += DEPTH, w += TILE / 2) {
      vf even = vsplat(0.0f), odd = even;
#pragma GCC unroll 16
      for (int j = 0; j < DEPTH / 2; ++j) {
        if (j % 2 == 0) __builtin_prefetch((const char*)w + 4096 + 64 * j), __builtin_prefetch((const char*)w + 4160 + 64 * j);
        const vi pair = vld(w + 16 * j);
        even = fma(vsplat(x[g + 2 * j]), bits_f(shl(pair, vsplat(16))), even);
        odd = fma(vsplat(x[g + 2 * j + 1]), bits_f(band(pair, vsplat(int32_t(0xffff0000)))), odd);
      }
      total = add(total, add(even, odd));
    }
    vst(acc[b][0], total);
  }
}

#ifdef HAVE_AMX

// T tiles of rows (1 or 2) times up to 2 blocks: results in 0 to 3, x in 4 and 5, weights in 6, 7.
template <class C, int T>
INL void multiply(const linear::Problem<C>& p, int64_t n0, int64_t m0, int rows,
                  float (*acc)[C::BLOCK_M][LANES], int at) {
  static_assert(linear::Problem<C>::BLOCKS == 2, "two blocks of outputs");
  const bf16_t *first = block_of(p, n0, 0), *second = block_of(p, n0, 1);
  const bf16_t* x = p.x + (m0 + at) * C::K;
  AMX_ZERO(0);
  AMX_ZERO(1);
  AMX_ZERO(2);
  AMX_ZERO(3);
  for (int g = 0; g < C::K / DEPTH; ++g) {
    AMX_LOAD(4, x + g * DEPTH, 2 * C::K);
    AMX_LOAD(6, first + g * TILE, 64);
    AMX_DOT_BF16(0, 4, 6);
    AMX_LOAD(7, second + g * TILE, 64);
    AMX_DOT_BF16(1, 4, 7);
    if constexpr (T > 1) {
      AMX_LOAD(5, x + 16 * C::K + g * DEPTH, 2 * C::K);
      AMX_DOT_BF16(2, 5, 6);
      AMX_DOT_BF16(3, 5, 7);
    }
  }
  AMX_STORE(0, acc[0][at], 64);
  AMX_STORE(1, acc[1][at], 64);
  if constexpr (T > 1) {
    AMX_STORE(2, acc[0][at + 16], 64);
    AMX_STORE(3, acc[1][at + 16], 64);
  }
}

INL void configure(int rows) {
  amx::Config config;
  for (int t = 0; t < 6; ++t) config.set(t, rows, 64);
  config.set(6, 16, 64);
  config.set(7, 16, 64);
  config.load();
}
#else
template <class C>
INL void multiply_rows(const linear::Problem<C>& p, int64_t n0, int64_t m0, int count,
                       float (*acc)[C::BLOCK_M][LANES]) {
  for (int b = 0; b < linear::Problem<C>::BLOCKS; ++b)
    for (int r = 0; r < count; r += 4) {
      const int32_t* w = (const int32_t*)block_of(p, n0, b);
      vf total[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) total[i] = vsplat(0.0f);
      for (int g = 0; g < C::K; g += DEPTH, w += TILE / 2) {
        vf even[4], odd[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) even[i] = odd[i] = vsplat(0.0f);
        for (int j = 0; j < DEPTH / 2; ++j) {
          const vi pair = vld(w + 16 * j);
          const vf low = bits_f(shl(pair, vsplat(16)));
          const vf high = bits_f(band(pair, vsplat(int32_t(0xffff0000))));
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) {
            const bf16_t* x = p.x + (m0 + (r + i < count ? r + i : r)) * C::K + g + 2 * j;
            even[i] = fma(vsplat(to_float(x[0])), low, even[i]);
            odd[i] = fma(vsplat(to_float(x[1])), high, odd[i]);
          }
        }
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) total[i] = add(total[i], add(even[i], odd[i]));
      }
      for (int i = 0; i < 4 && r + i < count; ++i) vst(acc[b][r + i], total[i]);
    }
}
#endif

template <class C>
INL void program(const linear::Problem<C>& p, int64_t n0, int64_t m0) {
  alignas(64) float acc[linear::Problem<C>::BLOCKS][C::BLOCK_M][LANES];
  const int64_t left = p.rows - m0;
  const int here = left < C::BLOCK_M ? int(left) : C::BLOCK_M;
  if (here == 1) {
    multiply_row<C>(p, n0, m0, acc);
  } else {
#ifdef HAVE_AMX
    int at = 0;
    if (here >= 16) configure(16);
    for (; at + 32 <= here; at += 32) multiply<C, 2>(p, n0, m0, 16, acc, at);
    for (; at + 16 <= here; at += 16) multiply<C, 1>(p, n0, m0, 16, acc, at);
    if (at < here) {
      configure(here - at);
      multiply<C, 1>(p, n0, m0, here - at, acc, at);
    }
#else
    multiply_rows<C>(p, n0, m0, here, acc);
#endif
  }
  p.finish(acc, m0, here, n0);
}

}  // namespace dense

// args and grid as linear_bf16, without sums.
template <class C>
void dense_bf16(const int64_t* args, const int32_t* grid, int64_t begin, int64_t end) {
  const linear::Problem<C> p(args);
  for (int64_t id = begin; id < end; ++id)
    dense::program<C>(p, id % grid[0] * C::BLOCK_N, id / grid[0] * C::BLOCK_M);
#ifdef HAVE_AMX
  amx::release();
#endif
}
