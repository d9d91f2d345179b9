// A pool of threads that run the stages of a step together.
//
// A stage is one call whose grid is split into one contiguous share per thread, the same for the
// same grid, or a run of calls with at most one program each, all of it in share 0. A share has
// UNITS equal parts, claimed in order: its own thread takes half of what is left each time, a thread
// that is through with its own share takes a unit or two of another's. So a core that is slower (its
// other hardware thread works for somebody else) or a thread that is late does less, and nobody
// waits for a thread that has not begun. Who runs a part changes no result.
//
// A stage starts once all shares of the stage before are done. Each share says how far it is in a
// cache line of its own, so a barrier costs one line transfer and no lock. Units count on over
// stages ("levels") and steps: nothing is reset between steps.
//
// Plan and pool fields are read only by the holder of a claim: the step cannot end before it is
// done, so they stay as they are until then.
//
// Waiting: within a step threads spin and then yield the core; between steps workers do the same for
// about a millisecond and then sleep in the kernel, so an idle process burns nothing.
//
// Against one whole share per thread: where one of two cores is two to four times slower at AMX, a
// prefill takes about a third less (`sglk bench A --prompt 512 --profile`).
#pragma once
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "resolve.h"

namespace {

const int64_t MAX_THREADS = 1024;
const int64_t CACHE_LINE = 64;
const int SPINS_WITHOUT_PAUSE = 24;  // the other thread is done at about the same time as a rule
const int SPINS_BEFORE_HELP = 8;     // the other thread is not just about to end
const int64_t UNITS = 8;             // parts of a share
const int SPINS_BEFORE_YIELD = 512;  // about 20 microseconds; on a busy machine the other thread
                                     // may need this very core to get on
const int64_t IDLE_NANOSECONDS = 1000 * 1000;  // a decode step follows the last one within this
const size_t STACK_BYTES = size_t(2) << 20;    // kernels keep up to 256 KiB of scratch there

struct Pool;

// Each field that threads watch has two cache lines: the hardware fetches lines in pairs.
struct Thread {
  int64_t done;  // units of this thread's share that are finished
  char padding1[2 * CACHE_LINE - sizeof(int64_t)];
  int64_t claimed;  // units that somebody has begun, of the level at hand or all before it
  Pool* pool;
  int64_t index;
  pthread_t handle;
  char padding2[2 * CACHE_LINE - 3 * sizeof(int64_t) - sizeof(pthread_t)];
};

struct Pool {
  uint32_t epoch;  // grows with each step; workers sleep on it
  uint32_t sleepers;
  int64_t end;  // level after the last one of the step; publishes what follows
  char padding[2 * CACHE_LINE - 2 * sizeof(uint32_t) - sizeof(int64_t)];
  const Stage* stages;
  int64_t first_level;
  bool stop;
  char busy;
  pid_t owner;
  int64_t num_threads;
  Thread* threads;
};

int64_t now() {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t(time.tv_sec) * 1000000000 + time.tv_nsec;
}

void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");  // `yield` does nothing on most cores
#endif
}

// Kernels must round the same way on every thread, also when some library has changed the mode of
// the thread that calls us: round to nearest, denormals kept.
uint64_t use_default_rounding() {
#if defined(__x86_64__)
  uint64_t before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(0x1f80);
  return before;
#elif defined(__aarch64__)
  uint64_t before, zero = 0;
  __asm__ volatile("mrs %0, fpcr" : "=r"(before));
  __asm__ volatile("msr fpcr, %0" ::"r"(zero));
  return before;
#else
  return 0;
#endif
}

void restore_rounding(uint64_t before) {
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(uint32_t(before));
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" ::"r"(before));
#else
  (void)before;
#endif
}

// Programs of a share: where units [from, to) of it begin and end.
void run_units(const Work& work, int64_t share, int64_t shares, int64_t from, int64_t to) {
  int64_t each = work.total / shares, rest = work.total % shares;
  int64_t begin = share * each + (share < rest ? share : rest);
  int64_t count = each + (share < rest ? 1 : 0);
  int64_t first = begin + count * from / UNITS, end = begin + count * to / UNITS;
  if (first < end) work.kernel(work.args, work.grid, first, end);
}

void run_part(const Stage& stage, int64_t share, int64_t shares, int64_t from, int64_t to) {
  if (stage.is_split)
    run_units(*stage.work, share, shares, from, to);
  else if (share == 0 && from == 0)
    for (int64_t i = 0; i < stage.num_calls; i++) run_units(stage.work[i], 0, 1, 0, UNITS);
}

int64_t lowest_done(const Pool& pool) {
  int64_t lowest = INT64_MAX;
  for (int64_t i = 0; i < pool.num_threads; i++) {
    int64_t done = __atomic_load_n(&pool.threads[i].done, __ATOMIC_ACQUIRE);
    if (done < lowest) lowest = done;
  }
  return lowest / UNITS;
}

// A stage whose programs are few is not worth several claims.
bool is_small(const Stage& stage, int64_t shares) {
  return !stage.is_split || stage.work->total < 4 * shares;
}

// Units of a share up to `end` for the caller: half of those left of its own, a quarter of another's.
// Returns how many, from `first` on; 0 when all have begun or the level is over.
int64_t claim(Thread& owner, int64_t start, int64_t end, bool is_own, int64_t& first) {
  int64_t size, seen = __atomic_load_n(&owner.claimed, __ATOMIC_RELAXED);
  do {
    if (seen < start || seen >= end) return 0;
    size = is_own ? (end - seen + 1) / 2 : (end - seen + 3) / 4;
  } while (!__atomic_compare_exchange_n(&owner.claimed, &seen, seen + size, false,
                                        __ATOMIC_ACQUIRE, __ATOMIC_RELAXED));
  first = seen;
  return size;
}

// What is left of a share, for the holder of a claim on units before `from`.
int64_t claim_rest(Thread& owner, int64_t from, int64_t end) {
  int64_t seen = from;
  return __atomic_compare_exchange_n(&owner.claimed, &seen, end, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED)
             ? end - from
             : 0;
}

// Runs some of a share of the level unless all of it has begun.
bool run_unclaimed(Pool& pool, int64_t share, int64_t level, bool is_own) {
  Thread& owner = pool.threads[share];
  int64_t start = level * UNITS, end = start + UNITS, first = 0;
  int64_t size = claim(owner, start, end, is_own, first);
  if (size == 0) return false;
  const Stage& stage = pool.stages[level - pool.first_level];
  if (is_small(stage, pool.num_threads)) size += claim_rest(owner, first + size, end);
  run_part(stage, share, pool.num_threads, first - start, first - start + size);
  __atomic_fetch_add(&owner.done, size, __ATOMIC_RELEASE);
  return true;
}

bool help(Pool& pool, int64_t self, int64_t level) {
  for (int64_t i = 1; i < pool.num_threads; i++)
    if (run_unclaimed(pool, (self + i) % pool.num_threads, level, false)) return true;
  return false;
}

struct Stopwatch {
  int64_t* nanoseconds;  // null: off
  int64_t level, first_level, since;

  // Gives the time since the last level began to that level.
  void advance(int64_t lowest) {
    if (!nanoseconds || lowest <= level) return;
    int64_t time = now();
    nanoseconds[level - first_level] += time - since;
    level = lowest;
    since = time;
  }
};

// Until the step is done. A thread that had to help once helps at once at the next level: the late
// thread is probably still away.
void run_levels(Pool& pool, int64_t self, Stopwatch stopwatch) {
  bool has_helped = false;
  for (int spins = 0;;) {
    int64_t end = __atomic_load_n(&pool.end, __ATOMIC_ACQUIRE), level = lowest_done(pool);
    stopwatch.advance(level);
    if (level >= end) return;
    if (run_unclaimed(pool, self, level, true)) {
      spins = has_helped ? SPINS_BEFORE_HELP : 0;
      has_helped = false;
    } else if (spins >= SPINS_BEFORE_HELP && help(pool, self, level)) {
      has_helped = true;
    } else if (spins < SPINS_BEFORE_YIELD) {
      spins += 1;
      if (spins > SPINS_WITHOUT_PAUSE) relax();
    } else {
      sched_yield();
    }
  }
}

void sleep_until_changed(uint32_t* word, uint32_t seen) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

uint32_t wait_for_step(Pool& pool, uint32_t seen) {
  uint32_t epoch;
  int64_t start = now();
  for (int spins = 0; (epoch = __atomic_load_n(&pool.epoch, __ATOMIC_ACQUIRE)) == seen; spins++) {
    if (spins < SPINS_BEFORE_YIELD)
      relax();
    else if (now() - start < IDLE_NANOSECONDS)
      sched_yield();  // between steps the caller's other threads want the cores
    else
      break;
  }
  if (epoch != seen) return epoch;
  __atomic_fetch_add(&pool.sleepers, 1, __ATOMIC_SEQ_CST);
  while ((epoch = __atomic_load_n(&pool.epoch, __ATOMIC_SEQ_CST)) == seen)
    sleep_until_changed(&pool.epoch, seen);
  __atomic_fetch_sub(&pool.sleepers, 1, __ATOMIC_SEQ_CST);
  return epoch;
}

void start_step(Pool& pool) {
  __atomic_fetch_add(&pool.epoch, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&pool.sleepers, __ATOMIC_SEQ_CST))
    syscall(SYS_futex, &pool.epoch, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

void* worker(void* argument) {
  Thread& self = *static_cast<Thread*>(argument);
  Pool& pool = *self.pool;
  use_default_rounding();
  for (uint32_t seen = 0;;) {
    seen = wait_for_step(pool, seen);
    if (__atomic_load_n(&pool.stop, __ATOMIC_RELAXED)) return nullptr;
    run_levels(pool, self.index, Stopwatch{});
  }
}

void run_step(Pool& pool, const Stage* stages, int64_t num_stages, int64_t* nanoseconds) {
  int64_t first = pool.end;
  pool.stages = stages;
  pool.first_level = first;
  __atomic_store_n(&pool.end, first + num_stages, __ATOMIC_RELEASE);
  uint64_t rounding = use_default_rounding();
  if (pool.num_threads > 1) start_step(pool);
  run_levels(pool, 0, Stopwatch{nanoseconds, first, first, nanoseconds ? now() : 0});
  restore_rounding(rounding);
}

// Thread 0 is whoever calls; the others are started here. False when the system gives no thread.
bool start_threads(Pool& pool, int64_t wanted) {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes)) return false;
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  for (pool.num_threads = 1; pool.num_threads < wanted; pool.num_threads++) {
    Thread& thread = pool.threads[pool.num_threads];
    thread.pool = &pool;
    thread.index = pool.num_threads;
    if (pthread_create(&thread.handle, &attributes, worker, &thread)) break;
  }
  pthread_attr_destroy(&attributes);
  return pool.num_threads == wanted;
}

}  // namespace
