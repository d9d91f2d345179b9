// AMX tile instructions. Written out, since the compilers' intrinsics do not tell the optimiser
// that a load reads memory: GCC 12 drops stores to a scratch tile before `_tile_loadd`.
#pragma once
#include "tilec.h"

#if defined(__AMX_BF16__) && defined(__AMX_TILE__)
#define HAVE_AMX 1
#include <sys/syscall.h>
#include <unistd.h>

namespace amx {

// Linux gives a process tile registers only when it asks for them: here, when the library is loaded.
__attribute__((constructor)) static void ask_for_tiles() {
  const int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
  syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}

// Rows and bytes per row of the eight tile registers, as `ldtilecfg` reads them.
struct alignas(64) Config {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
  void set(int tile, int rows_, int bytes_) {
    rows[tile] = uint8_t(rows_);
    bytes[tile] = uint16_t(bytes_);
  }
  void load() const { __asm__ volatile("ldtilecfg %0" ::"m"(*this) : "memory"); }
};

// At the end of a kernel: a thread without tile data costs less to switch.
static inline void release() { __asm__ volatile("tilerelease" ::: "memory"); }

}  // namespace amx

#define AMX_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::: "memory")
#define AMX_LOAD(t, from, stride) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(from), "r"(int64_t(stride)) : "memory")
#define AMX_STORE(t, to, stride) \
  __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(to), "r"(int64_t(stride)) : "memory")
#define AMX_DOT_BF16(c, a, b) \
  __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")
// signed integers
#define AMX_DOT_SS8(c, a, b) \
  __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")
#endif
