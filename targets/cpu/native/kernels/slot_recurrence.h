// Gated recurrences of a step: a matrix of KEYS x columns goes from token to token. Columns are the
// values of one head, or where a head has one value and all heads share q and k, the heads.
//
// Tokens are taken one by one, and a sum over keys in their order, by FMA: a result does not depend
// on how a prompt is cut or what else is in the batch.
#pragma once
#include "slots.h"

namespace recurrence {
using namespace slots;

// One token: state[KEYS][16 * PARTS] times factor, plus k (outer) what is added; y = state^T q
template <int KEYS, int PARTS, bool DELTA, class Factor>
INL void advance(float* state, const float* q, const float* k, vf* added, const vf* beta,
                 const Factor& factor, vf* y) {
  constexpr int BLOCK = 16 * PARTS;
  for (int p = 0; p < PARTS; ++p) y[p] = vsplat(0.0f);
  if constexpr (DELTA) {
    vf known[PARTS];
    for (int p = 0; p < PARTS; ++p) known[p] = vsplat(0.0f);
    for (int key = 0; key < KEYS; ++key)
      for (int p = 0; p < PARTS; ++p) {
        const vf s = mul(vld(state + key * BLOCK + 16 * p), factor(key, p));
        vst(state + key * BLOCK + 16 * p, s);
        known[p] = fma(vsplat(k[key]), s, known[p]);
      }
    for (int p = 0; p < PARTS; ++p) added[p] = mul(sub(added[p], known[p]), beta[p]);
  }
  for (int key = 0; key < KEYS; ++key)
    for (int p = 0; p < PARTS; ++p) {
      vf s = vld(state + key * BLOCK + 16 * p);
      if constexpr (!DELTA) s = mul(s, factor(key, p));
      s = fma(vsplat(k[key]), added[p], s);
      vst(state + key * BLOCK + 16 * p, s);
      y[p] = fma(vsplat(q[key]), s, y[p]);
    }
}

struct Operands {
  const float *q, *k, *v, *decay, *rate, *beta;
  float* y;
};

template <class C> INL Operands operands_of(const int64_t* args) {
  const float* const* at = (const float* const*)(args + 4);
  Operands o = {at[0], at[1], at[2], at[3], nullptr, nullptr, nullptr};
  at += 4;
  if (C::HAS_RATE) o.rate = *at++;
  if (C::HAS_BETA) o.beta = *at++;
  o.y = (float*)*at;
  return o;
}

// Columns are values `first` .. `first + width - 1` of one head
template <class C, int PARTS>
INL void values_of_head(const Operands& o, const Sequence& s, int head, int first, int width, float* state) {
  const int group = head / (C::HEADS / C::GROUPS);
  vf added[PARTS], beta[PARTS], y[PARTS];
  for (int64_t t = s.start; t < s.start + s.count; ++t) {
    const int64_t row = t * C::HEADS + head;
    const float* decay = o.decay + row * C::DECAYS;
    float factors[C::KEYS];
    for (int key = 0; key < C::KEYS; ++key) {
      if constexpr (C::HAS_RATE) factors[key] = vexp(decay[0] * o.rate[head * C::KEYS + key]);
      else factors[key] = decay[C::DECAYS == 1 ? 0 : key];
    }
    read_columns<PARTS>(o.v + row * C::VALUES + first, width, added);
    for (int p = 0; p < PARTS; ++p) beta[p] = vsplat(C::HAS_BETA ? o.beta[row] : 0.0f);
    const int64_t keys = (t * C::GROUPS + group) * C::KEYS;
    const auto factor = [&](int key, int) { return vsplat(factors[key]); };
    advance<C::KEYS, PARTS, C::HAS_BETA>(state, o.q + keys, o.k + keys, added, beta, factor, y);
    write_columns<PARTS>(y, width, o.y + row * C::VALUES + first);
  }
}

// Columns are heads `first` .. `first + width - 1`, of one value each
template <class C, int PARTS>
INL void heads_of_one(const Operands& o, const Sequence& s, int first, int width, float* state) {
  constexpr int BLOCK = 16 * PARTS;
  alignas(64) float rate[C::HAS_RATE ? C::KEYS : 1][BLOCK] = {};
  alignas(64) float factors[C::DECAYS == 1 ? 1 : C::KEYS][BLOCK] = {};
  if constexpr (C::HAS_RATE)
    for (int h = 0; h < width; ++h)
      for (int key = 0; key < C::KEYS; ++key) rate[key][h] = o.rate[(first + h) * C::KEYS + key];
  vf added[PARTS], beta[PARTS], y[PARTS];
  for (int64_t t = s.start; t < s.start + s.count; ++t) {
    const int64_t row = t * C::HEADS + first;
    for (int h = 0; h < width; ++h)
      for (int d = 0; d < C::DECAYS; ++d) factors[d][h] = o.decay[(row + h) * C::DECAYS + d];
    read_columns<PARTS>(o.v + row, width, added);
    if (C::HAS_BETA) read_columns<PARTS>(o.beta + row, width, beta);
    const auto factor = [&](int key, int p) {
      const vf given = vld(factors[C::DECAYS == 1 ? 0 : key] + 16 * p);
      if constexpr (C::HAS_RATE) return vexp(mul(given, vld(rate[key] + 16 * p)));
      else return given;
    };
    const float *q = o.q + t * C::KEYS, *k = o.k + t * C::KEYS;
    advance<C::KEYS, PARTS, C::HAS_BETA>(state, q, k, added, beta, factor, y);
    write_columns<PARTS>(y, width, o.y + row);
  }
}

// Rows of `width` floats, `stride` apart, to or from a block of `PARTS` vectors each
template <int KEYS, int PARTS> INL void load(const float* from, int64_t stride, int width, float* block) {
  for (int key = 0; key < KEYS; ++key) {
    vf row[PARTS];
    read_columns<PARTS>(from + key * stride, width, row);
    for (int p = 0; p < PARTS; ++p) vst(block + (key * PARTS + p) * 16, row[p]);
  }
}

template <int KEYS, int PARTS> INL void save(const float* block, int64_t stride, int width, float* to) {
  for (int key = 0; key < KEYS; ++key) {
    vf row[PARTS];
    for (int p = 0; p < PARTS; ++p) row[p] = vld(block + (key * PARTS + p) * 16);
    write_columns<PARTS>(row, width, to + key * stride);
  }
}
}  // namespace recurrence

// args: state of one layer (f32[slots, HEADS, KEYS, VALUES], or BY_HEADS f32[slots, KEYS, HEADS]),
// query_start i32[S + 1], seq_lens i32[S], state_slots i32[S], q, k f32[T, GROUPS, KEYS],
// v f32[T, HEADS, VALUES], decay f32[T, HEADS, DECAYS], rate f32[HEADS, KEYS] if HAS_RATE,
// beta f32[T, HEADS] if HAS_BETA, y f32[T, HEADS, VALUES].
// grid: blocks of columns (times heads, if not BY_HEADS), S.
template <class C>
void slot_recurrence(const int64_t* args, const int32_t* grid, int64_t begin, int64_t end) {
  using namespace recurrence;
  constexpr int COLUMNS = C::BY_HEADS ? C::HEADS : C::VALUES, KEYS = C::KEYS;
  constexpr int PARTS = COLUMNS >= 64 ? 4 : (COLUMNS + 15) / 16, BLOCK = 16 * PARTS;
  constexpr int BLOCKS = (COLUMNS + BLOCK - 1) / BLOCK;
  constexpr int64_t SLOT = int64_t(C::HEADS) * KEYS * C::VALUES;
  const Operands o = operands_of<C>(args);
  for (int64_t id = begin; id < end; ++id) {
    const int place = int(id % grid[0]), head = place / BLOCKS, first = place % BLOCKS * BLOCK;
    const int width = COLUMNS - first < BLOCK ? COLUMNS - first : BLOCK;
    const Sequence s = sequence_of(args, id / grid[0]);
    if (s.count <= 0) continue;
    float* home = (float*)args[0] + s.slot * SLOT + int64_t(head) * KEYS * COLUMNS + first;
    alignas(64) float state[KEYS * BLOCK] = {};
    if (!s.fresh) load<KEYS, PARTS>(home, COLUMNS, width, state);
    if constexpr (C::BY_HEADS) heads_of_one<C, PARTS>(o, s, first, width, state);
    else values_of_head<C, PARTS>(o, s, head, first, width, state);
    save<KEYS, PARTS>(state, COLUMNS, width, home);
  }
}
