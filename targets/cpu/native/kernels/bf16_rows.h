// x in bf16.
#pragma once
#include "epilogue.h"

// args: x f32[rows, K], rounded bf16[rows, K]. grid: rows.
template <class C>
void bf16_rows(const int64_t* args, const int32_t*, int64_t begin, int64_t end) {
  using namespace tilec;
  const float* x = (const float*)args[0];
  bf16_t* rounded = (bf16_t*)args[1];
  for (int64_t k = begin * C::K; k < end * C::K; k += 16)
    epilogue::store(rounded + k, vld(x + k));
}
