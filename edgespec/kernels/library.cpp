// What the shared library offers: to ONNX Runtime its operators, to Python and tests a few functions.

#include "matmul.h"
#include "ort_kernel.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT ort::Status* RegisterCustomOps(ort::SessionOptions* options, const ort::ApiBase* base) {
  const ort::Api* api = base->get(ort::kVersion);
  if (!api) return edgespec::invalid(base->get(1), "edgespec's operators need ONNX Runtime 1.17 or newer");
  ort::CustomOpDomain* domain = nullptr;  // never released: sessions refer to it
  RETURN_IF_FAILED(api->call<ort::CreateCustomOpDomain>("edgespec", &domain));
  for (const ort::CustomOp* op : {edgespec::matmul_op(), edgespec::gather_op(), edgespec::attention_op(),
                                  edgespec::half_attention_op()})
    RETURN_IF_FAILED(api->call<ort::AddToDomain>(domain, op));
  return api->call<ort::AddDomain>(options, domain);
}

// The version of these exports.
EXPORT int edgespec_abi() { return 1; }

// The instruction set in use; nullptr if EDGESPEC_ISA names one that cannot run here.
EXPORT const char* edgespec_isa() {
  const edgespec::Kernels* chosen = edgespec::kernels();
  return chosen ? chosen->name : nullptr;
}

// Then: its value, and which can.
EXPORT const char* edgespec_isa_error() { return edgespec::wrong_choice(); }

// Without a runtime, in one thread, on any instruction set: x float32 [tokens, inputs] -> y float32
// [tokens, outputs]. 0, or -1 if the instruction set or the matrix is not to be had.
EXPORT int edgespec_matmul(const char* isa, int64_t type, const uint8_t* w, int64_t outputs, int64_t inputs,
                           const float* bias, const float* x, int64_t tokens, float* y) {
  const edgespec::Kernels* chosen = edgespec::kernels(isa);
  const edgespec::Matrix matrix{static_cast<edgespec::Type>(type), outputs, inputs, w};
  if (!chosen || !matrix.tile_bytes()) return -1;
  edgespec::Scratch scratch;
  uint8_t* memory = scratch.reserve(edgespec::multiply_scratch(matrix, tokens));
  if (!memory) return -1;
  edgespec::multiply(*chosen, matrix, bias, x, tokens, y, memory,
                     [](void (*task)(void*, size_t), size_t n, void* job) {
                       for (size_t i = 0; i < n; i++) task(job, i);
                     });
  return 0;
}

// Likewise attention, of whose memory kernels.h tells: y float32 [tokens, heads · size]. 0, or -1 if the
// instruction set is not to be had.
EXPORT int edgespec_attention(const char* isa, const edgespec::Attention* attention, float* y) {
  const edgespec::Kernels* chosen = edgespec::kernels(isa);
  if (!chosen) return -1;
  const edgespec::Attention& a = *attention;
  for (int64_t head = 0; head < a.kv_heads; head++)
    for (int64_t span = 0; span < a.spans(); span++) chosen->attend(a, head, span);
  for (int64_t token = 0; token < a.tokens; token++)
    for (int64_t head = 0; head < a.kv_heads; head++)
      chosen->join(a, head, token, y + (token * a.heads + head * a.group()) * a.size);
  return 0;
}
