// AVX-512 with VNNI: 16 rows a register.

#define EDGESPEC_ISA avx512vnni

#include <immintrin.h>

#include "kernels.h"

namespace edgespec {
namespace avx512vnni {

// See isa_scalar.cpp for what each member does.
struct Simd {
  static constexpr int kLanes = 16;
  static constexpr int kMaxTokens = 16;
  static constexpr bool kPairs = false;
  static constexpr int kTogether = 4;  // registers that attention works on at once
  template <int, bool>
  struct Pairs;

  using F = __m512;
  using I = __m512i;
  using U = __m512i;

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load_floats(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F from_half(const half* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F from_int8(const int8_t* p) {
    return to_float(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static F to_float(I x) { return _mm512_cvtepi32_ps(x); }
  static F negated(F x) { return _mm512_xor_ps(x, _mm512_set1_ps(-0.0f)); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }

  static I load_words(const uint32_t* p) { return _mm512_loadu_si512(p); }
  static I bit_and(I x, uint32_t mask) {
    return _mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(mask)));
  }
  static I bit_or(I a, I b) { return _mm512_or_si512(a, b); }
  static I add(I a, I b) { return _mm512_add_epi32(a, b); }
  template <int n>
  static I shift_left(I x) {
    return _mm512_slli_epi32(x, n);
  }
  template <int n>
  static I shift_right(I x) {
    return _mm512_srli_epi32(x, n);
  }

  static I as_bits(F x) { return _mm512_castps_si512(x); }
  static F as_floats(I x) { return _mm512_castsi512_ps(x); }
  static F zero_where_below(F value, F x, float limit) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, set1(limit), _CMP_NLT_UQ), value);
  }

  static U load(const uint8_t* line, int) { return _mm512_loadu_si512(line); }
  static U low_nibbles(U x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
  static U high_nibbles(U x) { return low_nibbles(_mm512_srli_epi16(x, 4)); }
  // x | (shifted & mask): one ternary operation
  static U merged(U x, U shifted, char mask) {
    return _mm512_ternarylogic_epi32(x, shifted, _mm512_set1_epi8(mask), 0xF8);
  }
  template <int j>
  static U with_bit(U x, U bits) {
    return merged(
        x, j < 4 ? _mm512_slli_epi16(bits, j < 4 ? 4 - j : 0) : _mm512_srli_epi16(bits, j < 4 ? 0 : j - 4),
        16);
  }
  template <int j>
  static U with_two_bits(U x, U bits) {
    return merged(x,
                  j < 2 ? _mm512_slli_epi16(bits, j < 2 ? 4 - 2 * j : 0)
                        : _mm512_srli_epi16(bits, j < 2 ? 0 : 2 * j - 4),
                  48);
  }
  static U lookup(const uint8_t* table, U x) {
    return _mm512_shuffle_epi8(
        _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table))), x);
  }

  template <int bits>
  static void dot(const U* w, const int8_t* a, const int32_t* start, I& first, I& second) {
    first = _mm512_set1_epi32(start[0]);
    second = _mm512_set1_epi32(start[1]);
    for (int j = 0; j < 4; j++) {
      first = _mm512_dpbusd_epi32(first, w[j], four(a + 4 * j));
      second = _mm512_dpbusd_epi32(second, w[j + 4], four(a + 4 * j + 16));
    }
  }
  static I four(const int8_t* a) {
    int32_t word;
    __builtin_memcpy(&word, a, sizeof word);
    return _mm512_set1_epi32(word);
  }

  static I magnitude_bits(const float* x) { return bit_and(_mm512_castps_si512(load_floats(x)), 0x7fffffff); }
  static float largest_magnitude(const float* x) {
    const int bits = _mm512_reduce_max_epi32(_mm512_max_epi32(magnitude_bits(x), magnitude_bits(x + 16)));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(bits)));
  }
  static void round(const float* x, float inverse, int8_t* quants, int32_t* sums) {
    for (int h = 0; h < 2; h++) {
      const I rounded = _mm512_cvtps_epi32(mul(load_floats(x + 16 * h), set1(inverse)));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(quants + 16 * h), _mm512_cvtsepi32_epi8(rounded));
      sums[h] = _mm512_reduce_add_epi32(rounded);
    }
  }
};

}  // namespace avx512vnni
}  // namespace edgespec

#include "tile_kernel.h"
#include "attention_kernel.h"

namespace edgespec {
extern const Kernels kAvx512Vnni;
const Kernels kAvx512Vnni = {"avx512vnni",         avx512vnni::Simd::kMaxTokens,
                             avx512vnni::quantize, avx512vnni::multiply_tiles,
                             avx512vnni::attend,   avx512vnni::join};
}  // namespace edgespec
