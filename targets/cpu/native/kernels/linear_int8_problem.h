// A product of 8-bit activations: its operands, and the sums of x's integers over groups.
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

}  // namespace int8
