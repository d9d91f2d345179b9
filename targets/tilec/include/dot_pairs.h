// acc[M][N] += a[M][K] * b[K][N] for bf16 a and b, f32 acc: per 32 k (or K, if that is less) the even
// and the odd k are two chains of f32 FMA from zero, k ascending, and acc += even + odd. That is what
// TDPBF16PS computes, so every M, tile and machine gives one result.
#pragma once
#include "memory.h"
#include "tile_registers.h"

namespace tilec {

constexpr int kPairDepth = 32;

// Of `rows` rows, those from `first` on that lie in 16.
INL int rows_of_band(int rows, int first) { return rows <= first ? 0 : rows - first < 16 ? rows - first : 16; }

INL vf one_step(vf acc, vf even, vf odd) { return add(acc, add(even, odd)); }
INL float one_step(float acc, float even, float odd) { return acc + (even + odd); }

// The right side: row j holds k = 2j and 2j + 1. With AMX a lane has both, else each is a row of f32.
template <int K, int N>
struct alignas(64) Pairs {
#ifdef TC_AMX
  uint32_t lanes[K / 2 * N];
  __attribute__((always_inline)) void put(int j, int n, vf even, vf odd) {
    vst((int32_t*)lanes + j * N + n, bor(ushr(bits_i(even), vsplat(int32_t(16))), bits_i(odd)));
  }
#else
  float lanes[K * N];
  __attribute__((always_inline)) void put(int j, int n, vf even, vf odd) {
    vst(lanes + 2 * j * N + n, even);
    vst(lanes + (2 * j + 1) * N + n, odd);
  }
#endif
  // ((v >> S) & 15) - Z and ((v >> (S + 16)) & 15) - Z
  template <int Z, int S>
  __attribute__((always_inline)) void put_nibbles(int j, int n, vi v);
};

#ifdef TC_AMX
// bf16 values of 0..15 less Z, twice
template <int Z>
struct NibbleTable {
  alignas(64) uint16_t values[32];
  constexpr NibbleTable() : values() {
    for (int i = 0; i < 32; ++i)
      values[i] = uint16_t(__builtin_bit_cast(uint32_t, float(i % 16 - Z)) >> 16);
  }
};
template <int Z> constexpr NibbleTable<Z> kNibbles;

template <int K, int N>
template <int Z, int S>
void Pairs<K, N>::put_nibbles(int j, int n, vi v) {
  const __m512i index = S ? _mm512_srli_epi16((__m512i)v.p[0], S) : (__m512i)v.p[0];
  const __m512i table = _mm512_load_si512(kNibbles<Z>.values);
  _mm512_store_si512(lanes + j * N + n, _mm512_permutexvar_epi16(index, table));
}

// Sums of set S (0 or 1) for 16 rows and 16 V columns. The caller loads the right side when it is
// one step deep.
template <int S, int V, int K, int N, bool ZERO>
INL void tile_product(float* acc, int64_t ldacc, const bf16_t* a, int64_t lda, const uint32_t* b) {
  constexpr int STEP = K < kPairDepth ? K : kPairDepth;
  if (ZERO) tile_zero<2 * S>(); else tile_load<2 * S>(acc, 4 * ldacc);
  if (V > 1) { if (ZERO) tile_zero<2 * S + 1>(); else tile_load<2 * S + 1>(acc + 16, 4 * ldacc); }
  for (int k = 0; k < K; k += STEP) {
    tile_load<4 + S>(a + k, 2 * lda);
    if (K > STEP) tile_load<6>(b + k / 2 * N, 4 * N);
    tile_dot_bf16<2 * S, 4 + S, 6>();
    if (V > 1) {
      if (K > STEP) tile_load<7>(b + k / 2 * N + 16, 4 * N);
      tile_dot_bf16<2 * S + 1, 4 + S, 7>();
    }
  }
}

template <int S, int V>
INL void tile_finish(float* acc, int64_t ldacc) {
  tile_store<2 * S>(acc, 4 * ldacc);
  if (V > 1) tile_store<2 * S + 1>(acc + 16, 4 * ldacc);
}

// `rows` rows and 16 V columns. A product is stored after the next one has begun: a store that
// waits for its product would hold up what follows.
template <int M, int V, int K, int N, bool ZERO>
INL void tile_column(float* acc, int64_t ldacc, const bf16_t* a, int64_t lda, int rows, const uint32_t* b) {
  constexpr int STEP = K < kPairDepth ? K : kPairDepth, TILES = M / 16;
  if (K == STEP) {
    tile_load<6>(b, 4 * N);
    if (V > 1) tile_load<7>(b + 16, 4 * N);
  }
  if (M % 16 == 0 && rows == M) {
#pragma GCC unroll 4
    for (int t = 0; t < TILES; ++t) {
      float* to = acc + 16 * t * ldacc;
      const bf16_t* from = a + 16 * t * lda;
      if (t % 2) tile_product<1, V, K, N, ZERO>(to, ldacc, from, lda, b);
      else tile_product<0, V, K, N, ZERO>(to, ldacc, from, lda, b);
      if (t > 0) {
        if (t % 2) tile_finish<0, V>(to - 16 * ldacc, ldacc);
        else tile_finish<1, V>(to - 16 * ldacc, ldacc);
      }
    }
    float* end = acc + 16 * (TILES - 1) * ldacc;
    if (TILES % 2) tile_finish<0, V>(end, ldacc); else tile_finish<1, V>(end, ldacc);
    return;
  }
  int at = 0;
  for (; at + 16 <= rows; at += 16) {
    tile_product<0, V, K, N, ZERO>(acc + at * ldacc, ldacc, a + at * lda, lda, b);
    tile_finish<0, V>(acc + at * ldacc, ldacc);
  }
  if (at == rows) return;
  tile_product<1, V, K, N, ZERO>(acc + at * ldacc, ldacc, a + at * lda, lda, b);
  tile_finish<1, V>(acc + at * ldacc, ldacc);
}
#else
template <int K, int N>
template <int Z, int S>
void Pairs<K, N>::put_nibbles(int j, int n, vi v) {
  put(j, n, nibble_f<Z>(ushr(v, vsplat(int32_t(S)))), nibble_f<Z>(ushr(v, vsplat(int32_t(S + 16)))));
}

#ifdef TC_AVX512
constexpr int kPairRows = 4, kPairVectors = 2;
#elif defined(TC_AVX2)
constexpr int kPairRows = 2, kPairVectors = 1;
#else
constexpr int kPairRows = 1, kPairVectors = 1;
#endif

// R rows of x and V vectors of columns
template <int V, int K, int N>
INL void chain_block(float* acc, int64_t ldacc, int rows, const float (*x)[K], const float* b) {
  constexpr int STEP = K < kPairDepth ? K : kPairDepth, R = kPairRows;
  for (int g = 0; g < K; g += STEP) {
    vf even[R][V], odd[R][V];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) even[r][v] = odd[r][v] = vsplat(0.0f);
    for (int k = g; k < g + STEP; k += 2) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        const vf low = vld(b + k * N + 16 * v), high = vld(b + (k + 1) * N + 16 * v);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          even[r][v] = fma(vsplat(x[r][k]), low, even[r][v]);
          odd[r][v] = fma(vsplat(x[r][k + 1]), high, odd[r][v]);
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      if (r >= rows) break;
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        float* at = acc + r * ldacc + 16 * v;
        vst(at, one_step(vld(at), even[r][v], odd[r][v]));
      }
    }
  }
}
#endif

// Rows of `a` from `rows` on are zeros that are not read. ZERO: acc is new and holds nothing yet.
template <int M, int N, int K, bool ZERO>
INL void dot_pairs(Tiles& tiles, float* acc, int64_t ldacc, const bf16_t* a, int64_t lda, int rows,
                   const Pairs<K, N>& b) {
  static_assert(N % 16 == 0 && K % 2 == 0 && (K <= kPairDepth || K % kPairDepth == 0), "whole steps");
  for (int r = ZERO ? rows : M; r < M; ++r)
    for (int n = 0; n < N; n += 16) vst(acc + r * ldacc + n, vsplat(0.0f));
#ifdef TC_AMX
  if (rows == 0) return;
  tiles.use((rows - 1) % 16 + 1, (K < kPairDepth ? K : kPairDepth) / 2);
  for (int n = 0; n + 32 <= N; n += 32)
    tile_column<M, 2, K, N, ZERO>(acc + n, ldacc, a, lda, rows, b.lanes + n);
  if (N % 32)
    tile_column<M, 1, K, N, ZERO>(acc + N - 16, ldacc, a, lda, rows, b.lanes + N - 16);
#else
  if (ZERO)
    for (int r = 0; r < rows; ++r)
      for (int n = 0; n < N; n += 16) vst(acc + r * ldacc + n, vsplat(0.0f));
  for (int r = 0; r < rows; r += kPairRows) {
    alignas(64) float x[kPairRows][K];
    for (int i = 0; i < kPairRows; ++i) {  // rows past the last are the last: computed and dropped
      const bf16_t* from = a + (r + i < rows ? r + i : rows - 1) * lda;
      if (K % 16) for (int k = 0; k < K; ++k) x[i][k] = to_float(from[k]);
      else for (int k = 0; k < K; k += 16) vst(x[i] + k, vld(from + k));
    }
    float* to = acc + r * ldacc;
    constexpr int WIDE = 16 * kPairVectors;
    for (int n = 0; n + WIDE <= N; n += WIDE)
      chain_block<kPairVectors, K, N>(to + n, ldacc, rows - r, x, b.lanes + n);
    if (N % WIDE) chain_block<1, K, N>(to + N - 16, ldacc, rows - r, x, b.lanes + N - 16);
  }
#endif
}

}  // namespace tilec
