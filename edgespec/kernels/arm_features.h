// What an Arm processor can do, as the operating system tells.

#pragma once

#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <cstddef>
#include <sys/sysctl.h>
#endif

namespace edgespec {

#if defined(__linux__)
static inline bool has_dotprod() { return getauxval(AT_HWCAP) >> 20 & 1; }                   // HWCAP_ASIMDDP
static inline bool has_i8mm() { return has_dotprod() && (getauxval(AT_HWCAP2) >> 13 & 1); }  // HWCAP2_I8MM
#elif defined(__APPLE__)
static inline bool has_feature(const char* name) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value;
}
static inline bool has_dotprod() { return has_feature("hw.optional.arm.FEAT_DotProd"); }
static inline bool has_i8mm() { return has_dotprod() && has_feature("hw.optional.arm.FEAT_I8MM"); }
#else
static inline bool has_dotprod() { return false; }
static inline bool has_i8mm() { return false; }
#endif
static inline bool has_neon() { return true; }  // part of every 64-bit Arm processor

}  // namespace edgespec
