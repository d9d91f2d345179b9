// Drives the player without Python, for sanitizers: chains of calls whose programs read what other
// threads wrote in the call before, steps with pauses in which the workers go to sleep, two plans on
// one pool. Exit status 0 when every number is right.
#include <stdio.h>
#include <time.h>
#include <vector>

#include "player.h"

// y[p] = x[n - 1 - p] + 1
static void reverse(const int64_t* a, const int32_t*, int64_t begin, int64_t end) {
  for (int64_t p = begin; p < end; p++)
    ((int32_t*)a[1])[p] = ((const int32_t*)a[0])[a[2] - 1 - p] + 1;
}

static std::vector<int64_t> make_plan(int64_t calls) {
  std::vector<int64_t> code = {1, 0, 1, 3, 3, 1, 1, -1, 0};
  const int64_t exprs[][3] = {{2, 0, 0}, {2, 1, 0}, {2, 0, 1}};  // 0, n, 1
  for (auto& expr : exprs) code.insert(code.end(), expr, expr + 3);
  code.insert(code.end(), {-1, 0, calls});
  for (int64_t i = 0; i < calls; i++)
    code.insert(code.end(), {0, 1, 2, 2, 3, 0, 1 + i % 2, 0, 0, 2 - i % 2, 0, 1, 1, 0});
  code[1] = int64_t(code.size());
  return code;
}

int main() {
  char message[256];
  void *pool, *plans[2];
  int64_t kernels[] = {int64_t(&reverse)}, counts[] = {200, 7};
  if (sglk_pool_create(3, &pool, message, sizeof message)) return puts(message), 1;
  for (int i = 0; i < 2; i++) {
    std::vector<int64_t> code = make_plan(counts[i]);
    if (sglk_plan_create(code.data(), int64_t(code.size()), kernels, 1, &plans[i], message, 256))
      return puts(message), 1;
  }
  for (int round = 0; round < 60; round++) {
    int64_t n = 1 + round % 5, plan = round % 2, calls = counts[plan];
    std::vector<int32_t> x(size_t(n), round), y(size_t(n), 0);
    int64_t bases[] = {0, int64_t(x.data()), int64_t(y.data())}, sizes[] = {0, 4 * n, 4 * n};
    std::vector<int64_t> times(size_t(calls), 0);
    sglk_step step = {};
    step.symbols = &n, step.bases = bases, step.sizes = sizes;
    step.nanoseconds = round % 3 ? nullptr : times.data();
    if (sglk_plan_run(pool, plans[plan], &step)) return puts(step.message), 1;
    for (int32_t value : calls % 2 ? y : x)
      if (value != round + calls) return printf("round %d: got %d\n", round, value), 1;
    if (round % 10 == 9) {  // longer than the workers' patience
      struct timespec pause = {0, 3 * 1000 * 1000};
      nanosleep(&pause, nullptr);
    }
  }
  for (void* plan : plans) sglk_plan_destroy(plan);
  sglk_pool_destroy(pool);
  return 0;
}
