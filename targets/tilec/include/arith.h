// Lane-wise arithmetic, comparison, selection and conversion, for vectors and for scalars.
#pragma once
#include "types.h"

namespace tilec {

// ---- broadcasts and lane numbers
INL vf vsplat(float x) { vf r; EACH(r.p[I] = x - nf{}) return r; }
INL vi vsplat(int32_t x) { vi r; EACH(r.p[I] = x - ni{}) return r; }
INL vl vsplat(int64_t x) { vl r; EACHL(r.p[I] = x - nl{}) return r; }
INL ni niota(int from) {
  ni r = {};
  for (int j = 0; j < TC_NL; ++j) r[j] = from + j;
  return r;
}
INL vi iota() { vi r; EACH(r.p[I] = niota(I * TC_NL)) return r; }
INL vi affine(int32_t base, int32_t stride) {
  vi r;
  EACH(r.p[I] = niota(I * TC_NL) * stride + base)
  return r;
}
INL vl affine(int64_t base, int64_t stride) {
  vl r;
  EACHL(for (int j = 0; j < TC_NL / 2; ++j) r.p[I][j] = base + (I * (TC_NL / 2) + j) * stride)
  return r;
}

// ---- arithmetic
#define TC_BINARY(name, V, N, expression, E) \
  INL V name(V a, V b) { V r; E(const N x = (N)a.p[I]; const N y = (N)b.p[I]; r.p[I] = (decltype(r.p[0] + r.p[0]))(expression)) return r; }
#define TC_FLOATS(name, op) TC_BINARY(name, vf, nf, x op y, EACH)
#define TC_INTS(name, op) \
  TC_BINARY(name, vi, ni, x op y, EACH) \
  TC_BINARY(name, vl, nl, x op y, EACHL)
TC_FLOATS(add, +) TC_FLOATS(sub, -) TC_FLOATS(mul, *) TC_FLOATS(div, /)
TC_INTS(add, +) TC_INTS(sub, -) TC_INTS(mul, *) TC_INTS(sdiv, /) TC_INTS(srem, %)
TC_INTS(band, &) TC_INTS(bor, |) TC_INTS(bxor, ^) TC_INTS(shl, <<) TC_INTS(sshr, >>)
TC_BINARY(ushr, vi, nu, x >> y, EACH) TC_BINARY(ushr, vl, nul, x >> y, EACHL)
TC_BINARY(udiv, vi, nu, x / y, EACH) TC_BINARY(udiv, vl, nul, x / y, EACHL)
TC_BINARY(urem, vi, nu, x % y, EACH) TC_BINARY(urem, vl, nul, x % y, EACHL)
TC_BINARY(smax, vi, ni, x > y ? x : y, EACH) TC_BINARY(smin, vi, ni, x < y ? x : y, EACH)
TC_BINARY(umax, vi, nu, x > y ? x : y, EACH) TC_BINARY(umin, vi, nu, x < y ? x : y, EACH)
TC_BINARY(smax, vl, nl, x > y ? x : y, EACHL) TC_BINARY(smin, vl, nl, x < y ? x : y, EACHL)
TC_BINARY(umax, vl, nul, x > y ? x : y, EACHL) TC_BINARY(umin, vl, nul, x < y ? x : y, EACHL)

INL vf neg(vf a) { vf r; EACH(r.p[I] = -a.p[I]) return r; }
INL float neg(float a) { return -a; }
INL vi bits_i(vf a) { vi r; EACH(r.p[I] = (ni)a.p[I]) return r; }
INL vf bits_f(vi a) { vf r; EACH(r.p[I] = (nf)a.p[I]) return r; }
INL int32_t bits_i(float a) { return bitc<int32_t>(a); }
INL float bits_f(int32_t a) { return bitc<float>(a); }
INL vf vabs(vf a) { return bits_f(band(bits_i(a), vsplat(int32_t(0x7fffffff)))); }
INL float vabs(float a) { return __builtin_fabsf(a); }
INL int32_t ushr_s(int32_t a, int n) { return int32_t(uint32_t(a) >> n); }
INL int32_t shl_s(int32_t a, int n) { return int32_t(uint32_t(a) << n); }
INL vi umulhi(vi a, vi b) {
  vi r;
  EACH(for (int j = 0; j < TC_NL; ++j) r.p[I][j] = int32_t((uint64_t(uint32_t(a.p[I][j])) * uint32_t(b.p[I][j])) >> 32))
  return r;
}
INL int32_t umulhi(int32_t a, int32_t b) { return int32_t((uint64_t(uint32_t(a)) * uint32_t(b)) >> 32); }

#if defined(TC_AVX512) || defined(TC_AVX2) || defined(__aarch64__)
INL float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
// Without the instruction: the product is exact in double, the sum is rounded to odd (its last bit
// says "inexact"), so that rounding to float afterwards is as if done once.
INL float fma(float a, float b, float c) {
  const double product = double(a) * b, sum = product + c;
  const double back = sum - product, error = (product - (sum - back)) + (c - back);
  int64_t bits = bitc<int64_t>(sum);
  if (error > 0 || error < 0) bits = ((error > 0) == (sum > 0) ? bits : bits - 1) | 1;
  return float(bitc<double>(bits));
}
#endif
#if defined(TC_AVX512)
INL nf nfma(nf a, nf b, nf c) { return (nf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
#elif defined(TC_AVX2)
INL nf nfma(nf a, nf b, nf c) { return (nf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#elif defined(__aarch64__)
INL nf nfma(nf a, nf b, nf c) {
  return (nf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
#else
TC_LONG nf nfma(nf a, nf b, nf c) {
  nf r = c;
  for (int j = 0; j < TC_NL; ++j) r[j] = fma(a[j], b[j], c[j]);
  return r;
}
#endif
INL vf fma(vf a, vf b, vf c) { vf r; EACH(r.p[I] = nfma(a.p[I], b.p[I], c.p[I])) return r; }

INL vf vsqrt(vf a) {
  vf r;
#if defined(TC_AVX512)
  r.p[0] = (nf)_mm512_sqrt_ps((__m512)a.p[0]);
#elif defined(TC_AVX2)
  EACH(r.p[I] = (nf)_mm256_sqrt_ps((__m256)a.p[I]))
#else
  EACH(for (int j = 0; j < TC_NL; ++j) r.p[I][j] = __builtin_sqrtf(a.p[I][j]))
#endif
  return r;
}
#if defined(TC_AVX512)
#define TC_ROUND(name, mode, scalar) \
  INL vf name(vf a) { vf r; r.p[0] = (nf)_mm512_roundscale_ps((__m512)a.p[0], mode); return r; } \
  INL float name(float a) { return scalar(a); }
#elif defined(TC_AVX2)
#define TC_ROUND(name, mode, scalar) \
  INL vf name(vf a) { vf r; EACH(r.p[I] = (nf)_mm256_round_ps((__m256)a.p[I], mode)) return r; } \
  INL float name(float a) { return scalar(a); }
#else
#define TC_ROUND(name, mode, scalar) \
  INL vf name(vf a) { vf r; EACH(for (int j = 0; j < TC_NL; ++j) r.p[I][j] = scalar(a.p[I][j])) return r; } \
  INL float name(float a) { return scalar(a); }
#endif
TC_ROUND(vrint, 0x8, __builtin_rintf)
TC_ROUND(vfloor, 0x9, __builtin_floorf)
TC_ROUND(vceil, 0xa, __builtin_ceilf)
TC_ROUND(vtrunc, 0xb, __builtin_truncf)

// ---- masks
#ifdef TC_AVX512
#define TC_COMPARE(name, op, imm_f, imm_i) \
  INL vm name(vf a, vf b) { return vm{_mm512_cmp_ps_mask((__m512)a.p[0], (__m512)b.p[0], imm_f)}; } \
  INL vm name(vi a, vi b) { return vm{_mm512_cmp_epi32_mask((__m512i)a.p[0], (__m512i)b.p[0], imm_i)}; } \
  INL vm name(vl a, vl b) { \
    return vm{_mm512_kunpackb(_mm512_cmp_epi64_mask((__m512i)a.p[1], (__m512i)b.p[1], imm_i), \
                              _mm512_cmp_epi64_mask((__m512i)a.p[0], (__m512i)b.p[0], imm_i))}; }
TC_COMPARE(eq, ==, _CMP_EQ_OQ, 0) TC_COMPARE(lt, <, _CMP_LT_OQ, 1) TC_COMPARE(le, <=, _CMP_LE_OQ, 2)
TC_COMPARE(ne, !=, _CMP_NEQ_UQ, 4) TC_COMPARE(ge, >=, _CMP_GE_OQ, 5) TC_COMPARE(gt, >, _CMP_GT_OQ, 6)
INL vm mand(vm a, vm b) { return vm{__mmask16(a.k & b.k)}; }
INL vm mor(vm a, vm b) { return vm{__mmask16(a.k | b.k)}; }
INL vm mxor(vm a, vm b) { return vm{__mmask16(a.k ^ b.k)}; }
INL vm msplat(bool b) { return vm{__mmask16(b ? 0xffff : 0)}; }
INL bool many(vm a) { return a.k != 0; }
INL bool mlane(vm a, int j) { return (a.k >> j) & 1; }
INL vf sel(vm m, vf a, vf b) { vf r; r.p[0] = (nf)_mm512_mask_blend_ps(m.k, (__m512)b.p[0], (__m512)a.p[0]); return r; }
INL vi sel(vm m, vi a, vi b) { vi r; r.p[0] = (ni)_mm512_mask_blend_epi32(m.k, (__m512i)b.p[0], (__m512i)a.p[0]); return r; }
INL vl sel(vm m, vl a, vl b) {
  vl r;
  r.p[0] = (nl)_mm512_mask_blend_epi64(__mmask8(m.k), (__m512i)b.p[0], (__m512i)a.p[0]);
  r.p[1] = (nl)_mm512_mask_blend_epi64(__mmask8(m.k >> 8), (__m512i)b.p[1], (__m512i)a.p[1]);
  return r;
}
INL vi mask_bits(vm m) { vi r; r.p[0] = (ni)_mm512_movm_epi32(m.k); return r; }
#else
#define TC_COMPARE(name, op, imm_f, imm_i) \
  INL vm name(vf a, vf b) { vm r; EACH(r.p[I] = (ni)(a.p[I] op b.p[I])) return r; } \
  INL vm name(vi a, vi b) { vm r; EACH(r.p[I] = (ni)(a.p[I] op b.p[I])) return r; } \
  INL vm name(vl a, vl b) { \
    vm r; \
    EACH(for (int j = 0; j < TC_NL; ++j) { \
      constexpr int H = TC_NL / 2; \
      r.p[I][j] = a.p[2 * I + j / H][j % H] op b.p[2 * I + j / H][j % H] ? -1 : 0; \
    }) \
    return r; \
  }
TC_COMPARE(eq, ==, 0, 0) TC_COMPARE(lt, <, 0, 0) TC_COMPARE(le, <=, 0, 0)
TC_COMPARE(ne, !=, 0, 0) TC_COMPARE(ge, >=, 0, 0) TC_COMPARE(gt, >, 0, 0)
INL vm mand(vm a, vm b) { vm r; EACH(r.p[I] = a.p[I] & b.p[I]) return r; }
INL vm mor(vm a, vm b) { vm r; EACH(r.p[I] = a.p[I] | b.p[I]) return r; }
INL vm mxor(vm a, vm b) { vm r; EACH(r.p[I] = a.p[I] ^ b.p[I]) return r; }
INL vm msplat(bool b) { vm r; EACH(r.p[I] = (b ? -1 : 0) - ni{}) return r; }
INL bool many(vm a) {
  ni any = a.p[0];
  EACH(any |= a.p[I])
  int32_t bits = 0;
  for (int j = 0; j < TC_NL; ++j) bits |= any[j];
  return bits != 0;
}
INL bool mlane(vm a, int j) { return a.p[j / TC_NL][j % TC_NL] != 0; }
INL vf sel(vm m, vf a, vf b) { vf r; EACH(r.p[I] = m.p[I] ? a.p[I] : b.p[I]) return r; }
INL vi sel(vm m, vi a, vi b) { vi r; EACH(r.p[I] = m.p[I] ? a.p[I] : b.p[I]) return r; }
INL vl sel(vm m, vl a, vl b) {
  vl r;
  EACHL(for (int j = 0; j < TC_NL / 2; ++j) r.p[I][j] = mlane(m, I * (TC_NL / 2) + j) ? a.p[I][j] : b.p[I][j])
  return r;
}
INL vi mask_bits(vm m) { vi r; EACH(r.p[I] = m.p[I]) return r; }
#endif
INL vm mnot(vm a) { return mxor(a, msplat(true)); }
INL vm msel(vm m, vm a, vm b) { return mor(mand(m, a), mand(mnot(m), b)); }
INL vi mask_int(vm m) { return band(mask_bits(m), vsplat(int32_t(1))); }
INL vm int_mask(vi a) { return ne(a, vsplat(int32_t(0))); }
INL vi flip(vi a) { return bxor(a, vsplat(int32_t(INT32_MIN))); }
INL vl flip(vl a) { return bxor(a, vsplat(int64_t(INT64_MIN))); }
template <class V> INL vm ult(V a, V b) { return lt(flip(a), flip(b)); }
template <class V> INL vm ule(V a, V b) { return le(flip(a), flip(b)); }
template <class V> INL vm ugt(V a, V b) { return gt(flip(a), flip(b)); }
template <class V> INL vm uge(V a, V b) { return ge(flip(a), flip(b)); }
INL vm isnan(vf a) { return ne(a, a); }
INL bool isnan(float a) { return a != a; }

// ---- minimum and maximum: *num ignores NaN, *imum passes it on
INL float maxnum(float a, float b) { return b != b ? a : (a > b ? a : b); }
INL float minnum(float a, float b) { return b != b ? a : (a < b ? a : b); }
INL float maximum(float a, float b) { return a != a ? a : (a > b ? a : b); }
INL float minimum(float a, float b) { return a != a ? a : (a < b ? a : b); }
#ifdef TC_AVX512  // vrange: IEEE maxNum / minNum, sign from the comparison
INL vf maxnum(vf a, vf b) { vf r; r.p[0] = (nf)_mm512_range_ps((__m512)a.p[0], (__m512)b.p[0], 5); return r; }
INL vf minnum(vf a, vf b) { vf r; r.p[0] = (nf)_mm512_range_ps((__m512)a.p[0], (__m512)b.p[0], 4); return r; }
#else
INL vf maxnum(vf a, vf b) { return sel(mor(gt(a, b), isnan(b)), a, b); }
INL vf minnum(vf a, vf b) { return sel(mor(lt(a, b), isnan(b)), a, b); }
#endif
INL vf maximum(vf a, vf b) { return sel(mor(gt(a, b), isnan(a)), a, b); }
INL vf minimum(vf a, vf b) { return sel(mor(lt(a, b), isnan(a)), a, b); }
template <class T> INL T smax(T a, T b) { return a > b ? a : b; }
template <class T> INL T smin(T a, T b) { return a < b ? a : b; }

// ---- conversions
INL vf to_f(vi a) {
  vf r;
#ifdef TC_AVX512
  r.p[0] = (nf)_mm512_cvtepi32_ps((__m512i)a.p[0]);
#else
  EACH(r.p[I] = __builtin_convertvector(a.p[I], nf))
#endif
  return r;
}
// float((a & 15) - Z): a permutation looks only at the low four bits of an index
template <int Z> INL vf nibble_f(vi a) {
#ifdef TC_AVX512
  vf r;
  const __m512 table = _mm512_setr_ps(0 - Z, 1 - Z, 2 - Z, 3 - Z, 4 - Z, 5 - Z, 6 - Z, 7 - Z, 8 - Z,
                                      9 - Z, 10 - Z, 11 - Z, 12 - Z, 13 - Z, 14 - Z, 15 - Z);
  r.p[0] = (nf)_mm512_permutexvar_ps((__m512i)a.p[0], table);
  return r;
#else
  return to_f(sub(band(a, vsplat(int32_t(15))), vsplat(int32_t(Z))));
#endif
}
INL vi to_i(vf a) {
  vi r;
#ifdef TC_AVX512
  r.p[0] = (ni)_mm512_cvttps_epi32((__m512)a.p[0]);
#else
  EACH(r.p[I] = __builtin_convertvector(a.p[I], ni))
#endif
  return r;
}
#define TC_LANE32(v, j) v.p[(j) / TC_NL][(j) % TC_NL]
#define TC_LANE64(v, j) v.p[(j) / (TC_NL / 2)][(j) % (TC_NL / 2)]
#define TC_LANES(V, T, name, A, expression) \
  INL V name(A a) { V r = {}; for (int j = 0; j < 16; ++j) expression; return r; }
TC_LANES(vf, float, to_fu, vi, TC_LANE32(r, j) = float(uint32_t(TC_LANE32(a, j))))
TC_LANES(vf, float, to_f, vl, TC_LANE32(r, j) = float(TC_LANE64(a, j)))
TC_LANES(vl, int64_t, to_l, vf, TC_LANE64(r, j) = int64_t(TC_LANE32(a, j)))
#ifdef TC_AVX512
INL vl to_l(vi a) {
  vl r;
  r.p[0] = (nl)_mm512_cvtepi32_epi64(_mm512_castsi512_si256((__m512i)a.p[0]));
  r.p[1] = (nl)_mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64((__m512i)a.p[0], 1));
  return r;
}
#else
TC_LANES(vl, int64_t, to_l, vi, TC_LANE64(r, j) = TC_LANE32(a, j))
#endif
TC_LANES(vl, int64_t, to_lu, vi, TC_LANE64(r, j) = int64_t(uint32_t(TC_LANE32(a, j))))
TC_LANES(vi, int32_t, to_i, vl, TC_LANE32(r, j) = int32_t(TC_LANE64(a, j)))

INL vf round_bf16(vf a) {
  const vi u = bits_i(a);
  const vi odd = band(ushr(u, vsplat(16)), vsplat(1));
  const vi rounded = add(add(u, vsplat(0x7fff)), odd);
  const vi kept = sel(isnan(a), bor(u, vsplat(0x00400000)), rounded);
  return bits_f(band(kept, vsplat(int32_t(0xffff0000))));
}

// ---- lanes
INL float first(vf a) { return a.p[0][0]; }
INL int32_t first(vi a) { return a.p[0][0]; }
INL int64_t first(vl a) { return a.p[0][0]; }
template <int J> INL float lane(vf a) { return TC_LANE32(a, J); }
template <int J> INL int32_t lane(vi a) { return TC_LANE32(a, J); }
template <int J> INL int64_t lane(vl a) { return TC_LANE64(a, J); }
template <int J> INL bool lane(vm a) { return mlane(a, J); }

// rot<S>: lane j of the result is lane j + S (modulo 16) of a
template <int S> INL vl rot(vl a) {
  vl r;
  for (int j = 0; j < 16; ++j) TC_LANE64(r, j) = TC_LANE64(a, (j + S) % 16);
  return r;
}
#ifdef TC_AVX512
template <int S> INL vi rot(vi a) { vi r; r.p[0] = (ni)_mm512_alignr_epi32((__m512i)a.p[0], (__m512i)a.p[0], S); return r; }
#else
template <int S> INL vi rot(vi a) {
  vi r = a;
  if (S % TC_NL == 0) {
    EACH(r.p[I] = a.p[(I + S / TC_NL) % TC_PARTS])
    return r;
  }
  for (int j = 0; j < 16; ++j) TC_LANE32(r, j) = TC_LANE32(a, (j + S) % 16);
  return r;
}
#endif
template <int S> INL vf rot(vf a) { return bits_f(rot<S>(bits_i(a))); }
template <int S> INL vm rot(vm a) { return int_mask(rot<S>(mask_bits(a))); }

// Halves of two vectors side by side, for sixteen reductions at once: lanes l of evens and of odds
// are what rot<H> brings together, H = 8, 4, 2, 1 in this order. Each vector holds 8 / H rows, then
// 16 / H. When all sixteen are in one vector, lane 4 i + j is the row that was given as 4 j + i-th.
#if defined(TC_AVX512)
template <int H, bool ODD> INL vi halves(vi a, vi b) {
  const __m512i x = (__m512i)a.p[0], y = (__m512i)b.p[0];
  vi r;
  if (H == 8) r.p[0] = (ni)_mm512_shuffle_i32x4(x, y, ODD ? 0xee : 0x44);
  else if (H == 4) r.p[0] = (ni)_mm512_shuffle_i32x4(x, y, ODD ? 0xdd : 0x88);
  else r.p[0] = (ni)_mm512_shuffle_ps((__m512)x, (__m512)y, H == 2 ? (ODD ? 0xee : 0x44) : (ODD ? 0xdd : 0x88));
  return r;
}
#elif defined(TC_AVX2)
template <int H, bool ODD> INL vi halves(vi a, vi b) {
  vi r;
  if (H == 8) {
    r.p[0] = a.p[ODD], r.p[1] = b.p[ODD];
  } else if (H == 4) {
    r.p[0] = (ni)_mm256_permute2x128_si256((__m256i)a.p[0], (__m256i)a.p[1], ODD ? 0x31 : 0x20);
    r.p[1] = (ni)_mm256_permute2x128_si256((__m256i)b.p[0], (__m256i)b.p[1], ODD ? 0x31 : 0x20);
  } else {
    constexpr int CHOICE = H == 2 ? (ODD ? 0xee : 0x44) : (ODD ? 0xdd : 0x88);
    EACH(r.p[I] = (ni)_mm256_shuffle_ps((__m256)a.p[I], (__m256)b.p[I], CHOICE))
  }
  return r;
}
#else
template <int H, bool ODD> INL vi halves(vi a, vi b) {
  vi r;
  for (int j = 0; j < 16; ++j) {  // by lanes of four: which of them, or which pair in each
    const int part = j / 4, lane = j % 4;
    if (H == 8) TC_LANE32(r, j) = TC_LANE32((part < 2 ? a : b), 8 * ODD + j % 8);
    else if (H == 4) TC_LANE32(r, j) = TC_LANE32((part < 2 ? a : b), 8 * (part % 2) + 4 * ODD + lane);
    else if (H == 2) TC_LANE32(r, j) = TC_LANE32((lane < 2 ? a : b), 4 * part + 2 * ODD + lane % 2);
    else TC_LANE32(r, j) = TC_LANE32((lane < 2 ? a : b), 4 * part + 2 * (lane % 2) + ODD);
  }
  return r;
}
#endif
template <int H, bool ODD> INL vf halves(vf a, vf b) {
  return bits_f(halves<H, ODD>(bits_i(a), bits_i(b)));
}

}  // namespace tilec
