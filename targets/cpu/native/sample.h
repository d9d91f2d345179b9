// One token per row: temperature, top-k, top-p, min-p and the draw, on the pool's threads.
//
// The rules are those of runtime/sampler.py and runtime/truncation.py, value by value: a row in units
// of temperature with its maximum at 0; "most likely" orders by value, then by lowest id; every cut is
// made in that order; one uniform number picks from what is left, in order of token id. exp of the
// kept tokens is taken in f64, that of the whole vocabulary in f32 and summed in f64. The result is
// NumPy's unless the draw or the cut falls within a rounding of a boundary, about one token in a
// million; it does not depend on the instruction set or the number of threads.
//
// A row without a finite largest logit, or with a NaN, gives -1.
#pragma once
#include <math.h>

#include "argmax.h"

namespace {

const int64_t BLOCK = 64;
const int64_t STACK_BLOCKS = 4096;      // vocabularies up to 262,144 need no heap
const int64_t STACK_CANDIDATES = 4096;  // nor do cuts that keep so many
const int64_t FEW = 32;                 // sorted faster by insertion

struct Candidate {
  float x;
  int32_t id;
};

// Memory on the stack, or on the heap when that is too small.
template <class T, int64_t N>
struct Scratch {
  T own[N];
  T* at = own;
  int64_t capacity = N;

  // Room for `count`, keeping the first `used`.
  bool reserve(int64_t count, int64_t used) {
    if (count <= capacity) return true;
    T* grown = static_cast<T*>(malloc(size_t(count) * sizeof(T)));
    if (!grown) return false;
    memcpy(static_cast<void*>(grown), at, size_t(used) * sizeof(T));
    release();
    at = grown;
    capacity = count;
    return true;
  }
  void release() {
    if (at != own) free(at);
    at = own;
    capacity = N;
  }
};

// A row of logits, read as (logit - largest) / temperature.
struct Row {
  const float* logits;
  int64_t vocab, num_blocks;
  float largest, temperature;

  int64_t block_end(int64_t block) const {
    int64_t end = (block + 1) * BLOCK;
    return end < vocab ? end : vocab;
  }
  float scale(float logit) const { return (logit - largest) / temperature; }
};

// exp for arguments of at most 0, to 2 units in the last place (Cephes' polynomial); no fused
// operations, so that every instruction set gives the same bits. Below -87 it is 0.
Floats exp_lanes(Floats x) {
  Ints is_tiny = x < -87.0f;
  x = is_tiny ? Floats{} : x;
  Floats n = x * 1.44269504088896341f + 12582912.0f;  // rounds to the nearest whole number
  Ints power = reinterpret_cast<Ints>(n) << 23;
  n -= 12582912.0f;
  Floats r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r * r + r) + 1.0f;
  Floats result = reinterpret_cast<Floats>(reinterpret_cast<Ints>(p) + power);
  return is_tiny ? Floats{} : result;
}

// Weights of one block, 0 where x is below `lowest` or past the vocabulary.
void block_weights(const Row& row, int64_t block, float lowest, float* weights) {
  int64_t start = block * BLOCK, end = row.block_end(block);
  float padded[BLOCK];
  const float* source = row.logits + start;
  if (end - start < BLOCK) {
    for (int64_t i = 0; i < BLOCK; i++)
      padded[i] = start + i < end ? source[i] : -__builtin_inff();
    source = padded;
  }
  for (int64_t i = 0; i < BLOCK; i += LANES) {
    Floats x = (*reinterpret_cast<const Floats*>(source + i) - row.largest) / row.temperature;
    Floats w = exp_lanes(x);
    *reinterpret_cast<Floats*>(weights + i) = x >= lowest ? w : Floats{};
  }
}

// The sum of 64 weights, in one order on every machine; in f64, since cuts at ties are exact.
double block_sum(const float* weights) {
  double sums[16];
  for (int j = 0; j < 16; j++)
    sums[j] = (double(weights[j]) + double(weights[16 + j])) +
              (double(weights[32 + j]) + double(weights[48 + j]));
  for (int width = 8; width; width /= 2)
    for (int j = 0; j < width; j++) sums[j] += sums[j + width];
  return sums[0];
}

float block_max(const Row& row, int64_t block) {
  int64_t i = block * BLOCK, end = row.block_end(block);
  float most = row.logits[i];
  if (end - i == BLOCK) {
    Floats values = *reinterpret_cast<const Floats*>(row.logits + i);
    for (i += LANES; i < end; i += LANES) {
      Floats next = *reinterpret_cast<const Floats*>(row.logits + i);
      values = next > values ? next : values;
    }
    for (int64_t lane = 0; lane < LANES; lane++) most = values[lane] > most ? values[lane] : most;
  }
  for (; i < end; i++) most = row.logits[i] > most ? row.logits[i] : most;
  return most;
}

double sum_blocks(const Row& row, float lowest, double* totals) {
  float weights[BLOCK];
  double total = 0;
  for (int64_t block = 0; block < row.num_blocks; block++) {
    block_weights(row, block, lowest, weights);
    totals[block] = block_sum(weights);
    total += totals[block];
  }
  return total;
}

// The first place where the running sum exceeds the goal; rounding never yields one of weight 0.
template <class T>
int64_t place(const T* weights, int64_t count, double goal, double* before) {
  double sum = 0;
  int64_t last = 0;
  for (int64_t i = 0; i < count; i++) {
    if (!(weights[i] > 0)) continue;
    *before = sum;
    sum += double(weights[i]);
    last = i;
    if (sum > goal) break;
  }
  return last;
}

int32_t draw_from_all(const Row& row, float lowest, double uniform, double* totals) {
  double total = sum_blocks(row, lowest, totals), before = 0, inside = 0;
  int64_t block = place(totals, row.num_blocks, uniform * total, &before);
  float weights[BLOCK];
  block_weights(row, block, lowest, weights);
  return int32_t(block * BLOCK + place(weights, BLOCK, uniform * total - before, &inside));
}

// Moves the `count` largest to the front; the smallest of them is the value returned.
float select_largest(float* values, int64_t size, int64_t count) {
  int64_t low = 0, high = size - 1, wanted = count - 1;
  while (low < high) {
    float pivot = values[low + (high - low) / 2];
    int64_t i = low, j = high;
    while (i <= j) {
      while (values[i] > pivot) i++;
      while (values[j] < pivot) j--;
      if (i > j) break;
      float held = values[i];
      values[i++] = values[j];
      values[j--] = held;
    }
    if (wanted <= j)
      high = j;
    else if (wanted >= i)
      low = i;
    else
      break;
  }
  return values[wanted];
}

// x is at most 0, so its bits grow as it falls, once -0 is the 0 that it equals.
uint32_t likely_key(const Candidate& candidate) {
  uint32_t bits;
  float x = candidate.x + 0.0f;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

uint32_t id_key(const Candidate& candidate) { return uint32_t(candidate.id); }

// Ascending by key; equal keys keep their order. Radix sort: large sets are usual in a flat row.
template <uint32_t (*KEY)(const Candidate&)>
void sort_few(Candidate* items, int64_t count) {
  for (int64_t i = 1; i < count; i++) {
    Candidate moved = items[i];
    int64_t at = i;
    for (; at > 0 && KEY(items[at - 1]) > KEY(moved); at--) items[at] = items[at - 1];
    items[at] = moved;
  }
}

template <uint32_t (*KEY)(const Candidate&)>
void sort(Candidate* items, int64_t count, Candidate* room) {
  if (count <= FEW) return sort_few<KEY>(items, count);
  Candidate *from = items, *to = room;
  for (int shift = 0; shift < 32; shift += 8) {
    int64_t starts[257] = {};
    for (int64_t i = 0; i < count; i++) starts[((KEY(from[i]) >> shift) & 255) + 1]++;
    for (int digit = 0; digit < 256; digit++) starts[digit + 1] += starts[digit];
    for (int64_t i = 0; i < count; i++) to[starts[(KEY(from[i]) >> shift) & 255]++] = from[i];
    Candidate* held = from;
    from = to;
    to = held;
  }
}

struct Sampler {
  Row row;
  double* totals;  // one per block
  float* maxima;   // one per block, of the logits
  Scratch<Candidate, STACK_CANDIDATES>&kept, &room;
  int64_t count = 0;

  // A value that at least `wanted` tokens reach, and few more: each of the `wanted` best blocks holds
  // one as large as the worst of their maxima.
  bool floor_of(int64_t wanted, float* found) {
    bool is_exact = wanted > row.num_blocks;
    int64_t size = is_exact ? row.vocab : row.num_blocks;
    float* copy = static_cast<float*>(malloc(size_t(size) * sizeof(float)));
    if (!copy) return false;
    memcpy(copy, is_exact ? row.logits : maxima, size_t(size) * sizeof(float));
    *found = row.scale(select_largest(copy, size, wanted));
    free(copy);
    return true;
  }

  // The `wanted` most likely tokens, best first.
  bool keep_likely(int64_t wanted) {
    float floor;
    count = 0;
    if (!floor_of(wanted, &floor)) return false;
    for (int64_t block = 0; block < row.num_blocks; block++) {
      if (row.scale(maxima[block]) < floor) continue;
      int64_t needed = count + BLOCK;
      if (!kept.reserve(needed > kept.capacity ? 2 * needed : 0, count)) return false;
      for (int64_t i = block * BLOCK; i < row.block_end(block); i++)
        if (row.scale(row.logits[i]) >= floor)
          kept.at[count++] = {row.scale(row.logits[i]), int32_t(i)};
    }
    if (!room.reserve(count, 0)) return false;
    sort<likely_key>(kept.at, count, room.at);  // ids ascend already, so among equals they do
    if (count > wanted) count = wanted;
    return true;
  }

  // Cuts what is kept to the fewest whose weights reach the goal; false when all do not.
  bool cut_at(double goal) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
      sum += exp(double(kept.at[i].x));
      if (sum < goal) continue;
      count = i + 1;
      return true;
    }
    return false;
  }

  bool keep_nucleus(double top_p) {
    double goal = top_p * sum_blocks(row, -__builtin_inff(), totals);
    for (int64_t wanted = 64; wanted < row.vocab; wanted *= 8) {
      if (!keep_likely(wanted)) return false;
      if (cut_at(goal)) return true;
    }
    if (!keep_likely(row.vocab)) return false;
    cut_at(goal);
    return true;
  }

  double kept_weight() const {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += exp(double(kept.at[i].x));
    return sum;
  }

  int32_t draw(float lowest, double uniform) {
    int64_t left = 0;
    for (int64_t i = 0; i < count; i++)
      if (kept.at[i].x >= lowest) kept.at[left++] = kept.at[i];
    count = left;
    sort<id_key>(kept.at, count, room.at);
    double goal = uniform * kept_weight(), sum = 0;
    int32_t last = kept.at[0].id;
    for (int64_t i = 0; i < count && !(sum > goal); i++) {
      double weight = exp(double(kept.at[i].x));
      sum += weight;
      if (weight > 0) last = kept.at[i].id;
    }
    return last;
  }

  int32_t choose(const sglk_row& wanted) {
    bool is_short = wanted.top_k > 0 && wanted.top_k < row.vocab;
    if (!is_short && wanted.top_p >= 1)
      return draw_from_all(row, wanted.lowest, wanted.uniform, totals);
    if (is_short && !keep_likely(wanted.top_k)) return -1;
    if (wanted.top_p < 1) {
      if (is_short)
        cut_at(wanted.top_p * kept_weight());
      else if (!keep_nucleus(wanted.top_p))
        return -1;
    }
    return draw(wanted.lowest, wanted.uniform);
  }
};

int32_t sample_row(const float* logits, int64_t vocab, const sglk_row& wanted) {
  int32_t best = argmax_row(logits, vocab);
  if (best < 0) return -1;
  Row row = {logits, vocab, (vocab + BLOCK - 1) / BLOCK, logits[best], wanted.temperature};
  Scratch<double, STACK_BLOCKS> totals;
  Scratch<float, STACK_BLOCKS> maxima;
  Scratch<Candidate, STACK_CANDIDATES> kept, room;
  int32_t id = -1;
  if (totals.reserve(row.num_blocks, 0) && maxima.reserve(row.num_blocks, 0)) {
    for (int64_t block = 0; block < row.num_blocks; block++)
      maxima.at[block] = block_max(row, block);
    id = Sampler{row, totals.at, maxima.at, kept, room}.choose(wanted);
  }
  totals.release();
  maxima.release();
  kept.release();
  room.release();
  return id;
}

// args: logits, vocab, rows (sglk_row), ids (i32, out)
void sample_rows(const int64_t* args, const int32_t*, int64_t begin, int64_t end) {
  const float* logits = reinterpret_cast<const float*>(args[0]);
  const sglk_row* rows = reinterpret_cast<const sglk_row*>(args[2]);
  int32_t* ids = reinterpret_cast<int32_t*>(args[3]);
  for (int64_t i = begin; i < end; i++)
    ids[i] = sample_row(logits + int64_t(rows[i].row) * args[1], args[1], rows[i]);
}

}  // namespace
