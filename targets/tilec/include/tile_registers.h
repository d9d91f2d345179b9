// AMX tile instructions, written out: the compilers' intrinsics do not tell the optimiser that a
// load reads memory (GCC 12 drops stores to a scratch tile before `_tile_loadd`).
#pragma once
#include "types.h"

#if defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__AMX_TILE__)
#define TC_AMX 1
#include <sys/syscall.h>
#include <unistd.h>

namespace tilec {

// Linux gives a process tile registers only when it asks for them: here, when the library is loaded.
__attribute__((constructor)) static void ask_for_tile_registers() {
  const int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
  syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}

template <int T> INL void tile_zero() { __asm__ volatile("tilezero %%tmm%c0" ::"i"(T) : "memory"); }
template <int T> INL void tile_load(const void* from, int64_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(T) : "memory");
}
template <int T> INL void tile_store(void* to, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(T) : "memory");
}
template <int C, int A, int B> INL void tile_dot_bf16() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B) : "memory");
}
template <int C, int A, int B> INL void tile_dot_i8() {
  __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B) : "memory");
}

// Rows and bytes per row of the eight tile registers, as `ldtilecfg` reads them.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};

// The shape of the tile registers of one kernel: 0 to 3 sums, 4 and 5 the left side, 6 and 7 the
// right. Sums 2 and 3 and left 5 have `last` rows, the other left and sums 16.
class Tiles {
  int shape = 0;

 public:
  // `steps`: rows of the right side, 4 bytes of a row of the left side each.
  void use(int last, int steps) {
    if (shape == last + 32 * steps) return;
    shape = last + 32 * steps;
    TileConfig config;
    for (int t = 0; t < 4; ++t) config.rows[t] = uint8_t(t < 2 ? 16 : last), config.bytes[t] = 64;
    for (int t = 4; t < 6; ++t) config.rows[t] = uint8_t(t < 5 ? 16 : last);
    for (int t = 4; t < 6; ++t) config.bytes[t] = uint16_t(4 * steps);
    for (int t = 6; t < 8; ++t) config.rows[t] = uint8_t(steps), config.bytes[t] = 64;
    __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
  }
  // A thread without tile data costs less to switch.
  ~Tiles() {
    if (shape) __asm__ volatile("tilerelease" ::: "memory");
  }
};

}  // namespace tilec
#else
namespace tilec {
struct Tiles {};
}  // namespace tilec
#endif
