#define EDGESPEC_ISA avxvnni
#define EDGESPEC_AVX_VNNI 1

#include "isa_avx2.h"

namespace edgespec {
extern const Kernels kAvxVnni;
const Kernels kAvxVnni = {"avxvnni", avxvnni::Simd::kMaxTokens,
                          [] {
                            return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                                   __builtin_cpu_supports("f16c") && __builtin_cpu_supports("avxvnni");
                          },
                          avxvnni::quantize, avxvnni::multiply_tiles, avxvnni::attend, avxvnni::join};
}  // namespace edgespec
