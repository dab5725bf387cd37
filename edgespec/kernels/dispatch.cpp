// Which kernels run here.

#include <cstdlib>
#include <cstring>

#include "kernels.h"

namespace edgespec {

extern const Kernels kScalar;
#if defined(__x86_64__)
extern const Kernels kAvx512Vnni, kAvxVnni, kAvx2;
static const Kernels* const kBestFirst[] = {&kAvx512Vnni, &kAvxVnni, &kAvx2, &kScalar};
#elif defined(__aarch64__)
extern const Kernels kI8mm, kDotprod, kNeon;
static const Kernels* const kBestFirst[] = {&kI8mm, &kDotprod, &kNeon, &kScalar};
#else
static const Kernels* const kBestFirst[] = {&kScalar};
#endif

const Kernels* kernels(const char* name) {
  for (const Kernels* candidate : kBestFirst)
    if (std::strcmp(candidate->name, name) == 0) return candidate->supported() ? candidate : nullptr;
  return nullptr;
}

const Kernels* kernels() {
  static const Kernels* const chosen = []() -> const Kernels* {
    const char* forced = std::getenv("EDGESPEC_ISA");
    if (forced && *forced) return kernels(forced);
    for (const Kernels* candidate : kBestFirst)
      if (candidate->supported()) return candidate;
    return nullptr;
  }();
  return chosen;
}

}  // namespace edgespec
