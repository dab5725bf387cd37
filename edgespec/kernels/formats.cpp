// Facts about the packed types, and rows of them as floats.

#include "half.h"
#include "kernels.h"

namespace edgespec {

const uint8_t kLevels[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

namespace {

struct Size {
  int inputs;
  size_t bytes;
};  // of a group

Size group_size(Type type) {
  switch (type) {
    case Type::F16:
      return {kBlock, sizeof(GroupF16)};
    case Type::Q4_0:
      return {kBlock, sizeof(GroupQ4_0)};
    case Type::Q4_1:
      return {kBlock, sizeof(GroupQ4_1)};
    case Type::Q5_0:
      return {kBlock, sizeof(GroupQ5_0)};
    case Type::Q5_1:
      return {kBlock, sizeof(GroupQ5_1)};
    case Type::Q8_0:
      return {kBlock, sizeof(GroupQ8_0)};
    case Type::Q4_K:
      return {kSuper, sizeof(GroupQ4_K)};
    case Type::Q5_K:
      return {kSuper, sizeof(GroupQ5_K)};
    case Type::Q6_K:
      return {kSuper, sizeof(GroupQ6_K)};
    case Type::IQ4_NL:
      return {kBlock, sizeof(GroupIQ4_NL)};
  }
  return {0, 0};
}

// Where the quants of row r lie: input k of a block is byte `at` of vector k / 4.
int at(int r, int k) { return 4 * r + k % 4; }

int low_bits(const LowBits& low, int r, int k) {
  const int vector = k / 4, byte = low.line[vector / 2][at(r, k)];
  return vector % 2 ? byte >> 4 : byte & 15;
}

int fifth_bit(const FifthBit& fifth, int r, int k) { return (fifth.line[at(r, k)] >> k / 4 & 1) << 4; }

int high_bits(const HighBits& high, int r, int k) {
  return (high.line[k / 16][at(r, k)] >> 2 * (k / 4 % 4) & 3) << 4;
}

template <class G>
int six_bits(const G& g, bool minimum, int r, int b) {
  const auto byte = [&](int word, int i) { return static_cast<int>(g.packed[word][r] >> 8 * i & 255); };
  if (b < 4) return byte(minimum, b) & 63;
  const int low = minimum ? byte(2, b - 4) >> 4 : byte(2, b - 4) & 15;
  return low | byte(minimum, b - 4) >> 6 << 4;
}

float without_minimum(half d, int quant) { return half_to_float(d) * static_cast<float>(quant); }

template <class G, class Quant>
float with_minimum(const G& g, int r, Quant quant) {
  return half_to_float(g.d[r]) * static_cast<float>(quant) + half_to_float(g.m[r]);
}

template <class G>
float of_super(const G& g, int r, int b, int quant) {
  const float scale = half_to_float(g.d[r]) * static_cast<float>(six_bits(g, false, r, b));
  const float minimum = half_to_float(g.dmin[r]) * static_cast<float>(six_bits(g, true, r, b));
  return scale * static_cast<float>(quant) - minimum;
}

// The weight of row r and input k of a group.
float weight(Type type, const uint8_t* group, int r, int k) {
  const int b = k / kBlock;
  k %= kBlock;
  switch (type) {
    case Type::F16:
      return half_to_float(reinterpret_cast<const GroupF16*>(group)->v[k][r]);
    case Type::Q4_0: {
      const auto& g = *reinterpret_cast<const GroupQ4_0*>(group);
      return without_minimum(g.d[r], low_bits(g.low, r, k) - 8);
    }
    case Type::Q4_1: {
      const auto& g = *reinterpret_cast<const GroupQ4_1*>(group);
      return with_minimum(g, r, low_bits(g.low, r, k));
    }
    case Type::Q5_0: {
      const auto& g = *reinterpret_cast<const GroupQ5_0*>(group);
      return without_minimum(g.d[r], (low_bits(g.low, r, k) | fifth_bit(g.fifth, r, k)) - 16);
    }
    case Type::Q5_1: {
      const auto& g = *reinterpret_cast<const GroupQ5_1*>(group);
      return with_minimum(g, r, low_bits(g.low, r, k) | fifth_bit(g.fifth, r, k));
    }
    case Type::Q8_0: {
      const auto& g = *reinterpret_cast<const GroupQ8_0*>(group);
      return without_minimum(g.d[r], g.v[k / 4][at(r, k)] - 128);
    }
    case Type::Q4_K: {
      const auto& g = *reinterpret_cast<const GroupQ4_K*>(group);
      return of_super(g, r, b, low_bits(g.low[b], r, k));
    }
    case Type::Q5_K: {
      const auto& g = *reinterpret_cast<const GroupQ5_K*>(group);
      return of_super(g, r, b, low_bits(g.low[b], r, k) | fifth_bit(g.fifth[b], r, k));
    }
    case Type::Q6_K: {
      const auto& g = *reinterpret_cast<const GroupQ6_K*>(group);
      const float scale = half_to_float(g.d[r]) * static_cast<float>(g.scale[2 * b + k / 16][r]);
      return scale * static_cast<float>((low_bits(g.low[b], r, k) | high_bits(g.high[b], r, k)) - 32);
    }
    case Type::IQ4_NL: {
      const auto& g = *reinterpret_cast<const GroupIQ4_NL*>(group);
      return without_minimum(g.d[r], kLevels[low_bits(g.low, r, k)] - 128);
    }
  }
  return 0;
}

}  // namespace

size_t Matrix::tile_bytes() const {
  const Size group = group_size(type);
  return group.inputs && inputs > 0 && inputs % group.inputs == 0 ? inputs / group.inputs * group.bytes : 0;
}

int offset_of(Type type) {
  switch (type) {
    case Type::Q4_0:
      return 8;
    case Type::Q5_0:
      return 16;
    case Type::Q6_K:
      return 32;
    case Type::Q8_0:
    case Type::IQ4_NL:
      return 128;
    default:
      return 0;
  }
}

void dequantize_row(const Matrix& matrix, int64_t row, float* out) {
  const Size group = group_size(matrix.type);
  const uint8_t* data = matrix.data + row / kRows * matrix.tile_bytes();
  for (int64_t k = 0; k < matrix.inputs; k++)
    out[k] = weight(matrix.type, data + k / group.inputs * group.bytes, static_cast<int>(row % kRows),
                    static_cast<int>(k % group.inputs));
}

}  // namespace edgespec
