// acc[M][N] += a[M][K] * b[K][N] in f32: k ascending, one FMA per step, for every M and machine.
// Registers hold a block of rows x columns of acc over the whole K, so a row's bits never depend on
// how many rows there are.
#pragma once
#include "memory.h"

namespace tilec {

// Rows and vectors of a block: 6 x 4 of 32 registers with AVX-512, 6 x 1 (12 of 16) with AVX2.
#ifdef TC_AVX512
constexpr int kDotRows = 6, kDotVectors = 4;
#else
constexpr int kDotRows = 6, kDotVectors = 1;
#endif

template <int R, int V, int K, class B>
INL void dot_block(float* acc, int64_t ldacc, const float* a, int64_t lda, const B* b, int64_t ldb) {
  vf sum[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sum[r][v] = vld(acc + r * ldacc + 16 * v);
#pragma GCC unroll 2
  for (int k = 0; k < K; ++k) {
    vf right[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) right[v] = vld(b + k * ldb + 16 * v);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const vf left = vsplat(a[r * lda + k]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sum[r][v] = fma(left, right[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) vst(acc + r * ldacc + 16 * v, sum[r][v]);
}

template <int M, int V, int K, class B>
INL void dot_columns(float* acc, int64_t ldacc, const float* a, int64_t lda, const B* b, int64_t ldb) {
  constexpr int full = M / kDotRows * kDotRows, rest = M - full;
  for (int m = 0; m < full; m += kDotRows)
    dot_block<kDotRows, V, K>(acc + m * ldacc, ldacc, a + m * lda, lda, b, ldb);
  if constexpr (rest > 0)
    dot_block<rest, V, K>(acc + full * ldacc, ldacc, a + full * lda, lda, b, ldb);
}

template <int M, int N, int K, class B>
INL void dot(float* acc, int64_t ldacc, const float* a, int64_t lda, const B* b, int64_t ldb) {
  constexpr int width = 16 * kDotVectors, full = N / width * width, rest = (N - full) / 16;
  static_assert(N % 16 == 0, "columns come in vectors of 16");
  for (int n = 0; n < full; n += width)
    dot_columns<M, kDotVectors, K>(acc + n, ldacc, a, lda, b + n, ldb);
  if constexpr (rest > 0) dot_columns<M, rest, K>(acc + full, ldacc, a, lda, b + full, ldb);
}

}  // namespace tilec
