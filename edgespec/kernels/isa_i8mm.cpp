#define EDGESPEC_ISA i8mm
#define EDGESPEC_DOT 2

#include "isa_neon.h"

namespace edgespec {
extern const Kernels kI8mm;
const Kernels kI8mm = {"i8mm",    i8mm::Simd::kMaxTokens, i8mm::quantize, i8mm::multiply_tiles, i8mm::attend,
                       i8mm::join};
}  // namespace edgespec
