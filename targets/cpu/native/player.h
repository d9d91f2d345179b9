// The player: runs a whole program (all kernels of a step) in one call on a pool of threads.
//
// C ABI, compiled into the same library as the kernels. C-like C++: no exceptions, no RTTI, no
// libstdc++, so that any compiler and -nostdlib++ will do; needs Linux (futex) and pthreads.
//
// A plan is a flat array of int64 words, written by targets/cpu/device/plan_code.py:
//
//   header    SGLK_PLAN_VERSION, words in all, symbols, exprs, bases, kernels, buckets,
//             bucket symbol (-1: none), expr of the arena's bytes
//   exprs     each: number of words, then stack code (targets/dim_code.py)
//   buckets   each: most tokens (-1: any), extents, calls; then its extents and its calls
//   extent    base, expr of the offset, expr of the bytes: must lie within the base
//   call      kernel, three exprs of the grid, args; then per argument: kind, a, b
//   argument  pointer: base, expr of the offset | i32, i64: expr, 0 | f32: bits, 0
//
// Bases are memory regions given anew at each step (address and size); base 0 is the arena.
#pragma once
#include <stdint.h>

#define SGLK_PLAN_VERSION 1
#define SGLK_STACK_SLOTS 64
#define SGLK_MAX_BUCKETS 64

enum { SGLK_ARG_POINTER = 0, SGLK_ARG_I32 = 1, SGLK_ARG_I64 = 2, SGLK_ARG_F32 = 3 };
enum { SGLK_OK = 0, SGLK_REFUSED = 1, SGLK_ARENA_TOO_SMALL = 2 };

// Runs programs begin..end-1 of a kernel, counted with the first grid dimension fastest.
typedef void (*sglk_kernel)(const int64_t* args, const int32_t* grid, int64_t begin, int64_t end);

typedef struct {
  const int64_t* symbols;
  const int64_t* bases;   // addresses
  const int64_t* sizes;   // bytes at each base
  int64_t* nanoseconds;   // null, or one sum per call of the largest bucket
  int64_t bucket;         // out: the bucket that ran
  int64_t arena_needed;   // out, with SGLK_ARENA_TOO_SMALL
  char message[256];      // out, with SGLK_REFUSED
} sglk_step;

#define SGLK_EXPORT extern "C" __attribute__((visibility("default")))

SGLK_EXPORT int64_t sglk_plan_version(void);
SGLK_EXPORT int64_t sglk_pool_create(int64_t threads, void** pool, char* message, int64_t bytes);
SGLK_EXPORT void sglk_pool_destroy(void* pool);
SGLK_EXPORT int64_t sglk_plan_create(const int64_t* code, int64_t words, const int64_t* kernels,
                                     int64_t num_kernels, void** plan, char* message,
                                     int64_t bytes);
SGLK_EXPORT void sglk_plan_destroy(void* plan);
// One thread at a time; nothing has run when the result is not SGLK_OK.
SGLK_EXPORT int64_t sglk_plan_run(void* pool, void* plan, sglk_step* step);
// Index of the first value outside low..high, or -1: indices of a step are checked before it runs.
SGLK_EXPORT int64_t sglk_find_outside(const int32_t* values, int64_t count, int32_t low,
                                      int32_t high);
// The id of the largest of `count` rows of logits [*, vocab], -1 for a row with no finite largest.
SGLK_EXPORT void sglk_argmax(void* pool, const float* logits, int64_t vocab, const int32_t* rows,
                             int64_t count, int32_t* ids);
typedef struct {  // an input of a step and the bounds of its values
  const int32_t* values;
  int64_t count, low, high;
} sglk_range;

// True when every value is within its bounds, and `starts` (one more than `seqs`) grow by at most
// the `lengths` of their sequences: kernels walk the rows of each.
SGLK_EXPORT int64_t sglk_is_step_sound(const sglk_range* ranges, int64_t count,
                                       const int32_t* starts, const int32_t* lengths,
                                       int64_t seqs);

typedef struct {  // how one row of logits becomes a token; top_k 0, top_p 1 and lowest -inf: off
  int32_t row, top_k;
  float temperature;
  float lowest;  // log(min_p): the lowest (logit - largest) / temperature that may be drawn
  double top_p;
  double uniform;  // in [0, 1)
} sglk_row;

// A token for each of `count` rows of logits [*, vocab], -1 for a row with no finite largest.
SGLK_EXPORT void sglk_sample(void* pool, const float* logits, int64_t vocab, const sglk_row* rows,
                             int64_t count, int32_t* ids);
