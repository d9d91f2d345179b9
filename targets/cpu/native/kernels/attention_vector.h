// Vectors of 16 f32 for attention on AVX-512: 2^x, rounding to bf16 and back.
#pragma once
#include <immintrin.h>
#include "tilec.h"

namespace attention {

typedef uint16_t bf16;

// 2^x for x <= 0, relative error below 1.3e-7; 2^0 is 1 exactly and 2^-1e20 is 0 exactly: what a
// masked key adds and what an empty block changes are nothing at all.
INL __m512 exp2_negative(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, 0);  // x less the nearest integer
  __m512 y = _mm512_fmadd_ps(_mm512_set1_ps(1.326472731e-03f), f, _mm512_set1_ps(9.671512991e-03f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(5.550733581e-02f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(2.402224243e-01f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(6.931470037e-01f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(y, _mm512_sub_ps(x, f));
}

// cap * tanh(x / cap) with an absolute error of a few 1e-7 cap
INL __m512 soft_cap(__m512 x, float cap) {
  const __m512 sign = _mm512_and_ps(x, _mm512_set1_ps(-0.0f));
  const __m512 a = _mm512_andnot_ps(_mm512_set1_ps(-0.0f), x);
  const __m512 e = exp2_negative(_mm512_mul_ps(a, _mm512_set1_ps(-2.0f * 1.44269504f / cap)));
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 t = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
  return _mm512_or_ps(_mm512_mul_ps(t, _mm512_set1_ps(cap)), sign);
}

// Sum of the lanes, in an order that is part of the result's definition
INL float sum_lanes(__m512 x) {
  __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

// 32 values to bf16, nearest even
INL __m512i round_pair(__m512 low, __m512 high) {
#ifdef __AVX512BF16__
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
#else
  const __m512i one = _mm512_set1_epi32(1), half = _mm512_set1_epi32(0x7fff);
  __m512i a = _mm512_castps_si512(low), b = _mm512_castps_si512(high);
  a = _mm512_add_epi32(a, _mm512_add_epi32(half, _mm512_and_si512(_mm512_srli_epi32(a, 16), one)));
  b = _mm512_add_epi32(b, _mm512_add_epi32(half, _mm512_and_si512(_mm512_srli_epi32(b, 16), one)));
  const __m256i x = _mm512_cvtepi32_epi16(_mm512_srli_epi32(a, 16));
  const __m256i y = _mm512_cvtepi32_epi16(_mm512_srli_epi32(b, 16));
  return _mm512_inserti64x4(_mm512_castsi256_si512(x), y, 1);
#endif
}

INL __m256i round_16(__m512 x) {
  return _mm512_castsi512_si256(round_pair(x, x));
}

// The first and the second of each pair of bf16
INL __m512 evens(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
INL __m512 odds(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(int(0xffff0000u))));
}

INL __m512 load_f32(const float* from, int64_t at) { return _mm512_loadu_ps(from + at); }
INL __m512 load_f32(const bf16* from, int64_t at) {
  const __m256i half = _mm256_loadu_si256((const __m256i*)(from + at));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
INL void store_f32(float* to, int64_t at, __m512 x) { _mm512_storeu_ps(to + at, x); }
INL void store_f32(bf16* to, int64_t at, __m512 x) {
  _mm256_storeu_si256((__m256i*)(to + at), round_16(x));
}

// A float argument of a kernel
INL float float_of(int64_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

template <bool IS_BF16> struct Element { typedef float type; };
template <> struct Element<true> { typedef bf16 type; };

}  // namespace attention
