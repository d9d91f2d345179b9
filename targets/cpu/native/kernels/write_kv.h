// Writes k and v into the paired bf16 cache as they are.
//
//   k, v  f32 or bf16 [T, KV_HEADS, D]; slots i32 [T]; k_cache, v_cache as in paired_cache.h
// Grid: (T, 1, 1). Limits: D a multiple of 32.
#pragma once
#include "paired_cache.h"

template <class C>
void write_kv(const int64_t* args, const int32_t*, int64_t begin, int64_t end) {
  using namespace attention;
  typedef typename Element<C::KV_BF16>::type In;
  const In *k = (const In*)args[0], *v = (const In*)args[1];
  const int32_t* slots = (const int32_t*)args[2];
  for (int64_t t = begin; t < end; t++)
    for (int h = 0; h < C::KV_HEADS; h++) {
      const int64_t at = (t * C::KV_HEADS + h) * C::D;
      alignas(64) float head[C::D];
      load_head<C>(head, k + at);
      write_key<C>((bf16*)args[3], slots[t], h, head);
      load_head<C>(head, v + at);
      write_value<C>((bf16*)args[4], slots[t], h, head);
    }
}
