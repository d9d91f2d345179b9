// Products of many rows: weights become bf16 in a scratch panel, then AMX adds up all of K in
// registers. That is several times as fast as scaling the sum of each group, and rounds the weights.
//
// The results of 32 rows are finished in vector registers while tiles multiply the next 32.
#pragma once
#include "linear_bf16.h"

#ifndef HAVE_AMX
#error "linear_rounded.h is for instruction sets with AMX"
#else
namespace rounded {
using namespace tilec;
using tiles::LANES;

const int ROWS = 32;  // two tiles

// The bf16 problem knows blocks and epilogues; minimums are in the weights here, not in sums of x.
template <class C>
struct WithoutSums : C {
  static constexpr bool HAS_MIN = false;
  static constexpr int BLOCK_M = ROWS;
};
template <class C>
using Problem = linear::Problem<WithoutSums<C>>;

typedef float Results[2][ROWS][LANES];

// One record as a tile of bf16: d q + m, rounded to nearest even.
template <class C>
INL void round_record(const uint8_t* block, int g, uint16_t* tile) {
  typedef tiles::Format<C> F;
  alignas(64) static const uint16_t pairs[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i order = _mm512_load_si512(pairs);
  const uint8_t* record = F::record(block, g);
  for (int line = 0; line < F::RECORD; line += 64) __builtin_prefetch(record + 2048 + line);
#pragma GCC unroll 2
  for (int part = 0; part < tiles::DEPTH / C::GROUP; ++part) {
    vf d, m = vsplat(0.0f);
    tiles::load_scales<C>(block, g * tiles::DEPTH / C::GROUP + part, d, m);
#pragma GCC unroll 16
    for (int i = 0; i < C::GROUP / 2; ++i) {
      const int j = part * C::GROUP / 2 + i;
      vf even, odd;
      tiles::unpack_pair<C>(record, j, even, odd);
      even = C::HAS_MIN ? fma(even, d, m) : mul(even, d);
      odd = C::HAS_MIN ? fma(odd, d, m) : mul(odd, d);
      const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd.p[0], (__m512)even.p[0]);
      _mm512_store_si512(tile + 32 * j, _mm512_permutexvar_epi16(order, both));
    }
  }
}

// Tiles: 0 to 3 results, 4 and 5 rows of x, 6 and 7 weights.
INL void configure(int first, int second) {
  amx::Config config;
  const int rows[8] = {first, first, second, second, first, second, 16, 16};
  for (int t = 0; t < 8; ++t) config.set(t, rows[t], 64);
  config.load();
}

// Rows from .. to of the 32 from m0 on.
template <class C>
INL void finish(const Problem<C>& p, const Results& results, int64_t m0, int from, int to,
                int64_t n0) {
  p.finish((const float(*)[ROWS][LANES])results[0][from], m0 + from, to - from, n0);
}

template <class C>
INL void program(const Problem<C>& p, int64_t n0, int64_t m0, int count) {
  constexpr int STEPS = C::K / tiles::DEPTH, SHARE = (ROWS + STEPS - 1) / STEPS;
  alignas(64) uint16_t panel[STEPS][2][512];
  alignas(64) Results results[2];
  for (int g = 0; g < STEPS; ++g)
    for (int b = 0; b < 2; ++b)
      round_record<C>(p.w + p.block_index(n0, b) * tiles::Format<C>::BLOCK, g, panel[g][b]);
  int shape = 0;
  for (int r = 0; r < count; r += ROWS) {
    const int here = count - r < ROWS ? count - r : ROWS;
    if (here != shape) configure(here < 16 ? here : 16, here > 16 ? here - 16 : 1);
    shape = here;
    const bf16_t* x = p.x + (m0 + r) * C::K;
    const bf16_t* below = here > 16 ? x + 16 * C::K : x;  // a row whose result nobody takes
    Results& now = results[r / ROWS & 1];
    const Results& done = results[~(r / ROWS) & 1];
    AMX_ZERO(0);
    AMX_ZERO(1);
    AMX_ZERO(2);
    AMX_ZERO(3);
    for (int g = 0; g < STEPS; ++g) {
      AMX_LOAD(4, x + g * tiles::DEPTH, 2 * C::K);
      AMX_LOAD(6, panel[g][0], 64);
      AMX_DOT_BF16(0, 4, 6);
      AMX_LOAD(7, panel[g][1], 64);
      AMX_DOT_BF16(1, 4, 7);
      AMX_LOAD(5, below + g * tiles::DEPTH, 2 * C::K);
      AMX_DOT_BF16(2, 5, 6);
      AMX_DOT_BF16(3, 5, 7);
      const int at = g * SHARE, to = at + SHARE < ROWS ? at + SHARE : ROWS;
      if (r && at < ROWS) finish<C>(p, done, m0 + r - ROWS, at, to, n0);
    }
    AMX_STORE(0, now[0][0], 64);
    AMX_STORE(1, now[1][0], 64);
    AMX_STORE(2, now[0][16], 64);
    AMX_STORE(3, now[1][16], 64);
  }
  const int last = (count - 1) / ROWS;
  finish<C>(p, results[last & 1], m0 + last * ROWS, 0, count - last * ROWS, n0);
}

}  // namespace rounded

// C: as for linear_bf16; 2 blocks of outputs a program. args: x, w, y, rows, then bias and residual
// where there are any. grid: blocks of N, blocks of M.
template <class C>
void linear_rounded(const int64_t* args, const int32_t* grid, int64_t begin, int64_t end) {
  const rounded::Problem<C> p(args);
  static_assert(rounded::Problem<C>::BLOCKS == 2, "a panel has two blocks");
  for (int64_t id = begin; id < end; ++id) {
    const int64_t n0 = id % grid[0] * C::BLOCK_N, m0 = id / grid[0] * C::BLOCK_M;
    const int64_t left = p.rows - m0;
    rounded::program<C>(p, n0, m0, left < C::BLOCK_M ? int(left) : C::BLOCK_M);
  }
  amx::release();
}
#endif
