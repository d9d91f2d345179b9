// The id of the largest logit of a row: what greedy sampling needs of them, on the pool's threads.
//
// Layout: logits f32 [rows, vocab]. Ties go to the lowest id, as NumPy has it; a row that holds a
// NaN, or whose largest value is not finite, gives -1. One program is one row: about 5 microseconds
// for 49,152 logits in the second-level cache.
#pragma once
#include "pool.h"

namespace {

// As wide as one register: gcc makes scalars of comparisons that it would have to split.
#if defined(__AVX512F__)
const int64_t LANES = 16;
#elif defined(__AVX2__)
const int64_t LANES = 8;
#else
const int64_t LANES = 4;
#endif
typedef float Floats __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES), aligned(4)));

struct Best {
  float value;
  int32_t id;
  bool has_nan;

  void offer(float candidate, int32_t at) {
    has_nan = has_nan || candidate != candidate;
    if (candidate > value || (candidate == value && at < id)) {
      value = candidate;
      id = at;
    }
  }
};

// Each lane keeps the first of its largest; strictly greater ones replace it.
Best best_of_lanes(const float* row, int64_t blocks) {
  Floats values = *reinterpret_cast<const Floats*>(row);
  Ints now, ids;
  for (int32_t lane = 0; lane < LANES; lane++) now[lane] = lane;
  ids = now;
  Ints bad = values != values;
  for (int64_t i = 1; i < blocks; i++) {
    Floats next = *reinterpret_cast<const Floats*>(row + LANES * i);
    now += int32_t(LANES);
    Ints is_greater = next > values;
    bad |= next != next;
    values = is_greater ? next : values;
    ids = is_greater ? now : ids;
  }
  Best best = {values[0], ids[0], bad[0] != 0};
  for (int64_t lane = 1; lane < LANES; lane++) {
    best.offer(values[lane], ids[lane]);
    best.has_nan = best.has_nan || bad[lane] != 0;
  }
  return best;
}

int32_t argmax_row(const float* row, int64_t vocab) {
  int64_t blocks = vocab / LANES;
  Best best = blocks ? best_of_lanes(row, blocks) : Best{-__builtin_inff(), 0, false};
  for (int64_t i = blocks * LANES; i < vocab; i++) best.offer(row[i], int32_t(i));
  return best.has_nan || __builtin_isinf(best.value) ? -1 : best.id;
}

// args: logits, vocab, rows (i32), ids (i32, out)
void argmax_rows(const int64_t* args, const int32_t*, int64_t begin, int64_t end) {
  const float* logits = reinterpret_cast<const float*>(args[0]);
  const int32_t* rows = reinterpret_cast<const int32_t*>(args[2]);
  int32_t* ids = reinterpret_cast<int32_t*>(args[3]);
  for (int64_t i = begin; i < end; i++)
    ids[i] = argmax_row(logits + int64_t(rows[i]) * args[1], args[1]);
}

}  // namespace
