// Reading a plan: every count and index is checked, since the words come from a file.
#pragma once
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "player.h"

namespace {

const int64_t HEADER_WORDS = 9;
const int64_t MAX_COUNT = int64_t(1) << 28;

struct Text {
  char* data;
  int64_t bytes;
};

__attribute__((format(printf, 2, 3))) bool fail(Text text, const char* format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(text.data, size_t(text.bytes), format, values);
  va_end(values);
  return false;
}

struct Extent {
  int64_t base, offset, bytes;
};

struct Call {
  sglk_kernel kernel;
  int64_t grid[3];
  const int64_t* args;  // in the plan's code, three words each
  int64_t num_args, first_slot;
};

struct Bucket {
  int64_t bound, num_extents, num_calls, num_slots;
  Extent* extents;
  Call* calls;
  unsigned char* uses;  // per expr: does this bucket need its value?
};

struct Work {  // one resolved call
  sglk_kernel kernel;
  const int64_t* args;
  int64_t total;
  int32_t grid[4];
};

struct Stage {  // a call that threads share, or a run of calls for one thread
  const Work* work;
  int64_t num_calls;
  bool is_split;
};

struct Plan {
  int64_t *code, words, *kernels;
  int64_t num_symbols, num_exprs, num_bases, num_kernels, num_buckets, bucket_symbol, arena;
  int64_t max_calls, max_slots;
  const int64_t** exprs;  // each points at its length word
  Bucket* buckets;
  // Resolved for the last step; kept while symbols and memory stay the same.
  int64_t *values, *slots, *last_symbols, *last_bases, *last_sizes, last_bucket;
  Work* work;
  Stage* stages;
  int64_t num_stages;
  bool is_timed;
};

struct Reader {
  const int64_t *at, *end;
  Text text;
  bool good;

  int64_t take(const char* what, int64_t low, int64_t high) {
    if (!good) return low;
    if (at == end) {
      good = fail(text, "plan: expected %s, got the end", what);
      return low;
    }
    int64_t value = *at++;
    if (value < low || value > high) {
      good = fail(text, "plan: expected %s in %lld..%lld, got %lld", what, (long long)low,
                  (long long)high, (long long)value);
      return low;
    }
    return value;
  }
};

template <class T>
T* allocate(Reader& in, int64_t count) {
  T* memory = static_cast<T*>(calloc(size_t(count > 0 ? count : 1), sizeof(T)));
  if (!memory && in.good) in.good = fail(in.text, "plan: out of memory");
  return memory;
}

template <class T>
T* reserve(Reader& in, int64_t count) {  // at least one word of code stands for each item
  if (in.good && count > in.end - in.at)
    in.good = fail(in.text, "plan: %lld items do not fit in it", (long long)count);
  return allocate<T>(in, in.good ? count : 0);
}

void read_expr(Reader& in, const Plan& plan) {
  int64_t length = in.take("words of an expr", 1, in.end - in.at), depth = 0;
  const int64_t* stop = in.good ? in.at + length : in.at;
  while (in.good && in.at < stop) {
    int64_t op = in.take("an operation", 0, 10);
    if (op <= 1) {
      if (op == 1)
        in.take("a symbol", 0, plan.num_symbols - 1);
      else
        in.take("a constant", INT64_MIN, INT64_MAX);
      depth += 1;
    } else {
      depth -= 1;
    }
    if (depth < 1 || depth > SGLK_STACK_SLOTS || in.at > stop)
      in.good = in.good && fail(in.text, "plan: an expr breaks its stack");
  }
  if (in.good && depth != 1) in.good = fail(in.text, "plan: an expr leaves more than one value");
}

int64_t take_expr(Reader& in, const Plan& plan, Bucket& bucket) {
  int64_t expr = in.take("an expr", 0, plan.num_exprs - 1);
  if (in.good) bucket.uses[expr] = 1;
  return expr;
}

void read_call(Reader& in, const Plan& plan, Bucket& bucket, Call& call) {
  int64_t kernel = in.take("a kernel", 0, plan.num_kernels - 1);
  for (int axis = 0; axis < 3; axis++) call.grid[axis] = take_expr(in, plan, bucket);
  call.num_args = in.take("arguments", 0, 1 << 16);
  call.first_slot = bucket.num_slots;
  bucket.num_slots += call.num_args;
  call.args = in.at;
  for (int64_t i = 0; in.good && i < call.num_args; i++) {
    int64_t kind = in.take("an argument kind", SGLK_ARG_POINTER, SGLK_ARG_F32);
    if (kind == SGLK_ARG_POINTER) {
      in.take("a base", 0, plan.num_bases - 1);
      take_expr(in, plan, bucket);
    } else if (kind == SGLK_ARG_F32) {
      in.take("f32 bits", 0, UINT32_MAX);
      in.take("zero", 0, 0);
    } else {
      take_expr(in, plan, bucket);
      in.take("zero", 0, 0);
    }
  }
  if (in.good) call.kernel = reinterpret_cast<sglk_kernel>(plan.kernels[kernel]);
}

void read_bucket(Reader& in, Plan& plan, Bucket& bucket) {
  bucket.bound = in.take("a bucket bound", -1, INT64_MAX);
  int64_t extents = in.take("extents", 0, MAX_COUNT), calls = in.take("calls", 0, MAX_COUNT);
  bucket.uses = allocate<unsigned char>(in, plan.num_exprs);
  bucket.extents = reserve<Extent>(in, extents);
  bucket.calls = reserve<Call>(in, calls);
  if (in.good) bucket.uses[plan.arena] = 1;
  for (int64_t i = 0; in.good && i < extents; i++) {
    bucket.extents[i].base = in.take("a base", 0, plan.num_bases - 1);
    bucket.extents[i].offset = take_expr(in, plan, bucket);
    bucket.extents[i].bytes = take_expr(in, plan, bucket);
  }
  for (int64_t i = 0; in.good && i < calls; i++) read_call(in, plan, bucket, bucket.calls[i]);
  bucket.num_extents = extents;
  bucket.num_calls = calls;
  if (calls > plan.max_calls) plan.max_calls = calls;
  if (bucket.num_slots > plan.max_slots) plan.max_slots = bucket.num_slots;
}

// Fills `plan`, whose code and kernels are set; false with a message when the code is malformed.
bool read_plan(Plan& plan, Text text) {
  Reader in = {plan.code, plan.code + plan.words, text, true};
  in.take("the plan version of this library", SGLK_PLAN_VERSION, SGLK_PLAN_VERSION);
  in.take("the words of the plan", plan.words, plan.words);
  plan.num_symbols = in.take("symbols", 0, 1024);
  plan.num_exprs = in.take("exprs", 1, MAX_COUNT);
  plan.num_bases = in.take("bases", 1, MAX_COUNT);
  in.take("the kernels given", plan.num_kernels, plan.num_kernels);
  int64_t buckets = in.take("buckets", 1, SGLK_MAX_BUCKETS);
  plan.bucket_symbol = in.take("a bucket symbol", -1, plan.num_symbols - 1);
  plan.arena = in.take("an expr", 0, plan.num_exprs - 1);
  plan.exprs = reserve<const int64_t*>(in, plan.num_exprs);
  for (int64_t i = 0; in.good && i < plan.num_exprs; i++) {
    plan.exprs[i] = in.at;
    read_expr(in, plan);
  }
  plan.buckets = reserve<Bucket>(in, buckets);
  for (int64_t i = 0; in.good && i < buckets; i++) {
    plan.num_buckets = i + 1;  // first, so that a bucket refused half-way is freed too
    read_bucket(in, plan, plan.buckets[i]);
  }
  if (in.good && in.at != in.end) in.good = fail(text, "plan: expected the end of the plan");
  plan.values = allocate<int64_t>(in, plan.num_exprs);
  plan.slots = allocate<int64_t>(in, plan.max_slots);
  plan.work = allocate<Work>(in, plan.max_calls);
  plan.stages = allocate<Stage>(in, plan.max_calls);
  plan.last_symbols = allocate<int64_t>(in, plan.num_symbols);
  plan.last_bases = allocate<int64_t>(in, plan.num_bases);
  plan.last_sizes = allocate<int64_t>(in, plan.num_bases);
  plan.last_bucket = -1;
  return in.good;
}

void free_plan(Plan* plan) {
  for (int64_t i = 0; i < plan->num_buckets; i++) {
    free(plan->buckets[i].extents);
    free(plan->buckets[i].calls);
    free(plan->buckets[i].uses);
  }
  void* parts[] = {plan->code,  plan->kernels, plan->exprs,        plan->buckets,
                   plan->values, plan->slots,  plan->work,         plan->last_symbols,
                   plan->last_bases, plan->last_sizes, plan->stages};
  for (void* part : parts) free(part);
  free(plan);
}

}  // namespace
