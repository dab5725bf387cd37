// Portable C++: the reference of the other instruction sets, and what runs where none of them does.

#define EDGESPEC_ISA scalar

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"
#include "kernels.h"

namespace edgespec {
namespace scalar {

// F: a float per row; I: an int32 per row; U: for each row, quants of 4 inputs.
struct Simd {
  static constexpr int kLanes = 16;
  static constexpr int kMaxTokens = 4;
  static constexpr bool kPairs = false;  // no dot products of two tokens at once
  static constexpr int kTogether = 1;    // registers that attention works on at once

  struct F {
    float v[kLanes];
  };
  struct I {
    int32_t v[kLanes];
  };
  struct U {
    uint8_t v[4 * kLanes];
  };
  template <int, bool>
  struct Pairs;

  template <class T, class Each>
  static T each(Each value) {
    T out;
    for (size_t i = 0; i < sizeof out.v / sizeof out.v[0]; i++) out.v[i] = value(i);
    return out;
  }

  static F zero() { return F{}; }
  static F set1(float x) {
    return each<F>([&](size_t) { return x; });
  }
  static F load_floats(const float* p) {
    return each<F>([&](size_t i) { return p[i]; });
  }
  static void store(float* p, F x) {
    for (int i = 0; i < kLanes; i++) p[i] = x.v[i];
  }
  static F from_half(const half* p) {
    return each<F>([&](size_t i) { return half_to_float(p[i]); });
  }
  static F from_int8(const int8_t* p) {
    return each<F>([&](size_t i) { return float(p[i]); });
  }
  static F to_float(I x) {
    return each<F>([&](size_t i) { return float(x.v[i]); });
  }
  static F negated(F x) {
    return each<F>([&](size_t i) { return -x.v[i]; });
  }
  static F mul(F a, F b) {
    return each<F>([&](size_t i) { return a.v[i] * b.v[i]; });
  }
  static F add(F a, F b) {
    return each<F>([&](size_t i) { return a.v[i] + b.v[i]; });
  }
  static F max(F a, F b) {
    return each<F>([&](size_t i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }  // NaN if b is
  static F fma(F a, F b, F c) {
    return each<F>([&](size_t i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
  }

  static I load_words(const uint32_t* p) {
    return each<I>([&](size_t i) { return int32_t(p[i]); });
  }
  static I bit_and(I x, uint32_t mask) {
    return each<I>([&](size_t i) { return int32_t(uint32_t(x.v[i]) & mask); });
  }
  static I bit_or(I a, I b) {
    return each<I>([&](size_t i) { return a.v[i] | b.v[i]; });
  }
  static I add(I a, I b) {
    return each<I>([&](size_t i) { return a.v[i] + b.v[i]; });
  }
  template <int n>
  static I shift_left(I x) {
    return each<I>([&](size_t i) { return int32_t(uint32_t(x.v[i]) << n); });
  }
  template <int n>
  static I shift_right(I x) {
    return each<I>([&](size_t i) { return int32_t(uint32_t(x.v[i]) >> n); });
  }

  static I as_bits(F x) {
    I out;
    std::memcpy(&out, &x, sizeof out);
    return out;
  }
  static F as_floats(I x) {
    F out;
    std::memcpy(&out, &x, sizeof out);
    return out;
  }
  static F zero_where_below(F value, F x, float limit) {
    return each<F>([&](size_t i) { return x.v[i] < limit ? 0.0f : value.v[i]; });
  }

  static U load(const uint8_t* line, int) {
    return each<U>([&](size_t i) { return line[i]; });
  }
  static U low_nibbles(U x) {
    return each<U>([&](size_t i) { return x.v[i] & 15; });
  }
  static U high_nibbles(U x) {
    return each<U>([&](size_t i) { return x.v[i] >> 4; });
  }
  // x with bit j of `bits` as bit 4
  template <int j>
  static U with_bit(U x, U bits) {
    return each<U>([&](size_t i) { return x.v[i] | ((bits.v[i] >> j & 1) << 4); });
  }
  // x with bits 2j and 2j + 1 of `bits` as bits 4 and 5
  template <int j>
  static U with_two_bits(U x, U bits) {
    return each<U>([&](size_t i) { return x.v[i] | ((bits.v[i] >> 2 * j & 3) << 4); });
  }
  static U lookup(const uint8_t* table, U x) {
    return each<U>([&](size_t i) { return table[x.v[i]]; });
  }

  // Per row, start[0] + quants · a over the first 16 inputs, and start[1] + … over the second 16.
  // Quants are below 2^bits, activations at most 127 in magnitude.
  template <int bits>
  static void dot(const U* w, const int8_t* a, const int32_t* start, I& first, I& second) {
    first = each<I>([&](size_t r) { return start[0] + half_dot(w, a, r); });
    second = each<I>([&](size_t r) { return start[1] + half_dot(w + 4, a + 16, r); });
  }
  static int32_t half_dot(const U* w, const int8_t* a, size_t row) {
    int32_t sum = 0;
    for (int k = 0; k < 16; k++) sum += w[k / 4].v[4 * row + k % 4] * a[k];
    return sum;
  }

  // Of a block of activations; NaN counts as larger than all.
  static float largest_magnitude(const float* x) {
    uint32_t bits[kBlock], largest = 0;
    std::memcpy(bits, x, sizeof bits);
    for (uint32_t b : bits) largest = std::max(largest, b & 0x7fffffff);
    float magnitude;
    std::memcpy(&magnitude, &largest, sizeof magnitude);
    return magnitude;
  }
  // x · inverse rounded to integers, and the sums of the first and the second 16
  static void round(const float* x, float inverse, int8_t* quants, int32_t* sums) {
    sums[0] = sums[1] = 0;
    for (int k = 0; k < kBlock; k++) {
      const float scaled = x[k] * inverse;
      const long rounded = std::isfinite(scaled) ? std::lrintf(scaled) : 0;
      quants[k] = static_cast<int8_t>(rounded);
      sums[k / 16] += quants[k];
    }
  }
};

}  // namespace scalar
}  // namespace edgespec

#include "tile_kernel.h"
#include "attention_kernel.h"

namespace edgespec {
extern const Kernels kScalar;
const Kernels kScalar = {"scalar",         scalar::Simd::kMaxTokens,
                         scalar::quantize, scalar::multiply_tiles,
                         scalar::attend,   scalar::join};
}  // namespace edgespec
