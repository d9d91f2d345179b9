// x as 8-bit integers with an f32 scale for each group of 32: what linear_int8.h multiplies.
//
// Integers of 8 inputs lie in the order 0, 4, 1, 5, 2, 6, 3, 7: four of them, as one 32-bit lane,
// meet the four weights that a mask leaves in a lane of a tile (tiles.h).
#pragma once
#include "tilec.h"

namespace quantize {
using namespace tilec;
const int GROUP = 32;
const float LIMIT = 127.0f;
const float TINY = 7.888609052210118e-31f;  // 2^-100: 127 over less need not be finite

// The largest magnitude of 32 values, by their bits: of positive floats the greater has the greater
// bits, infinity and NaN greater than all.
INL float largest(vf a, vf b) {
  const vi mask = vsplat(int32_t(0x7fffffff));
  vi m = smax(band(bits_i(a), mask), band(bits_i(b), mask));
  m = smax(m, rot<8>(m));
  m = smax(m, rot<4>(m));
  m = smax(m, rot<2>(m));
  m = smax(m, rot<1>(m));
  return bits_f(first(m));
}

INL void store(int8_t* to, vf v) {
#ifdef TC_AVX512
  const __m128i order = _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
  const __m128i narrow = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32((__m512)v.p[0]));
  _mm_storeu_si128((__m128i*)to, _mm_shuffle_epi8(narrow, order));
#else
  const vi whole = to_i(vrint(v));
  for (int k = 0; k < 16; ++k) to[k / 8 * 8 + k % 4 * 2 + k / 4 % 2] = int8_t(get(whole, k));
#endif
}

// One group; returns its scale.
INL float group(const float* x, int8_t* to) {
  const vf a = vld(x), b = vld(x + 16);
  const float most = largest(a, b);
  if (!(most >= TINY && most <= 3.4028235e38f)) {
    __builtin_memset(to, 0, GROUP);
    return most < TINY ? 0.0f : bits_f(int32_t(0x7fc00000));
  }
  const vf factor = vsplat(LIMIT / most);
  store(to, mul(a, factor));
  store(to + 16, mul(b, factor));
  return most / LIMIT;
}

}  // namespace quantize

// args: x f32[rows, K], integers i8[rows, K], scales f32[rows, K / 32]. grid: rows.
template <class C>
void quantize_rows(const int64_t* args, const int32_t*, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const float* x = (const float*)args[0] + row * C::K;
    int8_t* to = (int8_t*)args[1] + row * C::K;
    float* scales = (float*)args[2] + row * (C::K / quantize::GROUP);
    for (int g = 0; g < C::K / quantize::GROUP; ++g)
      scales[g] = quantize::group(x + g * quantize::GROUP, to + g * quantize::GROUP);
  }
}
