// Rotary embedding of q and k and the write of k and v into the paired bf16 cache.
//
//   qkv      f32 or bf16 [T, (HEADS + 2 * KV_HEADS) * D]: q heads, k heads, v heads
//   cos, sin f32 [T, HALF]; slots i32 [T], slot = 32 * page + offset
//   q        f32 or bf16 [T, HEADS, D]
//   k_cache  bf16 [pages, KV_HEADS, D / 2, 32, 2]; v_cache bf16 [pages, KV_HEADS, 16, D, 2]
//   eps      f32; q_norm, k_norm f32 [D] when NORMS: weights of an RMSNorm per head before rotation
// Grid: (T, 1, 1). Limits: D a multiple of 32. Products and sums round one by one, as the Triton
// kernel's do; q and the cache round to nearest even.
#pragma once
#include "paired_cache.h"

namespace attention {

template <class C> INL void normalize_head(float* x, const float* w, float eps) {
  __m512 squares = _mm512_setzero_ps();
  for (int d = 0; d < C::D; d += 16) {
    const __m512 v = _mm512_loadu_ps(x + d);
    squares = _mm512_fmadd_ps(v, v, squares);
  }
  const float scale = 1.0f / __builtin_sqrtf(sum_lanes(squares) / C::D + eps);
  for (int d = 0; d < C::D; d++) x[d] = x[d] * scale * w[d];
}

template <class C> INL void rotate_head(float* x, const float* cos, const float* sin) {
  for (int i = 0; i < C::HALF; i++) {
    const int first = C::INTERLEAVED ? 2 * i : i, second = C::INTERLEAVED ? 2 * i + 1 : i + C::HALF;
    const float a = x[first], b = x[second];
    x[first] = a * cos[i] - b * sin[i];
    x[second] = b * cos[i] + a * sin[i];
  }
}

}  // namespace attention

template <class C>
void rope_write_kv(const int64_t* args, const int32_t*, int64_t begin, int64_t end) {
  using namespace attention;
  typedef typename Element<C::QKV_BF16>::type In;
  typedef typename Element<C::Q_BF16>::type Q;
  const float *cos = (const float*)args[1], *sin = (const float*)args[2];
  const int32_t* slots = (const int32_t*)args[3];
  const float eps = float_of(args[7]);
  const float* q_norm = C::NORMS ? (const float*)args[8] : nullptr;
  const float* k_norm = C::NORMS ? (const float*)args[9] : nullptr;
  for (int64_t t = begin; t < end; t++) {
    const In* x = (const In*)args[0] + t * ((C::HEADS + 2 * C::KV_HEADS) * C::D);
    Q* q = (Q*)args[4] + t * (C::HEADS * C::D);
    alignas(64) float head[C::D];
    prefetch_slot<C>((const bf16*)args[5], (const bf16*)args[6], slots[t]);
    for (int h = 0; h < C::HEADS + C::KV_HEADS; h++) {
      load_head<C>(head, x + h * C::D);
      if (C::NORMS) normalize_head<C>(head, h < C::HEADS ? q_norm : k_norm, eps);
      rotate_head<C>(head, cos + t * C::HALF, sin + t * C::HALF);
      if (h >= C::HEADS) {
        write_key<C>((bf16*)args[5], slots[t], h - C::HEADS, head);
        continue;
      }
      for (int d = 0; d < C::D; d += 16) store_f32(q + h * C::D, d, _mm512_load_ps(head + d));
    }
    for (int h = 0; h < C::KV_HEADS; h++) {
      load_head<C>(head, x + (C::HEADS + C::KV_HEADS + h) * C::D);
      write_value<C>((bf16*)args[6], slots[t], h, head);
    }
  }
}
