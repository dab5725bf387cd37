#define EDGESPEC_ISA dotprod
#define EDGESPEC_DOT 1

#include "arm_features.h"
#include "isa_neon.h"

namespace edgespec {
extern const Kernels kDotprod;
const Kernels kDotprod = {"dotprod",         dotprod::Simd::kMaxTokens, has_dotprod,
                          dotprod::quantize, dotprod::multiply_tiles,   dotprod::attend,
                          dotprod::join};
}  // namespace edgespec
