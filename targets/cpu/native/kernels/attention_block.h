// Attention of a block of rows: fixed splits of the keys, each with its own softmax, then merged.
//
// A split is SPLIT keys at absolute positions. Its partial result is (best, lanes, o): the largest
// score in units of log2, 16 partial sums of the weights 2^(score - best), and the weighted values,
// weights rounded to bf16. Splits merge in ascending order from (EMPTY, 0, 0), or from the sink.
// Nothing here looks at other rows, at the chunk of a query or at the thread; a split in which a
// row sees no key merges as an exact nothing. So prefill, which merges as it goes, and decode,
// which keeps partials and merges later, make the same bits.
#pragma once
#include "attention_tiles.h"

namespace attention {

const float NEVER = -1e30f;  // a masked score: finite, since infinity - infinity is NaN
const float EMPTY = -1e20f;  // best of no score: 2^(NEVER - EMPTY) is 0, 2^(EMPTY - EMPTY) is 1
const float LOG2_E = 1.44269504f;

template <class C> struct alignas(64) Block {
  typedef typename Element<C::Q_BF16>::type Q;
  typedef typename Element<C::Y_BF16>::type Y;
  Tiles<C> tiles;
  alignas(64) float best[BLOCK_ROWS], lanes[BLOCK_ROWS][16];  // of the split
  alignas(64) float top[BLOCK_ROWS], total[BLOCK_ROWS][16], acc[BLOCK_ROWS][C::D];  // merged
  int position[BLOCK_ROWS], head[BLOCK_ROWS];
  const Q* q[BLOCK_ROWS];
  Y* y[BLOCK_ROWS];
  float* partial[BLOCK_ROWS];
  float scale;
};

// Floats of a partial result: o, lanes, then best in a cache line of its own
template <class C> INL constexpr int64_t partial_floats() { return C::D + 32; }

template <class C> INL int first_key(int position) {
  return C::WINDOW > 0 && position >= C::WINDOW ? position - C::WINDOW + 1 : 0;
}

template <class C> void pack_queries(Block<C>& b) {
  for (int r = 0; r < b.tiles.rows; r++)
    for (int step = 0; step < C::D / 32; step++) {
      const __m512 low = load_f32(b.q[r], step * 32), high = load_f32(b.q[r], step * 32 + 16);
      bf16* to = b.tiles.q[r / TILE_ROWS][step][r % TILE_ROWS];
      _mm512_store_si512(to, round_pair(low, high));
    }
}

// Where a page of one head begins in the cache
template <class C> INL int64_t cell_of(int32_t page, int head) {
  return (int64_t(page) * C::KV_HEADS + head) * (C::D * PAGE_KEYS);
}

// Pages [begin, end) of the split, whose keys start at `key0`; `length` keys were ever written.
template <class C>
void find_pages(Tiles<C>& t, const bf16* k, const bf16* v, const int32_t* table, int head,
                int begin, int end, int key0, int length) {
  for (int page = begin; page < end; page++) {
    t.k[page] = k + cell_of<C>(table[page], head);
    t.v[page] = v + cell_of<C>(table[page], head);
  }
  const int written = length - key0 - (end - 1) * PAGE_KEYS;
  if (written >= PAGE_KEYS) return;
  const bf16* from = t.v[end - 1];  // unwritten memory may hold NaN, and 0 * NaN is NaN
  for (int pair = 0; pair < PAGE_KEYS / 2; pair++) {
    const int valid = written - 2 * pair;
    const __mmask32 mask = valid >= 2 ? 0xffffffffu : valid == 1 ? 0x55555555u : 0;
    for (int d = 0; d < C::D; d += 16) {
      const int at = pair * 2 * C::D + 2 * d;
      _mm512_store_si512(t.tail + at, _mm512_maskz_loadu_epi16(mask, from + at));
    }
  }
  t.v[end - 1] = t.tail;
}

template <class C> void cap_scores(Block<C>& b, int begin, int end) {
  for (int page = begin; page < end; page++)
    for (int r = 0; r < b.tiles.rows; r++)
      for (int half = 0; half < 2; half++) {
        float* s = b.tiles.s[page][r / TILE_ROWS][half][r % TILE_ROWS];
        const __m512 score = _mm512_mul_ps(_mm512_load_ps(s), _mm512_set1_ps(b.scale));
        _mm512_store_ps(s, soft_cap(score, C::SOFTCAP));
      }
}

// Keys outside low..high - 1 of a page get the score NEVER.
INL uint32_t hidden_keys(int low, int high) {
  const uint32_t below = low <= 0 ? 0 : low >= 32 ? ~0u : (1u << low) - 1;
  const uint32_t under_high = high <= 0 ? 0 : high >= 32 ? ~0u : (1u << high) - 1;
  return below | ~under_high;
}

// A score's unit in log2
template <class C> INL float score_unit(const Block<C>& b) {
  return C::SOFTCAP > 0.0f ? LOG2_E : b.scale * LOG2_E;
}

template <class C> void mask_scores(Block<C>& b, int begin, int end, int key0) {
  int lowest_end = b.position[0] + 1, highest_start = first_key<C>(b.position[0]);
  for (int r = 1; r < b.tiles.rows; r++) {
    const int stop = b.position[r] + 1, start = first_key<C>(b.position[r]);
    lowest_end = stop < lowest_end ? stop : lowest_end;
    highest_start = start > highest_start ? start : highest_start;
  }
  for (int page = begin; page < end; page++) {
    const int key = key0 + page * PAGE_KEYS;
    if (key >= highest_start && key + PAGE_KEYS <= lowest_end) continue;
    for (int r = 0; r < b.tiles.rows; r++) {
      const uint32_t hidden =
          hidden_keys(first_key<C>(b.position[r]) - key, b.position[r] + 1 - key);
      float(*s)[TILE_ROWS][16] = b.tiles.s[page][r / TILE_ROWS];
      const __m512 never = _mm512_set1_ps(NEVER);
      _mm512_mask_store_ps(s[0][r % TILE_ROWS], __mmask16(hidden), never);
      _mm512_mask_store_ps(s[1][r % TILE_ROWS], __mmask16(hidden >> 16), never);
    }
  }
}

// The largest score of a row, in units of log2; EMPTY when it sees no key.
template <class C> INL void find_best(Block<C>& b, int row, int begin, int end) {
  const int tile = row / TILE_ROWS, r = row % TILE_ROWS;
  __m512 high0 = _mm512_set1_ps(NEVER), high1 = high0;
  for (int page = begin; page < end; page++) {
    high0 = _mm512_max_ps(high0, _mm512_load_ps(b.tiles.s[page][tile][0][r]));
    high1 = _mm512_max_ps(high1, _mm512_load_ps(b.tiles.s[page][tile][1][r]));
  }
  const float high = _mm512_reduce_max_ps(_mm512_max_ps(high0, high1)) * score_unit(b);
  b.best[row] = high > EMPTY ? high : EMPTY;
}

// Scores of a row to weights, and their sum.
template <class C> INL void weigh_row(Block<C>& b, int row, int begin, int end) {
  const int tile = row / TILE_ROWS, r = row % TILE_ROWS;
  Tiles<C>& t = b.tiles;
  const __m512 units = _mm512_set1_ps(score_unit(b)), shift = _mm512_set1_ps(-b.best[row]);
  __m512 sum0 = _mm512_setzero_ps(), sum1 = sum0;
  for (int page = begin; page < end; page++) {
    const __m512 x = _mm512_fmadd_ps(_mm512_load_ps(t.s[page][tile][0][r]), units, shift);
    const __m512 y = _mm512_fmadd_ps(_mm512_load_ps(t.s[page][tile][1][r]), units, shift);
    const __m512 p0 = exp2_negative(x), p1 = exp2_negative(y);
    sum0 = _mm512_add_ps(sum0, p0);
    sum1 = _mm512_add_ps(sum1, p1);
    _mm512_store_si512(t.p[page][tile][r], round_pair(p0, p1));
  }
  _mm512_store_ps(b.lanes[row], _mm512_add_ps(sum0, sum1));
}

// The partial result of pages [begin, end) of a split, after find_pages.
template <class C> void attend_split(Block<C>& b, int begin, int end, int key0) {
  scores<C>(b.tiles, begin, end);
  if (C::SOFTCAP > 0.0f) cap_scores(b, begin, end);
  mask_scores(b, begin, end, key0);
  for (int row = 0; row < b.tiles.rows; row++) find_best(b, row, begin, end);
  for (int row = 0; row < b.tiles.rows; row++) weigh_row(b, row, begin, end);
  values<C>(b.tiles, begin, end);
}

template <class C> INL void start_row(Block<C>& b, int row, const float* sinks) {
  b.top[row] = C::SINKS ? sinks[b.head[row]] * LOG2_E : EMPTY;
  __m512 total = _mm512_setzero_ps();
  if (C::SINKS) total = _mm512_maskz_mov_ps(1, _mm512_set1_ps(1.0f));
  _mm512_store_ps(b.total[row], total);
  for (int d = 0; d < C::D; d += 16) _mm512_store_ps(b.acc[row] + d, _mm512_setzero_ps());
}

// The factors of what was merged and of what comes, for 16 rows; `top` becomes the larger.
INL void weigh_parts(float* top, const float* best, float* keep, float* take) {
  const __m512 old = _mm512_load_ps(top), part = _mm512_load_ps(best);
  const __m512 larger = _mm512_max_ps(old, part);
  _mm512_store_ps(keep, exp2_negative(_mm512_sub_ps(old, larger)));
  _mm512_store_ps(take, exp2_negative(_mm512_sub_ps(part, larger)));
  _mm512_store_ps(top, larger);
}

template <class C>
INL void merge_row(Block<C>& b, int row, float kept, float taken, const float* lanes,
                           const float* o) {
  const __m512 keep = _mm512_set1_ps(kept), take = _mm512_set1_ps(taken);
  float* total = b.total[row];
  const __m512 old = _mm512_mul_ps(_mm512_load_ps(total), keep);
  _mm512_store_ps(total, _mm512_fmadd_ps(_mm512_loadu_ps(lanes), take, old));
  for (int d = 0; d < C::D; d += 16) {
    const __m512 before = _mm512_mul_ps(_mm512_load_ps(b.acc[row] + d), keep);
    _mm512_store_ps(b.acc[row] + d, _mm512_fmadd_ps(_mm512_loadu_ps(o + d), take, before));
  }
}

template <class C> INL void finish_row(Block<C>& b, int row) {
  const __m512 share = _mm512_set1_ps(1.0f / sum_lanes(_mm512_load_ps(b.total[row])));
  for (int d = 0; d < C::D; d += 16)
    store_f32(b.y[row], d, _mm512_mul_ps(_mm512_load_ps(b.acc[row] + d), share));
}

template <class C> void merge_split(Block<C>& b) {
  alignas(64) float keep[BLOCK_ROWS], take[BLOCK_ROWS];
  for (int row = 0; row < b.tiles.rows; row += 16)
    weigh_parts(b.top + row, b.best + row, keep + row, take + row);
  for (int row = 0; row < b.tiles.rows; row++)
    merge_row(b, row, keep[row], take[row], b.lanes[row], b.tiles.o[row]);
}

template <class C> void keep_partial(const Block<C>& b, int row) {
  float* to = b.partial[row];
  for (int d = 0; d < C::D; d += 16) _mm512_storeu_ps(to + d, _mm512_load_ps(b.tiles.o[row] + d));
  _mm512_storeu_ps(to + C::D, _mm512_load_ps(b.lanes[row]));
  to[C::D + 16] = b.best[row];
}

}  // namespace attention
