// Arm, 64 bits: 4 rows a register. The including file defines EDGESPEC_ISA, and EDGESPEC_DOT to
// 0 (plain NEON), 1 (dot products) or 2 (dot products and int8 matrix products).

#include <arm_neon.h>

#include "kernels.h"

namespace edgespec {
namespace EDGESPEC_ISA {

// See isa_scalar.cpp for what each member does.
struct Simd {
  static constexpr int kLanes = 4;
  static constexpr int kMaxTokens = 8;
  static constexpr bool kPairs = EDGESPEC_DOT == 2;
  static constexpr int kTogether = 4;  // registers that attention works on at once

  using F = float32x4_t;
  using I = int32x4_t;
  using U = uint8x16_t;

  static F zero() { return vdupq_n_f32(0); }
  static F set1(float x) { return vdupq_n_f32(x); }
  static F load_floats(const float* p) { return vld1q_f32(p); }
  static void store(float* p, F x) { vst1q_f32(p, x); }
  static F from_half(const half* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
  static F from_int8(const int8_t* p) {
    int32_t word;
    __builtin_memcpy(&word, p, sizeof word);
    return to_float(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(word))))));
  }
  static F to_float(I x) { return vcvtq_f32_s32(x); }
  static F negated(F x) { return vnegq_f32(x); }
  static F mul(F a, F b) { return vmulq_f32(a, b); }
  static F add(F a, F b) { return vaddq_f32(a, b); }
  static F max(F a, F b) { return vmaxq_f32(a, b); }
  static F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }

  static I load_words(const uint32_t* p) { return vreinterpretq_s32_u32(vld1q_u32(p)); }
  static I bit_and(I x, uint32_t mask) { return vandq_s32(x, vreinterpretq_s32_u32(vdupq_n_u32(mask))); }
  static I bit_or(I a, I b) { return vorrq_s32(a, b); }
  static I add(I a, I b) { return vaddq_s32(a, b); }
  template <int n>
  static I shift_left(I x) {
    return vshlq_n_s32(x, n);
  }
  template <int n>
  static I shift_right(I x) {
    return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(x), n));
  }

  static I as_bits(F x) { return vreinterpretq_s32_f32(x); }
  static F as_floats(I x) { return vreinterpretq_f32_s32(x); }
  static F zero_where_below(F value, F x, float limit) {
    return vbslq_f32(vcltq_f32(x, vdupq_n_f32(limit)), zero(), value);
  }

  static U load(const uint8_t* line, int part) { return vld1q_u8(line + 16 * part); }
  static U low_nibbles(U x) { return vandq_u8(x, vdupq_n_u8(15)); }
  static U high_nibbles(U x) { return vshrq_n_u8(x, 4); }
  template <int j>
  static U with_bit(U x, U bits) {
    return vorrq_u8(x, vandq_u8(shifted_left<4 - j>(bits), vdupq_n_u8(16)));
  }
  template <int j>
  static U with_two_bits(U x, U bits) {
    return vorrq_u8(x, vandq_u8(shifted_left<4 - 2 * j>(bits), vdupq_n_u8(48)));
  }
  template <int n>
  static U shifted_left(U x) {
    if constexpr (n >= 0)
      return vshlq_n_u8(x, n);
    else
      return vshrq_n_u8(x, -n);
  }
  static U lookup(const uint8_t* table, U x) { return vqtbl1q_u8(vld1q_u8(table), x); }

  // Arm multiplies signed by signed: quants of eight bits have 128 taken off, which the start then must
  // not take off again.
  template <int bits>
  static int8x16_t as_signed(U w) {
    return vreinterpretq_s8_u8(bits == 8 ? veorq_u8(w, vdupq_n_u8(128)) : w);
  }

  template <int bits>
  static void dot(const U* w, const int8_t* a, const int32_t* start, I& first, I& second) {
    first = half_dot<bits>(w, a, bits == 8 ? 0 : start[0]);
    second = half_dot<bits>(w + 4, a + 16, bits == 8 ? 0 : start[1]);
  }

#if EDGESPEC_DOT
  template <int bits>
  static I half_dot(const U* w, const int8_t* a, int32_t start) {
    const int8x16_t x = vld1q_s8(a);
    I sum = vdupq_n_s32(start);
    sum = vdotq_laneq_s32(sum, as_signed<bits>(w[0]), x, 0);
    sum = vdotq_laneq_s32(sum, as_signed<bits>(w[1]), x, 1);
    sum = vdotq_laneq_s32(sum, as_signed<bits>(w[2]), x, 2);
    return vdotq_laneq_s32(sum, as_signed<bits>(w[3]), x, 3);
  }
#else
  // Products are added in 16 bits as long as they fit: four of 8-bit quants would not, two do.
  template <int bits>
  static I half_dot(const U* w, const int8_t* a, int32_t start) {
    constexpr int kSafe = bits == 8 ? 2 : 4;
    I low = vdupq_n_s32(0), high = low;
    for (int j = 0; j < 4; j += kSafe) {
      int16x8_t sums[2] = {vdupq_n_s16(0), vdupq_n_s16(0)};
      for (int i = j; i < j + kSafe; i++) {
        const int8x16_t weights = as_signed<bits>(w[i]);
        int32_t word;
        __builtin_memcpy(&word, a + 4 * i, sizeof word);
        const int8x8_t x = vreinterpret_s8_s32(vdup_n_s32(word));
        sums[0] = vmlal_s8(sums[0], vget_low_s8(weights), x);
        sums[1] = vmlal_s8(sums[1], vget_high_s8(weights), x);
      }
      low = vpadalq_s16(low, sums[0]);
      high = vpadalq_s16(high, sums[1]);
    }
    return vaddq_s32(vdupq_n_s32(start), vpaddq_s32(low, high));
  }
#endif

#if EDGESPEC_DOT == 2
  // Matrix products of two rows by two tokens over 8 inputs.
  template <int bits, bool halves>
  struct Pairs {
    // [2i]: rows 0 and 1, [2i + 1]: rows 2 and 3; inputs 8i … 8i + 7 of each
    int8x16_t rows[8];

    explicit Pairs(const U* w) {
      for (int i = 0; i < 4; i++) {
        const int32x4_t even = vreinterpretq_s32_s8(as_signed<bits>(w[2 * i]));
        const int32x4_t odd = vreinterpretq_s32_s8(as_signed<bits>(w[2 * i + 1]));
        rows[2 * i] = vreinterpretq_s8_s32(vzip1q_s32(even, odd));
        rows[2 * i + 1] = vreinterpretq_s8_s32(vzip2q_s32(even, odd));
      }
    }

    void dot(const int8_t* a, const int32_t* start, I* first, I* second) const {
      int32_t at_first[2] = {start[0], start[2]}, at_second[2] = {start[1], start[3]};
      if constexpr (halves) {
        sum<0, 2>(a, at_first, first);
        sum<2, 4>(a, at_second, second);
      } else {
        int32_t at_both[2] = {start[0] + start[1], start[2] + start[3]};
        sum<0, 4>(a, at_both, first);
        second[0] = second[1] = vdupq_n_s32(0);
      }
    }

    template <int begin, int end>
    void sum(const int8_t* a, const int32_t* start, I* out) const {
      const int32x2_t both = bits == 8 ? vdup_n_s32(0) : vld1_s32(start);
      I upper = vcombine_s32(both, both),
        lower = upper;  // row 0 · token 0, row 0 · token 1, row 1 · token 0, …
      for (int i = begin; i < end; i++) {
        const int8x16_t x = vld1q_s8(a + 16 * i);
        upper = vmmlaq_s32(upper, rows[2 * i], x);
        lower = vmmlaq_s32(lower, rows[2 * i + 1], x);
      }
      out[0] = vuzp1q_s32(upper, lower);
      out[1] = vuzp2q_s32(upper, lower);
    }
  };
#else
  template <int, bool>
  struct Pairs;
#endif

  static float largest_magnitude(const float* x) {
    uint32x4_t largest = vdupq_n_u32(0);
    for (int k = 0; k < kBlock; k += 4)
      largest =
          vmaxq_u32(largest, vandq_u32(vreinterpretq_u32_f32(vld1q_f32(x + k)), vdupq_n_u32(0x7fffffff)));
    return vget_lane_f32(vreinterpret_f32_u32(vdup_n_u32(vmaxvq_u32(largest))), 0);
  }
  static void round(const float* x, float inverse, int8_t* quants, int32_t* sums) {
    for (int h = 0; h < 2; h++) {
      int16x4_t r[4];
      for (int i = 0; i < 4; i++)
        r[i] = vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 16 * h + 4 * i), inverse)));
      const int16x8_t low = vcombine_s16(r[0], r[1]), high = vcombine_s16(r[2], r[3]);
      vst1q_s8(quants + 16 * h, vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
      sums[h] = vaddvq_s16(vaddq_s16(low, high));
    }
  }
};

}  // namespace EDGESPEC_ISA
}  // namespace edgespec

#include "tile_kernel.h"
#include "attention_kernel.h"
