// As linear_bf16.h, for x in f32: the same chains of FMA, on every machine and for any number of rows.
#pragma once
#include "linear_bf16.h"

template <class C>
void linear_f32(const int64_t* args, const int32_t* grid, int64_t begin, int64_t end) {
  const linear::Problem<C, float> p(args);
  for (int64_t id = begin; id < end; ++id)
    linear::program_fma<C>(p, id % grid[0] * C::BLOCK_N, id / grid[0] * C::BLOCK_M);
}
