#define EDGESPEC_ISA avxvnni
#define EDGESPEC_AVX_VNNI 1

#include "isa_avx2.h"

namespace edgespec {
extern const Kernels kAvxVnni;
const Kernels kAvxVnni = {"avxvnni",         avxvnni::Simd::kMaxTokens,
                          avxvnni::quantize, avxvnni::multiply_tiles,
                          avxvnni::attend,   avxvnni::join};
}  // namespace edgespec
