// Launching: arguments and configuration of a thread, then the command. A launch takes exactly the
// bytes that the kernel's parameters and the three i32 of the grid take.
#pragma once
#include "queue.h"

namespace {

const int GRID_BYTES = 12;

struct Pending {  // of a thread, until its next launch
  char bytes[MAX_PARAM_BYTES];
  char is_set[MAX_PARAM_BYTES];
  size_t end;
  int clusters, cores;
  XPUStream stream;
  bool is_configured;
};
thread_local Pending pending;

void forget_pending() {
  memset(pending.is_set, 0, pending.end);
  memset(pending.bytes, 0, pending.end);
  pending.end = 0;
  pending.is_configured = false;
}

int set_argument(const void* argument, size_t bytes, size_t offset) {
  size_t most = size_t(setting("param_bytes"));
  size_t room = (bytes + 3) / 4 * 4;
  if (offset % 4)
    return fail(XPU_INVALID_PARAM, "an argument at offset %zu: expected a multiple of 4 (limit param_alignment, documented)",
                offset);
  if (!argument || offset > most || room > most - offset || offset + room > sizeof pending.bytes)
    return fail(XPU_INVALID_PARAM,
                "an argument of %zu bytes at offset %zu: expected at most %zu bytes in all (limit param_bytes, documented)",
                bytes, offset, most);
  memset(pending.bytes + offset, 0, room);
  memcpy(pending.bytes + offset, argument, bytes);
  memset(pending.is_set + offset, 1, room);
  if (offset + room > pending.end) pending.end = offset + room;
  return XPU_SUCCESS;
}

int configure_launch(int clusters, int cores, XPUStream stream) {
  int most = int(setting("clusters")), most_cores = int(setting("cores"));
  if (clusters < 1 || clusters > most || cores < 1 || cores > most_cores)
    return fail(XPU_INVALID_PARAM,
                "a launch on %d clusters of %d cores: expected at most %d of %d (limit clusters, documented)", clusters,
                cores, most, most_cores);
  int code = XPU_SUCCESS;
  if (!checked_stream(stream, &code)) return code;
  pending.clusters = clusters, pending.cores = cores, pending.stream = stream;
  pending.is_configured = true;
  return XPU_SUCCESS;
}

int check_block(const Kernel& kernel) {
  size_t wanted = size_t(kernel.param_bytes + GRID_BYTES);
  if (pending.end != wanted)
    return fail(XPU_INVALID_PARAM, "kernel %s: expected %zu bytes of parameters, got %zu (limit param_block, inferred)",
                kernel.name, wanted, pending.end);
  for (int i = 0; i < kernel.num_params; i++)
    if (!pending.is_set[kernel.offsets[i]])
      return fail(XPU_INVALID_PARAM, "kernel %s: parameter %d at offset %d was not set (limit param_block, inferred)",
                  kernel.name, i, kernel.offsets[i]);
  return XPU_SUCCESS;
}

int64_t read_param(Device& device, const Kernel& kernel, int number) {
  const char* at = pending.bytes + kernel.offsets[number];
  char kind = kernel.kinds[number];
  int32_t narrow;
  int64_t wide;
  if (kind == 'i' || kind == 'f') {
    memcpy(&narrow, at, 4);
    return kind == 'i' ? int64_t(narrow) : int64_t(uint32_t(narrow));
  }
  memcpy(&wide, at, 8);
  Memory* memory = kind == 'p' ? memory_of(device, uint64_t(wide)) : nullptr;
  return memory && memory->host ? int64_t(to_host(*memory, uint64_t(wide))) : wide;
}

int check_grid(const Kernel& kernel, const int32_t* grid) {
  int64_t total = 1;
  for (int axis = 0; axis < 3; axis++) {
    if (grid[axis] < 1) return fail(XPU_INVALID_PARAM, "kernel %s: expected a grid of at least 1, got %d", kernel.name, grid[axis]);
    total *= grid[axis];
    if (total > INT32_MAX) return fail(XPU_INVALID_PARAM, "kernel %s: the grid has too many programs", kernel.name);
  }
  return XPU_SUCCESS;
}

int check_kind(const Kernel& kernel) {  // matrix engines have fewer, other cores
  if (!kernel.face.type) return XPU_SUCCESS;
  int most = int(setting("engines")), cores = int(setting("engine_cores"));
  if (pending.clusters <= most && pending.cores <= cores) return XPU_SUCCESS;
  return fail(XPU_INVALID_PARAM,
              "kernel %s: a launch on %d engines of %d cores: expected at most %d of %d (limit engines, documented)",
              kernel.name, pending.clusters, pending.cores, most, cores);
}

int launch(XPUFunc function) {
  Kernel* kernel = known_kernel(function);
  if (!kernel) return fail(XPU_NOXPUFUNC, "expected a loaded kernel, got another handle");
  if (!pending.is_configured) return fail(XPU_INVALID_PARAM, "kernel %s: no xpu_launch_config before it", kernel->name);
  int code = check_block(*kernel);
  Stream* stream = code ? nullptr : checked_stream(pending.stream, &code);
  if (!code) code = check_kind(*kernel);
  if (code) return code;
  Launch* made = static_cast<Launch*>(calloc(1, sizeof(Launch)));
  if (!made) return fail(XPU_NOCPUMEM, "no host memory for a launch");
  Device& device = devices[stream->device];
  made->kernel = kernel, made->device = &device;
  made->clusters = pending.clusters, made->cores = pending.cores;
  memcpy(made->grid, pending.bytes + kernel->param_bytes, GRID_BYTES);
  for (int i = 0; i < kernel->num_params; i++) made->args[i] = read_param(device, *kernel, i);
  if ((code = check_grid(*kernel, made->grid))) {
    free(made);
    return code;
  }
  Command command = {};
  command.kind = COMMAND_LAUNCH;
  command.launch = made;
  return enqueue(*stream, command);
}

// ---- the Triton launcher's rows

int check_row(const char* name, const xpu_launch_param& row) {
  const int sizes[] = {8, 4, 8, 4, 4, 4, 4};
  if (row.type < 0 || row.type > 6 || !row.value)
    return fail(XPU_INVALID_PARAM, "kernel %s: parameter %d: expected a known type and a value", name, row.index);
  if (row.bytes == sizes[row.type]) return XPU_SUCCESS;
  bool is_float = row.type >= 3 && row.type <= 5;
  return fail(XPU_INVALID_PARAM, "kernel %s: parameter %d: expected %d bytes, got %d (limit %s, documented)", name,
              row.index, sizes[row.type], row.bytes, is_float ? "float_scalars" : "param_block");
}

int set_rows(const Kernel& kernel, const xpu_launch_param* params, int count, const int32_t* grid) {
  if (count != kernel.num_params)
    return fail(XPU_INVALID_PARAM, "kernel %s: expected %d parameters, got %d (limit param_block, inferred)", kernel.name,
                kernel.num_params, count);
  forget_pending();
  for (int i = 0; i < count; i++) {
    if (int code = check_row(kernel.name, params[i])) return code;
    if (int code = set_argument(params[i].value, size_t(params[i].bytes), size_t(kernel.offsets[i]))) return code;
  }
  return set_argument(grid, GRID_BYTES, size_t(kernel.param_bytes));
}

}  // namespace
