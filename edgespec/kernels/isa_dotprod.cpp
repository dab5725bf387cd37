#define EDGESPEC_ISA dotprod
#define EDGESPEC_DOT 1

#include "isa_neon.h"

namespace edgespec {
extern const Kernels kDotprod;
const Kernels kDotprod = {"dotprod",         dotprod::Simd::kMaxTokens,
                          dotprod::quantize, dotprod::multiply_tiles,
                          dotprod::attend,   dotprod::join};
}  // namespace edgespec
