// Which kernels run here. What asks the processor is compiled for any, unlike the kernels.

#include <cstdlib>
#include <cstring>
#include <string>

#include "kernels.h"
#if defined(__x86_64__)
#include "x86_features.h"
#elif defined(__aarch64__)
#include "arm_features.h"
#endif

namespace edgespec {

extern const Kernels kScalar, kAvx512Vnni, kAvxVnni, kAvx2, kI8mm, kDotprod, kNeon;

namespace {

struct Candidate {
  const Kernels* kernels;
  bool (*supported)();
};

const Candidate kBestFirst[] = {
#if defined(__x86_64__)
    {&kAvx512Vnni, has_avx512vnni},
    {&kAvxVnni, has_avxvnni},
    {&kAvx2, has_avx2},
#elif defined(__aarch64__)
    {&kI8mm, has_i8mm},
    {&kDotprod, has_dotprod},
    {&kNeon, has_neon},
#endif
    {&kScalar, [] { return true; }},
};

}  // namespace

const Kernels* kernels(const char* name) {
  for (const Candidate& candidate : kBestFirst)
    if (std::strcmp(candidate.kernels->name, name) == 0)
      return candidate.supported() ? candidate.kernels : nullptr;
  return nullptr;
}

const Kernels* kernels() {
  static const Kernels* const chosen = []() -> const Kernels* {
    const char* forced = std::getenv("EDGESPEC_ISA");
    if (forced && *forced) return kernels(forced);
    for (const Candidate& candidate : kBestFirst)
      if (candidate.supported()) return candidate.kernels;
    return nullptr;
  }();
  return chosen;
}

const char* wrong_choice() {
  static const std::string message = [] {
    const char* forced = std::getenv("EDGESPEC_ISA");
    std::string text = std::string("EDGESPEC_ISA is ") + (forced ? forced : "") + "; this processor has";
    for (const Candidate& candidate : kBestFirst)
      if (candidate.supported()) text += std::string(" ") + candidate.kernels->name;
    return text;
  }();
  return message.c_str();
}

}  // namespace edgespec
