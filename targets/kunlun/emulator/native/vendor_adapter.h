// The C face through which artifacts call the vendor's operators. The emulator exports it; on a
// machine with the vendor's SDK somebody builds a library with the same functions on top of it, and
// names it in SGLK_KUNLUN_ADAPTER. No such library exists yet: what the vendor's side does is unknown
// to us beyond the argument lists of `targets/kunlun/vendor.py`.
//
// A call has one slot of 8 bytes for each argument: a pointer to device memory, an integer, or a
// float in the low 4 bytes. Tensors are contiguous, rows last; types are the letters of a call's name.
//
//   rmsnorm_f32      x, weight f32, output | rows, columns | eps
//   add_rmsnorm_f32  x, y, weight f32, output, residual_output (the sum) | rows, columns | eps
//   matmul_f32       x [rows, k], w [n, k], out [rows, n], bias f32 [n] or 0 | rows, n, k | alpha
#pragma once
#include <stdint.h>

#define SGLK_VENDOR_VERSION 1

#ifndef XPU_EXPORT
#define XPU_EXPORT extern "C" __attribute__((visibility("default")))
#endif

XPU_EXPORT int sglk_vendor_version(void);
XPU_EXPORT int sglk_vendor_has(const char* name);  // 1: the call is there
// Queues a call on a stream of the thread's device; 0 or a code of the runtime.
XPU_EXPORT int sglk_vendor_call(const char* name, void* stream, const int64_t* slots, int count);
XPU_EXPORT const char* sglk_vendor_message(void);  // of this thread's last failure
