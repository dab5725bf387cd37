// How quantized weights lie in memory: GGUF's own bits, regrouped so that a vector register holds the
// same inputs of several rows.
//
// A matrix [N outputs, K inputs] is ceil(N / 16) tiles of 16 rows. A tile is its groups in order of
// inputs; a group is one of the structs below: 32 inputs for the simple types, 256 (eight blocks of 32)
// for the K-quants. Rows beyond N are zero bytes. The layout does not depend on the processor.
//
// Quants. A block of 16 rows x 32 inputs is eight vectors of 64 bytes, v[0..7]: byte 4·r + c of v[j] is
// row r, input 4·j + c. Quants are unsigned: those that ggml stores without an offset (Q8_0) have 128
// added (the sign bit flipped); IQ4_NL holds indices of its table of levels.
//   low   256 bytes: byte p of 64-byte line i has the low 4 bits of v[2i][p] below, of v[2i + 1][p] above
//   fifth  64 bytes: bit j of byte p is bit 4 of v[j][p]
//   high  128 bytes: bits 2j, 2j + 1 of byte p of line h are bits 4 and 5 of v[4h + j][p]
// Scales are ggml's, one per row, in row order.

#pragma once
#include <cstddef>
#include <cstdint>

namespace edgespec {

constexpr int kRows = 16;    // of a tile
constexpr int kBlock = 32;   // inputs with an activation scale of their own
constexpr int kSuper = 256;  // inputs of a K-quant group

using half = uint16_t;  // IEEE binary16 bits

// ggml's numbers of its types: the op's attribute `type`.
enum class Type : int64_t {
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  IQ4_NL = 20
};

struct LowBits {
  uint8_t line[4][64];
};
struct FifthBit {
  uint8_t line[64];
};
struct HighBits {
  uint8_t line[2][64];
};

// weight = d · (quant − 8), d · (quant − 16), d · (quant − 128), d · level[quant]
struct GroupQ4_0 {
  LowBits low;
  half d[kRows];
};
struct GroupQ5_0 {
  LowBits low;
  FifthBit fifth;
  half d[kRows];
};
struct GroupQ8_0 {
  uint8_t v[8][64];
  half d[kRows];
};
using GroupIQ4_NL = GroupQ4_0;

// weight = d · quant + m
struct GroupQ4_1 {
  LowBits low;
  half d[kRows], m[kRows];
};
struct GroupQ5_1 {
  LowBits low;
  FifthBit fifth;
  half d[kRows], m[kRows];
};

// weight = d · scale[b] · quant − dmin · min[b] for block b of the group. The 6-bit scales and minimums
// are ggml's 12 bytes of each row as three little-endian words: word w of row r is packed[w][r].
struct GroupQ4_K {
  LowBits low[8];
  uint32_t packed[3][kRows];
  half d[kRows], dmin[kRows];
};
struct GroupQ5_K {
  LowBits low[8];
  FifthBit fifth[8];
  uint32_t packed[3][kRows];
  half d[kRows], dmin[kRows];
};

// weight = d · scale[s] · (quant − 32) for the 16 inputs s of the group: scale[s][r] of row r.
struct GroupQ6_K {
  LowBits low[8];
  HighBits high[8];
  int8_t scale[16][kRows];
  half d[kRows];
};

// Not quantized: weight of row r, input k is v[k][r].
struct GroupF16 {
  half v[kBlock][kRows];
};

static_assert(sizeof(GroupQ4_0) == 288 && sizeof(GroupQ5_0) == 352 && sizeof(GroupQ8_0) == 544);
static_assert(sizeof(GroupQ4_1) == 320 && sizeof(GroupQ5_1) == 384);
static_assert(sizeof(GroupQ4_K) == 2304 && sizeof(GroupQ5_K) == 2816 && sizeof(GroupQ6_K) == 3360);
static_assert(sizeof(GroupF16) == 1024);

}  // namespace edgespec
