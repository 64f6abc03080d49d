#include "base/vector_width.h"

#include <cstdlib>
#include <string_view>

namespace quarot {

bool available(VectorWidth width) {
#if defined(__x86_64__)
  if (width == VectorWidth::kAvx512) return __builtin_cpu_supports("avx512f") != 0;
  if (width == VectorWidth::kAvx2)
    return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
#endif
  return width == VectorWidth::kBaseline;
}

VectorWidth vector_width() {
  static const VectorWidth chosen = [] {
    const char* asked = std::getenv("QUAROT_ISA");
    const std::string_view isa = asked != nullptr ? asked : "";
    const bool narrow = isa == "avx2" || isa == "avxvnni";
    if (!narrow && available(VectorWidth::kAvx512)) return VectorWidth::kAvx512;
    return available(VectorWidth::kAvx2) ? VectorWidth::kAvx2 : VectorWidth::kBaseline;
  }();
  return chosen;
}

}  // namespace quarot
