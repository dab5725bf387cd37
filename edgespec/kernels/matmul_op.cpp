// The operators `edgespec.MatMul` and `edgespec.Gather` of ONNX Runtime.
//
// MatMul: X float32 [..., K], W uint8 [bytes], bias float32 [N] (optional) -> float32 [..., N]
// Gather: ids int64 [...], W uint8 [bytes] -> float32 [..., K]: rows of the matrix
// Attributes of both: K (inputs), N (outputs), type (ggml's number). W is packed: tile_formats.h.

#include <algorithm>
#include <new>

#include "matmul.h"
#include "ort_kernel.h"

namespace edgespec {
namespace {

struct Kernel {
  const Api* api;
  Matrix matrix;
  size_t bytes;
};

Status* weights(const Kernel& kernel, const ort::KernelContext* context, Matrix* matrix) {
  Tensor w;
  RETURN_IF_FAILED(input(kernel.api, context, 1, &w));
  if (!w.data || w.elements() != static_cast<int64_t>(kernel.bytes))
    return invalid(kernel.api, "edgespec: packed weights of a wrong size");
  *matrix = kernel.matrix;
  matrix->data = static_cast<const uint8_t*>(w.data);
  return nullptr;
}

Status* compute_matmul(void* self, ort::KernelContext* context) {
  const Kernel& kernel = *static_cast<const Kernel*>(self);
  const Api* api = kernel.api;
  Matrix matrix;
  RETURN_IF_FAILED(weights(kernel, context, &matrix));
  Tensor x, bias;
  RETURN_IF_FAILED(input(api, context, 0, &x));
  RETURN_IF_FAILED(input(api, context, 2, &bias));
  if (!x.rank || x.shape[x.rank - 1] != matrix.inputs)
    return invalid(api, "edgespec.MatMul: the last dimension of X is not K");
  if (bias.data && bias.elements() != matrix.outputs)
    return invalid(api, "edgespec.MatMul: the bias is not of size N");
  const int64_t tokens = x.elements(x.rank - 1);
  x.shape[x.rank - 1] = matrix.outputs;
  void* y = nullptr;
  RETURN_IF_FAILED(output(api, context, 0, x, &y));
  thread_local Scratch scratch;
  uint8_t* memory = scratch.reserve(multiply_scratch(matrix, tokens));
  if (!memory) return invalid(api, "edgespec.MatMul: out of memory");
  Status* failed = nullptr;
  multiply(*kernels(), matrix, static_cast<const float*>(bias.data), static_cast<const float*>(x.data),
           tokens, static_cast<float*>(y), memory, [&](void (*task)(void*, size_t), size_t n, void* job) {
             if (!failed) failed = for_each(api, context, task, n, job);
           });
  return failed;
}

Status* compute_gather(void* self, ort::KernelContext* context) {
  const Kernel& kernel = *static_cast<const Kernel*>(self);
  Matrix matrix;
  RETURN_IF_FAILED(weights(kernel, context, &matrix));
  Tensor ids;
  RETURN_IF_FAILED(input(kernel.api, context, 0, &ids));
  if (ids.rank >= kMaxRank) return invalid(kernel.api, "edgespec.Gather: ids of too many dimensions");
  const int64_t count = ids.elements();
  const int64_t* id = static_cast<const int64_t*>(ids.data);
  for (int64_t i = 0; i < count; i++)
    if (id[i] < 0 || id[i] >= matrix.outputs)
      return invalid(kernel.api, "edgespec.Gather: an id that is no row");
  ids.shape[ids.rank++] = matrix.inputs;
  void* y = nullptr;
  RETURN_IF_FAILED(output(kernel.api, context, 0, ids, &y));
  for (int64_t i = 0; i < count; i++)
    dequantize_row(matrix, id[i], static_cast<float*>(y) + i * matrix.inputs);
  return nullptr;
}

Status* create(const ort::CustomOp*, const Api* api, const ort::KernelInfo* info, void** out) {
  int64_t inputs = 0, outputs = 0, type = 0;
  RETURN_IF_FAILED(api->call<ort::GetInteger>(info, "K", &inputs));
  RETURN_IF_FAILED(api->call<ort::GetInteger>(info, "N", &outputs));
  RETURN_IF_FAILED(api->call<ort::GetInteger>(info, "type", &type));
  Kernel kernel{api, Matrix{static_cast<Type>(type), outputs, inputs, nullptr}, 0};
  constexpr int64_t kLargest = int64_t{1} << 31;
  if (outputs < 1 || outputs > kLargest || inputs > kLargest || !kernel.matrix.tile_bytes())
    return invalid(api, "edgespec: K, N and type do not describe a packed matrix");
  kernel.bytes = kernel.matrix.tiles() * kernel.matrix.tile_bytes();
  if (!kernels()) return invalid(api, wrong_choice());
  *out = new (std::nothrow) Kernel(kernel);
  return *out ? nullptr : invalid(api, "edgespec: out of memory");
}

ort::CustomOp describe() {
  ort::CustomOp op = describe_op();
  op.create = create;
  op.destroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  return op;
}

}  // namespace

const ort::CustomOp* matmul_op() {
  static const ort::CustomOp op = [] {
    ort::CustomOp o = describe();
    o.name = [](const ort::CustomOp*) { return "MatMul"; };
    o.input_count = [](const ort::CustomOp*) -> size_t { return 3; };
    o.input_type = [](const ort::CustomOp*, size_t i) -> int { return i == 1 ? ort::kUint8 : ort::kFloat; };
    o.input_characteristic = [](const ort::CustomOp*, size_t i) -> int {
      return i == 2 ? ort::kOptional : 0;
    };
    o.compute = compute_matmul;
    return o;
  }();
  return &op;
}

const ort::CustomOp* gather_op() {
  static const ort::CustomOp op = [] {
    ort::CustomOp o = describe();
    o.name = [](const ort::CustomOp*) { return "Gather"; };
    o.input_count = [](const ort::CustomOp*) -> size_t { return 2; };
    o.input_type = [](const ort::CustomOp*, size_t i) -> int { return i == 1 ? ort::kUint8 : ort::kInt64; };
    o.compute = compute_gather;
    return o;
  }();
  return &op;
}

}  // namespace edgespec
