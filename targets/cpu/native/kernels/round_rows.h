// x in bf16, and the sums of each group of 32.
#pragma once
#include "group_sums.h"

// args: x f32[rows, K], rounded bf16[rows, K], sums f32[rows, K / 32]. grid: rows.
template <class C>
void round_rows(const int64_t* args, const int32_t*, int64_t begin, int64_t end) {
  using namespace tilec;
  for (int64_t row = begin; row < end; ++row) {
    const float* x = (const float*)args[0] + row * C::K;
    bf16_t* rounded = (bf16_t*)args[1] + row * C::K;
    float* sums = (float*)args[2] + row * (C::K / 32);
    for (int g = 0; g < C::K / 32; ++g, x += 32, rounded += 32) {
      const vf low = round_bf16(vld(x)), high = round_bf16(vld(x + 16));
      epilogue::store(rounded, low);
      epilogue::store(rounded + 16, high);
      sums[g] = sum_lanes(add(low, high));
    }
  }
}
