// The operators `edgespec.MatMul` and `edgespec.Gather` of ONNX Runtime.
//
// MatMul: X float32 [..., K], W uint8 [bytes], bias float32 [N] (optional) -> float32 [..., N]
// Gather: ids int64 [...], W uint8 [bytes] -> float32 [..., K]: rows of the matrix
// Attributes of both: K (inputs), N (outputs), type (ggml's number). W is packed: tile_formats.h.

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "kernels.h"
#include "ort_api.h"

namespace edgespec {
namespace {

using ort::Api;
using ort::Status;

#define RETURN_IF_FAILED(call)              \
  do {                                      \
    if (ort::Status* status = (call)) return status; \
  } while (0)

constexpr size_t kMaxRank = 8;
constexpr size_t kAlignment = 64;
constexpr int64_t kChunk = 64;  // tokens whose activations fit into a core's cache

struct Kernel {
  const Api* api;
  Matrix matrix;
  size_t bytes;

  Status* error(const char* message) const { return api->call<ort::CreateStatus>(ort::kInvalidArgument, message); }
};

struct Tensor {
  void* data;
  size_t rank;
  int64_t shape[kMaxRank];

  int64_t elements(size_t axes) const {
    int64_t n = 1;
    for (size_t i = 0; i < axes; i++) n *= shape[i];
    return n;
  }
};

Status* input(const Kernel& kernel, ort::KernelContext* context, size_t index, Tensor* out) {
  const Api* api = kernel.api;
  const ort::Value* value = nullptr;
  RETURN_IF_FAILED(api->call<ort::GetInput>(static_cast<const ort::KernelContext*>(context), index, &value));
  out->data = nullptr;
  if (!value) return nullptr;  // optional and left out
  ort::ShapeInfo* info = nullptr;
  RETURN_IF_FAILED(api->call<ort::GetTensorShape>(value, &info));
  Status* status = api->call<ort::GetDimensionsCount>(static_cast<const ort::ShapeInfo*>(info), &out->rank);
  if (!status && out->rank > kMaxRank) status = kernel.error("edgespec: a tensor of too many dimensions");
  if (!status) status = api->call<ort::GetDimensions>(static_cast<const ort::ShapeInfo*>(info), +out->shape, out->rank);
  api->call<ort::ReleaseShape>(info);
  if (!status) status = api->call<ort::GetTensorData>(const_cast<ort::Value*>(value), &out->data);
  return status;
}

Status* output(const Kernel& kernel, ort::KernelContext* context, const Tensor& shape, float** data) {
  ort::Value* value = nullptr;
  RETURN_IF_FAILED(kernel.api->call<ort::GetOutput>(context, size_t{0}, +shape.shape, shape.rank, &value));
  void* pointer = nullptr;
  RETURN_IF_FAILED(kernel.api->call<ort::GetTensorData>(value, &pointer));
  *data = static_cast<float*>(pointer);
  return nullptr;
}

Status* weights(const Kernel& kernel, ort::KernelContext* context, Matrix* matrix) {
  Tensor w;
  RETURN_IF_FAILED(input(kernel, context, 1, &w));
  if (!w.data || w.elements(w.rank) != static_cast<int64_t>(kernel.bytes))
    return kernel.error("edgespec: packed weights of a wrong size");
  *matrix = kernel.matrix;
  matrix->data = static_cast<const uint8_t*>(w.data);
  return nullptr;
}

// Memory for activations, kept from call to call by each thread that runs sessions.
class Scratch {
 public:
  ~Scratch() { std::free(data_); }
  uint8_t* reserve(size_t bytes) {
    if (bytes > size_) {
      std::free(data_);
      size_ = (bytes + kAlignment - 1) / kAlignment * kAlignment;
      data_ = static_cast<uint8_t*>(std::aligned_alloc(kAlignment, size_));
      if (!data_) size_ = 0;
    }
    return data_;
  }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// A pass of at most kChunk tokens through one matrix.
struct Job {
  const Kernels* kernels;
  Matrix matrix;
  const float* bias;
  float* y;
  int parts;
  Activations x[kChunk];
  int64_t tiles_per_task;

  size_t scratch_bytes(int64_t tokens) const {
    const size_t blocks = matrix.inputs / kBlock, n = tokens;
    const size_t per_part = 4 * kAlignment;  // lost to alignment
    return n * blocks * (kBlock + 2 * sizeof(float) + 2 * sizeof(int32_t)) + parts * per_part;
  }

  // Divide tokens among parts of falling size, by one at most, and place their activations.
  void divide(int tokens) { parts = (tokens + kernels->max_tokens - 1) / kernels->max_tokens; }
  void place(const float* floats, int tokens, uint8_t* scratch) {
    const size_t blocks = matrix.inputs / kBlock;
    for (int i = 0; i < parts; i++) {
      Activations& a = x[i];
      a.tokens = (tokens + parts - 1 - i) / parts;
      a.floats = floats;
      floats += a.tokens * matrix.inputs;
      const size_t n = blocks * a.tokens;
      a.quants = reinterpret_cast<int8_t*>(scratch);
      scratch += aligned(n * kBlock);
      a.scale = reinterpret_cast<float*>(scratch);
      scratch += aligned(n * sizeof(float));
      a.weighted = reinterpret_cast<float*>(scratch);
      scratch += aligned(n * sizeof(float));
      a.start = reinterpret_cast<int32_t*>(scratch);
      scratch += aligned(2 * n * sizeof(int32_t));
    }
  }

  static void quantize(void* job, size_t part) {
    const Job& j = *static_cast<const Job*>(job);
    j.kernels->quantize(j.x[part].floats, j.matrix.inputs, offset_of(j.matrix.type), j.x[part]);
  }

  static void multiply(void* job, size_t task) {
    const Job& j = *static_cast<const Job*>(job);
    const int64_t first = static_cast<int64_t>(task) * j.tiles_per_task;
    const int64_t last = std::min(first + j.tiles_per_task, j.matrix.tiles());
    j.kernels->multiply_tiles(j.matrix, first, last, j.x, j.parts, j.bias, j.y);
  }
};

// Small enough to share out evenly, large enough to be worth handing out.
constexpr size_t kTaskBytes = 128 << 10;

template <class ForEach>
Status* multiply(const Kernels* kernels, const Matrix& matrix, const float* bias, const float* x, int64_t tokens, float* y, ForEach for_each) {
  thread_local Scratch scratch;
  Job job;
  job.kernels = kernels;
  job.matrix = matrix;
  job.bias = bias;
  job.tiles_per_task = std::max<int64_t>(1, kTaskBytes / matrix.tile_bytes());
  const size_t tasks = (matrix.tiles() + job.tiles_per_task - 1) / job.tiles_per_task;
  for (int64_t first = 0; first < tokens; first += kChunk) {
    const int n = static_cast<int>(std::min(kChunk, tokens - first));
    job.divide(n);
    uint8_t* memory = scratch.reserve(job.scratch_bytes(n));
    if (!memory) throw std::bad_alloc();
    job.place(x + first * matrix.inputs, n, memory);
    job.y = y + first * matrix.outputs;
    if (matrix.type != Type::F16) {
      if (job.parts == 1) Job::quantize(&job, 0);
      else RETURN_IF_FAILED(for_each(Job::quantize, job.parts, &job));
    }
    RETURN_IF_FAILED(for_each(Job::multiply, tasks, &job));
  }
  return nullptr;
}

Status* compute_matmul(void* self, ort::KernelContext* context) try {
  const Kernel& kernel = *static_cast<const Kernel*>(self);
  Matrix matrix;
  RETURN_IF_FAILED(weights(kernel, context, &matrix));
  Tensor x;
  RETURN_IF_FAILED(input(kernel, context, 0, &x));
  if (!x.rank || x.shape[x.rank - 1] != matrix.inputs)
    return kernel.error("edgespec.MatMul: the last dimension of X is not K");
  Tensor bias;
  bias.data = nullptr;
  size_t inputs = 0;
  RETURN_IF_FAILED(kernel.api->call<ort::GetInputCount>(static_cast<const ort::KernelContext*>(context), &inputs));
  if (inputs > 2) RETURN_IF_FAILED(input(kernel, context, 2, &bias));
  if (bias.data && bias.elements(bias.rank) != matrix.outputs)
    return kernel.error("edgespec.MatMul: the bias is not of size N");
  const int64_t tokens = x.elements(x.rank - 1);
  x.shape[x.rank - 1] = matrix.outputs;
  float* y = nullptr;
  RETURN_IF_FAILED(output(kernel, context, x, &y));
  const auto for_each = [&](void (*task)(void*, size_t), size_t n, void* job) {
    return kernel.api->call<ort::ParallelFor>(static_cast<const ort::KernelContext*>(context), task, n, size_t{0}, job);
  };
  return multiply(kernels(), matrix, static_cast<const float*>(bias.data), static_cast<const float*>(x.data), tokens, y, for_each);
} catch (const std::bad_alloc&) {
  return static_cast<const Kernel*>(self)->error("edgespec.MatMul: out of memory");
}

Status* compute_gather(void* self, ort::KernelContext* context) {
  const Kernel& kernel = *static_cast<const Kernel*>(self);
  Matrix matrix;
  RETURN_IF_FAILED(weights(kernel, context, &matrix));
  Tensor ids;
  RETURN_IF_FAILED(input(kernel, context, 0, &ids));
  if (ids.rank >= kMaxRank) return kernel.error("edgespec.Gather: ids of too many dimensions");
  const int64_t count = ids.elements(ids.rank);
  const int64_t* id = static_cast<const int64_t*>(ids.data);
  for (int64_t i = 0; i < count; i++)
    if (id[i] < 0 || id[i] >= matrix.outputs) return kernel.error("edgespec.Gather: an id that is no row");
  ids.shape[ids.rank++] = matrix.inputs;
  float* y = nullptr;
  RETURN_IF_FAILED(output(kernel, context, ids, &y));
  for (int64_t i = 0; i < count; i++) dequantize_row(matrix, id[i], y + i * matrix.inputs);
  return nullptr;
}

Status* create(const ort::CustomOp*, const Api* api, const ort::KernelInfo* info, void** out) {
  int64_t inputs = 0, outputs = 0, type = 0;
  RETURN_IF_FAILED(api->call<ort::GetAttribute>(info, "K", &inputs));
  RETURN_IF_FAILED(api->call<ort::GetAttribute>(info, "N", &outputs));
  RETURN_IF_FAILED(api->call<ort::GetAttribute>(info, "type", &type));
  Kernel kernel{api, Matrix{static_cast<Type>(type), outputs, inputs, nullptr}, 0};
  constexpr int64_t kLargest = int64_t{1} << 31;
  if (outputs < 1 || outputs > kLargest || inputs > kLargest || !kernel.matrix.tile_bytes())
    return kernel.error("edgespec: K, N and type do not describe a packed matrix");
  kernel.bytes = kernel.matrix.tiles() * kernel.matrix.tile_bytes();
  if (!kernels()) return kernel.error("edgespec: EDGESPEC_ISA names no instruction set of this processor");
  *out = new (std::nothrow) Kernel(kernel);
  return *out ? nullptr : kernel.error("edgespec: out of memory");
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

// ---- What ONNX Runtime asks of an operator

const char* on_cpu(const ort::CustomOp*) { return "CPUExecutionProvider"; }
int float_type(const ort::CustomOp*, size_t) { return ort::kFloat; }
size_t one_output(const ort::CustomOp*) { return 1; }
int zero(const ort::CustomOp*, size_t) { return 0; }
int none(const ort::CustomOp*) { return 0; }
int one(const ort::CustomOp*) { return 1; }

ort::CustomOp describe() {
  ort::CustomOp op{};
  op.version = ort::kVersion;
  op.provider = on_cpu;
  op.output_type = float_type;
  op.output_count = one_output;
  op.input_memory = op.input_characteristic = op.output_characteristic = zero;
  op.variadic_input_minimum = op.variadic_output_minimum = one;
  op.variadic_input_homogeneous = op.variadic_output_homogeneous = none;
  op.create = create;
  op.destroy = destroy;
  return op;
}

const ort::CustomOp* matmul() {
  static const ort::CustomOp op = [] {
    ort::CustomOp o = describe();
    o.name = [](const ort::CustomOp*) { return "MatMul"; };
    o.input_count = [](const ort::CustomOp*) -> size_t { return 3; };
    o.input_type = [](const ort::CustomOp*, size_t i) -> int { return i == 1 ? ort::kUint8 : ort::kFloat; };
    o.input_characteristic = [](const ort::CustomOp*, size_t i) { return i == 2 ? 1 : 0; };  // optional
    o.compute = compute_matmul;
    return o;
  }();
  return &op;
}

const ort::CustomOp* gather() {
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

}  // namespace
}  // namespace edgespec

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT ort::Status* RegisterCustomOps(ort::SessionOptions* options, const ort::ApiBase* base) {
  const ort::Api* api = base->get(ort::kVersion);
  if (!api) return nullptr;  // too old to tell it so; loading the model will fail
  ort::CustomOpDomain* domain = nullptr;
  RETURN_IF_FAILED(api->call<ort::CreateCustomOpDomain>("edgespec", &domain));
  RETURN_IF_FAILED(api->call<ort::AddToDomain>(domain, edgespec::matmul()));
  RETURN_IF_FAILED(api->call<ort::AddToDomain>(domain, edgespec::gather()));
  return api->call<ort::AddDomain>(options, domain);
}

// The version of these exports.
EXPORT int edgespec_abi() { return 1; }

// The instruction set in use; nullptr if EDGESPEC_ISA names one that cannot run here.
EXPORT const char* edgespec_isa() {
  const edgespec::Kernels* chosen = edgespec::kernels();
  return chosen ? chosen->name : nullptr;
}

// Without a runtime, in one thread, on any instruction set: x float32 [tokens, inputs] -> y float32
// [tokens, outputs]. 0, or -1 if the instruction set or the matrix is not to be had.
EXPORT int edgespec_matmul(const char* isa, int64_t type, const uint8_t* w, int64_t outputs, int64_t inputs,
                           const float* bias, const float* x, int64_t tokens, float* y) {
  const edgespec::Kernels* chosen = edgespec::kernels(isa);
  const edgespec::Matrix matrix{static_cast<edgespec::Type>(type), outputs, inputs, w};
  if (!chosen || !matrix.tile_bytes()) return -1;
  const auto for_each = [](void (*task)(void*, size_t), size_t n, void* job) -> ort::Status* {
    for (size_t i = 0; i < n; i++) task(job, i);
    return nullptr;
  };
  edgespec::multiply(chosen, matrix, bias, x, tokens, y, for_each);
  return 0;
}

// Reads every cache line; for measuring how fast memory is.
EXPORT uint64_t edgespec_read(const uint64_t* data, size_t words) {
  uint64_t sums[8] = {};
  for (size_t i = 0; i + 8 <= words; i += 8)
    for (size_t j = 0; j < 8; j++) sums[j] += data[i + j];
  uint64_t sum = 0;
  for (uint64_t part : sums) sum += part;
  return sum;
}
