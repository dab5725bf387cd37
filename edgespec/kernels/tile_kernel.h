// The kernel: tiles of 16 rows of weights times up to kMaxTokens tokens.
//
// A tile's quants are unpacked once per block and used for all tokens, so that the cost is that of
// reading the weights until the arithmetic of that many tokens exceeds it. A token's output takes the
// same operations in the same order whatever the number of tokens and threads, and on every
// instruction set: dot products of integers are exact, and what is rounded (products of scales, sums
// over blocks) is rounded alike everywhere. So rows are bitwise equal across all of those.
//
// This header is compiled once per instruction set, inside a namespace of its own. The including file
// defines `Simd` before it; see isa_scalar.cpp for what that must offer. No function of another namespace may
// be left in the object file, as those of the standard library are where nothing is inlined: the linker could
// take it for all code, also for that which runs on processors without these instructions.

#include <cfloat>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels.h"
#include "tile_formats.h"

#if defined(__clang__)
#define EDGESPEC_UNROLL _Pragma("unroll")
#else
#define EDGESPEC_UNROLL _Pragma("GCC unroll 16")
#endif

namespace edgespec {
namespace EDGESPEC_ISA {

constexpr int kParts = kRows / Simd::kLanes;  // registers that hold a float per row of a tile
constexpr int kVectors = 8;                   // of quants in a block
// Bytes between what is read and what is fetched: from memory to the second cache, and on to the first.
// Both are needed: the first cache has too few requests in flight to fetch from memory at full speed.
constexpr size_t kFar = 49152, kNear = 1024;
constexpr size_t kLine = 64;
constexpr int32_t kZeros[2] = {0, 0};

using F = Simd::F;
using I = Simd::I;
using U = Simd::U;

template <class T>
constexpr T smaller(T a, T b) {
  return b < a ? b : a;
}
template <class T>
constexpr T larger(T a, T b) {
  return a < b ? b : a;
}
inline void fill(float* begin, const float* end, float value) {
  for (; begin < end; begin++) *begin = value;
}

// Scales and minimums of a group's blocks. A codec with kHalves has a scale for each half of a block.
template <int blocks>
struct Scales {
  alignas(64) float scale[blocks][kRows];
  alignas(64) float minimum[blocks][kRows];
};

inline void halves_to_floats(const half* in, float* out) {
  for (int p = 0; p < kParts; p++)
    Simd::store(out + p * Simd::kLanes, Simd::from_half(in + p * Simd::kLanes));
}

// ---- Codecs: what a group of each type holds. The weight is scale · (quant − kOffset) + minimum.

template <class G>
struct Simple {
  using Group = G;
  static constexpr int kBlocks = 1;
  static constexpr bool kHalves = false;
  static void scales(const G& g, Scales<1>& out) { halves_to_floats(g.d, out.scale[0]); }
};

template <class G>
struct SimpleWithMinimum : Simple<G> {
  static constexpr bool kMinimum = true;
  static constexpr int kOffset = 0;
  static void scales(const G& g, Scales<1>& out) {
    halves_to_floats(g.d, out.scale[0]);
    halves_to_floats(g.m, out.minimum[0]);
  }
};

inline void unpack_low(const LowBits& low, int part, U* w) {
  for (int i = 0; i < kVectors / 2; i++) {
    U bytes = Simd::load(low.line[i], part);
    w[2 * i] = Simd::low_nibbles(bytes);
    w[2 * i + 1] = Simd::high_nibbles(bytes);
  }
}

template <int j>
inline void add_fifth_bit(U fifth, U* w) {
  w[j] = Simd::template with_bit<j>(w[j], fifth);
  if constexpr (j + 1 < kVectors) add_fifth_bit<j + 1>(fifth, w);
}

template <int j>
inline void add_high_bits(U first, U second, U* w) {
  w[j] = Simd::template with_two_bits<j % 4>(w[j], j < 4 ? first : second);
  if constexpr (j + 1 < kVectors) add_high_bits<j + 1>(first, second, w);
}

struct CodecQ4_0 : Simple<GroupQ4_0> {
  static constexpr bool kMinimum = false;
  static constexpr int kBits = 4, kOffset = 8;
  static void quants(const Group& g, int, int part, U* w) { unpack_low(g.low, part, w); }
};

struct CodecQ4_1 : SimpleWithMinimum<GroupQ4_1> {
  static constexpr int kBits = 4;
  static void quants(const Group& g, int, int part, U* w) { unpack_low(g.low, part, w); }
};

struct CodecQ5_0 : Simple<GroupQ5_0> {
  static constexpr bool kMinimum = false;
  static constexpr int kBits = 5, kOffset = 16;
  static void quants(const Group& g, int, int part, U* w) {
    unpack_low(g.low, part, w);
    add_fifth_bit<0>(Simd::load(g.fifth.line, part), w);
  }
};

struct CodecQ5_1 : SimpleWithMinimum<GroupQ5_1> {
  static constexpr int kBits = 5;
  static void quants(const Group& g, int, int part, U* w) {
    unpack_low(g.low, part, w);
    add_fifth_bit<0>(Simd::load(g.fifth.line, part), w);
  }
};

struct CodecQ8_0 : Simple<GroupQ8_0> {
  static constexpr bool kMinimum = false;
  static constexpr int kBits = 8, kOffset = 128;
  static void quants(const Group& g, int, int part, U* w) {
    for (int j = 0; j < kVectors; j++) w[j] = Simd::load(g.v[j], part);
  }
};

struct CodecIQ4_NL : Simple<GroupIQ4_NL> {
  static constexpr bool kMinimum = false;
  static constexpr int kBits = 8, kOffset = 128;  // the levels, as Q8_0
  static void quants(const Group& g, int, int part, U* w) {
    unpack_low(g.low, part, w);
    for (int j = 0; j < kVectors; j++) w[j] = Simd::lookup(kLevels, w[j]);
  }
};

// Q4_K and Q5_K: 6-bit scales and minimums, packed as ggml packs them.
template <class G>
struct SuperWithMinimum {
  using Group = G;
  static constexpr int kBlocks = 8;
  static constexpr bool kHalves = false, kMinimum = true;
  static constexpr int kOffset = 0;
  static void scales(const G& g, Scales<8>& out) {
    for (int p = 0; p < kParts; p++) {
      const int row = p * Simd::kLanes;
      I first = Simd::load_words(g.packed[0] + row), second = Simd::load_words(g.packed[1] + row);
      I rest = Simd::load_words(g.packed[2] + row);
      // Bytes of blocks 0-3, and of blocks 4-7.
      I scale[2] = {Simd::bit_and(first, 0x3f3f3f3f), upper_bits(Simd::bit_and(rest, 0x0f0f0f0f), first)};
      I minimum[2] = {Simd::bit_and(second, 0x3f3f3f3f),
                      upper_bits(Simd::bit_and(Simd::template shift_right<4>(rest), 0x0f0f0f0f), second)};
      F d = Simd::from_half(g.d + row), less = Simd::negated(Simd::from_half(g.dmin + row));
      for (int b = 0; b < 8; b++) {
        I& s = scale[b / 4];
        I& m = minimum[b / 4];
        Simd::store(out.scale[b] + row, Simd::mul(d, Simd::to_float(Simd::bit_and(s, 0xff))));
        Simd::store(out.minimum[b] + row, Simd::mul(less, Simd::to_float(Simd::bit_and(m, 0xff))));
        s = Simd::template shift_right<8>(s);
        m = Simd::template shift_right<8>(m);
      }
    }
  }
  static I upper_bits(I lower, I from) {
    return Simd::bit_or(lower, Simd::bit_and(Simd::template shift_right<2>(from), 0x30303030));
  }
};

struct CodecQ4_K : SuperWithMinimum<GroupQ4_K> {
  static constexpr int kBits = 4;
  static void quants(const Group& g, int b, int part, U* w) { unpack_low(g.low[b], part, w); }
};

struct CodecQ5_K : SuperWithMinimum<GroupQ5_K> {
  static constexpr int kBits = 5;
  static void quants(const Group& g, int b, int part, U* w) {
    unpack_low(g.low[b], part, w);
    add_fifth_bit<0>(Simd::load(g.fifth[b].line, part), w);
  }
};

struct CodecQ6_K {
  using Group = GroupQ6_K;
  static constexpr int kBlocks = 8;
  static constexpr bool kHalves = true, kMinimum = false;
  static constexpr int kBits = 6, kOffset = 32;
  static void scales(const Group& g, Scales<16>& out) {
    for (int p = 0; p < kParts; p++) {
      const int row = p * Simd::kLanes;
      F d = Simd::from_half(g.d + row);
      for (int s = 0; s < 16; s++)
        Simd::store(out.scale[s] + row, Simd::mul(d, Simd::from_int8(g.scale[s] + row)));
    }
  }
  static void quants(const Group& g, int b, int part, U* w) {
    unpack_low(g.low[b], part, w);
    add_high_bits<0>(Simd::load(g.high[b].line[0], part), Simd::load(g.high[b].line[1], part), w);
  }
};

// ---- One tile

template <size_t bytes>
inline void fetch_ahead(const uint8_t* from) {
  for (size_t line = 0; line < bytes; line += kLine) {
    __builtin_prefetch(from + kFar + line, 0, 2);
    __builtin_prefetch(from + kNear + line, 0, 3);
  }
}

// y[token][row] for the 16 rows of a tile: `x` holds kTokens tokens.
template <class Codec, int kTokens>
void multiply_tile(const uint8_t* tile, int64_t inputs, const Activations& x, float (*y)[kRows]) {
  using Group = typename Codec::Group;
  constexpr int kBlocks = Codec::kBlocks;
  constexpr size_t kBlockBytes = sizeof(Group) / kBlocks;
  F sum[kParts][kTokens];
  for (int p = 0; p < kParts; p++) {
    EDGESPEC_UNROLL
    for (int t = 0; t < kTokens; t++) sum[p][t] = Simd::zero();
  }
  const Group* group = reinterpret_cast<const Group*>(tile);
  const int64_t groups = inputs / (kBlocks * kBlock);
  size_t i = 0;  // block · kTokens: where the activations of a block begin
  for (int64_t g = 0; g < groups; g++, group++) {
    Scales<Codec::kHalves ? 2 * kBlocks : kBlocks> scales;
    Codec::scales(*group, scales);
#if !defined(__clang__)
#pragma GCC unroll 1
#endif
    for (int b = 0; b < kBlocks; b++, i += kTokens) {
      fetch_ahead<kBlockBytes>(reinterpret_cast<const uint8_t*>(group) + b * kBlockBytes);
      for (int p = 0; p < kParts; p++) {
        U w[kVectors];
        Codec::quants(*group, b, p, w);
        const int row = p * Simd::kLanes;
        F scale = Simd::load_floats(scales.scale[Codec::kHalves ? 2 * b : b] + row);
        F other = Codec::kHalves ? Simd::load_floats(scales.scale[2 * b + 1] + row) : scale;
        F minimum = Codec::kMinimum ? Simd::load_floats(scales.minimum[b] + row) : scale;
        auto add = [&](int t, I first, I second) {
          F& total = sum[p][t];
          if constexpr (Codec::kMinimum) total = Simd::fma(minimum, Simd::set1(x.weighted[i + t]), total);
          if constexpr (Codec::kHalves) {
            F activation = Simd::set1(x.scale[i + t]);
            total = Simd::fma(Simd::to_float(first), Simd::mul(scale, activation), total);
            total = Simd::fma(Simd::to_float(second), Simd::mul(other, activation), total);
          } else {
            total = Simd::fma(Simd::to_float(Simd::add(first, second)),
                              Simd::mul(scale, Simd::set1(x.scale[i + t])), total);
          }
        };
        int t = 0;
        if constexpr (Simd::kPairs && kTokens > 1) {
          const typename Simd::template Pairs<Codec::kBits, Codec::kHalves> pairs(w);
          EDGESPEC_UNROLL
          for (; t + 1 < kTokens; t += 2) {
            I first[2], second[2];
            pairs.dot(x.quants + (i + t) * kBlock, x.start + 2 * (i + t), first, second);
            add(t, first[0], second[0]);
            add(t + 1, first[1], second[1]);
          }
        }
        EDGESPEC_UNROLL
        for (; t < kTokens; t++) {
          I first, second;
          const int32_t* start = Codec::kOffset ? x.start + 2 * (i + t) : kZeros;
          Simd::template dot<Codec::kBits>(w, x.quants + (i + t) * kBlock, start, first, second);
          add(t, first, second);
        }
      }
    }
  }
  for (int t = 0; t < kTokens; t++)
    for (int p = 0; p < kParts; p++) Simd::store(y[t] + p * Simd::kLanes, sum[p][t]);
}

// Weights that are no integers take the activations as they are: x is [kTokens, inputs].
template <int kTokens>
void multiply_half_tile(const uint8_t* tile, int64_t inputs, const float* x, float (*y)[kRows]) {
  const half(*v)[kRows] = reinterpret_cast<const half(*)[kRows]>(tile);
  for (int p = 0; p < kParts; p++) {
    F sum[kTokens];
    EDGESPEC_UNROLL
    for (int t = 0; t < kTokens; t++) sum[t] = Simd::zero();
    for (int64_t k = 0; k < inputs; k++) {
      if (p == 0 && k % 2 == 0) fetch_ahead<kLine>(reinterpret_cast<const uint8_t*>(v[k]));
      F w = Simd::from_half(v[k] + p * Simd::kLanes);
      EDGESPEC_UNROLL
      for (int t = 0; t < kTokens; t++) sum[t] = Simd::fma(w, Simd::set1(x[t * inputs + k]), sum[t]);
    }
    for (int t = 0; t < kTokens; t++) Simd::store(y[t] + p * Simd::kLanes, sum[t]);
  }
}

// ---- All tiles

template <class Codec, int kTokens>
void tile_of(const uint8_t* tile, int64_t inputs, const Activations& x, float (*y)[kRows]) {
  if constexpr (std::is_void_v<Codec>) {
    multiply_half_tile<kTokens>(tile, inputs, x.floats, y);
  } else {
    multiply_tile<Codec, kTokens>(tile, inputs, x, y);
  }
}

using TileFunction = void (*)(const uint8_t*, int64_t, const Activations&, float (*)[kRows]);

template <class Codec, int... t>
TileFunction choose(int tokens, std::integer_sequence<int, t...>) {
  static constexpr TileFunction functions[] = {tile_of<Codec, t + 1>...};
  return functions[tokens - 1];
}

TileFunction tile_function(Type type, int tokens) {
  constexpr auto all = std::make_integer_sequence<int, Simd::kMaxTokens>();
  switch (type) {
    case Type::F16:
      return choose<void>(tokens, all);
    case Type::Q4_0:
      return choose<CodecQ4_0>(tokens, all);
    case Type::Q4_1:
      return choose<CodecQ4_1>(tokens, all);
    case Type::Q5_0:
      return choose<CodecQ5_0>(tokens, all);
    case Type::Q5_1:
      return choose<CodecQ5_1>(tokens, all);
    case Type::Q8_0:
      return choose<CodecQ8_0>(tokens, all);
    case Type::Q4_K:
      return choose<CodecQ4_K>(tokens, all);
    case Type::Q5_K:
      return choose<CodecQ5_K>(tokens, all);
    case Type::Q6_K:
      return choose<CodecQ6_K>(tokens, all);
    case Type::IQ4_NL:
      return choose<CodecIQ4_NL>(tokens, all);
  }
  return nullptr;
}

void multiply_tiles(const Matrix& matrix, int64_t first, int64_t last, const Activations* x, int parts,
                    const float* bias, float* y) {
  TileFunction functions[2] = {};  // parts differ by one token at most
  for (int i = 0; i < parts; i++)
    functions[x[0].tokens - x[i].tokens] = tile_function(matrix.type, x[i].tokens);
  alignas(64) float out[Simd::kMaxTokens][kRows];
  const size_t tile_bytes = matrix.tile_bytes();
  for (int64_t tile = first; tile < last; tile++) {
    const int64_t row = tile * kRows, rows = smaller<int64_t>(kRows, matrix.outputs - row);
    float* to = y + row;
    for (int i = 0; i < parts; i++) {
      functions[x[0].tokens - x[i].tokens](matrix.data + tile * tile_bytes, matrix.inputs, x[i], out);
      for (int t = 0; t < x[i].tokens; t++, to += matrix.outputs) {
        for (int64_t r = 0; r < rows; r++) to[r] = bias ? out[t][r] + bias[row + r] : out[t][r];
      }
    }
  }
}

// ---- Activations

// A block of 32 is rounded to the nearest multiples of its largest magnitude / 127, ties to even.
// What is not finite stays so: through the scale.
void quantize(const float* x, int64_t inputs, int offset, const Activations& out) {
  constexpr float kTiny = 1e-30f;  // less than that is nothing, and its inverse would overflow
  for (int t = 0; t < out.tokens; t++) {
    for (int64_t b = 0; b < inputs / kBlock; b++, x += kBlock) {
      const size_t i = b * out.tokens + t;
      const float largest = Simd::largest_magnitude(x), scale = largest / 127.0f;
      int8_t quants[kBlock];
      int32_t sums[2] = {0, 0};
      if (largest <= FLT_MAX) {
        Simd::round(x, largest > kTiny ? 127.0f / largest : 0.0f, quants, sums);
      } else {
        std::memset(quants, 0, kBlock);
      }
      if (Simd::kPairs && (t | 1) < out.tokens) {  // eight of one token, eight of the next, and so on
        int8_t* to = out.quants + (i - t % 2) * kBlock + t % 2 * 8;
        for (int k = 0; k < kBlock; k += 8, to += 16) std::memcpy(to, quants + k, 8);
      } else {
        std::memcpy(out.quants + i * kBlock, quants, kBlock);
      }
      out.scale[i] = scale;
      out.weighted[i] = scale * static_cast<float>(sums[0] + sums[1]);
      out.start[2 * i] = -offset * sums[0];
      out.start[2 * i + 1] = -offset * sums[1];
    }
  }
}

}  // namespace EDGESPEC_ISA
}  // namespace edgespec
