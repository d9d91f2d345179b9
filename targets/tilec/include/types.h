// Vector types of 16 lanes on every machine, and the storage types of memory.
//
// A vector is TC_PARTS native registers of TC_NL lanes: 1 x 16 with AVX-512, 2 x 8 with AVX2,
// 4 x 4 elsewhere. Sixteen lanes everywhere means one order of every reduction, thus equal bits.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define TC_AVX512 1
#define TC_NL 16
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define TC_AVX2 1
#define TC_NL 8
#else
#define TC_NL 4
#endif
#if defined(TC_AVX512) || defined(TC_AVX2)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define TC_PARTS (16 / TC_NL)
#define INL static inline __attribute__((always_inline))
// Long functions: inlined where a vector is a register or two. Scalar code for 16 lanes is called
// instead, for copies of it in unrolled loops take the compiler minutes.
#if TC_PARTS == 4 && !defined(__aarch64__)
#define TC_LONG static __attribute__((noinline))
#else
#define TC_LONG INL
#endif

// EACH(statement using I): once per native part. EACHL: once per part of a 64-bit vector.
#define TC_ONE(i, ...) { constexpr int I = i; __VA_ARGS__; }
#if TC_PARTS == 1
#define EACH(...) TC_ONE(0, __VA_ARGS__)
#define EACHL(...) TC_ONE(0, __VA_ARGS__) TC_ONE(1, __VA_ARGS__)
#elif TC_PARTS == 2
#define EACH(...) TC_ONE(0, __VA_ARGS__) TC_ONE(1, __VA_ARGS__)
#define EACHL(...) EACH(__VA_ARGS__) TC_ONE(2, __VA_ARGS__) TC_ONE(3, __VA_ARGS__)
#else
#define EACH(...) TC_ONE(0, __VA_ARGS__) TC_ONE(1, __VA_ARGS__) TC_ONE(2, __VA_ARGS__) TC_ONE(3, __VA_ARGS__)
#define EACHL(...) EACH(__VA_ARGS__) TC_ONE(4, __VA_ARGS__) TC_ONE(5, __VA_ARGS__) TC_ONE(6, __VA_ARGS__) TC_ONE(7, __VA_ARGS__)
#endif

namespace tilec {

typedef float nf __attribute__((vector_size(4 * TC_NL)));
typedef int32_t ni __attribute__((vector_size(4 * TC_NL)));
typedef uint32_t nu __attribute__((vector_size(4 * TC_NL)));
typedef int64_t nl __attribute__((vector_size(4 * TC_NL)));  // half as many lanes
typedef uint64_t nul __attribute__((vector_size(4 * TC_NL)));

struct vf { nf p[TC_PARTS]; };
struct vi { ni p[TC_PARTS]; };
struct vl { nl p[2 * TC_PARTS]; };
#ifdef TC_AVX512
struct vm { __mmask16 k; };
#else
struct vm { ni p[TC_PARTS]; };  // each lane 0 or -1
#endif

struct bf16_t { uint16_t bits; };
struct half_t { uint16_t bits; };
struct bool_t { uint8_t bits; };

template <class To, class From> INL To bitc(From from) {
  static_assert(sizeof(To) == sizeof(From), "bitc keeps the size");
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

// ---- scalar conversions; bf16 and f16 round to nearest even
INL float to_float(bf16_t x) { return bitc<float>(uint32_t(x.bits) << 16); }
INL float round_bf16(float x) {
  const uint32_t u = bitc<uint32_t>(x);
  if (x != x) return bitc<float>((u | 0x00400000u) & 0xffff0000u);
  return bitc<float>((u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u);
}
INL bf16_t to_bf16(float x) { return bf16_t{uint16_t(bitc<uint32_t>(x) >> 16)}; }  // x is rounded already

#if defined(TC_AVX512) || defined(TC_AVX2)
INL float to_float(half_t x) { return _cvtsh_ss(x.bits); }
INL half_t to_half(float x) { return half_t{uint16_t(_cvtss_sh(x, 0))}; }
#else
INL float to_float(half_t x) {
  const uint32_t sign = uint32_t(x.bits & 0x8000u) << 16, magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return bitc<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude >= 0x400u) return bitc<float>(sign | ((magnitude << 13) + 0x38000000u));
  const float tiny = float(magnitude) * 5.9604644775390625e-8f;  // 2^-24
  return sign ? -tiny : tiny;
}
INL half_t to_half(float x) {
  const uint32_t u = bitc<uint32_t>(x), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return half_t{uint16_t(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return half_t{uint16_t(sign | 0x7c00u)};
  if (magnitude >= 0x38800000u) {
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u;
    return half_t{uint16_t(sign | rounded >> 13)};
  }
  const float shifted = bitc<float>(magnitude) + 0.5f;  // adds at 2^-24: rounds to a subnormal
  return half_t{uint16_t(sign | (bitc<uint32_t>(shifted) - 0x3f000000u))};
}
#endif
INL float round_f16(float x) { return to_float(to_half(x)); }

}  // namespace tilec
