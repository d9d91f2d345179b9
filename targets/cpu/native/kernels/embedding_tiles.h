// Rows of a table in tiles (tiles.h), by index: a head tied to the embedding needs one copy.
#pragma once
#include "tiles.h"

// args: table, ids i32[T], y f32[T, K]. grid: T. Values are ggml's: a product, then a sum.
template <class C>
void embedding_tiles(const int64_t* args, const int32_t*, int64_t begin, int64_t end) {
  using namespace tilec;
  typedef tiles::Format<C> F;
  const uint8_t* table = (const uint8_t*)args[0];
  for (int64_t t = begin; t < end; ++t) {
    const int32_t id = ((const int32_t*)args[1])[t];
    const uint8_t* block = table + id / tiles::LANES * F::BLOCK;
    const int at = id % tiles::LANES;
    float* y = (float*)args[2] + t * C::K;
    for (int g = 0; g < C::K / C::GROUP; ++g) {
      const int first = g * C::GROUP % tiles::DEPTH / 2;
      const uint8_t* record = F::record(block, g * C::GROUP / tiles::DEPTH);
      vf d, m = vsplat(0.0f);
      tiles::load_scales<C>(block, g, d, m);
      for (int j = 0; j < C::GROUP / 2; ++j) {
        vf even, odd;
        tiles::unpack_pair<C>(record, first + j, even, odd);
        even = mul(even, d);
        odd = mul(odd, d);
        if (C::HAS_MIN) even = add(even, m), odd = add(odd, m);
        y[g * C::GROUP + 2 * j] = get(even, at);
        y[g * C::GROUP + 2 * j + 1] = get(odd, at);
      }
    }
  }
}
