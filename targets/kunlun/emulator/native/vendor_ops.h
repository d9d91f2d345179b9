// The vendor's operators as `vendor_adapter.h` states them: operands are checked against live
// allocations when a call runs, then computed plainly. Bits are ours: the vendor's are unknown.
#pragma once
#include <math.h>

#include "memory.h"
#include "vendor_adapter.h"

namespace {

const int MAX_SLOTS = 16;

struct VendorCall;
typedef int (*VendorRun)(Device&, const VendorCall&);

struct VendorOp {
  const char* name;
  int pointers, numbers, floats;  // slots, in this order
  VendorRun run;
};

struct VendorCall {
  const VendorOp* op;
  int64_t slots[MAX_SLOTS];

  int64_t number(int i) const { return slots[op->pointers + i]; }
  float value(int i) const {
    float found;
    memcpy(&found, &slots[op->pointers + op->numbers + i], 4);
    return found;
  }
};

// An operand of so many floats in one live allocation, or null with a message.
float* operand(Device& device, const VendorCall& call, int slot, int64_t count) {
  uint64_t address = uint64_t(call.slots[slot]), bytes = uint64_t(count) * sizeof(float);
  Memory* memory = memory_of(device, address);
  Allocation* found = memory ? find_live(*memory, address) : nullptr;
  if (found && bytes <= found->end - address && address % sizeof(float) == 0)
    return reinterpret_cast<float*>(to_host(*memory, address));
  char what[256];
  explain_address(device, address, int64_t(bytes), what, sizeof what);
  fail(XPU_DMAABORT, "vendor operator %s: argument %d: %llu bytes at %#llx: %s (limit dma_bounds, documented)",
       call.op->name, slot, (unsigned long long)bytes, (unsigned long long)address, what);
  return nullptr;
}

int64_t norm_slots(Device& device, const VendorCall& call, float** found) {  // rows; -1 with a message
  int64_t rows = call.number(0), columns = call.number(1);
  if (rows < 1 || columns < 1) return fail(XPU_INVALID_PARAM, "vendor operator %s: expected rows", call.op->name), -1;
  int weight = call.op->pointers == 3 ? 1 : 2;
  for (int slot = 0; slot < call.op->pointers; slot++)
    if (!(found[slot] = operand(device, call, slot, slot == weight ? columns : rows * columns))) return -1;
  return rows;
}

void norm_row(const float* x, const float* weight, float* y, int64_t columns, float eps) {
  double sum = 0;
  for (int64_t i = 0; i < columns; i++) sum += double(x[i]) * x[i];
  float scale = float(1 / sqrt(sum / double(columns) + eps));
  for (int64_t i = 0; i < columns; i++) y[i] = x[i] * scale * weight[i];
}

int run_rmsnorm(Device& device, const VendorCall& call) {
  float* at[3];
  int64_t rows = norm_slots(device, call, at), columns = call.number(1);
  if (rows < 0) return XPU_DMAABORT;
  for (int64_t row = 0; row < rows; row++)
    norm_row(at[0] + row * columns, at[1], at[2] + row * columns, columns, call.value(0));
  return XPU_SUCCESS;
}

int run_add_rmsnorm(Device& device, const VendorCall& call) {
  float* at[5];
  int64_t rows = norm_slots(device, call, at), columns = call.number(1);
  if (rows < 0) return XPU_DMAABORT;
  for (int64_t i = 0; i < rows * columns; i++) at[4][i] = at[0][i] + at[1][i];
  for (int64_t row = 0; row < rows; row++)
    norm_row(at[4] + row * columns, at[2], at[3] + row * columns, columns, call.value(0));
  return XPU_SUCCESS;
}

int run_matmul(Device& device, const VendorCall& call) {
  int64_t rows = call.number(0), n = call.number(1), k = call.number(2);
  if (rows < 1 || n < 1 || k < 1) return fail(XPU_INVALID_PARAM, "vendor operator matmul: expected sizes of 1 or more");
  float* x = operand(device, call, 0, rows * k);
  float* w = x ? operand(device, call, 1, n * k) : nullptr;
  float* out = w ? operand(device, call, 2, rows * n) : nullptr;
  float* bias = out && call.slots[3] ? operand(device, call, 3, n) : nullptr;
  if (!out || (call.slots[3] && !bias)) return XPU_DMAABORT;
  for (int64_t row = 0; row < rows; row++)
    for (int64_t column = 0; column < n; column++) {
      float sum = 0;
      for (int64_t i = 0; i < k; i++) sum = fmaf(x[row * k + i], w[column * k + i], sum);
      out[row * n + column] = sum * call.value(0) + (bias ? bias[column] : 0);
    }
  return XPU_SUCCESS;
}

const VendorOp VENDOR_OPS[] = {
    {"rmsnorm_f32", 3, 2, 1, run_rmsnorm},
    {"add_rmsnorm_f32", 5, 2, 1, run_add_rmsnorm},
    {"matmul_f32", 4, 3, 1, run_matmul},
};

const VendorOp* vendor_op(const char* name) {
  for (const VendorOp& op : VENDOR_OPS)
    if (!strcmp(op.name, name)) return &op;
  return nullptr;
}

}  // namespace
