// From the symbols and memory of a step to kernel arguments: sizes, ranges and grids are checked
// here, before any kernel runs.
#pragma once
#include "plan.h"

namespace {

bool floor_divide(int64_t a, int64_t b, int64_t* quotient, int64_t* rest) {
  if (b == 0 || (a == INT64_MIN && b == -1)) return false;
  *quotient = a / b;
  *rest = a % b;
  if (*rest != 0 && (*rest < 0) != (b < 0)) {
    *quotient -= 1;
    *rest += b;
  }
  return true;
}

bool apply(int64_t op, int64_t a, int64_t b, int64_t* out) {
  int64_t quotient, rest;
  switch (op) {
    case 2: return !__builtin_add_overflow(a, b, out);
    case 3: return !__builtin_sub_overflow(a, b, out);
    case 4: return !__builtin_mul_overflow(a, b, out);
    case 5: return floor_divide(a, b, out, &rest);
    case 6: return b == -1 ? (*out = 0, true) : floor_divide(a, b, &quotient, out);
    case 7: return *out = a < b ? a : b, true;
    case 8: return *out = a > b ? a : b, true;
    default: break;
  }
  if (!floor_divide(a, b, &quotient, &rest)) return false;  // cdiv, align
  quotient += rest != 0;
  return op == 9 ? (*out = quotient, true) : !__builtin_mul_overflow(quotient, b, out);
}

bool evaluate(const int64_t* code, const int64_t* symbols, int64_t* out) {
  int64_t stack[SGLK_STACK_SLOTS], depth = 0;
  for (int64_t i = 1; i <= code[0]; i++) {
    int64_t op = code[i];
    if (op == 0) {
      stack[depth++] = code[++i];
    } else if (op == 1) {
      stack[depth++] = symbols[code[++i]];
    } else {
      depth -= 1;
      if (!apply(op, stack[depth - 1], stack[depth], &stack[depth - 1])) return false;
    }
  }
  *out = stack[0];
  return true;
}

// -1 when no bucket takes this many tokens.
int64_t choose_bucket(const Plan& plan, const int64_t* symbols) {
  for (int64_t i = 0; i < plan.num_buckets; i++) {
    int64_t bound = plan.buckets[i].bound;
    if (bound < 0 || plan.bucket_symbol < 0 || symbols[plan.bucket_symbol] <= bound) return i;
  }
  return -1;
}

bool evaluate_bucket(Plan& plan, const Bucket& bucket, const sglk_step& step, Text text) {
  for (int64_t i = 0; i < plan.num_exprs; i++)
    if (bucket.uses[i] && !evaluate(plan.exprs[i], step.symbols, &plan.values[i]))
      return fail(text, "size number %lld overflows or divides by zero", (long long)i);
  return true;
}

// The arena may be larger than this step asks for; nothing may rely on the rest.
int64_t region_bytes(const sglk_step& step, int64_t base) {
  return base == 0 ? step.arena_needed : step.sizes[base];
}

bool check_extents(const Plan& plan, const Bucket& bucket, const sglk_step& step, Text text) {
  for (int64_t i = 0; i < bucket.num_extents; i++) {
    const Extent& extent = bucket.extents[i];
    int64_t offset = plan.values[extent.offset], bytes = plan.values[extent.bytes];
    int64_t size = region_bytes(step, extent.base);
    if (offset < 0 || bytes < 0 || bytes > size || offset > size - bytes)
      return fail(text, "memory %lld: expected %lld bytes at %lld within %lld",
                  (long long)extent.base, (long long)bytes, (long long)offset, (long long)size);
  }
  return true;
}

bool resolve_grid(const Plan& plan, const Call& call, int64_t index, Work& work, Text text) {
  work.total = 1;
  for (int axis = 0; axis < 3; axis++) {
    int64_t extent = plan.values[call.grid[axis]];
    if (extent < 0 || extent > INT32_MAX || __builtin_mul_overflow(work.total, extent, &work.total))
      return fail(text, "call %lld: expected a grid of at most 2147483647 per axis, got %lld",
                  (long long)index, (long long)extent);
    work.grid[axis] = int32_t(extent);
  }
  return true;
}

bool resolve_arg(const Plan& plan, const int64_t* arg, const sglk_step& step, int64_t* slot) {
  if (arg[0] == SGLK_ARG_F32) return *slot = arg[1], true;
  if (arg[0] == SGLK_ARG_POINTER) {
    int64_t offset = plan.values[arg[2]];
    *slot = int64_t(uint64_t(step.bases[arg[1]]) + uint64_t(offset));
    return offset >= 0 && offset <= region_bytes(step, arg[1]);
  }
  *slot = plan.values[arg[1]];
  return arg[0] == SGLK_ARG_I64 || (*slot >= INT32_MIN && *slot <= INT32_MAX);
}

bool resolve_call(Plan& plan, const Call& call, int64_t index, const sglk_step& step, Text text) {
  Work& work = plan.work[index];
  work.kernel = call.kernel;
  work.args = plan.slots + call.first_slot;
  if (!resolve_grid(plan, call, index, work, text)) return false;
  if (work.total == 0) return true;  // nothing runs: addresses inside an empty tensor may lie anywhere
  const int64_t* arg = call.args;
  for (int64_t i = 0; i < call.num_args; i++) {
    if (!resolve_arg(plan, arg, step, &plan.slots[call.first_slot + i]))
      return fail(text, "call %lld: argument %lld is out of range", (long long)index, (long long)i);
    arg += 3;
  }
  return true;
}

// Calls with nothing to split follow each other on one thread without a barrier; when calls are
// timed, each one is a stage of its own.
void build_stages(Plan& plan, int64_t num_calls) {
  plan.num_stages = 0;
  for (int64_t i = 0; i < num_calls; i++) {
    bool is_split = plan.work[i].total > 1;
    Stage* last = plan.num_stages ? &plan.stages[plan.num_stages - 1] : nullptr;
    if (last && !last->is_split && !is_split && !plan.is_timed)
      last->num_calls += 1;
    else
      plan.stages[plan.num_stages++] = {&plan.work[i], 1, is_split};
  }
}

bool is_as_before(const Plan& plan, const sglk_step& step, int64_t bucket) {
  size_t bases = size_t(plan.num_bases) * sizeof(int64_t);
  return plan.last_bucket == bucket && plan.is_timed == (step.nanoseconds != nullptr) &&
         !memcmp(plan.last_symbols, step.symbols, size_t(plan.num_symbols) * sizeof(int64_t)) &&
         !memcmp(plan.last_bases, step.bases, bases) && !memcmp(plan.last_sizes, step.sizes, bases);
}

void remember(Plan& plan, const sglk_step& step, int64_t bucket) {
  memcpy(plan.last_symbols, step.symbols, size_t(plan.num_symbols) * sizeof(int64_t));
  memcpy(plan.last_bases, step.bases, size_t(plan.num_bases) * sizeof(int64_t));
  memcpy(plan.last_sizes, step.sizes, size_t(plan.num_bases) * sizeof(int64_t));
  plan.last_bucket = bucket;
}

// Fills `plan.work` for the step. Most decode steps differ only in the contents of their inputs, so
// what the last step resolved is kept while symbols and memory stay the same.
int64_t resolve(Plan& plan, sglk_step& step) {
  Text text = {step.message, sizeof step.message};
  step.bucket = choose_bucket(plan, step.symbols);
  if (step.bucket < 0)
    return fail(text, "no bucket takes %lld tokens", (long long)step.symbols[plan.bucket_symbol]),
           SGLK_REFUSED;
  if (is_as_before(plan, step, step.bucket)) return SGLK_OK;
  const Bucket& bucket = plan.buckets[step.bucket];
  plan.last_bucket = -1;
  if (!evaluate_bucket(plan, bucket, step, text)) return SGLK_REFUSED;
  step.arena_needed = plan.values[plan.arena];
  if (step.arena_needed > step.sizes[0]) return SGLK_ARENA_TOO_SMALL;
  if (!check_extents(plan, bucket, step, text)) return SGLK_REFUSED;
  for (int64_t i = 0; i < bucket.num_calls; i++)
    if (!resolve_call(plan, bucket.calls[i], i, step, text)) return SGLK_REFUSED;
  plan.is_timed = step.nanoseconds != nullptr;
  build_stages(plan, bucket.num_calls);
  remember(plan, step, step.bucket);
  return SGLK_OK;
}

}  // namespace
