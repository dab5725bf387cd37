#define EDGESPEC_ISA neon
#define EDGESPEC_DOT 0

#include "isa_neon.h"

namespace edgespec {
extern const Kernels kNeon;
const Kernels kNeon = {"neon",    neon::Simd::kMaxTokens, neon::quantize, neon::multiply_tiles, neon::attend,
                       neon::join};
}  // namespace edgespec
