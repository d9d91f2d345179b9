// Settings, the message of the last failure, and what a device is.
#pragma once
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../tilec/emulation_include/emulation.h"
#include "xpurt.h"

namespace {

const int MAX_DEVICES = 64, MAX_NAME = 128, MESSAGE_BYTES = 1024;
const int MAX_PARAM_BYTES = 4096;  // of our buffer; the chip's limit is a setting

struct Setting {
  const char* name;
  double value;
};

// Sizes and limits have no default here: the library is built with those of a chip.
Setting settings[] = {
    {"devices", 1},        {"model", 0},          {"clusters", 0},        {"cores", 0},
    {"engines", 0},        {"engine_cores", 8},   {"main_bytes", 0},      {"l3_bytes", 0},
    {"lm_bytes", 0},       {"sm_bytes", 0},       {"uni_sram_bytes", 0},  {"param_bytes", 0},
    {"pointer_align", 8},  {"streams", 256},      {"batch", 10000},       {"threads", 0},
    {"launch_ns", 0},      {"program_ns", 0},     {"gm_bytes_ns", 0},     {"descriptor_ns", 0},
    {"scalar_ns", 0},      {"lm_bytes_ns", 0},    {"sm_bytes_ns", 0},     {"uni_bytes_ns", 0},
    {"macs_ns", 0},        {"lanes_ns", 0},       {"copy_ns", 0},         {"copy_bytes_ns", 0},
};

double setting(const char* name) {
  for (const Setting& one : settings)
    if (!strcmp(one.name, name)) return one.value;
  abort();  // a name that the table lacks: our own mistake
}

pthread_mutex_t big_lock = PTHREAD_MUTEX_INITIALIZER;
struct Lock {
  Lock() { pthread_mutex_lock(&big_lock); }
  ~Lock() { pthread_mutex_unlock(&big_lock); }
};

thread_local char last_message[MESSAGE_BYTES];

__attribute__((format(printf, 2, 3))) int fail(int code, const char* format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(last_message, MESSAGE_BYTES, format, values);
  va_end(values);
  return code;
}

struct Allocation {
  uint64_t begin, end;  // addresses on the device
};

// A growing array without a C++ library.
template <class T>
struct List {
  T* at = nullptr;
  int64_t count = 0, room = 0;

  bool insert(int64_t where, const T& item) {
    if (count == room) {
      int64_t more = room ? 2 * room : 16;
      T* bigger = static_cast<T*>(realloc(at, size_t(more) * sizeof(T)));
      if (!bigger) return false;
      at = bigger, room = more;
    }
    memmove(at + where + 1, at + where, size_t(count - where) * sizeof(T));
    at[where] = item;
    count++;
    return true;
  }
  bool add(const T& item) { return insert(count, item); }
  void remove(int64_t where) {
    count--;
    memmove(at + where, at + where + 1, size_t(count - where) * sizeof(T));
  }
  void clear() { count = 0; }
};

struct Memory {  // one kind of a device: addresses from `base` on, backed by `host`
  uint64_t base, bytes, used, next;
  char* host;
  List<Allocation> live;   // sorted
  List<Allocation> freed;  // the latest ones, to say so
};

struct Stream;

struct Device {
  Memory memory[2];  // main, L3
  Stream* own;       // the default stream
  int bad;           // code of the failure after which the device no longer works
  char why[MESSAGE_BYTES];
  int64_t lost_after;  // commands until the device is lost; negative: never
  int64_t streams;
  List<tilec::Span> spans;  // live allocations, host addresses
};

Device devices[MAX_DEVICES];
thread_local int current_device = 0;
bool started = false;

int num_devices() { return int(setting("devices")); }

int device_state(Device& device) {
  if (!device.bad) return XPU_SUCCESS;
  return fail(XPU_ABNORMAL, "the device does not work since: %s", device.why);
}

// The device's first failure stays; later calls are refused with it.
int break_device(Device& device, int code) {
  if (!device.bad) {
    device.bad = code;
    snprintf(device.why, MESSAGE_BYTES, "%s", last_message);
  }
  return code;
}

int start();  // in emulator.cpp: reads the environment once

}  // namespace
