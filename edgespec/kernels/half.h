// IEEE binary16 without hardware.

#pragma once
#include <cstdint>
#include <cstring>

namespace edgespec {

static inline float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023;
  uint32_t bits;
  if (exponent == 31) {
    bits = sign | 0x7f800000 | mantissa << 13;
  } else if (exponent) {
    bits = sign | (exponent + 112) << 23 | mantissa << 13;
  } else {  // subnormal: mantissa · 2^-24
    float value = static_cast<float>(mantissa) * 5.9604644775390625e-08f;
    std::memcpy(&bits, &value, sizeof bits);
    bits |= sign;
  }
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

// Rounded to the nearest, ties to even; what is too large becomes the largest number.
static inline uint16_t float_to_half(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint16_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;   // NaN
  if (magnitude == 0x7f800000) return sign | 0x7c00;  // infinite
  if (magnitude >= 0x477ff000) return sign | 0x7bff;  // too large
  if (magnitude < 0x38800000) {                       // subnormal: a multiple of 2^-24
    float positive;
    std::memcpy(&positive, &magnitude, sizeof positive);
    positive += 0.5f;  // whose low bits count 2^-24
    std::memcpy(&bits, &positive, sizeof bits);
    return sign | (bits & 0x7fff);
  }
  const uint32_t odd = magnitude >> 13 & 1;
  return sign | (magnitude - 0x38000000 + 0xfff + odd) >> 13;
}

}  // namespace edgespec
