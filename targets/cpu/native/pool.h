// A pool of threads that run the calls of a step together.
//
// Each call's grid is split into one contiguous share per thread, the same for the same grid. A
// thread starts a call once every other thread has finished the calls before it; each thread says
// how far it is in a cache line of its own, so a barrier costs one line transfer and no lock. Call
// numbers count on over steps: nothing is reset between steps.
//
// Waiting: within a step threads spin and then yield the core; between steps workers spin for about
// a millisecond and then sleep in the kernel, so an idle process burns nothing.
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
const int SPINS_BEFORE_YIELD = 512;  // about 20 microseconds; on a busy machine the other thread
                                     // may need this very core to get on
const int64_t IDLE_NANOSECONDS = 1000 * 1000;  // a decode step follows the last one within this
const size_t STACK_BYTES = size_t(2) << 20;    // kernels keep up to 256 KiB of scratch there

struct Pool;

struct Thread {
  int64_t done;  // calls finished since the pool was made
  Pool* pool;
  int64_t index;
  pthread_t handle;
  // Two cache lines each, because the hardware fetches lines in pairs.
  char padding[2 * CACHE_LINE - 3 * sizeof(int64_t) - sizeof(pthread_t)];
};

struct Pool {
  uint32_t epoch;  // grows with each step; workers sleep on it
  uint32_t sleepers;
  char padding[2 * CACHE_LINE - 2 * sizeof(uint32_t)];
  const Work* work;
  int64_t num_calls, first_call;
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

void wait_for_others(const Pool& pool, int64_t self, int64_t calls) {
  for (int64_t other = 0; other < pool.num_threads; other++) {
    if (other == self) continue;
    const int64_t* done = &pool.threads[other].done;
    for (int spins = 0; __atomic_load_n(done, __ATOMIC_ACQUIRE) < calls; spins++) {
      if (spins < SPINS_BEFORE_YIELD)
        relax();
      else
        sched_yield();
    }
  }
}

void finish_call(Pool& pool, int64_t self, int64_t calls) {
  __atomic_store_n(&pool.threads[self].done, calls, __ATOMIC_RELEASE);
}

void run_share(const Work& work, int64_t self, int64_t threads) {
  // One program has nothing to split: thread 0 runs it, the others pass by without waiting.
  int64_t each = work.total / threads, rest = work.total % threads;
  int64_t begin = self * each + (self < rest ? self : rest);
  int64_t end = begin + each + (self < rest ? 1 : 0);
  if (begin < end) work.kernel(work.args, work.grid, begin, end);
}

bool has_share(const Work& work, int64_t self, int64_t threads) {
  return work.total >= threads || self < work.total;
}

void run_calls(Pool& pool, int64_t self) {
  int64_t first = pool.first_call, count = pool.num_calls, threads = pool.num_threads;
  const Work* work = pool.work;
  for (int64_t i = 0; i < count; i++) {
    if (has_share(work[i], self, threads)) {
      wait_for_others(pool, self, first + i);
      run_share(work[i], self, threads);
    }
    finish_call(pool, self, first + i + 1);
  }
}

// As run_calls on the caller's thread, with a clock around each call: from when every thread may
// start it until every thread has finished it.
void run_calls_timed(Pool& pool, int64_t* nanoseconds) {
  const int64_t first = pool.first_call, count = pool.num_calls, threads = pool.num_threads;
  for (int64_t i = 0; i < count; i++) {
    int64_t start = now();
    run_share(pool.work[i], 0, threads);
    finish_call(pool, 0, first + i + 1);
    wait_for_others(pool, 0, first + i + 1);
    nanoseconds[i] += now() - start;
  }
}

void sleep_until_changed(uint32_t* word, uint32_t seen) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

uint32_t wait_for_step(Pool& pool, uint32_t seen) {
  uint32_t epoch;
  int64_t start = now();
  for (int spins = 1; (epoch = __atomic_load_n(&pool.epoch, __ATOMIC_ACQUIRE)) == seen; spins++) {
    relax();
    if (spins % 64 == 0 && now() - start > IDLE_NANOSECONDS) break;
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
    if (pool.stop) return nullptr;
    run_calls(pool, self.index);
  }
}

void run_step(Pool& pool, const Work* work, int64_t num_calls, int64_t* nanoseconds) {
  pool.work = work;
  pool.num_calls = num_calls;
  uint64_t rounding = use_default_rounding();
  if (pool.num_threads > 1) start_step(pool);
  if (nanoseconds)
    run_calls_timed(pool, nanoseconds);
  else
    run_calls(pool, 0);
  wait_for_others(pool, 0, pool.first_call + num_calls);
  restore_rounding(rounding);
  pool.first_call += num_calls;
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
