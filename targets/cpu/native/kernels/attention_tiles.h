// The two products of attention over the pages of one split, for up to 32 rows.
//
//   scores  s[row, key] = q[row, :] . K[:, key]
//   values  o[row, :] = sum over keys of p[row, key] V[key, :]
//
// Both are A (rows of bf16 pairs) times B (pairs of bf16 along lanes), as AMX tiles take them: a
// page of K is [D / 2, 32 keys, 2], a page of V [16 key pairs, D, 2]. Each output is one chain over
// ascending steps of 32, so a row's bits depend on no other row and on no count of rows, and a page
// whose weights are 0 changes nothing.
#pragma once
#include "amx.h"
#include "attention_vector.h"

namespace attention {

const int PAGE_KEYS = 32, TILE_ROWS = 16, BLOCK_ROWS = 32;
const int PAGES_AHEAD = 2;  // how far K is prefetched: about what is on its way from memory at once

// Operands of a block of rows for one split. A tiles are 16 rows of 32 bf16, C tiles 16 x 16 f32.
template <class C> struct alignas(64) Tiles {
  static constexpr int STEPS = C::D / 32, PAGES = C::SPLIT / PAGE_KEYS;
  bf16 q[2][STEPS][TILE_ROWS][32];
  float s[PAGES][2][2][TILE_ROWS][16];  // page, tile of rows, half of the page's keys
  bf16 p[PAGES][2][TILE_ROWS][32];
  float o[BLOCK_ROWS][C::D];
  bf16 tail[C::D * PAGE_KEYS];  // V of the sequence's last page, zero where nothing was written
  const bf16 *k[PAGES], *v[PAGES];
  int rows;
  bool is_streamed;  // pages come from far memory, once
};

// A page that is used soon: K goes to the first cache; V, used after the split's K, to the second.
template <class C> INL void prefetch_key_page(const bf16* page) {
  for (int i = 0; i < C::D * PAGE_KEYS; i += 32) _mm_prefetch((const char*)(page + i), _MM_HINT_T0);
}
template <class C> INL void prefetch_value_page(const bf16* page) {
  for (int i = 0; i < C::D * PAGE_KEYS; i += 32) _mm_prefetch((const char*)(page + i), _MM_HINT_T1);
}
template <class C> INL void prefetch_pages(const Tiles<C>& t, int page, int end) {
  if (page + PAGES_AHEAD < end) prefetch_key_page<C>(t.k[page + PAGES_AHEAD]);
  prefetch_value_page<C>(t.v[page]);
}

#ifdef HAVE_AMX

// Tiles 0, 1: sums of the first 16 rows; 2, 3: of the others; 4, 5: A of each; 6, 7: B.
INL void begin_tiles(int rows) {
  const int first = rows < TILE_ROWS ? rows : TILE_ROWS, second = rows - first;
  amx::Config config;
  for (int t = 0; t < 8; t++) {
    const int of_tile = t >= 6 ? 16 : (t == 2 || t == 3 || t == 5) ? second : first;
    if (of_tile) config.set(t, of_tile, 64);
  }
  config.load();
}
INL void end_tiles() { amx::release(); }

// Sums += A tiles x two neighbouring B tiles
template <bool TWO>
INL void tile_step(const bf16* a0, const bf16* a1, const bf16* b, int64_t b_stride) {
  AMX_LOAD(4, a0, 64);
  AMX_LOAD(6, b, b_stride);
  AMX_LOAD(7, b + 32, b_stride);
  AMX_DOT_BF16(0, 4, 6);
  AMX_DOT_BF16(1, 4, 7);
  if (TWO) {
    AMX_LOAD(5, a1, 64);
    AMX_DOT_BF16(2, 5, 6);
    AMX_DOT_BF16(3, 5, 7);
  }
}

template <bool TWO> INL void clear_sums() {
  AMX_ZERO(0);
  AMX_ZERO(1);
  if (!TWO) return;
  AMX_ZERO(2);
  AMX_ZERO(3);
}

template <bool TWO>
INL void store_sums(float* to0, float* to1, int64_t beside, int64_t stride) {
  AMX_STORE(0, to0, stride);
  AMX_STORE(1, to0 + beside, stride);
  if (!TWO) return;
  AMX_STORE(2, to1, stride);
  AMX_STORE(3, to1 + beside, stride);
}

template <class C, bool TWO> INL void score_page(Tiles<C>& t, int page) {
  clear_sums<TWO>();
  for (int step = 0; step < C::D / 32; step++)
    tile_step<TWO>(t.q[0][step][0], t.q[1][step][0], t.k[page] + step * 16 * 64, 128);
  store_sums<TWO>(t.s[page][0][0][0], t.s[page][1][0][0], 16 * 16, 64);
}

template <class C, bool TWO> void weigh_values(Tiles<C>& t, int begin, int end) {
  for (int d = 0; d < C::D; d += 32) {
    clear_sums<TWO>();
    for (int page = begin; page < end; page++)
      tile_step<TWO>(t.p[page][0][0], t.p[page][1][0], t.v[page] + 2 * d, 4 * C::D);
    store_sums<TWO>(t.o[0] + d, t.o[TILE_ROWS] + d, 16, 4 * C::D);
  }
}

template <class C> void scores(Tiles<C>& t, int begin, int end) {
  for (int page = begin; page < end; page++) {
    if (t.is_streamed) prefetch_pages(t, page, end);
    if (t.rows > TILE_ROWS)
      score_page<C, true>(t, page);
    else
      score_page<C, false>(t, page);
  }
}

template <class C> void values(Tiles<C>& t, int begin, int end) {
  if (t.rows > TILE_ROWS)
    weigh_values<C, true>(t, begin, end);
  else
    weigh_values<C, false>(t, begin, end);
}

#else

INL void begin_tiles(int) {}
INL void end_tiles() {}

const int STRIP = 4;  // rows that share a load of B

// sums[row][half] += pairs of A rows x pairs of B: 16 pairs, B rows `b_stride` bf16 apart. In the
// order of one AMX product: a chain of FMA over the even inputs and one over the odd ones, from
// zero; then sum + (even + odd).
INL void strip_step(__m512 (&sums)[STRIP][2], const bf16* a, const bf16* b, int b_stride) {
  __m512 even[STRIP][2] = {}, odd[STRIP][2] = {};
  for (int pair = 0; pair < 16; pair++) {
    const __m512i b0 = _mm512_loadu_si512(b + pair * b_stride);
    const __m512i b1 = _mm512_loadu_si512(b + pair * b_stride + 32);
    for (int row = 0; row < STRIP; row++) {
      const __m512i x = _mm512_set1_epi32(*(const int32_t*)(a + row * 32 + 2 * pair));
      even[row][0] = _mm512_fmadd_ps(evens(x), evens(b0), even[row][0]);
      even[row][1] = _mm512_fmadd_ps(evens(x), evens(b1), even[row][1]);
      odd[row][0] = _mm512_fmadd_ps(odds(x), odds(b0), odd[row][0]);
      odd[row][1] = _mm512_fmadd_ps(odds(x), odds(b1), odd[row][1]);
    }
  }
  for (int row = 0; row < STRIP; row++)
    for (int half = 0; half < 2; half++)
      sums[row][half] =
          _mm512_add_ps(sums[row][half], _mm512_add_ps(even[row][half], odd[row][half]));
}

template <class C> void scores(Tiles<C>& t, int begin, int end) {
  for (int page = begin; page < end; page++) {
    if (t.is_streamed) prefetch_pages(t, page, end);
    for (int row = 0; row < t.rows; row += STRIP) {
      const int tile = row / TILE_ROWS, r = row % TILE_ROWS;
      __m512 sums[STRIP][2] = {};
      for (int step = 0; step < C::D / 32; step++)
        strip_step(sums, t.q[tile][step][r], t.k[page] + step * 16 * 64, 64);
      for (int i = 0; i < STRIP; i++)
        for (int half = 0; half < 2; half++)
          _mm512_store_ps(t.s[page][tile][half][r + i], sums[i][half]);
    }
  }
}

template <class C> void values(Tiles<C>& t, int begin, int end) {
  for (int row = 0; row < t.rows; row += STRIP)
    for (int d = 0; d < C::D; d += 32) {
      const int tile = row / TILE_ROWS, r = row % TILE_ROWS;
      __m512 sums[STRIP][2] = {};
      for (int page = begin; page < end; page++)
        strip_step(sums, t.p[page][tile][r], t.v[page] + 2 * d, 2 * C::D);
      for (int i = 0; i < STRIP; i++)
        for (int half = 0; half < 2; half++)
          _mm512_store_ps(t.o[row + i] + d + 16 * half, sums[i][half]);
    }
}

#endif

}  // namespace attention
