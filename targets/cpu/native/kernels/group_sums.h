// Sums of each group of 32 inputs: what a product with weights d q + m multiplies m with.
#pragma once
#include "epilogue.h"

// One order on every machine: halves of the lanes are added, then halves of those.
INL float sum_lanes(tilec::vf v) {
  using namespace tilec;
  v = add(v, rot<8>(v));
  v = add(v, rot<4>(v));
  v = add(v, rot<2>(v));
  return first(add(v, rot<1>(v)));
}

// args: x f32[rows, K], sums f32[rows, K / 32]. grid: rows.
template <class C>
void group_sums(const int64_t* args, const int32_t*, int64_t begin, int64_t end) {
  using namespace tilec;
  for (int64_t row = begin; row < end; ++row) {
    const float* x = (const float*)args[0] + row * C::K;
    float* sums = (float*)args[1] + row * (C::K / 32);
    for (int g = 0; g < C::K / 32; ++g) sums[g] = sum_lanes(add(vld(x + 32 * g), vld(x + 32 * g + 16)));
  }
}
