// AVX2, with VNNI or without: 8 rows a register. The including file defines EDGESPEC_ISA, and
// EDGESPEC_AVX_VNNI to 1 or 0.

#include <immintrin.h>

#include "kernels.h"

namespace edgespec {
namespace EDGESPEC_ISA {

// See isa_scalar.cpp for what each member does.
struct Simd {
  static constexpr int kLanes = 8;
  static constexpr int kMaxTokens = 8;
  static constexpr bool kPairs = false;
  static constexpr int kTogether = 2;  // registers that attention works on at once
  template <int, bool>
  struct Pairs;

  using F = __m256;
  using I = __m256i;
  using U = __m256i;

  static F zero() { return _mm256_setzero_ps(); }
  static F set1(float x) { return _mm256_set1_ps(x); }
  static F load_floats(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static F from_half(const half* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static F from_int8(const int8_t* p) {
    return to_float(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static F to_float(I x) { return _mm256_cvtepi32_ps(x); }
  static F negated(F x) { return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f)); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }

  static I load_256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static I load_words(const uint32_t* p) { return load_256(p); }
  static I bit_and(I x, uint32_t mask) {
    return _mm256_and_si256(x, _mm256_set1_epi32(static_cast<int>(mask)));
  }
  static I bit_or(I a, I b) { return _mm256_or_si256(a, b); }
  static I add(I a, I b) { return _mm256_add_epi32(a, b); }
  template <int n>
  static I shift_left(I x) {
    return _mm256_slli_epi32(x, n);
  }
  template <int n>
  static I shift_right(I x) {
    return _mm256_srli_epi32(x, n);
  }

  static I as_bits(F x) { return _mm256_castps_si256(x); }
  static F as_floats(I x) { return _mm256_castsi256_ps(x); }
  static F zero_where_below(F value, F x, float limit) {
    return _mm256_and_ps(value, _mm256_cmp_ps(x, set1(limit), _CMP_NLT_UQ));
  }

  static U load(const uint8_t* line, int part) { return load_256(line + 32 * part); }
  static U masked(U x, char mask) { return _mm256_and_si256(x, _mm256_set1_epi8(mask)); }
  static U low_nibbles(U x) { return masked(x, 15); }
  static U high_nibbles(U x) { return masked(_mm256_srli_epi16(x, 4), 15); }
  template <int n>
  static U shifted_left(U x) {
    if constexpr (n >= 0)
      return _mm256_slli_epi16(x, n);
    else
      return _mm256_srli_epi16(x, -n);
  }
  template <int j>
  static U with_bit(U x, U bits) {
    return bit_or(x, masked(shifted_left<4 - j>(bits), 16));
  }
  template <int j>
  static U with_two_bits(U x, U bits) {
    return bit_or(x, masked(shifted_left<4 - 2 * j>(bits), 48));
  }
  static U lookup(const uint8_t* table, U x) {
    return _mm256_shuffle_epi8(
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table))), x);
  }
  static I four(const int8_t* a) {
    int32_t word;
    __builtin_memcpy(&word, a, sizeof word);
    return _mm256_set1_epi32(word);
  }

  template <int bits>
  static void dot(const U* w, const int8_t* a, const int32_t* start, I& first, I& second) {
    first = half_dot<bits>(w, a, start[0]);
    second = half_dot<bits>(w + 4, a + 16, start[1]);
  }

#if EDGESPEC_AVX_VNNI
  template <int>
  static I half_dot(const U* w, const int8_t* a, int32_t start) {
    I sum = _mm256_set1_epi32(start);
    for (int j = 0; j < 4; j++) sum = _mm256_dpbusd_avx_epi32(sum, w[j], four(a + 4 * j));
    return sum;
  }
#else
  // vpmaddubsw adds two products in 16 bits, with saturation. Up to 6 bits they fit, and below that
  // so do several such sums. Eight bits do not: there the weights are taken as signed, so that they are
  // at most 128 in magnitude, which the start (−128 · sum of a) already accounts for.
  template <int bits>
  static I half_dot(const U* w, const int8_t* a, int32_t start) {
    const I ones = _mm256_set1_epi16(1);
    if constexpr (bits < 6) {
      I sum = _mm256_maddubs_epi16(w[0], four(a));
      for (int j = 1; j < 4; j++) sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w[j], four(a + 4 * j)));
      return add(_mm256_set1_epi32(start), _mm256_madd_epi16(sum, ones));
    } else if constexpr (bits == 6) {
      I low = _mm256_add_epi16(_mm256_maddubs_epi16(w[0], four(a)), _mm256_maddubs_epi16(w[1], four(a + 4)));
      I high =
          _mm256_add_epi16(_mm256_maddubs_epi16(w[2], four(a + 8)), _mm256_maddubs_epi16(w[3], four(a + 12)));
      return add(_mm256_set1_epi32(start), add(_mm256_madd_epi16(low, ones), _mm256_madd_epi16(high, ones)));
    } else {
      I sum = _mm256_setzero_si256();
      for (int j = 0; j < 4; j++) {
        U weight = _mm256_xor_si256(w[j], _mm256_set1_epi8(-128));
        I products = _mm256_maddubs_epi16(_mm256_abs_epi8(weight), _mm256_sign_epi8(four(a + 4 * j), weight));
        sum = add(sum, _mm256_madd_epi16(products, ones));
      }
      return sum;
    }
  }
#endif

  static I magnitude_bits(const float* x) { return bit_and(_mm256_castps_si256(load_floats(x)), 0x7fffffff); }
  static float largest_magnitude(const float* x) {
    I m = _mm256_max_epi32(_mm256_max_epi32(magnitude_bits(x), magnitude_bits(x + 8)),
                           _mm256_max_epi32(magnitude_bits(x + 16), magnitude_bits(x + 24)));
    __m128i n = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    n = _mm_max_epi32(n, _mm_shuffle_epi32(n, 0x4E));
    n = _mm_max_epi32(n, _mm_shuffle_epi32(n, 0xB1));
    return _mm_cvtss_f32(_mm_castsi128_ps(n));
  }
  static void round(const float* x, float inverse, int8_t* quants, int32_t* sums) {
    for (int h = 0; h < 2; h++) {
      const I low = _mm256_cvtps_epi32(mul(load_floats(x + 16 * h), set1(inverse)));
      const I high = _mm256_cvtps_epi32(mul(load_floats(x + 16 * h + 8), set1(inverse)));
      const I words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xD8);
      const __m128i first = _mm256_castsi256_si128(words), second = _mm256_extracti128_si256(words, 1);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(quants + 16 * h), _mm_packs_epi16(first, second));
      __m128i sum = _mm_madd_epi16(_mm_add_epi16(first, second), _mm_set1_epi16(1));
      sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
      sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1));
      sums[h] = _mm_cvtsi128_si32(sum);
    }
  }
};

}  // namespace EDGESPEC_ISA
}  // namespace edgespec

#include "tile_kernel.h"
#include "attention_kernel.h"
