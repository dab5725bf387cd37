#define EDGESPEC_ISA avx2
#define EDGESPEC_AVX_VNNI 0

#include "isa_avx2.h"

namespace edgespec {
extern const Kernels kAvx2;
const Kernels kAvx2 = {"avx2",    avx2::Simd::kMaxTokens, avx2::quantize, avx2::multiply_tiles, avx2::attend,
                       avx2::join};
}  // namespace edgespec
