// What the op asks of a processor's kernels, and which kernels there are.

#pragma once
#include <cstddef>
#include <cstdint>

#include "tile_formats.h"

namespace edgespec {

inline size_t line_aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }  // to whole cache lines

// A packed matrix, see tile_formats.h.
struct Matrix {
  Type type;
  int64_t outputs, inputs;
  const uint8_t* data;

  int64_t tiles() const { return (outputs + kRows - 1) / kRows; }
  size_t tile_bytes() const;  // 0 if the type is unknown or cannot have that many inputs
};

// Some tokens' activations. Per block b and token t, at index i = b · tokens + t: 32 quants (those of two
// tokens interleaved where the kernel takes them in pairs), their scale, scale · sum of the quants, and
// −offset · sums of the first and the second 16.
struct Activations {
  int tokens;
  int8_t* quants;
  float* scale;
  float* weighted;
  int32_t* start;
  const float* floats;  // the activations themselves, [tokens, inputs]
};

// A range of positions.
struct Span {
  int64_t begin, end;
};

// Some tokens' attention in one layer. The cache holds keys as [kv_heads][capacity / 16][size][16]
// (position p is element p % 16 of tile p / 16) and values as [kv_heads][capacity][size].
struct Attention {
  static constexpr int64_t kSpan = 512;  // positions that are summed up together

  int64_t heads, kv_heads, size;  // size: channels of a head, a multiple of 16
  int64_t capacity, total;        // positions: room, and those in the cache, the new ones included
  int64_t tokens;
  bool halves;  // the cache is float16, not float32
  const void* keys;
  const void* values;
  const float* queries;  // [kv_heads][tokens · group][size], turned and scaled
  const Span* visible;   // of each token
  const float* bias;     // [tokens][bias_stride], added to the scores; or nullptr
  int64_t bias_stride;
  float* partial;  // [kv_heads][spans][tokens · group][2 + size]: maximum, sum, weighted values

  [[gnu::always_inline]] int64_t group() const { return heads / kv_heads; }
  [[gnu::always_inline]] int64_t spans() const { return (total + kSpan - 1) / kSpan; }
};

// The code for one instruction set.
struct Kernels {
  const char* name;
  int max_tokens;  // of one Activations
  void (*quantize)(const float* x, int64_t inputs, int offset, const Activations& out);
  // y[token][row] (+ bias[row]) for tiles first … last − 1. x: `parts` of falling size, by one at most.
  void (*multiply_tiles)(const Matrix& matrix, int64_t first, int64_t last, const Activations* x, int parts,
                         const float* bias, float* y);
  void (*attend)(const Attention& attention, int64_t head, int64_t span);
  void (*join)(const Attention& attention, int64_t head, int64_t token, float* y);
};

// The best for this processor; EDGESPEC_ISA may name another. nullptr if that cannot run here.
const Kernels* kernels();
const Kernels* kernels(const char* name);
const char* wrong_choice();  // what is wrong with EDGESPEC_ISA if there are none

// What is subtracted from a type's quants.
int offset_of(Type type);

// Levels of IQ4_NL, plus 128.
extern const uint8_t kLevels[16];

// Row `row` as floats, dequantized as ggml does.
void dequantize_row(const Matrix& matrix, int64_t row, float* out);

}  // namespace edgespec
