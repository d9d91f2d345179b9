// y = act(x w^T + bias) + residual, and the gated form act(x wg^T) * (x wu^T), for x in 8-bit
// integers with a scale per group of 32 (quantize_rows.h) and weights in tiles (tiles.h).
//
// Per group of weights, in order: S the exact sum of products of integers, acc = fma(S, d dx, acc);
// with minimums X the exact sum of integer x, and acc = fma(m, dx X, acc). Integers give every
// machine and every number of rows the same sums, so results have the same bits.
#pragma once
#include "tiles_int8.h"

namespace int8 {

#ifdef __AVX512VNNI__
const bool HAVE_VNNI = true;
#else
const bool HAVE_VNNI = false;
#endif
const int AHEAD = 4;  // records that memory is asked for ahead

// R rows from `at` on, of which `count` exist, without tiles: weights are unpacked into registers.
template <class C, int R>
INL void multiply_rows(const Problem<C>& p, const Sums<C>& sums, const uint8_t* const* blocks,
                       int at, int count, float (*acc)[C::BLOCK_M][LANES]) {
  typedef tiles::Format<C> F;
  typedef Problem<C> P;
  constexpr int QUADS = 8 / P::PARTS;
  constexpr bool TWO_CHAINS = R == 1 && C::BITS == 4 && HAVE_VNNI;
  int row[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) row[r] = r < count ? at + r : at;
  for (int b = 0; b < P::BLOCKS; ++b) {
    vf total[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) total[r] = vsplat(0.0f);
    for (int g = 0; g < P::SCALES; ++g) {
      const uint8_t* record = F::record(blocks[b], g);
      for (int line = 0; line < F::RECORD; line += 64)
        __builtin_prefetch(record + AHEAD * F::RECORD + line);
      vi q[8];
      tiles::unpack_quads<C, TWO_CHAINS>(record, q);
#pragma GCC unroll 2
      for (int part = 0; part < P::PARTS; ++part) {
        vf d, m;
        tiles::load_scales<C>(blocks[b], g * P::PARTS + part, d, m);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const int group = g * P::PARTS + part;
          const int8_t* x = p.integers + (sums.m0 + row[r]) * C::K + group * C::GROUP;
          vi s = vsplat(P::ZERO ? sums.offsets[P::ZERO ? row[r] : 0][group] : 0);
#pragma GCC unroll 8
          for (int i = 0; i < QUADS; i += 1 + TWO_CHAINS)
            s = tiles::dot4<C::BITS>(q[part * QUADS + i], x + 4 * i, s);
          if (TWO_CHAINS) {
            vi high = vsplat(0);
#pragma GCC unroll 4
            for (int i = 1; i < QUADS; i += 2) high = tiles::dot4<C::BITS>(q[i], x + 4 * i, high);
            s = add(s, sshr(high, vsplat(4)));
          }
          const float dx = p.scales[(sums.m0 + row[r]) * P::SCALES + g];
          total[r] = fma(to_f(s), mul(d, vsplat(dx)), total[r]);
          if constexpr (C::HAS_MIN)
            total[r] = fma(m, vsplat(sums.moments[row[r]][g]), total[r]);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      if (r < count) vst(acc[b][at + r], total[r]);
  }
}

const int TILE_ROWS = 7;  // fewer are faster without tiles
const int MANY = 4;       // rows that share unpacked weights

template <class C>
INL void program(const Problem<C>& p, const Sums<C>& sums, int64_t n0, int here) {
  constexpr int BLOCKS = Problem<C>::BLOCKS;
  alignas(64) float acc[BLOCKS][C::BLOCK_M][LANES];
  const uint8_t* blocks[BLOCKS];
  for (int b = 0; b < BLOCKS; ++b)
    blocks[b] = p.w + p.block_index(n0, b) * tiles::Format<C>::BLOCK;
  int at = 0;
#ifdef HAVE_AMX
  constexpr int TILES = C::BLOCK_M / 16;
  if (here == C::BLOCK_M && TILES > 1) {
    configure<C>(16);
    multiply_tiles<C, TILES>(p, sums, blocks, 0, 16, acc);
    at = here;
  }
  for (int rows; here - at >= TILE_ROWS; at += rows) {
    rows = here - at < 16 ? here - at : 16;
    configure<C>(rows);
    multiply_tiles<C, 1>(p, sums, blocks, at, rows, acc);
  }
#endif
  while (at < here) {
    const int left = here - at;
    if (left == 1) multiply_rows<C, 1>(p, sums, blocks, at, 1, acc), at += 1;
    else if (left == 2) multiply_rows<C, 2>(p, sums, blocks, at, 2, acc), at += 2;
    else multiply_rows<C, MANY>(p, sums, blocks, at, left, acc), at += MANY;
  }
  p.finish(acc, sums.m0, here, n0);
}

}  // namespace int8

// args: x, w, y, rows, then bias and residual where there are any, and the scales of x.
// grid: blocks of N, blocks of M.
template <class C>
void linear_int8(const int64_t* args, const int32_t* grid, int64_t begin, int64_t end) {
  const int8::Problem<C> p(args);
  int8::Sums<C> sums;
  for (int64_t id = begin; id < end; ++id) {
    const int64_t n0 = id % grid[0] * C::BLOCK_N, m0 = id / grid[0] * C::BLOCK_M;
    const int here = p.rows - m0 < C::BLOCK_M ? int(p.rows - m0) : C::BLOCK_M;
    sums.prepare(p, m0, here);
    int8::program<C>(p, sums, n0, here);
  }
#ifdef HAVE_AMX
  if (p.rows >= int8::TILE_ROWS) amx::release();
#endif
}
