// exp, log, sin, cos, tanh, erf and friends on 16 lanes: one polynomial, equal bits on every machine.
// A scalar argument takes lane 0 of the vector version, so that a tile's shape never changes a value.
#pragma once
#include <math.h>
#include "memory.h"

namespace tilec {

// 2^n * x for integral n in [-280, 280]; two factors, so that results may be subnormal or infinite
INL vf scale2(vf x, vf n) {
  const vi whole = to_i(n), half = sshr(whole, vsplat(1)), rest = sub(whole, half);
  const vf a = bits_f(shl(add(half, vsplat(127)), vsplat(23)));
  const vf b = bits_f(shl(add(rest, vsplat(127)), vsplat(23)));
  return mul(mul(x, a), b);
}
// e^r for |r| <= ln(2)/2, relative error about 6e-8 (a Remez polynomial of degree 6)
INL vf exp_reduced(vf r) {
  vf y = fma(vsplat(1.37805939e-3f), r, vsplat(8.37312452e-3f));
  y = fma(y, r, vsplat(4.16695364e-2f));
  y = fma(y, r, vsplat(1.66664720e-1f));
  y = fma(y, r, vsplat(4.99999851e-1f));
  y = fma(y, r, vsplat(1.0f));
  return fma(y, r, vsplat(1.0f));
}
TC_LONG vf vexp(vf x) {
  const vf bounded = minimum(maximum(x, vsplat(-150.0f)), vsplat(130.0f));  // NaN passes
  const vf n = vrint(mul(bounded, vsplat(1.44269504f)));
  vf r = fma(n, vsplat(-6.93145752e-1f), bounded);
  r = fma(n, vsplat(-1.42860677e-6f), r);
#ifdef TC_AVX512
  vf y;
  y.p[0] = (nf)_mm512_scalef_ps((__m512)exp_reduced(r).p[0], (__m512)n.p[0]);
  return y;
#else
  return sel(isnan(x), x, scale2(exp_reduced(r), n));
#endif
}
TC_LONG vf vexp2(vf x) {
  const vf bounded = minimum(maximum(x, vsplat(-220.0f)), vsplat(200.0f));
  const vf n = vrint(bounded), f = sub(bounded, n);
  const vf r = fma(f, vsplat(6.93147182e-1f), mul(f, vsplat(-1.90465421e-9f)));
  return sel(isnan(x), x, scale2(exp_reduced(r), sel(isnan(x), vsplat(0.0f), n)));
}

// x = m * 2^e with m in [sqrt(1/2), sqrt(2)); log(x) = e*ln2 + log(m)
INL vf log_scaled(vf x, float ln2_hi, float ln2_lo, float scale_hi, float scale_lo) {
  const vm tiny = lt(x, vsplat(1.17549435e-38f));
  const vf normal = sel(tiny, mul(x, vsplat(16777216.0f)), x);
  const vi u = sub(bits_i(normal), vsplat(0x3f3504f3));
  vf e = to_f(sshr(u, vsplat(23)));
  e = sub(e, sel(tiny, vsplat(24.0f), vsplat(0.0f)));
  const vf f = sub(bits_f(add(band(u, vsplat(0x007fffff)), vsplat(0x3f3504f3))), vsplat(1.0f));
  const vf z = mul(f, f);
  vf y = fma(vsplat(7.0376836292e-2f), f, vsplat(-1.1514610310e-1f));
  y = fma(y, f, vsplat(1.1676998740e-1f));
  y = fma(y, f, vsplat(-1.2420140846e-1f));
  y = fma(y, f, vsplat(1.4249322787e-1f));
  y = fma(y, f, vsplat(-1.6668057665e-1f));
  y = fma(y, f, vsplat(2.0000714765e-1f));
  y = fma(y, f, vsplat(-2.4999993993e-1f));
  y = fma(y, f, vsplat(3.3333331174e-1f));
  y = fma(vsplat(-0.5f), z, mul(mul(y, f), z));  // log(1+f) = f + y
  const vf low = fma(f, vsplat(scale_lo), fma(y, vsplat(scale_hi), mul(e, vsplat(ln2_lo))));
  vf r = fma(e, vsplat(ln2_hi), fma(f, vsplat(scale_hi), low));
  r = sel(eq(x, vsplat(INFINITY)), x, r);
  r = sel(eq(x, vsplat(0.0f)), vsplat(-INFINITY), r);
  return sel(mor(lt(x, vsplat(0.0f)), isnan(x)), vsplat(NAN), r);
}
TC_LONG vf vlog(vf x) { return log_scaled(x, 0.693359375f, -2.12194440e-4f, 1.0f, 0.0f); }
TC_LONG vf vlog2(vf x) { return log_scaled(x, 1.0f, 0.0f, 1.44269502f, 1.92596299e-8f); }

// sin of quadrant q and remainder r in [-pi/4, pi/4]
INL vf sin_reduced(vf r, vi q) {
  const vf z = mul(r, r);
  vf s = fma(vsplat(-1.9515295891e-4f), z, vsplat(8.3321608736e-3f));
  s = fma(s, z, vsplat(-1.6666654611e-1f));
  s = fma(mul(s, z), r, r);
  vf c = fma(vsplat(2.443315711809948e-5f), z, vsplat(-1.388731625493765e-3f));
  c = fma(c, z, vsplat(4.166664568298827e-2f));
  c = fma(mul(c, z), z, fma(vsplat(-0.5f), z, vsplat(1.0f)));
  const vf y = sel(int_mask(band(q, vsplat(1))), c, s);
  return bits_f(bxor(bits_i(y), shl(band(q, vsplat(2)), vsplat(30))));
}
// pi/2 in three parts of 24 bits and exact FMA: good to |x| = 2^17; libm beyond
TC_LONG vf sin_shifted(vf x, int32_t shift) {
  if (many(mnot(le(vabs(x), vsplat(131072.0f))))) {
    vf r = {};
    for (int j = 0; j < 16; ++j) put(r, j, shift ? cosf(get(x, j)) : sinf(get(x, j)));
    return r;
  }
  const vf n = vrint(mul(x, vsplat(0.636619747f)));
  vf r = fma(n, vsplat(-1.57079637e+0f), x);
  r = fma(n, vsplat(4.37113883e-8f), r);
  r = fma(n, vsplat(1.71512489e-15f), r);
  return sin_reduced(r, add(to_i(n), vsplat(shift)));
}
INL vf vsin(vf x) { return sin_shifted(x, 0); }
INL vf vcos(vf x) { return sin_shifted(x, 1); }

TC_LONG vf vtanh(vf x) {
  const vf a = vabs(x), z = mul(x, x);
  vf p = fma(vsplat(-5.70498872745e-3f), z, vsplat(2.06390887954e-2f));
  p = fma(p, z, vsplat(-5.37397155531e-2f));
  p = fma(p, z, vsplat(1.33314422036e-1f));
  p = fma(p, z, vsplat(-3.33332819422e-1f));
  p = fma(mul(p, z), x, x);
  const vf e = vexp(add(a, a));
  const vf big = sub(vsplat(1.0f), div(vsplat(2.0f), add(e, vsplat(1.0f))));
  const vi sign = band(bits_i(x), vsplat(int32_t(INT32_MIN)));
  return sel(lt(a, vsplat(0.625f)), p, bits_f(bor(bits_i(big), sign)));
}
// Two minimax polynomials, each within 1 ulp
TC_LONG vf verf(vf a) {
  const vf t = vabs(a), s = mul(a, a);
  vf r = fma(vsplat(-1.72853470e-5f), t, vsplat(3.83197126e-4f));
  const vf u = fma(vsplat(-3.88396438e-3f), t, vsplat(2.42546219e-2f));
  r = fma(r, s, u);
  r = fma(r, t, vsplat(-1.06777877e-1f));
  r = fma(r, t, vsplat(-6.34846687e-1f));
  r = fma(r, t, vsplat(-1.28717512e-1f));
  r = fma(r, t, neg(t));
  const vf big = sub(vsplat(1.0f), vexp(r));
  const vi sign = band(bits_i(a), vsplat(int32_t(INT32_MIN)));
  vf q = fma(vsplat(-5.96761703e-4f), s, vsplat(4.99119423e-3f));
  q = fma(q, s, vsplat(-2.67681349e-2f));
  q = fma(q, s, vsplat(1.12819925e-1f));
  q = fma(q, s, vsplat(-3.76125336e-1f));
  q = fma(q, s, vsplat(1.28379166e-1f));
  q = fma(q, a, a);
  return sel(gt(t, vsplat(0.927734375f)), bits_f(bor(bits_i(big), sign)), q);
}
INL vf vrsqrt(vf x) { return div(vsplat(1.0f), vsqrt(x)); }
INL vf vpow(vf x, vf y) {
  vf r = {};
  for (int j = 0; j < 16; ++j) put(r, j, powf(get(x, j), get(y, j)));
  return r;
}

// Rarely met functions: the C library's, lane by lane
#define TC_LIBM(name, function)                                          \
  static __attribute__((noinline)) vf name(vf x) {                       \
    vf r = {};                                                           \
    for (int j = 0; j < 16; ++j) put(r, j, function(get(x, j)));         \
    return r;                                                            \
  }                                                                      \
  INL float name(float x) { return function(x); }
#define TC_LIBM2(name, function)                                         \
  static __attribute__((noinline)) vf name(vf x, vf y) {                 \
    vf r = {};                                                           \
    for (int j = 0; j < 16; ++j) put(r, j, function(get(x, j), get(y, j))); \
    return r;                                                            \
  }                                                                      \
  INL float name(float x, float y) { return function(x, y); }
TC_LIBM(vacos, acosf) TC_LIBM(vacosh, acoshf) TC_LIBM(vasin, asinf) TC_LIBM(vasinh, asinhf)
TC_LIBM(vatan, atanf) TC_LIBM(vatanh, atanhf) TC_LIBM(vcosh, coshf) TC_LIBM(vsinh, sinhf)
TC_LIBM(vtan, tanf) TC_LIBM(vexpm1, expm1f) TC_LIBM(vlog1p, log1pf) TC_LIBM(vlog10, log10f)
TC_LIBM2(vatan2, atan2f) TC_LIBM2(vfmod, fmodf)

#define TC_SCALAR(name) INL float name(float x) { return first(name(vsplat(x))); }
TC_SCALAR(vexp) TC_SCALAR(vexp2) TC_SCALAR(vlog) TC_SCALAR(vlog2) TC_SCALAR(vsin) TC_SCALAR(vcos)
TC_SCALAR(vtanh) TC_SCALAR(verf)
INL float vsqrt(float x) { return __builtin_sqrtf(x); }
INL float vrsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }
INL float vpow(float x, float y) { return powf(x, y); }

}  // namespace tilec
