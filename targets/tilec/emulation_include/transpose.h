// Stores a 16 x 16 block of floats whose rows come as vectors, turned: rows become columns.
#pragma once
#include "tilec.h"

namespace tilec {

// to[i * stride + j] = rows[j][i]
INL void store_turned(float* to, int64_t stride, const vf (&rows)[16]) {
#if defined(TC_AVX512)
  __m512 t[16], u[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    const __m512 a = (__m512)rows[i].p[0], b = (__m512)rows[i + 1].p[0];
    t[i] = _mm512_unpacklo_ps(a, b), t[i + 1] = _mm512_unpackhi_ps(a, b);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {  // u[4 g + c]: column 4 l + c of rows 4 g .. 4 g + 3 in part l
      const __m512d a = _mm512_castps_pd(t[i + j]), b = _mm512_castps_pd(t[i + j + 2]);
      u[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      u[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512 x = _mm512_shuffle_f32x4(u[c], u[4 + c], 0x88), y = _mm512_shuffle_f32x4(u[c], u[4 + c], 0xdd);
    const __m512 z = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0x88), w = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0xdd);
    _mm512_storeu_ps(to + c * stride, _mm512_shuffle_f32x4(x, z, 0x88));
    _mm512_storeu_ps(to + (4 + c) * stride, _mm512_shuffle_f32x4(y, w, 0x88));
    _mm512_storeu_ps(to + (8 + c) * stride, _mm512_shuffle_f32x4(x, z, 0xdd));
    _mm512_storeu_ps(to + (12 + c) * stride, _mm512_shuffle_f32x4(y, w, 0xdd));
  }
#elif defined(TC_AVX2)
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half)  // which rows
#pragma GCC unroll 2
    for (int part = 0; part < 2; ++part) {  // which columns
      __m256 t[8], u[8];
#pragma GCC unroll 4
      for (int i = 0; i < 8; i += 2) {
        const __m256 a = (__m256)rows[8 * half + i].p[part], b = (__m256)rows[8 * half + i + 1].p[part];
        t[i] = _mm256_unpacklo_ps(a, b), t[i + 1] = _mm256_unpackhi_ps(a, b);
      }
#pragma GCC unroll 2
      for (int i = 0; i < 8; i += 4)
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) {
          u[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0x44);
          u[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0xee);
        }
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {
        float* at = to + (8 * part + c) * stride + 8 * half;
        _mm256_storeu_ps(at, _mm256_permute2f128_ps(u[c], u[4 + c], 0x20));
        _mm256_storeu_ps(at + 4 * stride, _mm256_permute2f128_ps(u[c], u[4 + c], 0x31));
      }
    }
#else
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) to[i * stride + j] = get(rows[j], i);
#endif
}

}  // namespace tilec
