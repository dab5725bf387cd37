// One call of the attention operator: what its inputs say, and how its work is divided.
//
// Tokens of several sequences are answered together, so that one round of tasks is enough for all of a small
// pass. Their attention stays apart: a `Part` has tokens of one sequence.

#pragma once
#include <algorithm>

#include "half.h"
#include "ort_kernel.h"

namespace edgespec {

constexpr int64_t kTokens = 64;             // whose queries are answered together, at most
constexpr int64_t kPartialBytes = 4 << 20;  // of sums, about; long contexts take fewer tokens at a time
constexpr int64_t kLargestHead = 1024;

enum Input {
  kQuery,
  kKey,
  kValue,
  kKeyCache,
  kValueCache,
  kSegments,
  kCos,
  kSin,
  kPositions,
  kBias,
  kInputs
};

struct AttentionKernel {
  const Api* api;
  int64_t heads, kv_heads, interleaved, window;
  float scale;
  bool halves;
};

// The new tokens of a sequence, as the input has them.
struct Segment {
  int32_t first;   // row
  int32_t length;  // tokens in the cache before them
  int32_t place;   // of the first of those
};

// Tokens of one sequence among those that are answered together.
struct Part {
  int64_t first;                        // row
  int64_t tokens_before, tasks_before;  // of other parts
  Attention attention;
};

struct Call {
  const AttentionKernel& kernel;
  Tensor in[kInputs] = {};
  int64_t tokens = 0, size = 0, capacity = 0;
  const Segment* segments = nullptr;
  int64_t segment_count = 0;
  void* keys = nullptr;
  void* values = nullptr;
  float* y = nullptr;
  // Of the tokens that are answered together:
  Part parts[kTokens] = {};
  int64_t part_count = 0;
  float* queries = nullptr;
  Span* visible = nullptr;

  const float* row(Input which, int64_t t) const {
    return static_cast<const float*>(in[which].data) + t * in[which].shape[2];
  }
  const Segment& segment_of(int64_t t) const {
    return std::upper_bound(segments, segments + segment_count, t,
                            [](int64_t row, const Segment& s) { return row < s.first; })[-1];
  }
  int64_t end(const Segment& s) const { return &s == segments + segment_count - 1 ? tokens : (&s)[1].first; }
  static int64_t index(const Segment& s, int64_t t) { return s.length + t - s.first; }  // in its sequence
  int64_t position(const Segment& s, int64_t t) const {
    return in[kPositions].data ? static_cast<const int64_t*>(in[kPositions].data)[t] : index(s, t);
  }

  void turn(const float* from, int64_t position, float scale, float* to) const {
    const int64_t half_size = size / 2, step = kernel.interleaved ? 2 : 1,
                  apart = kernel.interleaved ? 1 : half_size;
    const float* cos = static_cast<const float*>(in[kCos].data) + position * half_size;
    const float* sin = static_cast<const float*>(in[kSin].data) + position * half_size;
    for (int64_t i = 0; i < half_size; i++) {
      const float a = from[i * step], b = from[i * step + apart];
      to[i * step] = (a * cos[i] - b * sin[i]) * scale;
      to[i * step + apart] = (b * cos[i] + a * sin[i]) * scale;
    }
  }

  template <class T>
  static T cached(float x) {
    if constexpr (sizeof(T) == sizeof(float))
      return x;
    else
      return float_to_half(x);
  }

  // Keys and values of token t go into the cache.
  template <class T>
  void remember(int64_t t) const {
    const Segment& s = segment_of(t);
    const int64_t at = s.place + index(s, t);
    const bool packed = !in[kKey].data;
    const float* key = packed ? row(kQuery, t) + kernel.heads * size : row(kKey, t);
    const float* value = packed ? key + kernel.kv_heads * size : row(kValue, t);
    float turned[kLargestHead];
    for (int64_t h = 0; h < kernel.kv_heads; h++, key += size, value += size) {
      turn(key, position(s, t), 1.0f, turned);
      T* k = static_cast<T*>(keys) + (h * capacity + at / kRows * kRows) * size + at % kRows;
      T* v = static_cast<T*>(values) + (h * capacity + at) * size;
      for (int64_t d = 0; d < size; d++) {
        k[d * kRows] = cached<T>(turned[d]);
        v[d] = cached<T>(value[d]);
      }
    }
  }

  static void remember_token(void* call, size_t t) {
    const Call& c = *static_cast<const Call*>(call);
    c.kernel.halves ? c.remember<half>(t) : c.remember<float>(t);
  }

  // Makes parts of the tokens from row `first` on, as many as are answered together; the row behind them.
  int64_t divide(int64_t first) {
    const int64_t begin = first,
                  state_bytes = kernel.heads * (size + 2) * static_cast<int64_t>(sizeof(float)),
                  place_bytes = size * static_cast<int64_t>(kernel.halves ? sizeof(half) : sizeof(float));
    int64_t bytes_left = kPartialBytes, tasks = 0;
    part_count = 0;
    while (first < tokens && first - begin < kTokens) {
      const Segment& s = segment_of(first);
      const int64_t total = index(s, end(s));
      Attention a{};
      a.heads = kernel.heads;
      a.kv_heads = kernel.kv_heads;
      a.size = size;
      a.capacity = capacity;
      a.halves = kernel.halves;
      a.keys = static_cast<const char*>(keys) + s.place * place_bytes;
      a.values = static_cast<const char*>(values) + s.place * place_bytes;
      a.bias = in[kBias].data ? static_cast<const float*>(in[kBias].data) + first * total : nullptr;
      a.bias_stride = total;
      a.total = total;
      const int64_t token_bytes = a.spans() * state_bytes;
      if (part_count && token_bytes > bytes_left) break;
      a.tokens =
          std::min({std::max<int64_t>(bytes_left / token_bytes, 1), begin + kTokens - first, end(s) - first});
      a.total = index(s, first + a.tokens);  // what none of them sees is not visited
      parts[part_count++] = {first, first - begin, tasks, a};
      first += a.tokens;
      tasks += a.kv_heads * a.spans();
      bytes_left -= a.tokens * token_bytes;
    }
    return first;
  }

  // Gives all parts their memory; whether there is enough.
  bool place(Scratch& scratch) {
    int64_t together = 0, states = 0;
    for (int64_t i = 0; i < part_count; i++) {
      together += parts[i].attention.tokens;
      states += parts[i].attention.tokens * parts[i].attention.spans() * kernel.heads;
    }
    const size_t query_bytes = line_aligned(together * kernel.heads * size * sizeof(float));
    const size_t visible_bytes = line_aligned(together * sizeof(Span));
    uint8_t* memory = scratch.reserve(query_bytes + visible_bytes + states * (size + 2) * sizeof(float));
    if (!memory) return false;
    queries = reinterpret_cast<float*>(memory);
    visible = reinterpret_cast<Span*>(memory + query_bytes);
    float* partial = reinterpret_cast<float*>(memory + query_bytes + visible_bytes);
    for (int64_t i = 0; i < part_count; i++) {
      Attention& a = parts[i].attention;
      a.queries = queries + parts[i].tokens_before * kernel.heads * size;
      a.visible = visible + parts[i].tokens_before;
      a.partial = partial;
      partial += a.tokens * a.spans() * kernel.heads * (size + 2);
    }
    return true;
  }

  // The part that the i-th token, or task, of all of them belongs to.
  template <int64_t Part::* before>
  const Part& part_with(int64_t i) const {
    return std::upper_bound(parts, parts + part_count, i,
                            [](int64_t at, const Part& part) { return at < part.*before; })[-1];
  }

  static void prepare_query(void* call, size_t index_) {
    const Call& c = *static_cast<const Call*>(call);
    const int64_t i = static_cast<int64_t>(index_);
    const Part& part = c.part_with<&Part::tokens_before>(i);
    const int64_t token = i - part.tokens_before, t = part.first + token, group = part.attention.group();
    const Segment& s = c.segment_of(t);
    const int64_t position = c.position(s, t);
    c.visible[i] = {c.kernel.window ? std::max<int64_t>(0, position + 1 - c.kernel.window) : 0,
                    index(s, t) + 1};
    float* queries = c.queries + part.tokens_before * c.kernel.heads * c.size;
    for (int64_t h = 0; h < c.kernel.heads; h++) {
      const int64_t row = (h / group * part.attention.tokens + token) * group + h % group;
      c.turn(c.row(kQuery, t) + h * c.size, position, c.kernel.scale, queries + row * c.size);
    }
  }

  static void attend(void* call, size_t task) {
    const Part& part =
        static_cast<const Call*>(call)->part_with<&Part::tasks_before>(static_cast<int64_t>(task));
    const Attention& a = part.attention;
    const int64_t i = static_cast<int64_t>(task) - part.tasks_before;
    kernels()->attend(a, i / a.spans(), i % a.spans());
  }

  static void join(void* call, size_t task) {
    const Call& c = *static_cast<const Call*>(call);
    const int64_t i = static_cast<int64_t>(task) / c.kernel.kv_heads,
                  head = static_cast<int64_t>(task) % c.kernel.kv_heads;
    const Part& part = c.part_with<&Part::tokens_before>(i);
    const int64_t token = i - part.tokens_before;
    float* to = c.y + ((part.first + token) * c.kernel.heads + head * part.attention.group()) * c.size;
    kernels()->join(part.attention, head, token, to);
  }

  int64_t tasks() const {  // of `attend`, of all parts
    const Part& last = parts[part_count - 1];
    return last.tasks_before + last.attention.kv_heads * last.attention.spans();
  }
};

}  // namespace edgespec
