// Emulated kernel images: 24 bytes (magic, bytes of the header, bytes of the code), a flat JSON
// header padded to 64 bytes, and an ELF library for the host.
#pragma once
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core.h"

namespace {

const char MAGIC[] = "SGLKXPU1";
const int64_t HEAD_BYTES = 24, MAX_HEADER = 1 << 16, MAX_PARAMS = 256;

typedef void (*EmulatedKernel)(const int64_t* args, const int32_t* grid, int64_t begin, int64_t end,
                               tilec::Emulation* emulation);

struct Kernel {
  xpu_kernel face;  // first: an XPUFunc points at it
  char name[MAX_NAME], kinds[MAX_PARAMS + 1];
  EmulatedKernel run;
  int num_params, offsets[MAX_PARAMS], param_bytes;  // without the grid
  xpuemu_counters counters;
};

struct Code {
  uint64_t digest;
  void* library;
  int descriptor;
};

List<Kernel*> kernels;
List<Code> codes;

uint64_t fnv1a(const char* data, uint64_t bytes) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (uint64_t i = 0; i < bytes; i++) hash = (hash ^ uint8_t(data[i])) * 0x100000001b3ull;
  return hash;
}

// ---- the header: values by key of a flat JSON object without escapes that matter

const char* find_value(const char* header, const char* key) {
  char pattern[64];
  snprintf(pattern, sizeof pattern, "\"%s\":", key);
  const char* found = strstr(header, pattern);
  return found ? found + strlen(pattern) : nullptr;
}

int64_t number_of(const char* header, const char* key) {
  const char* value = find_value(header, key);
  return value ? strtoll(value, nullptr, 10) : -1;
}

bool text_of(const char* header, const char* key, char* to, size_t room) {
  const char* value = find_value(header, key);
  if (!value || *value != '"') return false;
  size_t length = 0;
  for (value++; *value && *value != '"' && length + 1 < room; value++) to[length++] = *value;
  to[length] = 0;
  return *value == '"';
}

// ---- checks

int check_use(const char* name, const char* header) {
  const char* sizes[] = {"lm_bytes", "sm_bytes", "uni_sram_bytes"};
  char broken[840];
  if (text_of(header, "broken", broken, sizeof broken) && broken[0])
    return fail(XPU_NOXPUFUNC, "kernel %s: %s", name, broken);
  for (const char* size : sizes) {
    int64_t used = number_of(header, size), most = int64_t(setting(size));
    if (used > most)
      return fail(XPU_NOXPUFUNC, "kernel %s: expected at most %lld bytes, got %lld (limit %s, modelled)", name,
                  (long long)most, (long long)used, size);
  }
  int64_t params = number_of(header, "param_bytes"), most = int64_t(setting("param_bytes"));
  if (params > most || params < 0 || params > MAX_PARAM_BYTES)
    return fail(XPU_NOXPUFUNC, "kernel %s: expected at most %lld bytes, got %lld (limit param_bytes, documented)",
                name, (long long)most, (long long)params);
  return XPU_SUCCESS;
}

bool place_params(Kernel& kernel) {  // pointers aligned, numbers behind each other
  int64_t at = 0, align = int64_t(setting("pointer_align"));
  kernel.num_params = int(strlen(kernel.kinds));
  for (int i = 0; i < kernel.num_params; i++) {
    if (!strchr("pifld", kernel.kinds[i])) return false;
    bool is_wide = strchr("pld", kernel.kinds[i]) != nullptr;
    if (is_wide) at = (at + align - 1) / align * align;
    kernel.offsets[i] = int(at);
    at += is_wide ? 8 : 4;
  }
  kernel.param_bytes = int(at);
  return true;
}

// ---- code

int open_code(const char* code, uint64_t bytes) {
  int descriptor = memfd_create("xpu-kernel", MFD_CLOEXEC);
  if (descriptor < 0) {
    char path[] = "/tmp/xpu-kernel-XXXXXX";
    descriptor = mkstemp(path);
    if (descriptor >= 0) unlink(path);
  }
  for (uint64_t done = 0; descriptor >= 0 && done < bytes;) {
    ssize_t wrote = write(descriptor, code + done, size_t(bytes - done));
    if (wrote <= 0) {
      close(descriptor);
      return -1;
    }
    done += uint64_t(wrote);
  }
  return descriptor;
}

void* load_code(const char* name, const char* code, uint64_t bytes, uint64_t digest) {
  for (int64_t i = 0; i < codes.count; i++)
    if (codes.at[i].digest == digest) return codes.at[i].library;
  int descriptor = open_code(code, bytes);
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
  void* library = descriptor < 0 ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fail(XPU_NOXPUFUNC, "kernel %s: its code does not load: %s", name,
         descriptor < 0 ? "no file for it" : dlerror());
    if (descriptor >= 0) close(descriptor);
    return nullptr;
  }
  codes.add({digest, library, descriptor});  // open: dlopen compares paths
  return library;
}

int invalid(const char* name, const char* what) {
  return fail(XPU_NOXPUFUNC, "kernel %s: expected an emulated kernel image, got %s", name, what);
}

int read_header(const char* name, const char* image, uint64_t bytes, char** header, uint64_t* code_at) {
  uint64_t sizes[2];
  if (bytes < uint64_t(HEAD_BYTES) || memcmp(image, MAGIC, 8)) return invalid(name, "other bytes");
  memcpy(sizes, image + 8, sizeof sizes);
  if (sizes[0] > uint64_t(MAX_HEADER) || sizes[1] > bytes || HEAD_BYTES + sizes[0] + sizes[1] != bytes)
    return invalid(name, "one that is cut off");
  *header = static_cast<char*>(calloc(1, size_t(sizes[0]) + 1));
  if (!*header) return fail(XPU_NOCPUMEM, "kernel %s: no host memory", name);
  memcpy(*header, image + HEAD_BYTES, size_t(sizes[0]));
  *code_at = uint64_t(HEAD_BYTES) + sizes[0];
  return XPU_SUCCESS;
}

int fill_kernel(Kernel& kernel, const char* name, const char* header, const char* code, uint64_t bytes) {
  char symbol[MAX_NAME], digest[32];
  if (number_of(header, "version") != TC_EMULATION_VERSION) return invalid(name, "one of another version");
  bool is_whole = text_of(header, "symbol", symbol, sizeof symbol) && text_of(header, "digest", digest, sizeof digest) &&
                  text_of(header, "kinds", kernel.kinds, sizeof kernel.kinds);
  if (!is_whole || !place_params(kernel)) return invalid(name, "a header that lacks something");
  uint64_t hash = fnv1a(code, bytes);
  if (strtoull(digest, nullptr, 16) != hash) return invalid(name, "code that its digest does not fit");
  if (int code_ = check_use(name, header)) return code_;
  void* library = load_code(name, code, bytes, hash);
  if (!library) return XPU_NOXPUFUNC;
  kernel.run = reinterpret_cast<EmulatedKernel>(dlsym(library, symbol));
  if (!kernel.run) return invalid(name, "code without its symbol");
  snprintf(kernel.name, sizeof kernel.name, "%s", name);
  kernel.face.type = number_of(header, "engine") == 1;
  kernel.face.code_byte_size = uint32_t(bytes);
  kernel.face.param_dword_size = uint32_t(number_of(header, "param_bytes") / 4);
  kernel.face.hash = hash;
  kernel.face.name = kernel.name;
  return XPU_SUCCESS;
}

int load_image(const char* name, const char* image, uint64_t bytes, Kernel** loaded) {
  char* header = nullptr;
  uint64_t code_at = 0;
  int result = read_header(name, image, bytes, &header, &code_at);
  Kernel* kernel = static_cast<Kernel*>(calloc(1, sizeof(Kernel)));
  if (!result && !kernel) result = fail(XPU_NOCPUMEM, "kernel %s: no host memory", name);
  if (!result) result = fill_kernel(*kernel, name, header, image + code_at, bytes - code_at);
  free(header);
  if (result) {
    free(kernel);
    return result;
  }
  kernels.add(kernel);
  *loaded = kernel;
  return XPU_SUCCESS;
}

Kernel* known_kernel(XPUFunc function) {
  for (int64_t i = 0; i < kernels.count; i++)
    if (kernels.at[i] == function) return kernels.at[i];
  return nullptr;
}

}  // namespace
