// y = act(x w^T + bias) + residual, and the gated form act(x wg^T) * (x wu^T), for x in 8-bit
// integers with a scale per group of 32 (quantize_rows.h) and weights in tiles (tiles.h).
//
// Per group of weights, in order: S the exact sum of products of integers, acc = fma(S, d dx, acc);
// with minimums X the exact sum of integer x, and acc = fma(m, dx X, acc). Integers give every
// machine and every number of rows the same sums, so results have the same bits.
#pragma once
#include "amx.h"
#include "dot_int8.h"
#include "linear_bf16.h"

namespace int8 {
using namespace tilec;
using tiles::LANES;

// The bf16 problem knows blocks and epilogues; the sums of x that it would take are made here.
template <class C>
struct WithoutSums : C {
  static constexpr bool HAS_MIN = false;
};

// C: as for linear_bf16.
template <class C>
struct Problem : linear::Problem<WithoutSums<C>> {
  static constexpr int ZERO = C::BITS == 8 ? 128 : C::ZERO;  // what the stored integers are above
  static constexpr int SCALES = C::K / tiles::DEPTH;
  static constexpr int PARTS = tiles::DEPTH / C::GROUP;  // groups of a record
  const int8_t* integers;  // [rows, K]
  const float* scales;     // [rows, K / 32]

  explicit Problem(const int64_t* args) : linear::Problem<WithoutSums<C>>(args) {
    integers = (const int8_t*)args[0];
    scales = (const float*)args[4 + C::HAS_BIAS + C::HAS_RESIDUAL];
  }
};

// What the sums of x's integers are needed for, made once for the rows of many programs.
template <class C>
struct Sums {
  typedef Problem<C> P;
  float moments[C::HAS_MIN ? C::BLOCK_M : 1][P::SCALES];                   // dx X
  int32_t offsets[P::ZERO ? C::BLOCK_M : 1][P::SCALES * P::PARTS];         // -zero X
  int64_t m0 = -1;

  void prepare(const P& p, int64_t first, int count) {
    if (m0 == first) return;
    m0 = first;
    for (int r = 0; r < count; ++r)
      for (int g = 0; g < P::SCALES; ++g) {
        const int8_t* x = p.integers + (first + r) * C::K + g * tiles::DEPTH;
        const int32_t low = tiles::sum16(x), high = tiles::sum16(x + 16);
        if (C::HAS_MIN) moments[r][g] = p.scales[(first + r) * P::SCALES + g] * float(low + high);
        if (P::ZERO && P::PARTS == 1) offsets[r][g] = -P::ZERO * (low + high);
        if (P::ZERO && P::PARTS == 2) {
          offsets[r][2 * g] = -P::ZERO * low;
          offsets[r][2 * g + 1] = -P::ZERO * high;
        }
      }
  }
};

// R rows from `at` on, of which `count` exist, without tiles: weights are unpacked into registers.
template <class C, int R>
INL void multiply_rows(const Problem<C>& p, const Sums<C>& sums, const uint8_t* const* blocks, int at,
                       int count, float (*acc)[C::BLOCK_M][LANES]) {
  typedef tiles::Format<C> F;
  typedef Problem<C> P;
  constexpr int QUADS = 8 / P::PARTS;
  int row[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) row[r] = r < count ? at + r : at;
  for (int b = 0; b < P::BLOCKS; ++b) {
    vf total[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) total[r] = vsplat(0.0f);
    for (int g = 0; g < P::SCALES; ++g) {
      const uint8_t* record = F::record(blocks[b], g);
      for (int line = 0; line < F::RECORD; line += 64) __builtin_prefetch(record + 2048 + line);
      vi q[8];
      tiles::unpack_quads<C>(record, q);
#pragma GCC unroll 2
      for (int part = 0; part < P::PARTS; ++part) {
        vf d, m;
        tiles::load_scales<C>(blocks[b], g * P::PARTS + part, d, m);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const int8_t* x = p.integers + (sums.m0 + row[r]) * C::K + g * tiles::DEPTH + part * C::GROUP;
          vi s = vsplat(P::ZERO ? sums.offsets[P::ZERO ? row[r] : 0][g * P::PARTS + part] : 0);
#pragma GCC unroll 8
          for (int i = 0; i < QUADS; ++i) s = tiles::dot4<C::BITS>(q[part * QUADS + i], x + 4 * i, s);
          const float dx = p.scales[(sums.m0 + row[r]) * P::SCALES + g];
          total[r] = fma(to_f(s), mul(d, vsplat(dx)), total[r]);
          if (C::HAS_MIN) total[r] = fma(m, vsplat(sums.moments[C::HAS_MIN ? row[r] : 0][g]), total[r]);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      if (r < count) vst(acc[b][at + r], total[r]);
  }
}

template <class C>
INL void program(const Problem<C>& p, const Sums<C>& sums, int64_t n0, int here) {
  constexpr int BLOCKS = Problem<C>::BLOCKS;
  alignas(64) float acc[BLOCKS][C::BLOCK_M][LANES];
  const uint8_t* blocks[BLOCKS];
  for (int b = 0; b < BLOCKS; ++b)
    blocks[b] = p.w + p.block_index(n0, b) * tiles::Format<C>::BLOCK;
  if (here == 1) {
    multiply_rows<C, 1>(p, sums, blocks, 0, 1, acc);
  } else {
    for (int at = 0; at < here; at += 4)
      multiply_rows<C, 4>(p, sums, blocks, at, here - at, acc);
  }
  p.finish(acc, sums.m0, here, n0);
}

}  // namespace int8

// args: x, w, y, rows, then bias and residual where there are any, and the scales of x. grid: blocks
// of N, blocks of M.
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
}
