// What our operators share in talking to ONNX Runtime.

#pragma once
#include <cstdlib>

#include "kernels.h"
#include "ort_api.h"

#define RETURN_IF_FAILED(call)                       \
  do {                                               \
    if (ort::Status* status = (call)) return status; \
  } while (0)

namespace edgespec {

using ort::Api;
using ort::Status;

constexpr size_t kMaxRank = 8;
constexpr size_t kAlignment = 64;

inline Status* invalid(const Api* api, const char* message) {
  return api->call<ort::CreateStatus>(ort::kInvalidArgument, message);
}

struct Tensor {
  void* data;  // nullptr: an optional input that was left out
  size_t rank;
  int64_t shape[kMaxRank];

  int64_t elements(size_t axes) const {
    int64_t n = 1;
    for (size_t i = 0; i < axes; i++) n *= shape[i];
    return n;
  }
  int64_t elements() const { return elements(rank); }
};

inline Status* input(const Api* api, const ort::KernelContext* context, size_t index, Tensor* out) {
  *out = Tensor{};
  size_t count = 0;
  RETURN_IF_FAILED(api->call<ort::GetInputCount>(context, &count));
  const ort::Value* value = nullptr;
  if (index < count) RETURN_IF_FAILED(api->call<ort::GetInput>(context, index, &value));
  if (!value) return nullptr;
  ort::ShapeInfo* info = nullptr;
  RETURN_IF_FAILED(api->call<ort::GetTensorShape>(value, &info));
  const ort::ShapeInfo* shape = info;
  Status* status = api->call<ort::GetDimensionsCount>(shape, &out->rank);
  if (!status && out->rank > kMaxRank) status = invalid(api, "edgespec: a tensor of too many dimensions");
  if (!status) status = api->call<ort::GetDimensions>(shape, +out->shape, out->rank);
  api->call<ort::ReleaseShape>(info);
  if (!status) status = api->call<ort::GetTensorData>(const_cast<ort::Value*>(value), &out->data);
  return status;
}

// Makes an output; `shape` says of which shape.
inline Status* output(const Api* api, ort::KernelContext* context, size_t index, const Tensor& shape,
                      void** data) {
  ort::Value* value = nullptr;
  RETURN_IF_FAILED(api->call<ort::GetOutput>(context, index, +shape.shape, shape.rank, &value));
  return api->call<ort::GetTensorData>(value, data);
}

// Runs task(job, i) for i = 0 … n − 1 on the session's threads.
inline Status* for_each(const Api* api, const ort::KernelContext* context, void (*task)(void*, size_t),
                        size_t n, void* job) {
  return api->call<ort::ParallelFor>(context, task, n, size_t{0}, job);
}

// Memory kept from call to call, one for each thread that runs sessions.
class Scratch {
 public:
  ~Scratch() { std::free(data_); }
  // nullptr if there is not that much
  uint8_t* reserve(size_t bytes) {
    if (bytes > size_) {
      std::free(data_);
      size_ = line_aligned(bytes);
      data_ = static_cast<uint8_t*>(std::aligned_alloc(kAlignment, size_));
      if (!data_) size_ = 0;
    }
    return data_;
  }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// What ONNX Runtime asks of an operator; the caller adds its name, inputs, create and compute.
inline ort::CustomOp describe_op() {
  ort::CustomOp op{};
  op.version = ort::kVersion;
  op.provider = [](const ort::CustomOp*) { return "CPUExecutionProvider"; };
  op.output_type = [](const ort::CustomOp*, size_t) -> int { return ort::kFloat; };
  op.output_count = [](const ort::CustomOp*) -> size_t { return 1; };
  op.input_memory = op.input_characteristic =
      op.output_characteristic = [](const ort::CustomOp*, size_t) { return 0; };
  op.variadic_input_minimum = op.variadic_output_minimum = [](const ort::CustomOp*) { return 1; };
  op.variadic_input_homogeneous = op.variadic_output_homogeneous = [](const ort::CustomOp*) { return 0; };
  return op;
}

const ort::CustomOp* matmul_op();
const ort::CustomOp* gather_op();
const ort::CustomOp* attention_op();       // with a cache of float32
const ort::CustomOp* half_attention_op();  // of float16

}  // namespace edgespec
