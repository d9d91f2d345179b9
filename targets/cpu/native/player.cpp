// The C ABI of player.h over plan.h (reading), resolve.h (checking), pool.h (running), and the rows of
// logits in argmax.h and sample.h.
#include "player.h"

#include "sample.h"

int64_t sglk_plan_version(void) { return SGLK_PLAN_VERSION; }

void sglk_pool_destroy(void* handle) {
  Pool* pool = static_cast<Pool*>(handle);
  if (!pool) return;
  // After a fork the workers exist in the parent only: there is nothing to stop or to wait for.
  if (pool->threads && pool->owner == getpid()) {
    __atomic_store_n(&pool->stop, true, __ATOMIC_RELAXED);
    start_step(*pool);
    for (int64_t i = 1; i < pool->num_threads; i++) pthread_join(pool->threads[i].handle, nullptr);
  }
  free(pool->threads);
  free(pool);
}

int64_t sglk_pool_create(int64_t threads, void** handle, char* message, int64_t bytes) {
  Text text = {message, bytes};
  *handle = nullptr;
  if (threads < 1 || threads > MAX_THREADS)
    return fail(text, "expected 1 to %lld threads, got %lld", (long long)MAX_THREADS,
                (long long)threads),
           SGLK_REFUSED;
  Pool* pool = static_cast<Pool*>(calloc(1, sizeof(Pool)));
  if (!pool) return fail(text, "out of memory"), SGLK_REFUSED;
  size_t size = size_t(threads) * sizeof(Thread);
  pool->owner = getpid();
  pool->threads = static_cast<Thread*>(aligned_alloc(2 * CACHE_LINE, size));
  if (pool->threads) memset(pool->threads, 0, size);
  if (!pool->threads || !start_threads(*pool, threads)) {
    fail(text, "the system gave only %lld of %lld threads", (long long)pool->num_threads,
         (long long)threads);
    return sglk_pool_destroy(pool), SGLK_REFUSED;
  }
  *handle = pool;
  return SGLK_OK;
}

int64_t sglk_plan_create(const int64_t* code, int64_t words, const int64_t* kernels,
                         int64_t num_kernels, void** handle, char* message, int64_t bytes) {
  Text text = {message, bytes};
  *handle = nullptr;
  if (words < HEADER_WORDS || words > MAX_COUNT || num_kernels < 0 || num_kernels > MAX_COUNT)
    return fail(text, "plan: expected at least %lld words", (long long)HEADER_WORDS), SGLK_REFUSED;
  Plan* plan = static_cast<Plan*>(calloc(1, sizeof(Plan)));
  if (!plan) return fail(text, "plan: out of memory"), SGLK_REFUSED;
  plan->words = words;
  plan->num_kernels = num_kernels;
  plan->code = static_cast<int64_t*>(malloc(size_t(words) * sizeof(int64_t)));
  plan->kernels = static_cast<int64_t*>(malloc(size_t(num_kernels + 1) * sizeof(int64_t)));
  if (!plan->code || !plan->kernels) {
    fail(text, "plan: out of memory");
    return free_plan(plan), SGLK_REFUSED;
  }
  memcpy(plan->code, code, size_t(words) * sizeof(int64_t));
  memcpy(plan->kernels, kernels, size_t(num_kernels) * sizeof(int64_t));
  if (!read_plan(*plan, text)) return free_plan(plan), SGLK_REFUSED;
  *handle = plan;
  return SGLK_OK;
}

void sglk_plan_destroy(void* plan) {
  if (plan) free_plan(static_cast<Plan*>(plan));
}

int64_t sglk_plan_run(void* pool_handle, void* plan_handle, sglk_step* step) {
  Pool& pool = *static_cast<Pool*>(pool_handle);
  Plan& plan = *static_cast<Plan*>(plan_handle);
  Text text = {step->message, sizeof step->message};
  if (pool.owner != getpid())
    return fail(text, "the process was forked after loading (load the artifact in the child)"),
           SGLK_REFUSED;
  if (__atomic_test_and_set(&pool.busy, __ATOMIC_ACQUIRE))
    return fail(text, "a step is running already (one thread at a time)"), SGLK_REFUSED;
  int64_t result = resolve(plan, *step);
  if (result == SGLK_OK)
    run_step(pool, plan.stages, plan.num_stages, step->nanoseconds);
  __atomic_clear(&pool.busy, __ATOMIC_RELEASE);
  return result;
}

int64_t sglk_find_outside(const int32_t* values, int64_t count, int32_t low, int32_t high) {
  for (int64_t i = 0; i < count; i++)
    if (values[i] < low || values[i] > high) return i;
  return -1;
}

int64_t sglk_is_step_sound(const sglk_range* ranges, int64_t count, const int32_t* starts,
                           const int32_t* lengths, int64_t seqs) {
  for (int64_t i = 0; i < count; i++) {
    int64_t low = INT32_MAX, high = INT32_MIN;
    for (int64_t j = 0; j < ranges[i].count; j++) {
      int32_t value = ranges[i].values[j];
      low = value < low ? value : low;
      high = value > high ? value : high;
    }
    if (ranges[i].count && (low < ranges[i].low || high > ranges[i].high)) return 0;
  }
  for (int64_t i = 0; i < seqs; i++) {
    int64_t rows = int64_t(starts[i + 1]) - starts[i];
    if (rows < 0 || rows > lengths[i]) return 0;
  }
  return 1;
}

// One program per row, unless another step holds the threads or they are not worth waking.
static void run_rows(Pool& pool, sglk_kernel kernel, const int64_t* args, int64_t count) {
  int32_t grid[] = {int32_t(count), 1, 1};
  bool is_ours = pool.owner == getpid() && !__atomic_test_and_set(&pool.busy, __ATOMIC_ACQUIRE);
  if (!is_ours || count < 2) {
    kernel(args, grid, 0, count);
  } else {
    Work work = {kernel, args, count, {grid[0], 1, 1, 0}};
    Stage stage = {&work, 1, true};
    run_step(pool, &stage, 1, nullptr);
  }
  if (is_ours) __atomic_clear(&pool.busy, __ATOMIC_RELEASE);
}

void sglk_argmax(void* pool, const float* logits, int64_t vocab, const int32_t* rows,
                 int64_t count, int32_t* ids) {
  int64_t args[] = {int64_t(logits), vocab, int64_t(rows), int64_t(ids)};
  run_rows(*static_cast<Pool*>(pool), argmax_rows, args, count);
}

void sglk_sample(void* pool, const float* logits, int64_t vocab, const sglk_row* rows,
                 int64_t count, int32_t* ids) {
  int64_t args[] = {int64_t(logits), vocab, int64_t(rows), int64_t(ids)};
  run_rows(*static_cast<Pool*>(pool), sample_rows, args, count);
}
