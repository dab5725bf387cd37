// The operators `edgespec.Attention` and `edgespec.HalfAttention` (a cache of float32, of float16):
// rotary grouped-query attention on a cache that is written in place, of one or several sequences.
//
// Inputs: query float32 [1, n, heads · D], key and value [1, n, kv_heads · D] (left out where the query
// holds all three behind each other), one sequence's rows after another's; key cache
// [1, kv_heads, capacity / 16, D, 16] and value cache [1, kv_heads, capacity, D], in which each sequence has
// places of its own; segments int32 [s, 3]: of each sequence its first row, the number of its tokens that are
// in the cache already, and the place of the first of those, a multiple of 16; cos and sin float32
// [positions, D / 2]; for a tree (of one sequence) position_ids int64 [1, n] and bias float32
// [1, 1, n, total], added to the scores. A token sees its own sequence, up to itself.
// Outputs: float32 [1, n, heads · D]; both caches, to be bound to the memory of the inputs.
// Attributes: heads, kv_heads, scale, interleaved (channels are turned in neighbouring pairs, not in
// halves), window (a token sees that many newest positions, its own included; 0: all).

#include <cstring>
#include <new>

#include "attention_call.h"

namespace edgespec {
namespace {

// Reads which rows belong to which sequence, and where its tokens are; a message if that cannot be.
const char* check_segments(Call& c) {
  const Tensor& given = c.in[kSegments];
  if (given.rank != 2 || given.shape[0] < 1 || given.shape[1] != sizeof(Segment) / sizeof(int32_t))
    return "edgespec.Attention: segments of a wrong shape";
  c.segments = static_cast<const Segment*>(given.data);
  c.segment_count = given.shape[0];
  if (c.segments[0].first != 0) return "edgespec.Attention: segments that do not begin with the first row";
  if (c.segment_count > 1 && (c.in[kPositions].data || c.in[kBias].data))
    return "edgespec.Attention: positions and a bias are for one sequence";
  for (const Segment* s = c.segments; s < c.segments + c.segment_count; s++) {
    if (s->first >= c.end(*s)) return "edgespec.Attention: a segment without rows";
    if (s->length < 0 || s->place < 0 || s->place % kRows)
      return "edgespec.Attention: a segment at no place of the cache";
    if (s->place + Call::index(*s, c.end(*s)) > c.capacity)
      return "edgespec.Attention: the cache is too small";
  }
  return nullptr;
}

// Reads the inputs and checks that they fit each other; a message if they do not.
const char* check(Call& c) {
  const AttentionKernel& k = c.kernel;
  for (Input required : {kQuery, kKeyCache, kValueCache, kSegments, kCos, kSin})
    if (!c.in[required].data) return "edgespec.Attention: an input is missing";
  const Tensor &query = c.in[kQuery], &keys = c.in[kKeyCache], &values = c.in[kValueCache];
  if (keys.rank != 5 || values.rank != 4 || keys.shape[0] != 1 || values.shape[0] != 1 ||
      keys.shape[4] != kRows)
    return "edgespec.Attention: caches of a wrong shape";
  c.size = values.shape[3];
  c.capacity = values.shape[2];
  if (keys.shape[1] != k.kv_heads || values.shape[1] != k.kv_heads || keys.shape[2] * kRows != c.capacity ||
      keys.shape[3] != c.size || c.size < 1 || c.size % kRows || c.size > kLargestHead)
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
  if (const char* wrong = check_segments(c)) return wrong;
  const Tensor &cos = c.in[kCos], &sin = c.in[kSin];
  if (cos.rank != 2 || cos.shape[1] != c.size / 2 || sin.elements() != cos.elements())
    return "edgespec.Attention: rotary tables of a wrong shape";
  if (c.in[kPositions].data && c.in[kPositions].elements() != c.tokens)
    return "edgespec.Attention: not a position for each token";
  for (const Segment* s = c.segments; s < c.segments + c.segment_count; s++)
    for (int64_t t = s->first; t < c.end(*s); t++)
      if (c.position(*s, t) < 0 || c.position(*s, t) >= cos.shape[0])
        return "edgespec.Attention: a position beyond the rotary tables";
  if (c.in[kBias].data && c.in[kBias].elements() != c.tokens * Call::index(c.segments[0], c.tokens))
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
  const AttentionKernel& kernel = *static_cast<const AttentionKernel*>(self);
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

  thread_local Scratch scratch;
  for (int64_t first = 0; first < c.tokens;) {
    const int64_t behind = c.divide(first);
    if (!c.place(scratch)) return invalid(api, "edgespec.Attention: out of memory");
    RETURN_IF_FAILED(for_each(api, context, Call::prepare_query, behind - first, &c));
    RETURN_IF_FAILED(for_each(api, context, Call::attend, c.tasks(), &c));
    RETURN_IF_FAILED(for_each(api, context, Call::join, (behind - first) * kernel.kv_heads, &c));
    first = behind;
  }
  return nullptr;
}

template <bool halves>
Status* create(const ort::CustomOp*, const Api* api, const ort::KernelInfo* info, void** out) {
  AttentionKernel kernel{api, 0, 0, 0, 0, 0, halves};
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
  *out = new (std::nothrow) AttentionKernel(kernel);
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
      case kSegments:
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
  op.destroy = [](void* kernel) { delete static_cast<AttentionKernel*>(kernel); };
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
