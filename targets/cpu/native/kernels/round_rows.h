// x in bf16, and the sums of each group of 32: even and odd inputs are two chains, as in a product.
#pragma once
#include "epilogue.h"

// args: x f32[rows, K], rounded bf16[rows, K], sums f32[rows, K / 32]. grid: rows.
template <class C>
void round_rows(const int64_t* args, const int32_t*, int64_t begin, int64_t end) {
  using namespace tilec;
  for (int64_t row = begin; row < end; ++row) {
    const float* x = (const float*)args[0] + row * C::K;
    bf16_t* rounded = (bf16_t*)args[1] + row * C::K;
    float* sums = (float*)args[2] + row * (C::K / 32);
    for (int k = 0; k < C::K; k += 16) epilogue::store(rounded + k, vld(x + k));
    for (int g = 0; g < C::K / 32; ++g) {
      float even = 0.0f, odd = 0.0f;
      for (int k = g * 32; k < g * 32 + 32; k += 2)
        even += to_float(rounded[k]), odd += to_float(rounded[k + 1]);
      sums[g] = even + odd;
    }
  }
}
