// Causal convolutions of a step: each sequence goes on from the last inputs that its slot holds.
#pragma once
#include "slots.h"

// args: state f32[slots, TAPS - 1, CHANNELS] (of one layer), query_start i32[S + 1], seq_lens i32[S],
// state_slots i32[S], x f32[T, CHANNELS], w f32[CHANNELS, TAPS], bias f32[CHANNELS] if HAS_BIAS,
// y f32[T, CHANNELS]. grid: blocks of 64 channels, S.
// y[t] is bias, then one FMA for each tap, oldest first: the same however a prompt is cut.
template <class C>
void slot_conv(const int64_t* args, const int32_t* grid, int64_t begin, int64_t end) {
  using namespace slots;
  constexpr int CHANNELS = C::CHANNELS, TAPS = C::TAPS, KEPT = TAPS - 1;
  constexpr int PARTS = CHANNELS >= 64 ? 4 : (CHANNELS + 15) / 16, BLOCK = 16 * PARTS;
  const float* const* more = (const float* const*)(args + 4);
  const float *x = more[0], *w = more[1], *bias = C::HAS_BIAS ? more[2] : nullptr;
  float* y = (float*)args[6 + C::HAS_BIAS];
  for (int64_t id = begin; id < end; ++id) {
    const int first = int(id % grid[0]) * BLOCK;
    const int width = CHANNELS - first < BLOCK ? CHANNELS - first : BLOCK;
    const Sequence s = sequence_of(args, id / grid[0]);
    float* state = (float*)args[0] + int64_t(s.slot) * KEPT * CHANNELS + first;
    alignas(64) float taps[TAPS][BLOCK] = {};
    for (int c = 0; c < width; ++c)
      for (int j = 0; j < TAPS; ++j) taps[j][c] = w[(first + c) * TAPS + j];
    vf start[PARTS], window[TAPS][PARTS];
    for (int p = 0; p < PARTS; ++p) start[p] = vsplat(0.0f);
    if (C::HAS_BIAS) read_columns<PARTS>(bias + first, width, start);
    for (int j = 0; j < KEPT; ++j) {
      if (!s.fresh) read_columns<PARTS>(state + j * CHANNELS, width, window[j]);
      else for (int p = 0; p < PARTS; ++p) window[j][p] = vsplat(0.0f);
    }
    for (int64_t t = s.start; t < s.start + s.count; ++t) {
      read_columns<PARTS>(x + t * CHANNELS + first, width, window[KEPT]);
      vf sum[PARTS];
      for (int p = 0; p < PARTS; ++p) sum[p] = start[p];
      for (int j = 0; j < TAPS; ++j)
        for (int p = 0; p < PARTS; ++p) sum[p] = fma(vld(taps[j] + 16 * p), window[j][p], sum[p]);
      write_columns<PARTS>(sum, width, y + t * CHANNELS + first);
      for (int j = 0; j < KEPT; ++j)
        for (int p = 0; p < PARTS; ++p) window[j][p] = window[j + 1][p];
    }
    if (s.count > 0)
      for (int j = 0; j < KEPT; ++j) write_columns<PARTS>(window[j], width, state + j * CHANNELS);
  }
}
