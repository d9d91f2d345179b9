// Convolutions of 1 to 3 axes, in f32: what a tile of outputs reads is gathered once, for many
// channels of the result, and multiplied with rows of the weight as they are stored.
#pragma once
#include "tilec.h"

namespace convolution {
using namespace tilec;

constexpr int TILE = 64;      // outputs of a program, along all axes taken as one
constexpr int DEPTH = 128;    // elements of the sum that are gathered at a time
constexpr int CHANNELS = 128; // channels of the result of a program
constexpr int ROWS = 6;       // of them, those that registers hold
#ifdef TC_AVX512
constexpr int VECTORS = 4;
#else
constexpr int VECTORS = 1;
#endif

// Sizes and attributes by axis; axes that x lacks are 1 (before: 0).
struct Problem {
  const float* x;
  const float* w;
  const float* bias;
  float* y;
  int channels, results, groups;      // of x and y; both are divided among the groups
  int in[3], out[3], kernel[3], stride[3], before[3], dilation[3];
  int places() const { return out[0] * out[1] * out[2]; }
  int window() const { return kernel[0] * kernel[1] * kernel[2]; }
  int64_t plane() const { return int64_t(in[0]) * in[1] * in[2]; }
};

// Where the outputs of a tile begin to read, by axis; outputs beyond the last read nothing.
struct Starts {
  int at[3][TILE];
};

template <bool TRANSPOSED> INL Starts starts_of(const Problem& p, int first) {
  Starts s;
  for (int i = 0; i < TILE; ++i) {
    int place = first + i;
    const bool inside = place < p.places();
    for (int axis = 2; axis >= 0; --axis) {
      const int o = place % p.out[axis];
      place /= p.out[axis];
      const int at = TRANSPOSED ? o + p.before[axis] : o * p.stride[axis] - p.before[axis];
      s.at[axis][i] = inside ? at : INT32_MIN / 2;
    }
  }
  return s;
}

// For one place of the window, the element of a plane of x that each output reads, or -1
template <bool TRANSPOSED> INL void offsets_of(const Problem& p, const Starts& s, int place, int* offset) {
  int k[3];
  for (int axis = 2; axis >= 0; --axis) {
    k[axis] = place % p.kernel[axis] * p.dilation[axis];
    place /= p.kernel[axis];
  }
  for (int i = 0; i < TILE; ++i) offset[i] = 0;
  for (int axis = 0; axis < 3; ++axis) {
    const int size = p.in[axis], stride = p.stride[axis];
    for (int i = 0; i < TILE; ++i) {
      int at = TRANSPOSED ? s.at[axis][i] - k[axis] : s.at[axis][i] + k[axis];
      bool good = at >= 0;
      if (TRANSPOSED && stride > 1) {
        good = good && at % stride == 0;
        at /= stride;
      }
      good = good && at < size && offset[i] >= 0;
      offset[i] = good ? offset[i] * size + at : -1;
    }
  }
}

INL void gather(const float* plane, const int* offset, bool neighbours, float* to) {
  if (neighbours) {
    __builtin_memcpy(to, plane + offset[0], TILE * sizeof(float));
    return;
  }
  for (int i = 0; i < TILE; ++i) {
    const float value = plane[offset[i] < 0 ? 0 : offset[i]];
    to[i] = offset[i] < 0 ? 0.0f : value;
  }
}

INL bool are_neighbours(const int* offset) {
  bool good = offset[0] >= 0;
  for (int i = 1; i < TILE; ++i) good &= offset[i] == offset[0] + i;
  return good;
}

// sums[ROWS, TILE] += w[ROWS, depth] @ gathered[depth, TILE]; rows beyond the last are read twice
INL void multiply(const float* const* w, int depth, const float* gathered, float* sums) {
  for (int at = 0; at < TILE; at += 16 * VECTORS) {
    vf acc[ROWS][VECTORS];
    for (int r = 0; r < ROWS; ++r)
      for (int v = 0; v < VECTORS; ++v) acc[r][v] = vld(sums + r * TILE + at + 16 * v);
    for (int k = 0; k < depth; ++k) {
      vf b[VECTORS];
      for (int v = 0; v < VECTORS; ++v) b[v] = vld(gathered + k * TILE + at + 16 * v);
      for (int r = 0; r < ROWS; ++r) {
        const vf a = vsplat(w[r][k]);
        for (int v = 0; v < VECTORS; ++v) acc[r][v] = fma(a, b[v], acc[r][v]);
      }
    }
    for (int r = 0; r < ROWS; ++r)
      for (int v = 0; v < VECTORS; ++v) vst(sums + r * TILE + at + 16 * v, acc[r][v]);
  }
}

// One tile of outputs and at most CHANNELS channels, from `channel` on, of one group of one item
template <bool TRANSPOSED>
void tile(const Problem& p, int64_t item, int group, int first, int channel) {
  alignas(64) float gathered[DEPTH * TILE];
  alignas(64) float sums[(CHANNELS + ROWS) * TILE];
  const int inside = p.channels / p.groups, count_all = p.results / p.groups;
  const int count = count_all - channel < CHANNELS ? count_all - channel : CHANNELS;
  const int window = p.window(), places = p.places();
  const int64_t row = int64_t(inside) * window;
  const float* x = p.x + (item * p.channels + int64_t(group) * inside) * p.plane();
  const int64_t result = int64_t(group) * count_all + channel;
  const float* w = p.w + result * row;
  for (int c = 0; c < count; ++c)
    for (int i = 0; i < TILE; ++i) sums[c * TILE + i] = p.bias ? p.bias[result + c] : 0.0f;
  for (int i = count * TILE; i < (count + ROWS) * TILE; ++i) sums[i] = 0.0f;
  const Starts starts = starts_of<TRANSPOSED>(p, first);
  const int part = window < DEPTH ? window : DEPTH;         // places of a window at a time
  const int several = window < DEPTH ? DEPTH / window : 1;  // channels of x at a time
  for (int c0 = 0; c0 < inside; c0 += several) {
    const int cs = inside - c0 < several ? inside - c0 : several;
    for (int q0 = 0; q0 < window; q0 += part) {
      const int qs = window - q0 < part ? window - q0 : part;
      for (int q = 0; q < qs; ++q) {
        int offset[TILE];
        offsets_of<TRANSPOSED>(p, starts, q0 + q, offset);
        const bool neighbours = are_neighbours(offset);
        for (int c = 0; c < cs; ++c)
          gather(x + (c0 + c) * p.plane(), offset, neighbours, gathered + (c * qs + q) * TILE);
      }
      const float* from = w + int64_t(c0) * window + q0;
      for (int r = 0; r < count; r += ROWS) {
        const float* rows[ROWS];
        for (int i = 0; i < ROWS; ++i) rows[i] = from + row * (r + i < count ? r + i : count - 1);
        multiply(rows, cs * qs, gathered, sums + r * TILE);
      }
    }
  }
  float* y = p.y + (item * p.results + result) * places + first;
  const int width = places - first < TILE ? places - first : TILE;
  for (int c = 0; c < count; ++c)
    __builtin_memcpy(y + int64_t(c) * places, sums + c * TILE, width * sizeof(float));
}

INL void read3(const int64_t* args, int* to) {
  for (int i = 0; i < 3; ++i) to[i] = int(args[i]);
}
}  // namespace convolution

// args: x f32[items, channels, ...], w f32[results, channels / groups, ...], bias f32[results] if
// HAS_BIAS, y f32[items, results, ...]; channels, results, groups; then for each of three axes the
// sizes of x, y and the window, strides, what is read before x, and dilations.
// grid: tiles of outputs, blocks of channels of the result of a group, items * groups.
template <class C>
void convolution_f32(const int64_t* args, const int32_t* grid, int64_t begin, int64_t end) {
  using namespace convolution;
  Problem p;
  p.x = (const float*)*args++;
  p.w = (const float*)*args++;
  p.bias = C::HAS_BIAS ? (const float*)*args++ : nullptr;
  p.y = (float*)*args++;
  p.channels = int(args[0]);
  p.results = int(args[1]);
  p.groups = int(args[2]);
  int* parts[6] = {p.in, p.out, p.kernel, p.stride, p.before, p.dilation};
  for (int i = 0; i < 6; ++i) read3(args + 3 + 3 * i, parts[i]);
  for (int64_t id = begin; id < end; ++id) {
    const int first = int(id % grid[0]) * TILE, channel = int(id / grid[0] % grid[1]) * CHANNELS;
    const int64_t place = id / grid[0] / grid[1];
    tile<C::TRANSPOSED>(p, place / p.groups, int(place % p.groups), first, channel);
  }
}
