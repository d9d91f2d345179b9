// Device memory. Addresses on the device are not those of this process: following one on the host
// faults. Each allocation has unmapped pages around it and its place is not reused at once.
#pragma once
#include <sys/mman.h>

#include "core.h"

namespace {

const uint64_t DEVICE_WINDOW = uint64_t(1) << 40, L3_OFFSET = uint64_t(1) << 39;
const uint64_t PAGE = 4096, GUARD = PAGE;
const int64_t REMEMBERED = 64;

uint64_t round_up(uint64_t value, uint64_t step) { return (value + step - 1) / step * step; }

void describe_memory(int device) {
  const char* names[] = {"main_bytes", "l3_bytes"};
  for (int kind = 0; kind < 2; kind++) {
    Memory& memory = devices[device].memory[kind];
    memory.base = uint64_t(device + 1) * DEVICE_WINDOW + (kind ? L3_OFFSET : 0);
    memory.bytes = uint64_t(setting(names[kind]));
    memory.next = memory.base;
  }
}

// Twice the capacity in addresses: room for guards and for not reusing what was freed.
uint64_t window(const Memory& memory) { return 2 * round_up(memory.bytes, PAGE) + 64 * GUARD; }

bool map_window(Memory& memory) {
  if (memory.host) return true;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* at = mmap(nullptr, window(memory), PROT_NONE, flags, -1, 0);
  if (at == MAP_FAILED) return false;
  memory.host = static_cast<char*>(at);
  return true;
}

Memory* memory_of(Device& device, uint64_t address) {
  for (Memory& memory : device.memory)
    if (address >= memory.base && address < memory.base + window(memory)) return &memory;
  return nullptr;
}

int owner_of(uint64_t address) {  // the device whose window holds an address, or -1
  int64_t device = int64_t(address / DEVICE_WINDOW) - 1;
  return device >= 0 && device < num_devices() ? int(device) : -1;
}

char* to_host(Memory& memory, uint64_t address) { return memory.host + (address - memory.base); }

uint64_t to_device(Device& device, uintptr_t host) {
  for (Memory& memory : device.memory) {
    uintptr_t begin = uintptr_t(memory.host);
    if (memory.host && host >= begin && host < begin + window(memory)) return memory.base + (host - begin);
  }
  return host;
}

int64_t first_after(const Memory& memory, uint64_t address) {  // live allocations that begin later
  int64_t low = 0, high = memory.live.count;
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (memory.live.at[middle].begin <= address) low = middle + 1;
    else high = middle;
  }
  return low;
}

Allocation* find_live(Memory& memory, uint64_t address) {
  int64_t after = first_after(memory, address);
  Allocation* found = after ? &memory.live.at[after - 1] : nullptr;
  return found && address < found->end ? found : nullptr;
}

// A free place at or after `from`; 0 when there is none.
uint64_t find_gap(const Memory& memory, uint64_t from, uint64_t bytes) {
  uint64_t at = from + GUARD, end = memory.base + window(memory);
  for (int64_t i = first_after(memory, from); i <= memory.live.count; i++) {
    if (i > 0) {
      uint64_t past = round_up(memory.live.at[i - 1].end, PAGE) + GUARD;
      at = past > at ? past : at;
    }
    uint64_t limit = i < memory.live.count ? memory.live.at[i].begin : end;
    if (at + round_up(bytes, PAGE) + GUARD <= limit) return at;
  }
  return 0;
}

void refresh_spans(Device& device) {
  device.spans.clear();
  for (int pass = 0; pass < 2; pass++) {
    bool main_first = uintptr_t(device.memory[0].host) < uintptr_t(device.memory[1].host);
    Memory& memory = device.memory[main_first ? pass : 1 - pass];
    for (int64_t i = 0; i < memory.live.count; i++) {
      const Allocation& one = memory.live.at[i];
      uintptr_t begin = uintptr_t(to_host(memory, one.begin));
      device.spans.add({begin, begin + uintptr_t(one.end - one.begin)});
    }
  }
}

int allocate(Device& device, int kind, uint64_t bytes, void** pointer) {
  Memory& memory = device.memory[kind];
  if (bytes > memory.bytes - memory.used)
    return fail(XPU_NOMEM, "expected at most %llu free bytes of %llu, got a request for %llu",
                (unsigned long long)(memory.bytes - memory.used), (unsigned long long)memory.bytes,
                (unsigned long long)bytes);
  if (!map_window(memory)) return fail(XPU_NOCPUMEM, "the host gives no address space");
  uint64_t at = find_gap(memory, memory.next, bytes);
  if (!at) at = find_gap(memory, memory.base, bytes);
  if (!at) return fail(XPU_NOMEM, "no gap of %llu bytes is left", (unsigned long long)bytes);
  if (mprotect(to_host(memory, at), round_up(bytes, PAGE), PROT_READ | PROT_WRITE))
    return fail(XPU_NOCPUMEM, "the host has no memory for %llu bytes", (unsigned long long)bytes);
  memory.live.insert(first_after(memory, at), {at, at + bytes});
  memory.used += bytes;
  memory.next = round_up(at + bytes, PAGE);
  *pointer = reinterpret_cast<void*>(at);
  refresh_spans(device);
  return XPU_SUCCESS;
}

int release(Device& device, uint64_t address) {
  Memory* memory = memory_of(device, address);
  Allocation* found = memory ? find_live(*memory, address) : nullptr;
  if (!found || found->begin != address)
    return fail(XPU_INVALID_PARAM, "free of %#llx: expected the start of a live allocation of this device",
                (unsigned long long)address);
  Allocation gone = *found;
  char* host = to_host(*memory, gone.begin);
  uint64_t size = round_up(gone.end - gone.begin, PAGE);
  mprotect(host, size, PROT_NONE);
  madvise(host, size, MADV_DONTNEED);
  memory->live.remove(found - memory->live.at);
  memory->used -= gone.end - gone.begin;
  if (memory->freed.count == REMEMBERED) memory->freed.remove(0);
  memory->freed.add(gone);
  refresh_spans(device);
  return XPU_SUCCESS;
}

// Says what lies at an address that an access of `bytes` may not touch.
void explain_address(Device& device, uint64_t address, int64_t bytes, char* text, size_t room) {
  Memory* memory = memory_of(device, address);
  if (!memory) {
    snprintf(text, room, "no memory of this device");
    return;
  }
  if (Allocation* found = find_live(*memory, address)) {
    uint64_t end = address + uint64_t(bytes);
    snprintf(text, room, "%llu bytes past the end of the allocation of %llu bytes at %#llx",
             (unsigned long long)(end - found->end), (unsigned long long)(found->end - found->begin),
             (unsigned long long)found->begin);
    return;
  }
  for (int64_t i = memory->freed.count - 1; i >= 0; i--) {
    const Allocation& gone = memory->freed.at[i];
    if (address >= gone.begin && address < gone.end) {
      snprintf(text, room, "use after free: in the allocation of %llu bytes at %#llx, which was freed",
               (unsigned long long)(gone.end - gone.begin), (unsigned long long)gone.begin);
      return;
    }
  }
  snprintf(text, room, "no allocation lies there");
}

// The host address of a range on a device that one live allocation holds; null with a message.
char* device_range(Device& device, const void* pointer, uint64_t bytes) {
  uint64_t address = reinterpret_cast<uint64_t>(pointer);
  Memory* memory = memory_of(device, address);
  Allocation* found = memory ? find_live(*memory, address) : nullptr;
  if (found && bytes <= found->end - address) return to_host(*memory, address);
  char what[256];
  explain_address(device, address, int64_t(bytes), what, sizeof what);
  fail(XPU_INVALID_PARAM, "a copy of %llu bytes at %#llx: %s (limit dma_bounds, documented)",
       (unsigned long long)bytes, (unsigned long long)address, what);
  return nullptr;
}

}  // namespace
