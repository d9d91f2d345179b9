// Writing one head of one token into the paired bf16 cache.
//
// A page of K is [D / 2, 32 keys, 2]: pairs of dims, keys along lanes. A page of V is
// [16 key pairs, D, 2]: pairs of keys, dims along lanes; a token owns every second element of its
// pair's row, and threads with neighbouring tokens write between each other's elements.
#pragma once
#include "attention_vector.h"

namespace attention {

template <class C, class T> INL void load_head(float* to, const T* from) {
  for (int d = 0; d < C::D; d += 16) _mm512_storeu_ps(to + d, load_f32(from, d));
}

template <class C, class T> INL T* cache_page(T* cache, int32_t slot, int head) {
  return cache + (int64_t(slot / 32) * C::KV_HEADS + head) * (C::D * 32);
}

// A key goes to D / 2 lines, a value to D / 16: asked for all at once, they come side by side.
template <class C> INL void prefetch_slot(const bf16* k_cache, const bf16* v_cache, int32_t slot) {
  for (int h = 0; h < C::KV_HEADS; h++) {
    const bf16* k = cache_page<C>(k_cache, slot, h) + 2 * (slot % 32);
    const bf16* v = cache_page<C>(v_cache, slot, h) + slot % 32 / 2 * (2 * C::D);
    for (int pair = 0; pair < C::D / 2; pair++) __builtin_prefetch(k + pair * 64, 1);
    for (int d = 0; d < C::D; d += 16) __builtin_prefetch(v + 2 * d, 1);
  }
}

template <class C>
INL void write_key(bf16* cache, int32_t slot, int head, const float* x) {
  uint32_t pairs[C::D / 2];
  for (int d = 0; d < C::D; d += 32) {
    const __m512i rounded = round_pair(_mm512_loadu_ps(x + d), _mm512_loadu_ps(x + d + 16));
    _mm512_storeu_si512(pairs + d / 2, rounded);
  }
  bf16* to = cache_page<C>(cache, slot, head) + 2 * (slot % 32);
  for (int pair = 0; pair < C::D / 2; pair++)
    __builtin_memcpy(to + pair * 64, pairs + pair, sizeof(uint32_t));
}

template <class C>
INL void write_value(bf16* cache, int32_t slot, int head, const float* x) {
  const int odd = slot % 2;
  bf16* to = cache_page<C>(cache, slot, head) + slot % 32 / 2 * (2 * C::D);
  for (int d = 0; d < C::D; d += 16) {
    const __m512i wide = _mm512_cvtepu16_epi32(round_16(_mm512_loadu_ps(x + d)));
    const __m512i placed = _mm512_sll_epi32(wide, _mm_cvtsi32_si128(16 * odd));
    _mm512_mask_storeu_epi16(to + 2 * d, 0x55555555u << odd, placed);
  }
}

}  // namespace attention
