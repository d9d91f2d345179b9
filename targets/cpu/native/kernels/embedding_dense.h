// Rows of a table in dense bf16 tiles (dense_bf16.h), by index: a head tied to the embedding needs
// one copy.
#pragma once
#include "dense_bf16.h"

// args: table, ids i32[T], y f32[T, K]. grid: T. Values are the table's.
template <class C>
void embedding_dense(const int64_t* args, const int32_t*, int64_t begin, int64_t end) {
  using namespace tilec;
  const int PAIRS = dense::DEPTH / 2, LANES = dense::LANES;
  for (int64_t t = begin; t < end; ++t) {
    const int32_t id = ((const int32_t*)args[1])[t];
    const uint32_t* pairs = (const uint32_t*)args[0] + int64_t(id / LANES) * C::K / 2 * LANES;
    uint32_t* y = (uint32_t*)args[2] + t * C::K;
    for (int k = 0; k < C::K / 2; ++k) {
      const uint32_t pair = pairs[int64_t(k / PAIRS) * PAIRS * LANES + k % PAIRS * LANES + id % LANES];
      y[2 * k] = pair << 16;
      y[2 * k + 1] = pair & 0xffff0000u;
    }
  }
}
