// What kernels of slot states share: the sequences of a step, and columns that fill up lanes.
#pragma once
#include "tilec.h"

namespace slots {
using namespace tilec;

// The tokens of a sequence in a step, and where its state is.
struct Sequence {
  int start, count;
  int slot;
  bool fresh; // these are its first tokens: whatever the slot holds is another's
};

INL Sequence sequence_of(const int64_t* args, int64_t s) {
  const int32_t* start = (const int32_t*)args[1];
  const int32_t* lengths = (const int32_t*)args[2];
  const int32_t* slot = (const int32_t*)args[3];
  const int count = start[s + 1] - start[s];
  return {start[s], count, slot[s], lengths[s] == count};
}

// `width` floats, and zeros up to a multiple of 16
template <int PARTS> INL void read_columns(const float* from, int width, vf* to) {
  if (width == 16 * PARTS) {
    for (int p = 0; p < PARTS; ++p) to[p] = vld(from + 16 * p);
    return;
  }
  alignas(64) float padded[16 * PARTS] = {};
  __builtin_memcpy(padded, from, width * sizeof(float));
  for (int p = 0; p < PARTS; ++p) to[p] = vld(padded + 16 * p);
}

template <int PARTS> INL void write_columns(const vf* from, int width, float* to) {
  if (width == 16 * PARTS) {
    for (int p = 0; p < PARTS; ++p) vst(to + 16 * p, from[p]);
    return;
  }
  alignas(64) float padded[16 * PARTS];
  for (int p = 0; p < PARTS; ++p) vst(padded + 16 * p, from[p]);
  __builtin_memcpy(to, padded, width * sizeof(float));
}
}  // namespace slots
