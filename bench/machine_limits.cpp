// What this machine reaches at best: read bandwidth and arithmetic rates of N threads, as JSON.
//
// Built with -O3 -march=native by machine_limits.py. Every figure is the best of seven runs of
// about a tenth of a second. Read bandwidth: each thread streams its part of one region, GB/s.
// Rates: chains of independent instructions on registers, 10^12 operations a second, where a
// multiply-add counts as two. A rate is left out where the instruction set is not there.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#define IN_REGISTER "+v"
#elif defined(__aarch64__)
#include <arm_neon.h>
#define IN_REGISTER "+w"
#endif
#if defined(__AMX_TILE__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

#if defined(__AVX512F__)
constexpr int kBytes = 64;
#elif defined(__AVX__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif
typedef float Floats __attribute__((vector_size(kBytes)));
typedef int64_t Words __attribute__((vector_size(kBytes)));

static int g_threads;

static double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds from the first thread's start to the last one's end.
static double together(const std::function<void(int)>& work) {
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  std::vector<double> start(g_threads), end(g_threads);
  for (int i = 0; i < g_threads; i++)
    threads.emplace_back([&, i] {
      ready++;
      while (ready < g_threads) {
      }
      start[i] = now();
      work(i);
      end[i] = now();
    });
  for (auto& thread : threads) thread.join();
  return *std::max_element(end.begin(), end.end()) - *std::min_element(start.begin(), start.end());
}

// A limit is what was reached at least once: a neighbour can only lower a figure.
static double best_of_seven(const std::function<double()>& measure) {
  double best = 0;
  for (int i = 0; i < 7; i++) best = std::max(best, measure());
  return best;
}

template <class T>
static inline void keep(T& value) {
#ifdef IN_REGISTER
  asm volatile("" : IN_REGISTER(value));
#else
  asm volatile("" : "+m"(value));
#endif
}

static void read_once(const char* from, size_t bytes) {
  Words sums[4] = {};
  for (size_t at = 0; at < bytes; at += 4 * kBytes) {
#pragma GCC unroll 16
    for (int line = 0; line < 4 * kBytes; line += 64) __builtin_prefetch(from + at + 1024 + line);
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) sums[i] ^= *(const Words*)(from + at + i * kBytes);
  }
  for (auto& sum : sums) keep(sum);
}

// GB/s over a region of so many MiB, read again and again.
static double read_bandwidth(size_t mebibytes) {
  size_t bytes = mebibytes << 20, part = bytes / g_threads / 256 * 256;
  char* region = (char*)aligned_alloc(1 << 21, bytes);
#if defined(__linux__)
  madvise(region, bytes, MADV_HUGEPAGE);
#endif
  together([&](int i) { memset(region + i * part, 1, part); });
  size_t passes = std::max<size_t>(1, 2048 / mebibytes);
  double rate = best_of_seven([&] {
    double seconds = together([&](int i) {
      for (size_t pass = 0; pass < passes; pass++) read_once(region + i * part, part);
    });
    return double(part) * g_threads * passes / seconds / 1e9;
  });
  free(region);
  return rate;
}

static void print_rate(const char* name, double operations, const std::function<void()>& work) {
  double rate = best_of_seven(
      [&] { return operations * g_threads / together([&](int) { work(); }) / 1e12; });
  printf("%s\"%s\": %.4g", strcmp(name, "f32_fma") ? ", " : "", name, rate);
}

constexpr long kRounds = 20000000;
constexpr int kChains = 12;

// Independent chains, each in a register of its own: an array would be kept in memory.
template <class Vector, class Step>
static void run_chains(Vector start, Step step) {
  Vector a = start, b = start, c = start, d = start, e = start, f = start;
  Vector g = start, h = start, i = start, j = start, k = start, l = start;
  for (long round = 0; round < kRounds; round++) {
    step(a), step(b), step(c), step(d), step(e), step(f);
    step(g), step(h), step(i), step(j), step(k), step(l);
    keep(a), keep(b), keep(c), keep(d), keep(e), keep(f);
    keep(g), keep(h), keep(i), keep(j), keep(k), keep(l);
  }
}

static void f32_fma() {
  Floats half;
  for (int lane = 0; lane < kBytes / 4; lane++) half[lane] = 0.5f;
  run_chains(half, [&](Floats& sum) { sum = sum * half + half; });  // contracted into one
}

#if defined(__AVX512BF16__)
static void bf16_dot() {
  __m512bh one = (__m512bh)_mm512_set1_epi16(0x3f80);
  run_chains(__m512{}, [&](__m512& sum) { sum = _mm512_dpbf16_ps(sum, one, one); });
}
constexpr int kBf16Dot = 64;
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
static void bf16_dot() {
  bfloat16x8_t one = vreinterpretq_bf16_u16(vdupq_n_u16(0x3f80));
  run_chains(float32x4_t{}, [&](float32x4_t& sum) { sum = vbfdotq_f32(sum, one, one); });
}
constexpr int kBf16Dot = 16;
#endif

#if defined(__AVX512VNNI__)
static void int8_dot() {
  __m512i one = _mm512_set1_epi8(1);
  run_chains(__m512i{}, [&](__m512i& sum) { sum = _mm512_dpbusd_epi32(sum, one, one); });
}
constexpr int kInt8Dot = 128;
#elif defined(__AVXVNNI__)
static void int8_dot() {
  __m256i one = _mm256_set1_epi8(1);
  run_chains(__m256i{}, [&](__m256i& sum) { sum = _mm256_dpbusd_avx_epi32(sum, one, one); });
}
constexpr int kInt8Dot = 64;
#elif defined(__ARM_FEATURE_DOTPROD)
static void int8_dot() {
  int8x16_t one = vdupq_n_s8(1);
  run_chains(int32x4_t{}, [&](int32x4_t& sum) { sum = vdotq_s32(sum, one, one); });
}
constexpr int kInt8Dot = 32;
#endif

#if defined(__AMX_TILE__) && defined(__linux__)
constexpr long kTileRounds = 400000;
constexpr int kRequestTiles = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA

static bool allow_tiles() { return syscall(SYS_arch_prctl, kRequestTiles, kTileData) == 0; }

// Eight tiles of 16 rows of 64 bytes: four sums, two operands from each side.
static void set_tiles() {
  struct alignas(64) {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } shape;
  alignas(64) static const char zeros[1024] = {};
  for (int i = 0; i < 8; i++) shape.row_bytes[i] = 64, shape.rows[i] = 16;
  // GCC 12 drops the stores to `shape` before its own _tile_loadconfig
  asm volatile("ldtilecfg %0" ::"m"(shape) : "memory");
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, zeros, 64);
  _tile_loadd(5, zeros, 64);
  _tile_loadd(6, zeros, 64);
  _tile_loadd(7, zeros, 64);
}

#if defined(__AMX_BF16__)
static void bf16_tile() {
  set_tiles();
  for (long round = 0; round < kTileRounds; round++) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}
#endif
#if defined(__AMX_INT8__)
static void int8_tile() {
  set_tiles();
  for (long round = 0; round < kTileRounds; round++) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_release();
}
#endif
#endif

int main(int count, char** words) {
  g_threads = count > 1 ? std::max(1, atoi(words[1])) : 1;
  printf("{\"read_gb_per_s\": {");
  const char* comma = "";
  for (size_t size : {32, 96, 1024}) {
    printf("%s\"%zu\": %.4g", comma, size, read_bandwidth(size));
    comma = ", ";
  }
  printf("}, \"tera_per_s\": {");
  print_rate("f32_fma", double(kRounds) * kChains * kBytes / 4 * 2, f32_fma);
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  print_rate("bf16_dot", double(kRounds) * kChains * kBf16Dot, bf16_dot);
#endif
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_DOTPROD)
  print_rate("int8_dot", double(kRounds) * kChains * kInt8Dot, int8_dot);
#endif
#if defined(__AMX_TILE__) && defined(__linux__)
  if (allow_tiles()) {
#if defined(__AMX_BF16__)
    print_rate("bf16_tile", double(kTileRounds) * 4 * 16 * 16 * 32 * 2, bf16_tile);
#endif
#if defined(__AMX_INT8__)
    print_rate("int8_tile", double(kTileRounds) * 4 * 16 * 16 * 64 * 2, int8_tile);
#endif
  }
#endif
  printf("}}\n");
  return 0;
}
