// What there is to do for a batch, as units that any thread may take.
//
// A tile is BLOCK_ROWS rows of one sequence and KV head, all splits. A sequence with one query (a
// decode step) makes units of one split each: its partials are merged by another kernel. Sequences
// whose pages of a split are the same, a shared prefix, are members of one unit, which reads those
// pages once. Sharing is looked for among SEQ_WINDOW neighbouring sequences, and in a split only
// among those that shared the split before.
#pragma once
#include "attention_block.h"

namespace attention {

const int SEQ_WINDOW = 64;

struct Sequences {
  const int32_t *query_start, *seq_lens, *page_table;
  int count, pages;  // sequences; columns of page_table

  int queries(int seq) const { return query_start[seq + 1] - query_start[seq]; }
};

struct Unit {
  int head, seq, first_row;  // a tile, when num_members is 0
  int split, num_members;
  uint8_t members[SEQ_WINDOW];  // sequences, counted from `seq`
};

// Pages [begin, end) of a split that positions low..high see; none when begin >= end.
struct Span {
  int begin, end;
};

template <class C> INL Span pages_of_split(int split, int low, int high) {
  const int first = split * (C::SPLIT / PAGE_KEYS), after = first + C::SPLIT / PAGE_KEYS;
  const int begin = first_key<C>(low) / PAGE_KEYS, end = high / PAGE_KEYS + 1;
  return {(begin > first ? begin : first) - first, (end < after ? end : after) - first};
}

template <class C> INL int last_split(int position) { return position / C::SPLIT; }
template <class C> INL int first_split(int position) {
  return first_key<C>(position) / C::SPLIT;
}

template <class C>
INL bool has_same_pages(const Sequences& in, int a, int b, int split) {
  const Span x = pages_of_split<C>(split, in.seq_lens[a] - 1, in.seq_lens[a] - 1);
  const Span y = pages_of_split<C>(split, in.seq_lens[b] - 1, in.seq_lens[b] - 1);
  if (x.begin != y.begin || x.end != y.end) return false;
  const int64_t first = int64_t(split) * (C::SPLIT / PAGE_KEYS);
  const int32_t* of_a = in.page_table + int64_t(a) * in.pages + first;
  const int32_t* of_b = in.page_table + int64_t(b) * in.pages + first;
  for (int page = x.begin; page < x.end; page++)
    if (of_a[page] != of_b[page]) return false;
  return true;
}

template <class C, class Visit>
void visit_tiles(const Sequences& in, int seq, int64_t* cost, Visit visit) {
  const int rows = in.queries(seq) * C::GROUP, before = in.seq_lens[seq] - in.queries(seq);
  for (int head = 0; head < C::KV_HEADS; head++)
    for (int row = 0; row < rows; row += BLOCK_ROWS) {
      const int last = (row + BLOCK_ROWS < rows ? row + BLOCK_ROWS : rows) - 1;
      const int low = before + row / C::GROUP, high = before + last / C::GROUP;
      visit(Unit{head, seq, row, 0, 0, {}}, *cost);
      *cost += high / PAGE_KEYS - first_key<C>(low) / PAGE_KEYS + 2;
    }
}

// Which of SEQ_WINDOW sequences share the pages of a split: `leader` is the first that has them.
struct Groups {
  static const uint8_t NONE = 255;  // takes no part in the split
  uint8_t leader[SEQ_WINDOW] = {}, size[SEQ_WINDOW] = {2};  // before the first split all may share
};

template <class C>
void regroup(const Sequences& in, int first, int count, int split, Groups& groups) {
  uint8_t next[SEQ_WINDOW];
  for (int i = 0; i < count; i++) {
    next[i] = Groups::NONE;
    if (in.queries(first + i) != 1 || split > last_split<C>(in.seq_lens[first + i] - 1)) continue;
    const uint8_t group = groups.leader[i];
    next[i] = uint8_t(i);
    for (int j = 0; j < i && groups.size[group] > 1 && next[i] == i; j++)
      if (next[j] == j && groups.leader[j] == group &&
          has_same_pages<C>(in, first + i, first + j, split))
        next[i] = uint8_t(j);
  }
  for (int i = 0; i < count; i++) groups.size[i] = 0;
  for (int i = 0; i < count; i++) {
    groups.leader[i] = next[i];
    if (next[i] != Groups::NONE) groups.size[next[i]] += 1;
  }
}

// The unit of a leader; its head is set later.
INL Unit unit_of(const Groups& groups, int first, int count, int split, int leader) {
  Unit unit = {0, first, 0, split, 0, {}};
  for (int i = leader; i < count; i++)
    if (groups.leader[i] == leader) unit.members[unit.num_members++] = uint8_t(i);
  return unit;
}

// Sequences first..first + count - 1, those with one query.
template <class C, class Visit>
void visit_splits(const Sequences& in, int first, int count, int64_t* cost, Visit visit) {
  Groups groups;
  int splits = 0;
  for (int i = 0; i < count; i++)
    if (in.queries(first + i) == 1) {
      const int end = last_split<C>(in.seq_lens[first + i] - 1) + 1;
      splits = end > splits ? end : splits;
    }
  for (int split = 0; split < splits; split++) {
    regroup<C>(in, first, count, split, groups);
    for (int i = 0; i < count; i++) {
      const int position = in.seq_lens[first + i] - 1;
      const Span span = pages_of_split<C>(split, position, position);
      if (groups.leader[i] != i || span.begin >= span.end) continue;
      Unit unit = unit_of(groups, first, count, split, i);
      const int blocks = (unit.num_members * C::GROUP + BLOCK_ROWS - 1) / BLOCK_ROWS;
      for (unit.head = 0; unit.head < C::KV_HEADS; unit.head++) {
        visit(unit, *cost);
        *cost += (span.end - span.begin) * blocks + 2;
      }
    }
  }
}

// visit(unit, cost of all units before it); the result is the cost of all, in pages times blocks.
template <class C, class Visit> int64_t visit_units(const Sequences& in, Visit visit) {
  int64_t cost = 0;
  for (int first = 0; first < in.count; first += SEQ_WINDOW) {
    const int count = in.count - first < SEQ_WINDOW ? in.count - first : SEQ_WINDOW;
    visit_splits<C>(in, first, count, &cost, visit);
    for (int seq = first; seq < first + count; seq++)
      if (in.queries(seq) > 1) visit_tiles<C>(in, seq, &cost, visit);
  }
  return cost;
}

}  // namespace attention
