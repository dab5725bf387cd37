// The operators `edgespec.Attention` and `edgespec.HalfAttention` (a cache of float32, of float16):
// rotary grouped-query attention on a cache that is written in place.
//
// Inputs: query float32 [1, n, heads · D], key and value [1, n, kv_heads · D] (left out where the query
// holds all three behind each other); key cache [1, kv_heads, capacity / 16, D, 16] and value cache
// [1, kv_heads, capacity, D]; last int32 [1], the number of tokens in the cache, the new ones included,
// − 1; cos and sin float32 [positions, D / 2]; for trees position_ids int64 [1, n] and bias float32
// [1, 1, n, total], added to the scores. A token sees no place of the cache behind its own.
// Outputs: float32 [1, n, heads · D]; both caches, to be bound to the memory of the inputs.
// Attributes: heads, kv_heads, scale, interleaved (channels are turned in neighbouring pairs, not in
// halves), window (a token sees that many newest positions, its own included; 0: all).

#include <algorithm>
#include <cstring>
#include <new>

#include "half.h"
#include "ort_kernel.h"

namespace edgespec {
namespace {

constexpr int64_t kTokens = 64;             // whose queries are answered together
constexpr int64_t kPartialBytes = 4 << 20;  // of sums, about; long contexts take fewer tokens at a time

enum Input { kQuery, kKey, kValue, kKeyCache, kValueCache, kLast, kCos, kSin, kPositions, kBias, kInputs };

struct Kernel {
  const Api* api;
  int64_t heads, kv_heads, interleaved, window;
  float scale;
  bool halves;
};

// One call of the operator.
struct Call {
  const Kernel& kernel;
  Tensor in[kInputs] = {};
  int64_t tokens = 0, size = 0, length = 0, total = 0, capacity = 0;
  void* keys = nullptr;
  void* values = nullptr;
  float* y = nullptr;
  Attention attention{};
  int64_t first = 0;  // token that attention begins with
  float* queries = nullptr;
  Span* visible = nullptr;

  const float* row(Input which, int64_t t) const {
    return static_cast<const float*>(in[which].data) + t * in[which].shape[2];
  }
  int64_t position(int64_t t) const {
    return in[kPositions].data ? static_cast<const int64_t*>(in[kPositions].data)[t] : length + t;
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
    const int64_t at = length + t;
    const bool packed = !in[kKey].data;
    const float* key = packed ? row(kQuery, t) + kernel.heads * size : row(kKey, t);
    const float* value = packed ? key + kernel.kv_heads * size : row(kValue, t);
    float turned[kLargestHead];
    for (int64_t h = 0; h < kernel.kv_heads; h++, key += size, value += size) {
      turn(key, position(t), 1.0f, turned);
      T* k = static_cast<T*>(keys) + (h * capacity + at / kRows * kRows) * size + at % kRows;
      T* v = static_cast<T*>(values) + (h * capacity + at) * size;
      for (int64_t d = 0; d < size; d++) {
        k[d * kRows] = cached<T>(turned[d]);
        v[d] = cached<T>(value[d]);
      }
    }
  }

  static constexpr int64_t kLargestHead = 1024;

  static void remember_token(void* call, size_t t) {
    const Call& c = *static_cast<const Call*>(call);
    c.kernel.halves ? c.remember<half>(t) : c.remember<float>(t);
  }

  static void prepare_query(void* call, size_t i) {
    const Call& c = *static_cast<const Call*>(call);
    const int64_t t = c.first + static_cast<int64_t>(i), group = c.attention.group();
    const int64_t position = c.position(t);
    c.visible[i] = {c.kernel.window ? std::max<int64_t>(0, position + 1 - c.kernel.window) : 0,
                    c.length + t + 1};
    for (int64_t h = 0; h < c.kernel.heads; h++) {
      const int64_t row = (h / group * c.attention.tokens + static_cast<int64_t>(i)) * group + h % group;
      float* to = c.queries + row * c.size;
      c.turn(c.row(kQuery, t) + h * c.size, position, c.kernel.scale, to);
    }
  }

  static void attend(void* call, size_t task) {
    const Attention& a = static_cast<const Call*>(call)->attention;
    kernels()->attend(a, static_cast<int64_t>(task) / a.spans(), static_cast<int64_t>(task) % a.spans());
  }

  static void join(void* call, size_t task) {
    const Call& c = *static_cast<const Call*>(call);
    const int64_t i = static_cast<int64_t>(task) / c.kernel.kv_heads,
                  head = static_cast<int64_t>(task) % c.kernel.kv_heads;
    float* to = c.y + ((c.first + i) * c.kernel.heads + head * c.attention.group()) * c.size;
    kernels()->join(c.attention, head, i, to);
  }
};

// Reads the inputs and checks that they fit each other; a message if they do not.
const char* check(Call& c) {
  const Kernel& k = c.kernel;
  for (Input required : {kQuery, kKeyCache, kValueCache, kLast, kCos, kSin})
    if (!c.in[required].data) return "edgespec.Attention: an input is missing";
  const Tensor &query = c.in[kQuery], &keys = c.in[kKeyCache], &values = c.in[kValueCache];
  if (keys.rank != 5 || values.rank != 4 || keys.shape[0] != 1 || values.shape[0] != 1 ||
      keys.shape[4] != kRows)
    return "edgespec.Attention: caches of a wrong shape";
  c.size = values.shape[3];
  c.capacity = values.shape[2];
  if (keys.shape[1] != k.kv_heads || values.shape[1] != k.kv_heads || keys.shape[2] * kRows != c.capacity ||
      keys.shape[3] != c.size || c.size < 1 || c.size % kRows || c.size > Call::kLargestHead)
    return "edgespec.Attention: caches of a wrong shape";
  const bool packed = !c.in[kKey].data;
  const int64_t width = (packed ? k.heads + 2 * k.kv_heads : k.heads) * c.size;
  if (query.rank != 3 || query.shape[0] != 1 || query.shape[2] != width)
    return "edgespec.Attention: queries of a wrong shape";
  c.tokens = query.shape[1];
  for (Input which : {kKey, kValue}) {
    const Tensor& x = c.in[which];
    if (!packed && (!x.data || x.rank != 3 || x.shape[0] != 1 || x.shape[1] != c.tokens ||
                    x.shape[2] != k.kv_heads * c.size))
      return "edgespec.Attention: keys or values of a wrong shape";
  }
  if (c.in[kLast].elements() != 1) return "edgespec.Attention: one sequence at a time";
  c.total = static_cast<int64_t>(*static_cast<const int32_t*>(c.in[kLast].data)) + 1;
  c.length = c.total - c.tokens;
  if (c.length < 0 || c.total > c.capacity) return "edgespec.Attention: the cache is too small";
  const Tensor &cos = c.in[kCos], &sin = c.in[kSin];
  if (cos.rank != 2 || cos.shape[1] != c.size / 2 || sin.elements() != cos.elements())
    return "edgespec.Attention: rotary tables of a wrong shape";
  if (c.in[kPositions].data && c.in[kPositions].elements() != c.tokens)
    return "edgespec.Attention: not a position for each token";
  for (int64_t t = 0; t < c.tokens; t++)
    if (c.position(t) < 0 || c.position(t) >= cos.shape[0])
      return "edgespec.Attention: a position beyond the rotary tables";
  if (c.in[kBias].data && c.in[kBias].elements() != c.tokens * c.total)
    return "edgespec.Attention: a bias of a wrong shape";
  return nullptr;
}

// The caches are the memory of the inputs; a runtime that gives other memory has it filled.
Status* bind_cache(const Call& c, ort::KernelContext* context, size_t index, Input from, void** data) {
  const Tensor& cache = c.in[from];
  RETURN_IF_FAILED(output(c.kernel.api, context, index, cache, data));
  if (*data != cache.data) std::memcpy(*data, cache.data, cache.elements() * (c.kernel.halves ? 2 : 4));
  return nullptr;
}

Status* compute(void* self, ort::KernelContext* context) {
  const Kernel& kernel = *static_cast<const Kernel*>(self);
  const Api* api = kernel.api;
  Call c{kernel};
  for (size_t i = 0; i < kInputs; i++) RETURN_IF_FAILED(input(api, context, i, &c.in[i]));
  if (const char* wrong = check(c)) return invalid(api, wrong);
  Tensor shape = c.in[kQuery];
  shape.shape[2] = kernel.heads * c.size;
  void* y = nullptr;
  RETURN_IF_FAILED(output(api, context, 0, shape, &y));
  c.y = static_cast<float*>(y);
  RETURN_IF_FAILED(bind_cache(c, context, 1, kKeyCache, &c.keys));
  RETURN_IF_FAILED(bind_cache(c, context, 2, kValueCache, &c.values));
  RETURN_IF_FAILED(for_each(api, context, Call::remember_token, c.tokens, &c));

  Attention& a = c.attention;
  a.heads = kernel.heads;
  a.kv_heads = kernel.kv_heads;
  a.size = c.size;
  a.capacity = c.capacity;
  a.halves = kernel.halves;
  a.keys = c.keys;
  a.values = c.values;
  a.total = c.total;
  const int64_t per_token = a.spans() * kernel.heads * (c.size + 2) * static_cast<int64_t>(sizeof(float));
  const int64_t together = std::clamp<int64_t>(kPartialBytes / per_token, 1, kTokens);
  thread_local Scratch scratch;
  for (c.first = 0; c.first < c.tokens; c.first += together) {
    a.tokens = std::min(together, c.tokens - c.first);
    a.total = c.length + c.first + a.tokens;  // what none of them sees is not visited
    a.bias = c.in[kBias].data ? static_cast<const float*>(c.in[kBias].data) + c.first * c.total : nullptr;
    a.bias_stride = c.total;
    const size_t query_bytes = line_aligned(a.tokens * kernel.heads * c.size * sizeof(float));
    const size_t visible_bytes = line_aligned(a.tokens * sizeof(Span));
    uint8_t* memory = scratch.reserve(query_bytes + visible_bytes + a.tokens * per_token);
    if (!memory) return invalid(api, "edgespec.Attention: out of memory");
    a.queries = c.queries = reinterpret_cast<float*>(memory);
    a.visible = c.visible = reinterpret_cast<Span*>(memory + query_bytes);
    a.partial = reinterpret_cast<float*>(memory + query_bytes + visible_bytes);
    RETURN_IF_FAILED(for_each(api, context, Call::prepare_query, a.tokens, &c));
    RETURN_IF_FAILED(for_each(api, context, Call::attend, kernel.kv_heads * a.spans(), &c));
    RETURN_IF_FAILED(for_each(api, context, Call::join, a.tokens * kernel.kv_heads, &c));
  }
  return nullptr;
}

template <bool halves>
Status* create(const ort::CustomOp*, const Api* api, const ort::KernelInfo* info, void** out) {
  Kernel kernel{api, 0, 0, 0, 0, 0, halves};
  RETURN_IF_FAILED(api->call<ort::GetInteger>(info, "heads", &kernel.heads));
  RETURN_IF_FAILED(api->call<ort::GetInteger>(info, "kv_heads", &kernel.kv_heads));
  RETURN_IF_FAILED(api->call<ort::GetInteger>(info, "interleaved", &kernel.interleaved));
  RETURN_IF_FAILED(api->call<ort::GetInteger>(info, "window", &kernel.window));
  RETURN_IF_FAILED(api->call<ort::GetNumber>(info, "scale", &kernel.scale));
  constexpr int64_t kMostHeads = 1 << 16;
  if (kernel.kv_heads < 1 || kernel.heads < 1 || kernel.heads > kMostHeads ||
      kernel.heads % kernel.kv_heads || kernel.window < 0)
    return invalid(api, "edgespec.Attention: heads, kv_heads or window make no sense");
  if (!kernels()) return invalid(api, wrong_choice());
  *out = new (std::nothrow) Kernel(kernel);
  return *out ? nullptr : invalid(api, "edgespec: out of memory");
}

template <bool halves>
ort::CustomOp describe() {
  ort::CustomOp op = describe_op();
  op.name = [](const ort::CustomOp*) { return halves ? "HalfAttention" : "Attention"; };
  op.input_count = [](const ort::CustomOp*) -> size_t { return kInputs; };
  op.input_type = [](const ort::CustomOp*, size_t i) -> int {
    switch (i) {
      case kKeyCache:
      case kValueCache:
        return halves ? ort::kFloat16 : ort::kFloat;
      case kLast:
        return ort::kInt32;
      case kPositions:
        return ort::kInt64;
      default:
        return ort::kFloat;
    }
  };
  op.input_characteristic = [](const ort::CustomOp*, size_t i) -> int {
    return i == kKey || i == kValue || i == kPositions || i == kBias ? ort::kOptional : ort::kRequired;
  };
  op.output_count = [](const ort::CustomOp*) -> size_t { return 3; };
  op.output_type = [](const ort::CustomOp*, size_t i) -> int {
    return i && halves ? ort::kFloat16 : ort::kFloat;
  };
  op.create = create<halves>;
  op.destroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  op.compute = compute;
  return op;
}

}  // namespace

const ort::CustomOp* attention_op() {
  static const ort::CustomOp op = describe<false>();
  return &op;
}

const ort::CustomOp* half_attention_op() {
  static const ort::CustomOp op = describe<true>();
  return &op;
}

}  // namespace edgespec
