// The rest of the API: small questions, and what is not emulated and says so. Part of emulator.cpp.
#pragma once

static int not_emulated(const char* what) { return fail(XPU_NOSUPPORT, "%s is not emulated", what); }

int xpu_get_runtime_version_commit(char* text) { return snprintf(text, 64, "emulator"), XPU_SUCCESS; }

int xpu_device_list(int* list) {
  Lock lock;
  if (int code = start()) return code;
  for (int i = 0; i < num_devices(); i++) list[i] = i;
  return XPU_SUCCESS;
}

int DEVICE_SIMULATOR(int device) { return FIRST_SIMULATED + device; }

int xpu_event_query(XPUEvent handle) {
  Lock lock;
  int code = ready();
  Event* event = code ? nullptr : checked_event(handle, &code);
  if (code) return code;
  return event->reached >= event->turn ? XPU_SUCCESS : fail(XPU_BUSY, "the event was not reached");
}

int xpu_profiler_start(void) { return XPU_SUCCESS; }
int xpu_profiler_stop(void) { return XPU_SUCCESS; }
int xpu_mmap(void**, void*, size_t) { return not_emulated("mapping device memory"); }
int xpu_kernel_debug(XPUStream) { return not_emulated("debugging kernels"); }
int xpu_kernel_debug_reset(void) { return not_emulated("debugging kernels"); }
int xpu_get_ccix_peer_id(int, int, int*) { return not_emulated("a link to another card"); }

int xpu_create_cl_func(XPUFunc*, uint64_t, uint32_t, uint32_t, uint32_t, uint64_t, const char*, bool) {
  return not_emulated("code without a header (use load_binary)");
}

int xpu_create_sd_func(XPUFunc* function, uint64_t code, uint32_t bytes, uint32_t pc, uint32_t dwords, uint64_t hash,
                       const char* name, bool on_xpu) {
  return xpu_create_cl_func(function, code, bytes, pc, dwords, hash, name, on_xpu);
}
