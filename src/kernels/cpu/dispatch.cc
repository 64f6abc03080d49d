#include "kernels/cpu/dispatch.h"

#include <cstdlib>

#include "base/error.h"
#include "kernels/cpu/tables.h"

namespace quarot::cpu {
namespace {

std::string available_names() {
  std::string names;
  for (const Kernels* k : compiled_kernels()) {
    if (k->available()) names += (names.empty() ? "" : ", ") + std::string(k->name);
  }
  return names;
}

}  // namespace

std::span<const Kernels* const> compiled_kernels() {
#if defined(__x86_64__)
  static constexpr const Kernels* kTables[] = {&kAmx, &kAvx512Vnni, &kAvxVnni, &kAvx2, &kScalar};
#elif defined(__aarch64__)
  static constexpr const Kernels* kTables[] = {&kNeonI8mm, &kNeonDot, &kScalar};
#else
  static constexpr const Kernels* kTables[] = {&kScalar};
#endif
  return kTables;
}

Result<const Kernels*> find_kernels(std::string_view name) {
  for (const Kernels* k : compiled_kernels()) {
    if ((name.empty() || name == k->name) && k->available()) return k;
  }
  return error(ErrorCode::kUnsupported,
               "instruction set \"{}\" is unknown or not on this machine; available: {} (see "
               "QUAROT_ISA)",
               name, available_names());
}

Result<const Kernels*> kernels() {
  static const Result<const Kernels*> chosen = [] {
    const char* name = std::getenv("QUAROT_ISA");
    return find_kernels(name != nullptr ? name : "");
  }();
  return chosen;
}

}  // namespace quarot::cpu
