// Loads and stores of 16 lanes with conversion: narrow integers widen to i32, bf16 and f16 to f32.
// The pointer's type says the extension: uint8_t widens with zeros, int8_t with the sign.
#pragma once
#include "arith.h"

namespace tilec {

// ---- one element
INL float ld(const float* p) { return *p; }
INL float ld(const bf16_t* p) { return to_float(*p); }
INL float ld(const half_t* p) { return to_float(*p); }
INL double ld(const double* p) { return *p; }
INL int64_t ld(const int64_t* p) { return *p; }
INL int32_t ld(const int32_t* p) { return *p; }
INL int32_t ld(const int16_t* p) { return *p; }
INL int32_t ld(const uint16_t* p) { return *p; }
INL int32_t ld(const int8_t* p) { return *p; }
INL int32_t ld(const uint8_t* p) { return *p; }
INL bool ld(const bool_t* p) { return p->bits != 0; }
INL void st(float* p, float x) { *p = x; }
INL void st(bf16_t* p, float x) { *p = to_bf16(x); }
INL void st(half_t* p, float x) { *p = to_half(x); }
INL void st(double* p, double x) { *p = x; }
INL void st(int64_t* p, int64_t x) { *p = x; }
INL void st(int32_t* p, int32_t x) { *p = x; }
INL void st(int16_t* p, int32_t x) { *p = int16_t(x); }
INL void st(int8_t* p, int32_t x) { *p = int8_t(x); }
INL void st(bool_t* p, bool x) { p->bits = x; }

// ---- the vector that holds elements of a memory type
template <class T> struct holder { typedef vi V; typedef int32_t S; };
template <> struct holder<float> { typedef vf V; typedef float S; };
template <> struct holder<bf16_t> { typedef vf V; typedef float S; };
template <> struct holder<half_t> { typedef vf V; typedef float S; };
template <> struct holder<int64_t> { typedef vl V; typedef int64_t S; };
INL void put(vf& v, int j, float x) { TC_LANE32(v, j) = x; }
INL void put(vi& v, int j, int32_t x) { TC_LANE32(v, j) = x; }
INL void put(vl& v, int j, int64_t x) { TC_LANE64(v, j) = x; }
INL float get(vf v, int j) { return TC_LANE32(v, j); }
INL int32_t get(vi v, int j) { return TC_LANE32(v, j); }
INL int64_t get(vl v, int j) { return TC_LANE64(v, j); }

// ---- 16 consecutive elements
template <class N, class T> INL N raw(const T* p) { N r; __builtin_memcpy(&r, p, sizeof(r)); return r; }
INL nf nload(const float* p) { return raw<nf>(p); }
INL ni nload(const int32_t* p) { return raw<ni>(p); }
#if defined(TC_AVX512)
INL ni nload(const int16_t* p) { return (ni)_mm512_cvtepi16_epi32(raw<__m256i>(p)); }
INL ni nload(const uint16_t* p) { return (ni)_mm512_cvtepu16_epi32(raw<__m256i>(p)); }
INL ni nload(const int8_t* p) { return (ni)_mm512_cvtepi8_epi32(raw<__m128i>(p)); }
INL ni nload(const uint8_t* p) { return (ni)_mm512_cvtepu8_epi32(raw<__m128i>(p)); }
INL nf nload(const half_t* p) { return (nf)_mm512_cvtph_ps(raw<__m256i>(p)); }
#elif defined(TC_AVX2)
INL ni nload(const int16_t* p) { return (ni)_mm256_cvtepi16_epi32(raw<__m128i>(p)); }
INL ni nload(const uint16_t* p) { return (ni)_mm256_cvtepu16_epi32(raw<__m128i>(p)); }
INL ni nload(const int8_t* p) { return (ni)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)); }
INL ni nload(const uint8_t* p) { return (ni)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)); }
INL nf nload(const half_t* p) { return (nf)_mm256_cvtph_ps(raw<__m128i>(p)); }
#else
template <class T> INL ni nload(const T* p) {
  ni r = {};
  for (int j = 0; j < TC_NL; ++j) r[j] = p[j];
  return r;
}
TC_LONG nf nload(const half_t* p) {
  nf r = {};
  for (int j = 0; j < TC_NL; ++j) r[j] = to_float(p[j]);
  return r;
}
#endif
INL nf nload(const bf16_t* p) { return (nf)(nload((const uint16_t*)p) << 16); }
template <class T> INL typename holder<T>::V vld(const T* p) {
  typename holder<T>::V r;
  EACH(r.p[I] = nload(p + I * TC_NL))
  return r;
}
INL vl vld(const int64_t* p) { vl r; EACHL(r.p[I] = raw<nl>(p + I * (TC_NL / 2))) return r; }
INL vm vld(const bool_t* p) { return int_mask(vld((const uint8_t*)p)); }

INL void vst(float* p, vf v) { __builtin_memcpy(p, &v, sizeof(v)); }
INL void vst(int32_t* p, vi v) { __builtin_memcpy(p, &v, sizeof(v)); }
INL void vst(int64_t* p, vl v) { __builtin_memcpy(p, &v, sizeof(v)); }
#ifdef TC_AVX512
INL void vst(int16_t* p, vi v) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16((__m512i)v.p[0])); }
INL void vst(int8_t* p, vi v) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8((__m512i)v.p[0])); }
INL void vst(half_t* p, vf v) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)v.p[0], 0)); }
#else
INL void vst(int16_t* p, vi v) { for (int j = 0; j < 16; ++j) p[j] = int16_t(TC_LANE32(v, j)); }
INL void vst(int8_t* p, vi v) { for (int j = 0; j < 16; ++j) p[j] = int8_t(TC_LANE32(v, j)); }
TC_LONG void vst(half_t* p, vf v) { for (int j = 0; j < 16; ++j) p[j] = to_half(TC_LANE32(v, j)); }
#endif
INL void vst(bf16_t* p, vf v) { vst((int16_t*)p, ushr(bits_i(v), vsplat(16))); }
INL void vst(bool_t* p, vm v) { vst((int8_t*)p, mask_int(v)); }

INL vf round_f16(vf a) {
  half_t narrow[16];
  vst(narrow, a);
  return vld(narrow);
}

// ---- 16 consecutive elements under a mask: the others are not touched
template <class T> INL typename holder<T>::V vldm(const T* p, vm m, typename holder<T>::V other) {
  for (int j = 0; j < 16; ++j)
    if (mlane(m, j)) put(other, j, ld(p + j));
  return other;
}
INL vm vldm(const bool_t* p, vm m, vm other) {
  return int_mask(vldm((const uint8_t*)p, m, mask_int(other)));
}
template <class T, class V> INL void vstm(T* p, V v, vm m) {
  for (int j = 0; j < 16; ++j)
    if (mlane(m, j)) st(p + j, get(v, j));
}
INL void vstm(bool_t* p, vm v, vm m) { vstm((int8_t*)p, mask_int(v), m); }
#ifdef TC_AVX512
#define TC_VLDM(T, V, N, expression) INL V vldm(const T* p, vm m, V other) { V r; r.p[0] = (N)(expression); return r; }
TC_VLDM(float, vf, nf, _mm512_mask_loadu_ps((__m512)other.p[0], m.k, p))
TC_VLDM(int32_t, vi, ni, _mm512_mask_loadu_epi32((__m512i)other.p[0], m.k, p))
TC_VLDM(int8_t, vi, ni, _mm512_mask_cvtepi8_epi32((__m512i)other.p[0], m.k, _mm_maskz_loadu_epi8(m.k, p)))
TC_VLDM(uint8_t, vi, ni, _mm512_mask_cvtepu8_epi32((__m512i)other.p[0], m.k, _mm_maskz_loadu_epi8(m.k, p)))
TC_VLDM(int16_t, vi, ni, _mm512_mask_cvtepi16_epi32((__m512i)other.p[0], m.k, _mm256_maskz_loadu_epi16(m.k, p)))
TC_VLDM(uint16_t, vi, ni, _mm512_mask_cvtepu16_epi32((__m512i)other.p[0], m.k, _mm256_maskz_loadu_epi16(m.k, p)))
TC_VLDM(half_t, vf, nf, _mm512_mask_cvtph_ps((__m512)other.p[0], m.k, _mm256_maskz_loadu_epi16(m.k, p)))
INL void vstm(float* p, vf v, vm m) { _mm512_mask_storeu_ps(p, m.k, (__m512)v.p[0]); }
INL void vstm(int32_t* p, vi v, vm m) { _mm512_mask_storeu_epi32(p, m.k, (__m512i)v.p[0]); }
INL void vstm(int8_t* p, vi v, vm m) { _mm512_mask_cvtepi32_storeu_epi8(p, m.k, (__m512i)v.p[0]); }
INL void vstm(int16_t* p, vi v, vm m) { _mm512_mask_cvtepi32_storeu_epi16(p, m.k, (__m512i)v.p[0]); }
INL void vstm(half_t* p, vf v, vm m) { _mm256_mask_storeu_epi16(p, m.k, _mm512_cvtps_ph((__m512)v.p[0], 0)); }
INL vf vldm(const bf16_t* p, vm m, vf other) {
  const vi bits = vldm((const uint16_t*)p, m, vsplat(int32_t(0)));
  return sel(m, bits_f(shl(bits, vsplat(16))), other);
}
INL void vstm(bf16_t* p, vf v, vm m) { vstm((int16_t*)p, ushr(bits_i(v), vsplat(16)), m); }
#elif defined(TC_AVX2)
INL vf vldm(const float* p, vm m, vf other) {
  vf r;
  EACH(r.p[I] = (nf)_mm256_maskload_ps(p + I * 8, (__m256i)m.p[I]))
  return sel(m, r, other);
}
INL vi vldm(const int32_t* p, vm m, vi other) { return bits_i(vldm((const float*)p, m, bits_f(other))); }
INL void vstm(float* p, vf v, vm m) { EACH(_mm256_maskstore_ps(p + I * 8, (__m256i)m.p[I], (__m256)v.p[I])) }
INL void vstm(int32_t* p, vi v, vm m) { vstm((float*)p, bits_f(v), m); }
#endif

// ---- elements anywhere: base plus an offset per lane, in elements
template <class T, class O> INL typename holder<T>::V gather(const T* p, O offset) {
  typename holder<T>::V r = {};
  for (int j = 0; j < 16; ++j) put(r, j, ld(p + get(offset, j)));
  return r;
}
template <class T, class O> INL typename holder<T>::V gatherm(const T* p, O offset, vm m, typename holder<T>::V other) {
  for (int j = 0; j < 16; ++j)
    if (mlane(m, j)) put(other, j, ld(p + get(offset, j)));
  return other;
}
#ifdef TC_AVX512
INL vf gather(const float* p, vi o) { vf r; r.p[0] = (nf)_mm512_i32gather_ps((__m512i)o.p[0], p, 4); return r; }
INL vi gather(const int32_t* p, vi o) { return bits_i(gather((const float*)p, o)); }
INL vf gatherm(const float* p, vi o, vm m, vf other) {
  vf r;
  r.p[0] = (nf)_mm512_mask_i32gather_ps((__m512)other.p[0], m.k, (__m512i)o.p[0], p, 4);
  return r;
}
INL vi gatherm(const int32_t* p, vi o, vm m, vi other) { return bits_i(gatherm((const float*)p, o, m, bits_f(other))); }
#endif
template <class O> INL vm gather(const bool_t* p, O offset) { return int_mask(gather((const uint8_t*)p, offset)); }
template <class O> INL vm gatherm(const bool_t* p, O offset, vm m, vm other) {
  return int_mask(gatherm((const uint8_t*)p, offset, m, mask_int(other)));
}
template <class T, class V, class O> INL void scatter(T* p, O offset, V v) {
  for (int j = 0; j < 16; ++j) st(p + get(offset, j), get(v, j));
}
template <class T, class V, class O> INL void scatterm(T* p, O offset, V v, vm m) {
  for (int j = 0; j < 16; ++j)
    if (mlane(m, j)) st(p + get(offset, j), get(v, j));
}
template <class O> INL void scatter(bool_t* p, O offset, vm v) { scatter((int8_t*)p, offset, mask_int(v)); }
template <class O> INL void scatterm(bool_t* p, O offset, vm v, vm m) { scatterm((int8_t*)p, offset, mask_int(v), m); }

// ---- atomics: the value before the update
template <class T, class F> INL T atomic_update(T* p, T amount, F step) {
  T old, next;
  __atomic_load(p, &old, __ATOMIC_RELAXED);
  do next = step(old, amount);
  while (!__atomic_compare_exchange(p, &old, &next, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
  return old;
}

}  // namespace tilec
