// Streams as queues of commands that run as late as allowed: when somebody waits for them. So work
// that a driver forgot to wait for is not done, every time, instead of now and then.
#pragma once
#include "engine.h"
#include "vendor_ops.h"

namespace {

enum { COMMAND_COPY, COMMAND_LAUNCH, COMMAND_RECORD, COMMAND_WAIT, COMMAND_VENDOR };

struct Event {
  bool is_recorded;
  int64_t turn;     // how often it was recorded
  Stream* stream;   // of the last record
  int64_t reached;  // turns that have run
  bool is_closed;
};

struct Command {
  int kind, copy_kind;
  void* to;
  const void* from;
  uint64_t bytes;
  Event* event;
  int64_t turn;
  Launch* launch;
  VendorCall* vendor;
};

struct Stream {
  int device;
  bool is_closed, is_running;
  List<Command> queue;
};

List<Stream*> streams;
List<Event*> events;
int64_t num_copies = 0, copied_bytes = 0;
double copy_time = 0;

int drain(Stream& stream, const Event* until, int64_t turn);

Stream* own_stream(int device) {
  Device& d = devices[device];
  if (!d.own) {
    d.own = static_cast<Stream*>(calloc(1, sizeof(Stream)));
    d.own->device = device;
    streams.add(d.own);
  }
  return d.own;
}

// The stream of a handle, which must belong to the thread's device; null with a code.
Stream* checked_stream(XPUStream handle, int* code) {
  if (!handle) return own_stream(current_device);
  for (int64_t i = 0; i < streams.count; i++) {
    Stream* stream = streams.at[i];
    if (stream != handle) continue;
    if (stream->is_closed) {
      *code = fail(XPU_USE_AFTER_CLOSE, "expected an open stream, got one that was destroyed");
      return nullptr;
    }
    if (stream->device == current_device) return stream;
    *code = fail(XPU_INVALID_PARAM,
                 "expected a stream of this thread's device %d, got one of device %d (limit stream_device, documented)",
                 current_device, stream->device);
    return nullptr;
  }
  *code = fail(XPU_INVALID_PARAM, "expected a stream, got another handle");
  return nullptr;
}

Event* checked_event(XPUEvent handle, int* code) {
  for (int64_t i = 0; i < events.count; i++) {
    Event* event = events.at[i];
    if (event != handle) continue;
    if (!event->is_closed) return event;
    *code = fail(XPU_USE_AFTER_CLOSE, "expected an open event, got one that was destroyed");
    return nullptr;
  }
  *code = fail(XPU_INVALID_PARAM, "expected an event, got another handle");
  return nullptr;
}

// ---- copies

bool is_on_device(const void* pointer) { return owner_of(reinterpret_cast<uint64_t>(pointer)) >= 0; }

int check_copy(Device& device, void* to, const void* from, uint64_t bytes, int kind) {
  if (kind < XPU_D2H || kind > XPU_D2D) return fail(XPU_INVALID_PARAM, "expected a kind of copy, got %d", kind);
  bool to_device_ = kind != XPU_D2H, from_device = kind != XPU_H2D;
  if (is_on_device(to) != to_device_ || is_on_device(from) != from_device)
    return fail(XPU_INVALID_PARAM, "a copy of kind %d from %p to %p: host and device are mixed up", kind, from, to);
  if (to_device_ && !device_range(device, to, bytes)) return XPU_INVALID_PARAM;
  if (from_device && !device_range(device, from, bytes)) return XPU_INVALID_PARAM;
  return XPU_SUCCESS;
}

int run_copy(Device& device, const Command& c) {
  if (int code = check_copy(device, c.to, c.from, c.bytes, c.copy_kind)) return code;
  void* to = c.copy_kind == XPU_D2H ? c.to : device_range(device, c.to, c.bytes);
  const void* from = c.copy_kind == XPU_H2D ? c.from : device_range(device, c.from, c.bytes);
  memmove(to, from, size_t(c.bytes));
  num_copies++;
  copied_bytes += int64_t(c.bytes);
  copy_time += setting("copy_ns") + double(c.bytes) * setting("copy_bytes_ns");
  return XPU_SUCCESS;
}

// ---- commands

int count_command(Device& device) {
  if (device.lost_after < 0 || device.lost_after-- > 0) return XPU_SUCCESS;
  return fail(XPU_DEVRESET, "the device was lost");
}

int run_command(Stream& stream, const Command& c) {
  Device& device = devices[stream.device];
  if (c.kind == COMMAND_RECORD) {
    c.event->reached = c.turn > c.event->reached ? c.turn : c.event->reached;
    return XPU_SUCCESS;
  }
  if (c.kind == COMMAND_WAIT) {
    Stream* other = c.event->stream;
    bool is_done = c.event->reached >= c.turn || !other || other == &stream || other->is_running;
    return is_done ? XPU_SUCCESS : drain(*other, c.event, c.turn);
  }
  if (int code = count_command(device)) return code;
  if (c.kind == COMMAND_VENDOR) return c.vendor->op->run(device, *c.vendor);
  return c.kind == COMMAND_COPY ? run_copy(device, c) : run_launch(*c.launch);
}

// Runs a stream's commands, up to the one that records `until` for the turn, if given.
int drain(Stream& stream, const Event* until, int64_t turn) {
  Device& device = devices[stream.device];
  int code = device.bad ? device_state(device) : XPU_SUCCESS;
  stream.is_running = true;
  int64_t done = 0;
  while (done < stream.queue.count) {
    Command c = stream.queue.at[done++];
    if (!code && (code = run_command(stream, c))) break_device(device, code);
    free(c.launch);
    free(c.vendor);
    if (c.kind == COMMAND_RECORD && c.event == until && c.turn == turn) break;
  }
  List<Command>& queue = stream.queue;
  queue.count -= done;
  memmove(queue.at, queue.at + done, size_t(queue.count) * sizeof(Command));
  stream.is_running = false;
  return code;
}

int drain_device(int device) {
  int code = XPU_SUCCESS;
  for (int64_t i = 0; i < streams.count; i++)
    if (streams.at[i]->device == device && !code) code = drain(*streams.at[i], nullptr, 0);
  return code;
}

int enqueue(Stream& stream, const Command& command) {
  if (int code = device_state(devices[stream.device])) {
    free(command.launch);
    free(command.vendor);
    return code;
  }
  if (!stream.queue.add(command)) return fail(XPU_NOCPUMEM, "no host memory for a command");
  return stream.queue.count >= int64_t(setting("batch")) ? drain(stream, nullptr, 0) : XPU_SUCCESS;
}

}  // namespace
