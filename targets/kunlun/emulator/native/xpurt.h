// The C API of the XRE runtime as public sources describe it, the entry points of the Triton
// launcher, and the emulator's own functions (xpuemu_*), which no driver needs.
//
// Written from described behaviour; no text of a vendor's header is used. Calls return 0 or a code.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define XPU_EXPORT extern "C" __attribute__((visibility("default")))

typedef void* XPUStream;
typedef void* XPUFunc;
typedef void* XPUEvent;

enum {
  XPU_SUCCESS = 0,
  XPU_INVALID_DEVICE = 701, XPU_UNINIT = 702, XPU_NODEV = 703, XPU_NOMEM = 705, XPU_NOCPUMEM = 706,
  XPU_INVALID_PARAM = 707, XPU_NOXPUFUNC = 708, XPU_NOSUPPORT = 712, XPU_ABNORMAL = 713,
  XPU_KEXCEPTION = 714, XPU_TIMEOUT = 715, XPU_BUSY = 716, XPU_USE_AFTER_CLOSE = 717,
  XPU_UNEXPECT = 800, XPU_DEVRESET = 801, XPU_DMAABORT = 809, XPU_HOSTMEM_ALREADY_REGISTERED = 816,
};
enum { XPU_D2H = 0, XPU_H2D = 1, XPU_D2D = 2 };
enum { XPU_MEM_MAIN = 0, XPU_MEM_L3 = 1 };
enum {
  XPU_ATTR_PCI = 0, XPU_ATTR_DEVID = 1, XPU_ATTR_BOARDID = 2, XPU_ATTR_MODEL = 4,
  XPU_ATTR_MAIN_BYTES = 5, XPU_ATTR_L3_BYTES = 6, XPU_ATTR_CLUSTERS = 7, XPU_ATTR_ENGINES = 8,
};

struct xpu_kernel {  // what an XPUFunc points at
  uint32_t type : 16;   // 0 cluster, 1 matrix engine
  uint32_t place : 16;  // 0 host memory, 1 device memory
  uint64_t code_addr;
  uint32_t code_byte_size, code_pc, param_dword_size;
  uint64_t hash;
  const char* name;
  void* rt_private;
};

// ---- versions and devices
XPU_EXPORT int xpu_get_runtime_version(uint32_t* major, uint32_t* minor);
XPU_EXPORT int xpu_get_driver_version(uint32_t* major, uint32_t* minor);
XPU_EXPORT int xpu_get_runtime_version_commit(char* text);  // room for 64 bytes
XPU_EXPORT int xpu_device_count(int* count);
XPU_EXPORT int xpu_device_list(int* devices);  // room for 64 of them
XPU_EXPORT int DEVICE_SIMULATOR(int device);   // ids from 64 on are simulated devices
XPU_EXPORT int xpu_set_device(int device);
XPU_EXPORT int xpu_current_device(int* device);
XPU_EXPORT int xpu_device_get_attr(uint64_t* value, int attribute, int device);
XPU_EXPORT const char* xpu_strerror(int code);

// ---- memory
XPU_EXPORT int xpu_malloc(void** pointer, uint64_t bytes, int kind);
XPU_EXPORT int xpu_free(void* pointer);
XPU_EXPORT int xpu_host_alloc(void** pointer, uint64_t bytes, unsigned flags);
XPU_EXPORT int xpu_host_free(void* pointer);
XPU_EXPORT int xpu_host_register(void* pointer, uint64_t bytes, unsigned flags);
XPU_EXPORT int xpu_host_unregister(void* pointer);
XPU_EXPORT int xpu_memcpy(void* to, const void* from, uint64_t bytes, int kind);
XPU_EXPORT int xpu_memcpy_async(void* to, const void* from, uint64_t bytes, int kind, XPUStream);
XPU_EXPORT int xpu_mmap(void** host, void* device, size_t bytes);  // not emulated
XPU_EXPORT int xpu_memcpy_peer(int to_device, void* to, int from_device, const void* from, uint64_t);

// ---- streams and events
XPU_EXPORT int xpu_stream_create(XPUStream*);
XPU_EXPORT int xpu_stream_destroy(XPUStream);
XPU_EXPORT int xpu_stream_wait_event(XPUStream, XPUEvent);
XPU_EXPORT int xpu_wait(XPUStream);
XPU_EXPORT int xpu_event_create(XPUEvent*);
XPU_EXPORT int xpu_event_destroy(XPUEvent);
XPU_EXPORT int xpu_event_record(XPUEvent, XPUStream);
XPU_EXPORT int xpu_event_wait(XPUEvent);
XPU_EXPORT int xpu_event_query(XPUEvent);  // XPU_BUSY until it was reached; newer runtimes only

// ---- kernels
XPU_EXPORT int load_binary(const char* name, const void* image, uint64_t bytes, int is_sdnn,
                           uint32_t printf_offset, XPUFunc* function);
XPU_EXPORT int xpu_create_cl_func(XPUFunc*, uint64_t code, uint32_t bytes, uint32_t pc, uint32_t param_dwords,
                                  uint64_t hash, const char* name, bool on_xpu);  // not emulated
XPU_EXPORT int xpu_create_sd_func(XPUFunc*, uint64_t code, uint32_t bytes, uint32_t pc, uint32_t param_dwords,
                                  uint64_t hash, const char* name, bool on_xpu);  // not emulated
XPU_EXPORT int xpu_launch_argument_set(const void* argument, size_t bytes, size_t offset);
XPU_EXPORT int xpu_launch_config(int clusters, int cores, XPUStream stream);
XPU_EXPORT int xpu_launch_async(XPUFunc);
XPU_EXPORT int xpu_last_kernel_exec_time(uint64_t* nanoseconds);
XPU_EXPORT int xpu_profiler_start(void);
XPU_EXPORT int xpu_profiler_stop(void);
XPU_EXPORT int xpu_kernel_debug(XPUStream);    // not emulated
XPU_EXPORT int xpu_kernel_debug_reset(void);   // not emulated
XPU_EXPORT int xpu_get_ccix_peer_id(int device, int port, int* peer);  // not emulated

struct xpu_launch_param {  // a row of xpuLaunchKernel's parameters
  int32_t index;
  const void* value;
  int32_t bytes, numel;
  int32_t type;  // 0 pointer, 1 i32, 2 i64, 3 fp32, 4 fp16, 5 bf16, 6 i1
};
XPU_EXPORT int xpuLaunchKernel(const char* name, XPUFunc, int grid_x, int grid_y, int grid_z, int clusters,
                               int cores, XPUStream, const xpu_launch_param* params, int num_params,
                               const void* extra);

// ---- of the emulator alone
struct xpuemu_counters {
  int64_t gm_read, gm_written, lm, sm, uni_sram, descriptors, scalars, macs, lanes, programs;
  int64_t launches, copies, copied_bytes;
  double nanoseconds;  // modelled; relative figures only
};
XPU_EXPORT int xpuemu_configure(const char* settings);          // "name=value,..." before first use
XPU_EXPORT const char* xpuemu_message(void);                    // of this thread's last failure
XPU_EXPORT int xpuemu_counters_of(const char* kernel, xpuemu_counters*);  // null: all kernels
XPU_EXPORT int xpuemu_kernel_name(int number, const char** name);
XPU_EXPORT int xpuemu_reset_counters(void);
XPU_EXPORT int xpuemu_lose_device(int device, int64_t after_commands);
