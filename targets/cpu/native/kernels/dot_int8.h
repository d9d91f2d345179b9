// Four weights and four inputs of 8 bits per 32-bit lane, multiplied and summed exactly.
#pragma once
#include "tiles.h"

namespace tiles {

#if defined(TC_AVX512)
#define WIDE(name) _mm512_##name
#define WIDE_BITS(v) ((__m512i)(v))
#define WIDE_AND _mm512_and_si512
#elif defined(TC_AVX2)
#define WIDE(name) _mm256_##name
#define WIDE_BITS(v) ((__m256i)(v))
#define WIDE_AND _mm256_and_si256
#endif

INL int32_t word(const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return four;
}

// acc + the products of each lane's unsigned bytes with the signed ones at x. With at most 7 bits a
// sum of two products fits 16 bits.
template <int BITS>
INL vi dot4(vi w, const int8_t* x, vi acc) {
#if defined(__AVX512VNNI__)
  const __m512i four = _mm512_set1_epi32(word(x));
  return vi{(ni)_mm512_dpbusd_epi32((__m512i)acc.p[0], (__m512i)w.p[0], four)};
#elif defined(WIDE)
  const auto four = WIDE(set1_epi32)(word(x));
  EACH(
    const auto u = WIDE_BITS(w.p[I]);
    auto sum = four;
    if constexpr (BITS < 8) {
      sum = WIDE(madd_epi16)(WIDE(maddubs_epi16)(u, four), WIDE(set1_epi16)(1));
    } else {
      const auto low = WIDE_AND(u, WIDE(set1_epi16)(255));
      const auto even = WIDE(madd_epi16)(low, WIDE(srai_epi16)(WIDE(slli_epi16)(four, 8), 8));
      const auto odd = WIDE(madd_epi16)(WIDE(srli_epi16)(u, 8), WIDE(srai_epi16)(four, 8));
      sum = WIDE(add_epi32)(even, odd);
    }
    acc.p[I] = (ni)WIDE(add_epi32)(WIDE_BITS(acc.p[I]), sum);
  )
  return acc;
#else
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const vi byte = band(ushr(w, vsplat(int32_t(8 * i))), vsplat(int32_t(255)));
    acc = add(acc, mul(byte, vsplat(int32_t(x[i]))));
  }
  return acc;
#endif
}

// The sum of 16 inputs.
INL int32_t sum16(const int8_t* x) {
#ifdef WIDE
  const __m128i biased = _mm_xor_si128(_mm_loadu_si128((const __m128i*)x), _mm_set1_epi8(-128));
  const __m128i sums = _mm_sad_epu8(biased, _mm_setzero_si128());
  return _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 16 * 128;
#else
  int32_t sum = 0;
  for (int k = 0; k < 16; ++k) sum += x[k];
  return sum;
#endif
}

// The integers of a record, four per lane in the order of quantize_rows.h: q[2z] has the inputs
// 8z + (0, 4, 1, 5), q[2z + 1] those of 8z + (2, 6, 3, 7); the type's zero is not subtracted.
// SIXTEENFOLD (4 bits alone): q[2z + 1] are 16 times that, which saves the shift.
template <class C, bool SIXTEENFOLD = false>
INL void unpack_quads(const uint8_t* record, vi (&q)[8]) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    if constexpr (C::BITS == 8) {
      q[i] = vld((const int32_t*)(record + 64 * i));
    } else {
      const int z = i / 2, odd = i % 2;
      const vi v = vld((const int32_t*)(record + 64 * z));
      const vi mask = vsplat(int32_t(SIXTEENFOLD && odd ? 0xf0f0f0f0 : 0x0f0f0f0f));
      q[i] = band(odd && !SIXTEENFOLD ? ushr(v, vsplat(4)) : v, mask);
      if constexpr (C::BITS > 4) {
        // Bits of input 2j at HIGH (j % PER_HALF) of the low half, of input 2j + 1 of the high one.
        constexpr int HIGH = C::BITS - 4, PER_HALF = 16 / HIGH;
        const vi h = vld((const int32_t*)(record + 256 + 64 * ((4 * z) / PER_HALF)));
        const int32_t bits = ((1 << HIGH) - 1) * 0x00100010;
        const int first = 4 - HIGH * ((4 * z + odd) % PER_HALF);  // to bits 4 and 20
        const int second = 12 - HIGH * ((4 * z + 2 + odd) % PER_HALF);  // to bits 12 and 28
        const vi a = first < 0 ? ushr(h, vsplat(-first)) : shl(h, vsplat(first));
        const vi b = second < 0 ? ushr(h, vsplat(-second)) : shl(h, vsplat(second));
        q[i] = bor(q[i], bor(band(a, vsplat(bits)), band(b, vsplat(int32_t(uint32_t(bits) << 8)))));
      }
    }
  }
}

}  // namespace tiles
