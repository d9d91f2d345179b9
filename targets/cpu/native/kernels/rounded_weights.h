// Many rows at a time: weights become bf16 in a scratch panel, then AMX adds up all of K in registers.
//
// That is twice as fast as scaling the sum of each group, and rounds the weights too. So a row in such
// a block does not have the bits that it has alone; C::ROUND_WEIGHTS says whether that is allowed.
#pragma once
#include "amx.h"
#include "tiles.h"

#ifdef HAVE_AMX
namespace linear {
using namespace tilec;
using tiles::LANES;

const int ROUNDED_ROWS = 32;  // two tiles

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

INL void configure_rounded() {
  amx::Config config;
  for (int t = 0; t < 8; ++t) config.set(t, 16, 64);
  config.load();
}

// Rows m0 .. m0 + count (a multiple of 32) times two blocks; acc[block][row].
template <class C>
INL void multiply_rounded(const bf16_t* x, const uint8_t* first, const uint8_t* second, int count,
                          float (*acc_first)[LANES], float (*acc_second)[LANES]) {
  constexpr int STEPS = C::K / tiles::DEPTH;
  alignas(64) uint16_t panel[2][STEPS][512];
  for (int g = 0; g < STEPS; ++g) {
    round_record<C>(first, g, panel[0][g]);
    round_record<C>(second, g, panel[1][g]);
  }
  configure_rounded();
  for (int r = 0; r < count; r += ROUNDED_ROWS, x += int64_t(ROUNDED_ROWS) * C::K) {
    AMX_ZERO(0);
    AMX_ZERO(1);
    AMX_ZERO(2);
    AMX_ZERO(3);
    for (int g = 0; g < STEPS; ++g) {
      AMX_LOAD(4, x + g * tiles::DEPTH, 2 * C::K);
      AMX_LOAD(6, panel[0][g], 64);
      AMX_DOT_BF16(0, 4, 6);
      AMX_LOAD(7, panel[1][g], 64);
      AMX_DOT_BF16(1, 4, 7);
      AMX_LOAD(5, x + 16 * C::K + g * tiles::DEPTH, 2 * C::K);
      AMX_DOT_BF16(2, 5, 6);
      AMX_DOT_BF16(3, 5, 7);
    }
    AMX_STORE(0, acc_first[r], 64);
    AMX_STORE(1, acc_second[r], 64);
    AMX_STORE(2, acc_first[r + 16], 64);
    AMX_STORE(3, acc_second[r + 16], 64);
  }
}

}  // namespace linear
#endif
