// More exported functions: streams, events, kernels, and the emulator's own. Part of emulator.cpp.
#pragma once

// ---- the vendor's operators

int sglk_vendor_version(void) { return SGLK_VENDOR_VERSION; }

int sglk_vendor_has(const char* name) { return vendor_op(name) != nullptr; }

const char* sglk_vendor_message(void) { return last_message; }

int sglk_vendor_call(const char* name, void* handle, const int64_t* slots, int count) {
  Lock lock;
  int code = ready();
  Stream* stream = code ? nullptr : checked_stream(handle, &code);
  if (code) return code;
  const VendorOp* op = vendor_op(name);
  if (!op) return fail(XPU_NOSUPPORT, "vendor operator %s is not emulated", name);
  int wanted = op->pointers + op->numbers + op->floats;
  if (count != wanted) return fail(XPU_INVALID_PARAM, "vendor operator %s: expected %d arguments, got %d", name, wanted, count);
  VendorCall* call = static_cast<VendorCall*>(calloc(1, sizeof(VendorCall)));
  if (!call) return fail(XPU_NOCPUMEM, "no host memory for a call");
  call->op = op;
  memcpy(call->slots, slots, size_t(count) * sizeof(int64_t));
  Command command = {};
  command.kind = COMMAND_VENDOR, command.vendor = call;
  return enqueue(*stream, command);
}

// ---- streams

int xpu_stream_create(XPUStream* handle) {
  Lock lock;
  if (int code = ready()) return code;
  if (own().streams >= int64_t(setting("streams")))
    return fail(XPU_NOMEM, "expected at most %lld streams (limit streams, documented)", (long long)setting("streams"));
  Stream* stream = static_cast<Stream*>(calloc(1, sizeof(Stream)));
  if (!stream) return fail(XPU_NOCPUMEM, "no host memory");
  stream->device = current_device;
  streams.add(stream);
  own().streams++;
  *handle = stream;
  return XPU_SUCCESS;
}

int xpu_stream_destroy(XPUStream handle) {  // its handle stays known, to tell a later use
  Lock lock;
  int code = start();
  if (!code && !handle) code = fail(XPU_INVALID_PARAM, "the default stream cannot be destroyed");
  Stream* stream = code ? nullptr : checked_stream(handle, &code);
  if (!stream) return code;
  code = drain(*stream, nullptr, 0);
  stream->is_closed = true;
  devices[stream->device].streams--;
  return code;
}

int xpu_wait(XPUStream handle) {
  Lock lock;
  int code = start();
  Stream* stream = code ? nullptr : checked_stream(handle, &code);
  return stream ? drain(*stream, nullptr, 0) : code;
}

// ---- events

int xpu_event_create(XPUEvent* handle) {
  Lock lock;
  if (int code = ready()) return code;
  Event* event = static_cast<Event*>(calloc(1, sizeof(Event)));
  if (!event) return fail(XPU_NOCPUMEM, "no host memory");
  events.add(event);
  *handle = event;
  return XPU_SUCCESS;
}

int xpu_event_destroy(XPUEvent handle) {
  Lock lock;
  int code = XPU_SUCCESS;
  Event* event = checked_event(handle, &code);
  if (event) event->is_closed = true;
  return code;
}

int xpu_event_record(XPUEvent handle, XPUStream stream_handle) {
  Lock lock;
  int code = ready();
  Event* event = code ? nullptr : checked_event(handle, &code);
  Stream* stream = code ? nullptr : checked_stream(stream_handle, &code);
  if (code) return code;
  event->is_recorded = true;
  event->stream = stream;
  Command command = {};
  command.kind = COMMAND_RECORD, command.event = event, command.turn = ++event->turn;
  return enqueue(*stream, command);
}

int xpu_event_wait(XPUEvent handle) {
  Lock lock;
  int code = ready();
  Event* event = code ? nullptr : checked_event(handle, &code);
  if (code || !event->is_recorded || event->reached >= event->turn) return code;
  return drain(*event->stream, event, event->turn);
}

int xpu_stream_wait_event(XPUStream stream_handle, XPUEvent handle) {
  Lock lock;
  int code = ready();
  Event* event = code ? nullptr : checked_event(handle, &code);
  Stream* stream = code ? nullptr : checked_stream(stream_handle, &code);
  if (code || !event->is_recorded) return code;
  Command command = {};
  command.kind = COMMAND_WAIT, command.event = event, command.turn = event->turn;
  return enqueue(*stream, command);
}

// ---- kernels

int load_binary(const char* name, const void* image, uint64_t bytes, int is_sdnn, uint32_t, XPUFunc* function) {
  Lock lock;
  if (int code = ready()) return code;
  if (!name || !image || !function) return fail(XPU_INVALID_PARAM, "expected a name, an image and a place");
  Kernel* kernel = nullptr;
  if (int code = load_image(name, static_cast<const char*>(image), bytes, &kernel)) return code;
  if (bool(is_sdnn) != bool(kernel->face.type))
    return fail(XPU_NOXPUFUNC, "kernel %s: expected is_sdnn %d, got %d", name, int(kernel->face.type), is_sdnn);
  *function = &kernel->face;
  return XPU_SUCCESS;
}

int xpu_launch_argument_set(const void* argument, size_t bytes, size_t offset) {
  Lock lock;
  int code = ready();
  return code ? code : set_argument(argument, bytes, offset);
}

int xpu_launch_config(int clusters, int cores, XPUStream stream) {
  Lock lock;
  int code = ready();
  return code ? code : configure_launch(clusters, cores, stream);
}

int xpu_launch_async(XPUFunc function) {
  Lock lock;
  int code = ready();
  if (!code) code = launch(function);
  forget_pending();
  return code;
}

int xpuLaunchKernel(const char* name, XPUFunc function, int grid_x, int grid_y, int grid_z, int clusters, int cores,
                    XPUStream stream, const xpu_launch_param* params, int num_params, const void*) {
  Lock lock;
  int code = ready();
  Kernel* kernel = known_kernel(function);
  if (!code && !kernel) code = fail(XPU_NOXPUFUNC, "kernel %s: expected a loaded kernel, got another handle", name);
  int32_t grid[] = {grid_x, grid_y, grid_z};
  if (!code) code = set_rows(*kernel, params, num_params, grid);
  if (!code) code = configure_launch(clusters, cores, stream);
  if (!code) code = launch(function);
  forget_pending();
  return code;
}

int xpu_last_kernel_exec_time(uint64_t* nanoseconds) { return *nanoseconds = uint64_t(last_kernel_time), XPU_SUCCESS; }

// ---- the emulator's own

int xpuemu_configure(const char* text) {
  Lock lock;
  if (int code = start()) return code;
  const char* bad = nullptr;
  if (!read_settings(text, &bad)) return fail(XPU_INVALID_PARAM, "expected name=value with a known name, got %s", bad);
  read_rates();
  for (int i = 0; i < num_devices(); i++)
    if (!devices[i].memory[0].used && !devices[i].memory[0].host) describe_memory(i), devices[i].lost_after = -1;
  return XPU_SUCCESS;
}

const char* xpuemu_message(void) { return last_message; }

int xpuemu_counters_of(const char* name, xpuemu_counters* counters) {
  Lock lock;
  *counters = {};
  for (int64_t i = 0; i < kernels.count; i++) {
    const xpuemu_counters& c = kernels.at[i]->counters;
    if (name && strcmp(name, kernels.at[i]->name)) continue;
    counters->gm_read += c.gm_read, counters->gm_written += c.gm_written, counters->lm += c.lm;
    counters->sm += c.sm, counters->uni_sram += c.uni_sram, counters->descriptors += c.descriptors;
    counters->scalars += c.scalars, counters->macs += c.macs, counters->lanes += c.lanes;
    counters->programs += c.programs, counters->launches += c.launches;
    counters->nanoseconds += c.nanoseconds;
  }
  if (!name) {
    counters->copies = num_copies, counters->copied_bytes = copied_bytes;
    counters->nanoseconds += copy_time;
  }
  return XPU_SUCCESS;
}

int xpuemu_kernel_name(int number, const char** name) {
  Lock lock;
  if (number < 0 || number >= kernels.count) return fail(XPU_INVALID_PARAM, "no kernel %d", number);
  *name = kernels.at[number]->name;
  return XPU_SUCCESS;
}

int xpuemu_reset_counters(void) {
  Lock lock;
  for (int64_t i = 0; i < kernels.count; i++) kernels.at[i]->counters = {};
  num_copies = copied_bytes = 0, copy_time = 0;
  return XPU_SUCCESS;
}

int xpuemu_lose_device(int device, int64_t after_commands) {
  Lock lock;
  if (int code = start()) return code;
  if (device < 0 || device >= num_devices()) return fail(XPU_INVALID_DEVICE, "no device %d", device);
  devices[device].lost_after = after_commands;
  return XPU_SUCCESS;
}
