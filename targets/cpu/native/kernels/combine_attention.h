// Merges the partial results that paged_attention left, with the same arguments.
//
// Grid: (slices, 1, 1); rows are (sequence, head).
#pragma once
#include "paged_attention.h"

template <class C>
void combine_attention(const int64_t* args, const int32_t* grid, int64_t begin, int64_t end) {
  using namespace attention;
  const AttentionArgs a = attention_args<C>(args);
  const int64_t heads = C::KV_HEADS * C::GROUP, rows = a.in.count * heads;
  const int64_t splits = splits_of<C>(a);
  Block<C> b;
  for (int64_t row = rows * begin / grid[0]; row < rows * end / grid[0]; row++) {
    const int seq = int(row / heads), position = a.in.seq_lens[seq] - 1;
    if (a.in.queries(seq) != 1 || is_alone<C>(position)) continue;
    set_row(b, a, 0, a.in.query_start[seq], position, int(row % heads));
    start_row(b, 0, a.sinks);
    for (int split = first_split<C>(position); split <= last_split<C>(position); split++) {
      const float* part = a.partials + (row * splits + split) * partial_floats<C>();
      alignas(64) float keep[16], take[16];
      b.best[0] = part[C::D + 16];
      weigh_parts(b.top, b.best, keep, take);
      merge_row(b, 0, keep[0], take[0], part + C::D, part);
    }
    finish_row(b, 0);
  }
}
