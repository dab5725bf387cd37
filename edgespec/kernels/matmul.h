// A packed matrix times any number of tokens: divided into what the kernels take, and among threads.

#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels.h"

namespace edgespec {

constexpr int64_t kChunk = 64;  // tokens whose activations fit into a core's cache
constexpr size_t kTaskBytes =
    128 << 10;  // of weights: enough to be worth handing out, little enough to share evenly
constexpr size_t kPartSlack = 4 * 64;  // bytes lost to the alignment of a part's activations

// A pass of at most kChunk tokens.
struct MatmulJob {
  const Kernels* kernels;
  Matrix matrix;
  const float* bias;
  float* y;
  int parts;
  Activations x[kChunk];
  int64_t tiles_per_task;

  // Divides tokens among parts of falling size, by one at most, and places their activations.
  void place(const float* floats, int tokens, uint8_t* scratch) {
    const size_t blocks = matrix.inputs / kBlock;
    parts = (tokens + kernels->max_tokens - 1) / kernels->max_tokens;
    for (int i = 0; i < parts; i++) {
      Activations& a = x[i];
      a.tokens = (tokens + parts - 1 - i) / parts;
      a.floats = floats;
      floats += a.tokens * matrix.inputs;
      const size_t n = blocks * a.tokens;
      a.quants = reinterpret_cast<int8_t*>(scratch);
      scratch += line_aligned(n * kBlock);
      a.scale = reinterpret_cast<float*>(scratch);
      scratch += line_aligned(n * sizeof(float));
      a.weighted = reinterpret_cast<float*>(scratch);
      scratch += line_aligned(n * sizeof(float));
      a.start = reinterpret_cast<int32_t*>(scratch);
      scratch += line_aligned(2 * n * sizeof(int32_t));
    }
  }

  static void quantize(void* job, size_t part) {
    const MatmulJob& j = *static_cast<const MatmulJob*>(job);
    j.kernels->quantize(j.x[part].floats, j.matrix.inputs, offset_of(j.matrix.type), j.x[part]);
  }

  static void multiply(void* job, size_t task) {
    const MatmulJob& j = *static_cast<const MatmulJob*>(job);
    const int64_t first = static_cast<int64_t>(task) * j.tiles_per_task;
    const int64_t last = std::min(first + j.tiles_per_task, j.matrix.tiles());
    j.kernels->multiply_tiles(j.matrix, first, last, j.x, j.parts, j.bias, j.y);
  }
};

// Bytes that `multiply` needs.
inline size_t multiply_scratch(const Matrix& matrix, int64_t tokens) {
  const size_t n = std::min(tokens, kChunk), blocks = matrix.inputs / kBlock;
  return kPartSlack + n * (blocks * (kBlock + 2 * sizeof(float) + 2 * sizeof(int32_t)) + kPartSlack);
}

// y = x · Wᵀ (+ bias): x float32 [tokens, inputs], y [tokens, outputs]. `for_each(task, n, job)` runs
// task(job, i) for i = 0 … n − 1; scratch is aligned to a cache line.
template <class ForEach>
void multiply(const Kernels& kernels, const Matrix& matrix, const float* bias, const float* x, int64_t tokens,
              float* y, uint8_t* scratch, ForEach for_each) {
  MatmulJob job{};
  job.kernels = &kernels;
  job.matrix = matrix;
  job.bias = bias;
  job.tiles_per_task = std::max<int64_t>(1, kTaskBytes / matrix.tile_bytes());
  const size_t tasks = (matrix.tiles() + job.tiles_per_task - 1) / job.tiles_per_task;
  for (int64_t first = 0; first < tokens; first += kChunk) {
    job.place(x + first * matrix.inputs, static_cast<int>(std::min(kChunk, tokens - first)), scratch);
    job.y = y + first * matrix.outputs;
    if (matrix.type == Type::F16) {  // takes the activations as they are
    } else if (job.parts == 1) {
      MatmulJob::quantize(&job, 0);
    } else {
      for_each(MatmulJob::quantize, job.parts, &job);
    }
    for_each(MatmulJob::multiply, tasks, &job);
  }
}

}  // namespace edgespec
