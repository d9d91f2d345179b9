// The exported functions: they take the lock, check the device, and leave a message when they fail.
#include "launch.h"

namespace {

const int FIRST_SIMULATED = 64;

bool read_settings(const char* text, const char** bad) {  // "name=value,name=value"
  while (text && *text) {
    size_t length = strcspn(text, "=,\n");
    bool is_known = false;
    for (Setting& one : settings)
      if (strlen(one.name) == length && !strncmp(one.name, text, length) && text[length] == '=') {
        one.value = strtod(text + length + 1, nullptr);
        is_known = true;
      }
    if (!is_known) {
      *bad = text;
      return false;
    }
    text += strcspn(text, ",\n");
    text += *text != 0;
  }
  return true;
}

int start() {
  if (started) return XPU_SUCCESS;
  const char* bad = nullptr;
  static bool is_read = false;
  if (!is_read && !read_settings(XPU_DEFAULTS, &bad)) return fail(XPU_UNINIT, "built with an unknown setting: %s", bad);
  is_read = true;
  if (!read_settings(getenv("SGLK_KUNLUN_EMULATOR"), &bad))
    return fail(XPU_UNINIT, "SGLK_KUNLUN_EMULATOR: expected name=value, got %s", bad);
  if (num_devices() < 0 || num_devices() > MAX_DEVICES) return fail(XPU_UNINIT, "expected at most 64 devices");
  for (int i = 0; i < num_devices(); i++) {
    describe_memory(i);
    devices[i].lost_after = -1;
  }
  started = true;
  return XPU_SUCCESS;
}

int ready() {  // started, and the thread's device exists and works
  if (int code = start()) return code;
  if (!num_devices()) return fail(XPU_NODEV, "no device");
  return device_state(devices[current_device]);
}

Device& own() { return devices[current_device]; }

// Unloading gives back what closing handles did not: threads, code, address space.
__attribute__((destructor)) void unload() {
  stop_threads();
  for (int64_t i = 0; i < codes.count; i++) {
    dlclose(codes.at[i].library);
    close(codes.at[i].descriptor);
  }
  for (Device& device : devices)
    for (Memory& memory : device.memory)
      if (memory.host) munmap(memory.host, window(memory));
}

}  // namespace

// ---- versions and devices

int xpu_get_runtime_version(uint32_t* major, uint32_t* minor) { return *major = 5, *minor = 0, XPU_SUCCESS; }
int xpu_get_driver_version(uint32_t* major, uint32_t* minor) { return *major = 5, *minor = 0, XPU_SUCCESS; }

int xpu_device_count(int* count) {
  Lock lock;
  if (int code = start()) return code;
  *count = num_devices();
  return XPU_SUCCESS;
}

int xpu_set_device(int device) {
  Lock lock;
  if (int code = start()) return code;
  if (device >= FIRST_SIMULATED) device -= FIRST_SIMULATED;
  if (device < 0 || device >= num_devices())
    return fail(XPU_INVALID_DEVICE, "expected a device below %d, got %d", num_devices(), device);
  current_device = device;
  return XPU_SUCCESS;
}

int xpu_current_device(int* device) { return *device = current_device, XPU_SUCCESS; }

int xpu_device_get_attr(uint64_t* value, int attribute, int device) {
  Lock lock;
  if (int code = start()) return code;
  if (device < 0 || device >= num_devices()) return fail(XPU_INVALID_DEVICE, "no device %d", device);
  const char* names[] = {"", "", "", "", "model", "main_bytes", "l3_bytes", "clusters", "engines"};
  if (attribute == XPU_ATTR_DEVID || attribute == XPU_ATTR_BOARDID)
    *value = uint64_t(device);
  else if (attribute >= XPU_ATTR_MODEL && attribute <= XPU_ATTR_ENGINES)
    *value = uint64_t(setting(names[attribute]));
  else
    return fail(XPU_NOSUPPORT, "attribute %d is not emulated", attribute);
  return XPU_SUCCESS;
}

const char* xpu_strerror(int code) {
  struct Name { int code; const char* text; };
  static const Name names[] = {
      {0, "success"}, {701, "invalid device"}, {702, "not initialised"}, {703, "no device"},
      {705, "out of device memory"}, {706, "out of host memory"}, {707, "invalid parameter"},
      {708, "no such kernel"}, {712, "not supported"}, {713, "device abnormal after an error"},
      {714, "kernel exception"}, {715, "timeout"}, {716, "busy"}, {717, "use after close"},
      {801, "device reset"}, {809, "copy aborted"}, {816, "host memory registered already"},
  };
  for (const Name& name : names)
    if (name.code == code) return name.text;
  return "unknown error";
}

// ---- memory

int xpu_malloc(void** pointer, uint64_t bytes, int kind) {
  Lock lock;
  if (int code = ready()) return code;
  if (kind != XPU_MEM_MAIN && kind != XPU_MEM_L3) return fail(XPU_INVALID_PARAM, "expected a kind of memory, got %d", kind);
  if (!pointer || !bytes) return fail(XPU_INVALID_PARAM, "expected at least one byte");
  return allocate(own(), kind, bytes, pointer);
}

int xpu_free(void* pointer) {  // waits for all streams, as the device does
  Lock lock;
  if (int code = start()) return code;
  if (!pointer) return XPU_SUCCESS;
  int code = drain_device(current_device);
  int freed = release(own(), reinterpret_cast<uint64_t>(pointer));
  return freed ? freed : code;
}

static List<void*> host_blocks, registered;

static bool forget(List<void*>& list, void* pointer) {
  for (int64_t i = 0; i < list.count; i++)
    if (list.at[i] == pointer) return list.remove(i), true;
  return false;
}

int xpu_host_alloc(void** pointer, uint64_t bytes, unsigned) {
  Lock lock;
  if (int code = start()) return code;
  if (posix_memalign(pointer, 4096, size_t(bytes ? bytes : 1))) return fail(XPU_NOCPUMEM, "no host memory");
  host_blocks.add(*pointer);
  return XPU_SUCCESS;
}

int xpu_host_free(void* pointer) {
  Lock lock;
  if (!forget(host_blocks, pointer)) return fail(XPU_INVALID_PARAM, "expected memory of xpu_host_alloc");
  drain_device(current_device);
  free(pointer);
  return XPU_SUCCESS;
}

int xpu_host_register(void* pointer, uint64_t bytes, unsigned) {
  Lock lock;
  for (int64_t i = 0; i < registered.count; i++)
    if (registered.at[i] == pointer) return fail(XPU_HOSTMEM_ALREADY_REGISTERED, "this memory is registered already");
  if (!pointer || !bytes) return fail(XPU_INVALID_PARAM, "expected host memory");
  registered.add(pointer);
  return XPU_SUCCESS;
}

int xpu_host_unregister(void* pointer) {
  Lock lock;
  return forget(registered, pointer) ? XPU_SUCCESS : fail(XPU_INVALID_PARAM, "this memory is not registered");
}

int xpu_memcpy(void* to, const void* from, uint64_t bytes, int kind) {  // in order with the default stream
  Lock lock;
  if (int code = ready()) return code;
  if (int code = check_copy(own(), to, from, bytes, kind)) return code;
  Command command = {};
  command.kind = COMMAND_COPY, command.copy_kind = kind;
  command.to = to, command.from = from, command.bytes = bytes;
  Stream* stream = own_stream(current_device);
  int code = enqueue(*stream, command);
  return code ? code : drain(*stream, nullptr, 0);
}

int xpu_memcpy_async(void* to, const void* from, uint64_t bytes, int kind, XPUStream handle) {
  Lock lock;
  int code = ready();
  Stream* stream = code ? nullptr : checked_stream(handle, &code);
  if (!code) code = check_copy(own(), to, from, bytes, kind);
  if (code) return code;
  Command command = {};
  command.kind = COMMAND_COPY, command.copy_kind = kind;
  command.to = to, command.from = from, command.bytes = bytes;
  return enqueue(*stream, command);
}

int xpu_memcpy_peer(int to_device, void* to, int from_device, const void* from, uint64_t bytes) {
  Lock lock;
  if (int code = ready()) return code;
  int most = num_devices();
  if (to_device < 0 || from_device < 0 || to_device >= most || from_device >= most)
    return fail(XPU_INVALID_DEVICE, "expected devices below %d", most);
  drain(*own_stream(to_device), nullptr, 0);
  drain(*own_stream(from_device), nullptr, 0);
  char* target = device_range(devices[to_device], to, bytes);
  const char* source = target ? device_range(devices[from_device], from, bytes) : nullptr;
  if (!source) return XPU_INVALID_PARAM;
  memmove(target, source, size_t(bytes));
  return XPU_SUCCESS;
}

#include "exports.h"
#include "unsupported.h"
