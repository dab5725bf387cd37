// The part of ONNX Runtime's C interface that a CPU operator needs.
//
// OrtApi is a table of functions that only grows: a function keeps its place for good. The places and
// the layout of OrtCustomOp are those of version 17, which every later runtime offers too.

#pragma once
#include <cstddef>
#include <cstdint>

namespace ort {

constexpr uint32_t kVersion = 17;

struct Status;
struct Value;
struct KernelInfo;
struct KernelContext;
struct SessionOptions;
struct CustomOpDomain;
struct ShapeInfo;
struct CustomOp;

enum ElementType { kFloat = 1, kUint8 = 2, kInt32 = 6, kInt64 = 7, kFloat16 = 10 };
enum Characteristic { kRequired = 0, kOptional = 1 };
enum ErrorCode { kFail = 1, kInvalidArgument = 2 };

// A place in the table, and the type of the function there.
template <size_t place, class Function>
struct Slot;

class Api {
 public:
  template <class S, class... Args>
  auto call(Args... args) const {
    return reinterpret_cast<typename S::Function*>(slots_[S::kPlace])(args...);
  }

 private:
  void* slots_[1];  // and more
};

struct ApiBase {
  const Api* (*get)(uint32_t version);  // nullptr if the runtime is older
  const char* (*version)();
};

template <size_t place, class Result, class... Args>
struct Slot<place, Result(Args...)> {
  using Function = Result(Args...);
  static constexpr size_t kPlace = place;
};

using CreateStatus = Slot<0, Status*(ErrorCode, const char*)>;
using CreateCustomOpDomain = Slot<26, Status*(const char*, CustomOpDomain**)>;
using AddToDomain = Slot<27, Status*(CustomOpDomain*, const CustomOp*)>;
using AddDomain = Slot<28, Status*(SessionOptions*, CustomOpDomain*)>;
using GetTensorData = Slot<51, Status*(Value*, void**)>;
using GetDimensionsCount = Slot<61, Status*(const ShapeInfo*, size_t*)>;
using GetDimensions = Slot<62, Status*(const ShapeInfo*, int64_t*, size_t)>;
using GetTensorShape = Slot<65, Status*(const Value*, ShapeInfo**)>;
using GetNumber = Slot<85, Status*(const KernelInfo*, const char*, float*)>;
using GetInteger = Slot<86, Status*(const KernelInfo*, const char*, int64_t*)>;
using GetInputCount = Slot<88, Status*(const KernelContext*, size_t*)>;
using GetInput = Slot<90, Status*(const KernelContext*, size_t, const Value**)>;
using GetOutput = Slot<91, Status*(KernelContext*, size_t, const int64_t*, size_t, Value**)>;
using ReleaseShape = Slot<99, void(ShapeInfo*)>;
using ParallelFor = Slot<274, Status*(const KernelContext*, void (*)(void*, size_t), size_t, size_t, void*)>;

struct CustomOp {
  uint32_t version;
  void* (*create_1)(const CustomOp*, const Api*, const KernelInfo*);
  const char* (*name)(const CustomOp*);
  const char* (*provider)(const CustomOp*);
  int (*input_type)(const CustomOp*, size_t);
  size_t (*input_count)(const CustomOp*);
  int (*output_type)(const CustomOp*, size_t);
  size_t (*output_count)(const CustomOp*);
  void (*compute_1)(void*, KernelContext*);
  void (*destroy)(void*);
  int (*input_characteristic)(const CustomOp*, size_t);
  int (*output_characteristic)(const CustomOp*, size_t);
  int (*input_memory)(const CustomOp*, size_t);
  int (*variadic_input_minimum)(const CustomOp*);
  int (*variadic_input_homogeneous)(const CustomOp*);
  int (*variadic_output_minimum)(const CustomOp*);
  int (*variadic_output_homogeneous)(const CustomOp*);
  Status* (*create)(const CustomOp*, const Api*, const KernelInfo*, void**);
  Status* (*compute)(void*, KernelContext*);
  void* unused[7];  // shape inference, versions, aliases
};

}  // namespace ort
