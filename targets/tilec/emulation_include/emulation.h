// What a kernel and the emulator that runs it agree on, and the checks of memory accesses.
//
// Kernel ABI: void SYMBOL(const int64_t* args, const int32_t* grid, int64_t begin, int64_t end,
//                         tilec::Emulation* emulation)
// `args` hold host addresses; a span is a live allocation, sorted by address.
#pragma once
#include <cstdint>

#define TC_EMULATION_VERSION 1

namespace tilec {

struct Span { uintptr_t begin, end; };

struct Site {  // a load, store or atomic of the source
  const char* where;
  const char* what;
};

// What one run of a block of the source costs; a kernel counts runs, so each tile counts whole.
struct Counters {
  int64_t gm_read, gm_written;  // bytes between main memory and the chip
  int64_t lm, sm, uni_sram;     // bytes through local, shared and matrix memory
  int64_t descriptors;          // block copies: one per contiguous run (2-D ones on the engines)
  int64_t scalars;              // accesses of single elements of main memory
  int64_t macs;                 // multiply-accumulates of tt.dot
  int64_t lanes;                // element-wise operations
  int64_t programs;
};

struct Emulation {  // one per thread that runs a cluster
  int32_t version;
  int32_t reserved;
  const Span* spans;
  int64_t num_spans;
  Counters counters;
  // Neither returns. `kind` 0: outside of an allocation, 1: not aligned to its element.
  void (*fault)(Emulation*, const Site*, int32_t kind, int64_t program, uintptr_t at, int64_t bytes);
};

static __attribute__((noinline)) void find_span(Emulation* e, Span& seen, const Site& site, int64_t program,
                                                uintptr_t at, int64_t bytes) {
  int64_t low = 0, high = e->num_spans;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (e->spans[middle].begin <= at) low = middle + 1;
    else high = middle;
  }
  if (low == 0 || at + uintptr_t(bytes) > e->spans[low - 1].end || bytes < 0)
    e->fault(e, &site, 0, program, at, bytes);
  seen = e->spans[low - 1];
}

// `bytes` from `p` on lie in one live allocation, and `p` is a multiple of its element's size.
template <class T>
static inline __attribute__((always_inline)) void check(Emulation* e, Span& seen, const Site& site, int64_t program,
                                                        const T* p, int64_t bytes) {
  const uintptr_t at = uintptr_t(p);
  if (__builtin_expect(at % sizeof(T) != 0, 0)) e->fault(e, &site, 1, program, at, bytes);
  if (__builtin_expect(at < seen.begin || at + uintptr_t(bytes) > seen.end || bytes < 0, 0))
    find_span(e, seen, site, program, at, bytes);
}

// The box of a tile that starts at `p` and ends `d0` and `d1` bytes further along two axes.
template <class T>
static inline __attribute__((always_inline)) void check_box(Emulation* e, Span& seen, const Site& site, int64_t program,
                                                            const T* p, int64_t d0, int64_t d1) {
  const int64_t below = (d0 < 0 ? d0 : 0) + (d1 < 0 ? d1 : 0), above = (d0 > 0 ? d0 : 0) + (d1 > 0 ? d1 : 0);
  check(e, seen, site, program, (const T*)((uintptr_t)p + uintptr_t(below)), above - below + int64_t(sizeof(T)));
}

static inline void add_cost(Counters& sum, const Counters& cost, int64_t runs) {
  sum.gm_read += runs * cost.gm_read;
  sum.gm_written += runs * cost.gm_written;
  sum.lm += runs * cost.lm;
  sum.sm += runs * cost.sm;
  sum.uni_sram += runs * cost.uni_sram;
  sum.descriptors += runs * cost.descriptors;
  sum.scalars += runs * cost.scalars;
  sum.macs += runs * cost.macs;
  sum.lanes += runs * cost.lanes;
}

}  // namespace tilec
