// What a product does with its sums before it stores them: bias, activation, gate, residual.
#pragma once
#include "tilec.h"

namespace epilogue {
using namespace tilec;

enum Activation { NONE, RELU, RELU2, SILU, GELU, GELU_TANH, GELU_QUICK, SIGMOID, TANH };

INL vf one_over_one_plus_exp(vf x) { return div(vsplat(1.0f), add(vsplat(1.0f), vexp(x))); }

template <int KIND>
INL vf activate(vf x) {
  if constexpr (KIND == RELU) return maximum(x, vsplat(0.0f));
  if constexpr (KIND == RELU2) { const vf y = maximum(x, vsplat(0.0f)); return mul(y, y); }
  if constexpr (KIND == SILU) return div(x, add(vsplat(1.0f), vexp(neg(x))));
  if constexpr (KIND == GELU)
    return mul(mul(vsplat(0.5f), x), add(vsplat(1.0f), verf(mul(x, vsplat(0.7071067811865476f)))));
  if constexpr (KIND == GELU_TANH) {
    const vf cube = mul(vsplat(0.044715f), mul(x, mul(x, x)));
    return mul(mul(vsplat(0.5f), x),
               add(vsplat(1.0f), vtanh(mul(vsplat(0.7978845608028654f), add(x, cube)))));
  }
  if constexpr (KIND == GELU_QUICK) return mul(x, one_over_one_plus_exp(mul(vsplat(-1.702f), x)));
  if constexpr (KIND == SIGMOID) return one_over_one_plus_exp(neg(x));
  if constexpr (KIND == TANH) return vtanh(x);
  return x;
}

// 16 values to memory; 4-byte or 2-byte elements.
INL void store(float* to, vf v) { vst(to, v); }
INL void store(bf16_t* to, vf v) {
#if defined(__AVX512BF16__)
  _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh((__m512)v.p[0]));
#else
  for (int i = 0; i < 16; ++i) st(to + i, get(v, i));
#endif
}

}  // namespace epilogue
