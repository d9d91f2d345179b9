// Weights in tiles: 16 outputs side by side, 32 inputs deep, in the order that a product reads.
//
// A block of 16 outputs is one run of records, one record per group of 32 inputs; its scales lie
// beside its integers, so that a product reads one stream. A 32-bit lane belongs to one output.
//   4, 5, 6 bits: lane of vector z, nibble i of the low half is input 8z + 2i, of the high half
//                 8z + 2i + 1 (i = 0..3, z = 0..3);
//                 5 bits: one more vector, bit j of the low half is bit 4 of input 2j, of the high
//                 half of input 2j + 1; 6 bits: two more, vector j / 8 has 2 bits at 2 (j % 8).
//   8 bits:       lane of vector 2z: bytes of inputs 8z + (0, 4, 1, 5), of vector 2z + 1 those of
//                 8z + (2, 6, 3, 7), plus 128: the order that nibbles under a mask of 15 have.
// Then the scales: f16 d[16] and, with minimums, f16 m[16]. Of super-blocks (8 records): u8 sc[16],
// mn[16] (with minimums) or i8 sc[2][16], and before the first record f16 d[16] and dmin[16].
// A pair of inputs per lane is what a row of an AMX bf16 tile holds, so unpacking is a table lookup.
#pragma once
#include "tilec.h"

namespace tiles {
using namespace tilec;

const int LANES = 16;  // outputs of a block
const int DEPTH = 32;  // inputs of a record

#if defined(__AMX_BF16__) && defined(__AMX_TILE__)
#define TILES_AMX 1
#endif

// What a packed type looks like. C has BITS, GROUP, HAS_MIN, ZERO, SUPER as in packing.py.
template <class C>
struct Format {
  static constexpr int PLANES = C::BITS == 8 ? 8 : 4 + (C::BITS - 4);
  static constexpr int SCALES = C::SUPER || !C::HAS_MIN ? 32 : 64;
  static constexpr int RECORD = 64 * PLANES + SCALES;
  static constexpr int HEADER = !C::SUPER ? 0 : C::HAS_MIN ? 64 : 32;
  static constexpr int GROUPS = C::K / DEPTH;
  static constexpr int64_t BLOCK =
      int64_t(GROUPS) * RECORD + (C::SUPER ? GROUPS / 8 * HEADER : 0);
  static const uint8_t* record(const uint8_t* block, int g) {
    return block + int64_t(g) * RECORD + (C::SUPER ? (g / 8 + 1) * HEADER : 0);
  }
  static const uint8_t* header(const uint8_t* block, int g) {
    return block + int64_t(g / 8) * (8 * RECORD + HEADER);
  }
};

// The scales of group g (of C::GROUP inputs) for 16 outputs, and what is added per unit of input.
template <class C>
INL void load_scales(const uint8_t* block, int g, vf& d, vf& m) {
  typedef Format<C> F;
  const int r = C::GROUP == 16 ? g / 2 : g;
  const uint8_t* scales = F::record(block, r) + 64 * F::PLANES;
  if (!C::SUPER) {
    d = vld((const half_t*)scales);
    if (C::HAS_MIN) m = vld((const half_t*)scales + LANES);
    return;
  }
  const half_t* header = (const half_t*)F::header(block, r);
  if (C::HAS_MIN) {
    d = mul(vld(header), to_f(vld(scales)));
    m = neg(mul(vld(header + LANES), to_f(vld(scales + LANES))));
  } else {
    d = mul(vld(header), to_f(vld((const int8_t*)scales + (g % 2) * LANES)));
  }
}

// The value of a 4-bit integer in the low bits of each lane; what is above them does not count.
template <class C>
INL vf nibble(vi v) {
#ifdef TC_AVX512
  const __m512 table = _mm512_setr_ps(
      0 - C::ZERO, 1 - C::ZERO, 2 - C::ZERO, 3 - C::ZERO, 4 - C::ZERO, 5 - C::ZERO, 6 - C::ZERO,
      7 - C::ZERO, 8 - C::ZERO, 9 - C::ZERO, 10 - C::ZERO, 11 - C::ZERO, 12 - C::ZERO, 13 - C::ZERO,
      14 - C::ZERO, 15 - C::ZERO);
  return vf{(nf)_mm512_permutexvar_ps((__m512i)v.p[0], table)};
#else
  return to_f(sub(band(v, vsplat(15)), vsplat(C::ZERO)));
#endif
}

// A byte plus 128 in the low bits of each lane, as a float: 2^23 + byte has it in its last bits.
INL vf byte(vi v) {
#ifdef TC_AVX512
  const __m512i bits = _mm512_ternarylogic_epi32(_mm512_set1_epi32(255), (__m512i)v.p[0],
                                                 _mm512_set1_epi32(0x4b000000), 0xca);
  return vf{(nf)_mm512_sub_ps((__m512)bits, _mm512_set1_ps(8388608.0f + 128.0f))};
#else
  return to_f(sub(band(v, vsplat(255)), vsplat(128)));
#endif
}

// Integers of inputs 2j and 2j + 1 of a record, less the type's zero, as floats.
template <class C>
INL void unpack_pair(const uint8_t* record, int j, vf& even, vf& odd) {
  const int vector = C::BITS == 8 ? j / 4 * 2 + j % 2 : j / 4;
  const int low = C::BITS == 8 ? 8 * (j % 4 / 2) : 4 * (j % 4);
  const vi v = vld((const int32_t*)(record + 64 * vector));
  const vi a = low ? ushr(v, vsplat(low)) : v, b = ushr(v, vsplat(low + 16));
  if constexpr (C::BITS == 8) {
    even = byte(a);
    odd = byte(b);
  } else if constexpr (C::BITS == 4) {
    even = nibble<C>(a);
    odd = nibble<C>(b);
  } else {
    constexpr int HIGH = C::BITS - 4, PER_HALF = 16 / HIGH;
    const vi h = vld((const int32_t*)(record + 256 + 64 * (j / PER_HALF)));
    const int at = HIGH * (j % PER_HALF);
    const vi mask = vsplat((1 << HIGH) - 1), four = vsplat(4), fifteen = vsplat(15);
    const vi up = shl(band(ushr(h, vsplat(at)), mask), four);
    const vi up_odd = shl(band(ushr(h, vsplat(at + 16)), mask), four);
    even = to_f(sub(bor(band(a, fifteen), up), vsplat(C::ZERO)));
    odd = to_f(sub(bor(band(b, fifteen), up_odd), vsplat(C::ZERO)));
  }
}

#ifdef TC_AVX512
// bf16 values of integers 0..31 less `zero`; with 4 bits both halves are equal: bit 4 is ignored.
template <class C>
struct Table {
  __m512i low, high;
  Table() {
    alignas(64) uint16_t t[64];
    for (int i = 0; i < 64; ++i)
      t[i] = uint16_t(bitc<uint32_t>(float((C::BITS == 4 ? i % 16 : i) - C::ZERO)) >> 16);
    low = _mm512_load_si512(t);
    high = _mm512_load_si512(t + 32);
  }
};

INL __m512i merge(__m512i mask, __m512i a, __m512i b) { return _mm512_ternarylogic_epi32(mask, a, b, 0xca); }

// One record as an AMX B tile: 16 rows of 16 pairs of bf16.
template <class C>
INL void unpack_record(const uint8_t* record, const Table<C>& table, uint16_t* tile) {
  if (C::BITS == 8) {
    const __m512i magic = _mm512_set1_epi32(0x4b000000), low = _mm512_set1_epi32(255);
    const __m512 bias = _mm512_set1_ps(8388608.0f + 128.0f);
    const __m512i top = _mm512_set1_epi32(int32_t(0xffff0000));
#pragma GCC unroll 8
    for (int z = 0; z < 8; ++z) {
      const __m512i v = _mm512_loadu_si512(record + 64 * z);
      __m512i f[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
        f[i] = (__m512i)_mm512_sub_ps((__m512)merge(low, _mm512_srli_epi32(v, 8 * i), magic), bias);
      // bytes 0 and 2 are a pair, 1 and 3 the one after the next
      uint16_t* pair = tile + 32 * (z / 2 * 4 + z % 2);
      _mm512_store_si512(pair, merge(top, f[2], _mm512_srli_epi32(f[0], 16)));
      _mm512_store_si512(pair + 64, merge(top, f[3], _mm512_srli_epi32(f[1], 16)));
    }
    return;
  }
  const __m512i nibble = _mm512_set1_epi16(15);
#pragma GCC unroll 4
  for (int z = 0; z < 4; ++z) {
    const __m512i v = _mm512_loadu_si512(record + 64 * z);
    __m512i h = v;
    if (C::BITS == 5) h = _mm512_loadu_si512(record + 256);
    if (C::BITS == 6) h = _mm512_loadu_si512(record + 256 + 64 * (z / 2));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const int j = 4 * z + i;
      __m512i index = _mm512_srli_epi16(v, 4 * i);
      if (C::BITS > 4) {
        const int at = C::BITS == 5 ? j : 2 * (j % 8);
        const __m512i up = at < 4 ? _mm512_slli_epi16(h, 4 - at) : _mm512_srli_epi16(h, at - 4);
        index = merge(nibble, index, up);
      }
      const __m512i value = C::BITS == 6 ? _mm512_permutex2var_epi16(table.low, index, table.high)
                                         : _mm512_permutexvar_epi16(index, table.low);
      _mm512_store_si512(tile + 32 * j, value);
    }
  }
}
#endif

}  // namespace tiles
