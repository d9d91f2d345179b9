// Walks the launches of a step through the runtime's C API: no Python per kernel.
//
// Compiled when the model is (`kunlun/player.py`) and carried by the artifact. It knows no library: the
// caller gives the three functions, so the chip's runtime and the emulator's serve alike.
#include <stddef.h>
#include <stdint.h>

struct Runtime {
  int (*set_argument)(const void* argument, size_t bytes, size_t offset);
  int (*configure)(int clusters, int cores, void* stream);
  int (*launch)(void* function);
};

struct Launch {
  void* function;
  int64_t block, bytes;  // where its parameters lie in `blocks`
  int32_t clusters, cores;
};

// 0, or the code of the launch whose number goes to `failed`.
extern "C" __attribute__((visibility("default"))) int64_t sglk_xpu_play(const Runtime* runtime, const Launch* launches,
                                                                        int64_t count, const char* blocks,
                                                                        void* stream, int64_t* failed) {
  for (int64_t i = 0; i < count; i++) {
    const Launch& one = launches[i];
    int code = runtime->set_argument(blocks + one.block, size_t(one.bytes), 0);
    if (!code) code = runtime->configure(one.clusters, one.cores, stream);
    if (!code) code = runtime->launch(one.function);
    if (code) {
      *failed = i;
      return code;
    }
  }
  return 0;
}
