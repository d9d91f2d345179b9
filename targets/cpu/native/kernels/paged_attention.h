// Causal attention of flat tokens over a paged bf16 cache in the "paired" layout.
//
//   q            f32 or bf16 [T, KV_HEADS * GROUP, D]; y the same shape, f32 or bf16
//   k_cache      bf16 [pages, KV_HEADS, D / 2, 32, 2]; v_cache bf16 [pages, KV_HEADS, 16, D, 2]
//   query_start  i32 [seqs + 1]; seq_lens i32 [seqs]; page_table i32 [seqs, pages]
//   partials     f32 [seqs, heads, cdiv(32 * pages, SPLIT), D + 32], of sequences with one query
//                that see more than one split: combine_attention makes their rows of y
// Grid: (slices, 1, 1). The work of the batch is cut into slices of about equal cost.
// Limits: D a multiple of 32, pages of 32 keys, SPLIT a multiple of 32. Needs AVX-512, uses AMX.
#pragma once
#include "attention_units.h"

namespace attention {

struct AttentionArgs {
  const void* q;
  const bf16 *k, *v;
  Sequences in;
  const float* sinks;
  float* partials;
  void* y;
  float scale;
};

template <class C> INL AttentionArgs attention_args(const int64_t* args) {
  AttentionArgs a = {};
  a.q = (const void*)args[0];
  a.k = (const bf16*)args[1];
  a.v = (const bf16*)args[2];
  a.in = {(const int32_t*)args[3], (const int32_t*)args[4], (const int32_t*)args[5], int(args[8]),
          int(args[9])};
  a.partials = (float*)args[6];
  a.y = (void*)args[7];
  a.scale = float_of(args[10]);
  a.sinks = C::SINKS ? (const float*)args[11] : nullptr;
  return a;
}

template <class C> INL int64_t splits_of(const AttentionArgs& a) {
  return (int64_t(a.in.pages) * PAGE_KEYS + C::SPLIT - 1) / C::SPLIT;
}

// Row `row` of the block is query `token` of the batch, at `position`, for one head.
template <class C>
INL void set_row(Block<C>& b, const AttentionArgs& a, int row, int64_t token, int position,
                         int head) {
  const int64_t at = (token * (C::KV_HEADS * C::GROUP) + head) * C::D;
  b.q[row] = (const typename Block<C>::Q*)a.q + at;
  b.y[row] = (typename Block<C>::Y*)a.y + at;
  b.position[row] = position;
  b.head[row] = head;
}

template <class C> void run_tile(Block<C>& b, const AttentionArgs& a, const Unit& unit) {
  const int queries = a.in.queries(unit.seq), length = a.in.seq_lens[unit.seq];
  const int left = queries * C::GROUP - unit.first_row;
  b.tiles.rows = left < BLOCK_ROWS ? left : BLOCK_ROWS;
  b.tiles.is_streamed = false;
  for (int r = 0; r < b.tiles.rows; r++) {
    const int query = (unit.first_row + r) / C::GROUP;
    set_row(b, a, r, a.in.query_start[unit.seq] + query, length - queries + query,
            unit.head * C::GROUP + (unit.first_row + r) % C::GROUP);
    start_row(b, r, a.sinks);
  }
  pack_queries(b);
  begin_tiles(b.tiles.rows);
  const int low = b.position[0], high = b.position[b.tiles.rows - 1];
  for (int split = first_split<C>(low); split <= last_split<C>(high); split++) {
    const int key0 = split * C::SPLIT;
    const int32_t* table = a.in.page_table + int64_t(unit.seq) * a.in.pages + key0 / PAGE_KEYS;
    const Span span = pages_of_split<C>(split, low, high);
    find_pages(b.tiles, a.k, a.v, table, unit.head, span.begin, span.end, key0, length);
    attend_split(b, span.begin, span.end, key0);
    merge_split(b);
  }
  for (int r = 0; r < b.tiles.rows; r++) finish_row(b, r);
}

template <class C> INL bool is_alone(int position) {
  return first_split<C>(position) == last_split<C>(position);
}

// Rows [first, first + rows) of the unit: member by member, the heads of the group.
template <class C>
void run_rows(Block<C>& b, const AttentionArgs& a, const Unit& unit, Span span, int first) {
  const int key0 = unit.split * C::SPLIT;
  for (int r = 0; r < b.tiles.rows; r++) {
    const int seq = unit.seq + unit.members[(first + r) / C::GROUP];
    const int head = unit.head * C::GROUP + (first + r) % C::GROUP;
    set_row(b, a, r, a.in.query_start[seq], a.in.seq_lens[seq] - 1, head);
    const int64_t cell = int64_t(seq) * (C::KV_HEADS * C::GROUP) + head;
    b.partial[r] = a.partials + (cell * splits_of<C>(a) + unit.split) * partial_floats<C>();
  }
  pack_queries(b);
  begin_tiles(b.tiles.rows);
  attend_split(b, span.begin, span.end, key0);
  for (int r = 0; r < b.tiles.rows; r++) start_row(b, r, a.sinks);
  merge_split(b);
  for (int r = 0; r < b.tiles.rows; r++)
    if (is_alone<C>(b.position[r]))
      finish_row(b, r);
    else
      keep_partial(b, r);
}

template <class C> INL Span span_of(const AttentionArgs& a, const Unit& unit) {
  const int position = a.in.seq_lens[unit.seq + unit.members[0]] - 1;
  return pages_of_split<C>(unit.split, position, position);
}

template <class C>
INL const int32_t* table_of(const AttentionArgs& a, const Unit& unit) {
  const int64_t row = unit.seq + unit.members[0];
  return a.in.page_table + row * a.in.pages + unit.split * (C::SPLIT / PAGE_KEYS);
}

template <class C> void run_members(Block<C>& b, const AttentionArgs& a, const Unit& unit) {
  int length = 0;
  for (int i = 0; i < unit.num_members; i++) {
    const int of_member = a.in.seq_lens[unit.seq + unit.members[i]];
    length = of_member > length ? of_member : length;
  }
  const Span span = span_of<C>(a, unit);
  find_pages(b.tiles, a.k, a.v, table_of<C>(a, unit), unit.head, span.begin, span.end,
             unit.split * C::SPLIT, length);
  const int rows = unit.num_members * C::GROUP;
  for (int first = 0; first < rows; first += BLOCK_ROWS) {
    b.tiles.rows = rows - first < BLOCK_ROWS ? rows - first : BLOCK_ROWS;
    b.tiles.is_streamed = first == 0;
    run_rows(b, a, unit, span, first);
  }
}

// The first keys of a unit that runs next: no hardware knows where they are.
template <class C> void prefetch_unit(const AttentionArgs& a, const Unit& unit) {
  const Span span = span_of<C>(a, unit);
  const int32_t* table = table_of<C>(a, unit);
  for (int page = span.begin; page < span.end && page < span.begin + PAGES_AHEAD; page++)
    prefetch_key_page<C>(a.k + cell_of<C>(table[page], unit.head));
}

template <class C> void run_unit(Block<C>& b, const AttentionArgs& a, const Unit& unit) {
  if (unit.num_members)
    run_members(b, a, unit);
  else
    run_tile(b, a, unit);
}

}  // namespace attention

template <class C>
void paged_attention(const int64_t* args, const int32_t* grid, int64_t begin, int64_t end) {
  using namespace attention;
  const AttentionArgs a = attention_args<C>(args);
  const int64_t total = visit_units<C>(a.in, [](const Unit&, int64_t) {});
  const int64_t low = total * begin / grid[0], high = total * end / grid[0];
  Block<C> block;
  block.scale = a.scale;
  Unit waiting;
  bool is_waiting = false;
  visit_units<C>(a.in, [&](const Unit& unit, int64_t before) {
    if (before < low || before >= high) return;
    if (unit.num_members) prefetch_unit<C>(a, unit);
    if (is_waiting) run_unit(block, a, waiting);
    waiting = unit;
    is_waiting = true;
  });
  if (is_waiting) run_unit(block, a, waiting);
  end_tiles();
}
