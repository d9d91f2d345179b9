// Running one kernel: its programs go to clusters as on the chip, clusters to host threads; counts
// of each cluster become a modelled time. Times compare kernels with each other and nothing else.
#pragma once
#include <sched.h>
#include <setjmp.h>

#include "image.h"
#include "memory.h"

namespace {

const int MAX_THREADS = 64, MAX_CLUSTERS = 256;

struct Launch {
  Kernel* kernel;
  Device* device;
  int clusters, cores;
  int32_t grid[4];
  int64_t args[MAX_PARAMS];
};

struct Worker {
  tilec::Emulation emulation;  // first: a fault comes with its address
  jmp_buf back;
};

struct Job {
  const Launch* launch;
  int64_t programs;
  int clusters, next;  // next: the first cluster that nobody has taken
  bool has_failed;
  int code;
  char why[MESSAGE_BYTES];
  tilec::Counters sum;
  double slowest;  // of the clusters, modelled nanoseconds
};

Job job;
pthread_mutex_t job_lock = PTHREAD_MUTEX_INITIALIZER;  // why, code, sum, slowest
pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t pool_wake = PTHREAD_COND_INITIALIZER, pool_done = PTHREAD_COND_INITIALIZER;
pthread_t threads[MAX_THREADS];
int num_threads = 0, num_busy = 0;  // besides the caller
int64_t pool_turn = 0;
bool pool_stops = false;
pid_t pool_owner = 0;  // a forked child has no workers

// Called by a kernel; does not return to it.
void on_fault(tilec::Emulation* emulation, const tilec::Site* site, int32_t kind, int64_t program, uintptr_t at,
              int64_t bytes) {
  Worker* worker = reinterpret_cast<Worker*>(emulation);
  Device& device = *job.launch->device;
  uint64_t address = to_device(device, at);
  char what[256];
  if (kind == 1)
    snprintf(what, sizeof what, "not a multiple of its element (limit dma_alignment, inferred)");
  else
    explain_address(device, address, bytes, what, sizeof what);
  pthread_mutex_lock(&job_lock);
  if (!__atomic_exchange_n(&job.has_failed, true, __ATOMIC_RELAXED)) {
    job.code = kind == 1 ? XPU_KEXCEPTION : XPU_DMAABORT;
    snprintf(job.why, MESSAGE_BYTES, "kernel %s: %s at %s: program %lld: %lld bytes at %#llx: %s%s",
             job.launch->kernel->name, site->what, site->where, (long long)program, (long long)bytes,
             (unsigned long long)address, what, kind ? "" : " (limit dma_bounds, documented)");
  }
  pthread_mutex_unlock(&job_lock);
  longjmp(worker->back, 1);
}

struct Rates {
  double launch, program, gm, descriptor, scalar, lm, sm, uni, macs, lanes;
};
Rates rates;

void read_rates() {
  rates = {setting("launch_ns"),     setting("program_ns"),  setting("gm_bytes_ns"), setting("descriptor_ns"),
           setting("scalar_ns"),     setting("lm_bytes_ns"), setting("sm_bytes_ns"), setting("uni_bytes_ns"),
           setting("macs_ns"),       setting("lanes_ns")};
}

// One cluster: its copies, at its share of the bandwidth, overlap with its work.
double model_time(const tilec::Counters& c) {
  double copies = double(c.gm_read + c.gm_written) * rates.gm * job.clusters +
                  double(c.descriptors) * rates.descriptor + double(c.scalars) * rates.scalar;
  double work = double(c.macs) * rates.macs + double(c.lanes) * rates.lanes + double(c.lm) * rates.lm +
                double(c.sm) * rates.sm + double(c.uni_sram) * rates.uni;
  return double(c.programs) * rates.program + (copies > work ? copies : work);
}

// Programs cluster, cluster + clusters, ... in turn, as the chip's loop over the grid does.
__attribute__((noinline)) void run_cluster(Worker& worker, int cluster) {
  tilec::Emulation& e = worker.emulation;
  e.counters = {};
  const Launch& launch = *job.launch;
  if (!setjmp(worker.back))
    for (int64_t program = cluster; program < job.programs; program += job.clusters) {
      if (__atomic_load_n(&job.has_failed, __ATOMIC_RELAXED)) break;
      launch.kernel->run(launch.args, launch.grid, program, program + 1, &e);
    }
  double time = model_time(e.counters);
  pthread_mutex_lock(&job_lock);
  tilec::add_cost(job.sum, e.counters, 1);
  job.sum.programs += e.counters.programs;
  job.slowest = time > job.slowest ? time : job.slowest;
  pthread_mutex_unlock(&job_lock);
}

void run_share() {
  Worker worker;
  memset(&worker.emulation, 0, sizeof worker.emulation);
  worker.emulation.version = TC_EMULATION_VERSION;
  worker.emulation.spans = job.launch->device->spans.at;
  worker.emulation.num_spans = job.launch->device->spans.count;
  worker.emulation.fault = on_fault;
  for (;;) {
    int cluster = __atomic_fetch_add(&job.next, 1, __ATOMIC_RELAXED);
    if (cluster >= job.clusters) return;
    run_cluster(worker, cluster);
  }
}

int64_t wait_for_turn(int64_t last) {  // spins a little: the next kernel mostly comes at once
  for (int spin = 0; spin < 4000; spin++) {
    int64_t turn = __atomic_load_n(&pool_turn, __ATOMIC_ACQUIRE);
    if (turn != last) return turn;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  pthread_mutex_lock(&pool_lock);
  while (pool_turn == last) pthread_cond_wait(&pool_wake, &pool_lock);
  int64_t turn = pool_turn;
  pthread_mutex_unlock(&pool_lock);
  return turn;
}

void* work(void*) {
  int64_t last = 0;
  for (;;) {
    last = wait_for_turn(last);
    if (__atomic_load_n(&pool_stops, __ATOMIC_ACQUIRE)) return nullptr;
    run_share();
    if (__atomic_sub_fetch(&num_busy, 1, __ATOMIC_ACQ_REL) == 0) {
      pthread_mutex_lock(&pool_lock);
      pthread_cond_signal(&pool_done);
      pthread_mutex_unlock(&pool_lock);
    }
  }
}

void next_turn() {
  pthread_mutex_lock(&pool_lock);
  __atomic_store_n(&pool_turn, pool_turn + 1, __ATOMIC_RELEASE);
  pthread_cond_broadcast(&pool_wake);
  pthread_mutex_unlock(&pool_lock);
}

void start_threads() {
  static bool is_started = false;
  if (is_started) return;
  is_started = true;
  pool_owner = getpid();
  read_rates();
  int wanted = int(setting("threads"));
  cpu_set_t cores;
  if (wanted < 1) wanted = sched_getaffinity(0, sizeof cores, &cores) ? 1 : CPU_COUNT(&cores);
  if (wanted > MAX_THREADS) wanted = MAX_THREADS;
  while (num_threads < wanted - 1 && !pthread_create(&threads[num_threads], nullptr, work, nullptr)) num_threads++;
}

void wait_for_others() {
  for (int spin = 0; spin < 20000; spin++)
    if (!__atomic_load_n(&num_busy, __ATOMIC_ACQUIRE)) return;
  pthread_mutex_lock(&pool_lock);
  while (__atomic_load_n(&num_busy, __ATOMIC_ACQUIRE)) pthread_cond_wait(&pool_done, &pool_lock);
  pthread_mutex_unlock(&pool_lock);
}

void stop_threads() {
  if (!num_threads || pool_owner != getpid()) return;
  __atomic_store_n(&pool_stops, true, __ATOMIC_RELEASE);
  next_turn();
  for (int i = 0; i < num_threads; i++) pthread_join(threads[i], nullptr);
}

void count_launch(Kernel& kernel, double time) {
  xpuemu_counters& c = kernel.counters;
  const tilec::Counters& s = job.sum;
  c.gm_read += s.gm_read, c.gm_written += s.gm_written, c.lm += s.lm, c.sm += s.sm;
  c.uni_sram += s.uni_sram, c.descriptors += s.descriptors, c.scalars += s.scalars;
  c.macs += s.macs, c.lanes += s.lanes, c.programs += s.programs;
  c.launches += 1;
  c.nanoseconds += time;
}

double last_kernel_time = 0;

int run_launch(const Launch& launch) {
  start_threads();
  job.launch = &launch;
  job.programs = int64_t(launch.grid[0]) * launch.grid[1] * launch.grid[2];
  job.clusters = job.programs < launch.clusters ? int(job.programs) : launch.clusters;
  job.next = 0, job.code = 0, job.slowest = 0, job.sum = {};
  __atomic_store_n(&job.has_failed, false, __ATOMIC_RELAXED);
  if (num_threads && job.clusters > 1) {
    __atomic_store_n(&num_busy, num_threads, __ATOMIC_RELEASE);
    next_turn();
    run_share();
    wait_for_others();
  } else {
    run_share();
  }
  last_kernel_time = rates.launch + job.slowest;
  count_launch(*launch.kernel, last_kernel_time);
  return job.has_failed ? fail(job.code, "%s", job.why) : XPU_SUCCESS;
}

}  // namespace
