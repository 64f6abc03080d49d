#include "kernels/cpu/features.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace quarot::cpu {
namespace {

struct Cpuid {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Cpuid cpuid(uint32_t leaf, uint32_t subleaf) {
  Cpuid r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

constexpr bool all(uint64_t value, uint64_t bits) { return (value & bits) == bits; }
constexpr uint64_t bit(int i) { return uint64_t{1} << i; }

// The register sets that the operating system saves and restores.
bool system_saves(uint64_t mask) {
  if (!all(cpuid(1, 0).ecx, bit(27))) return false;  // OSXSAVE
  uint32_t low = 0;
  uint32_t high = 0;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return all(uint64_t{high} << 32 | low, mask);
}

constexpr uint64_t kSavesYmm = 0x6;
constexpr uint64_t kSavesZmm = 0xe6;
constexpr uint64_t kSavesTiles = bit(17) | bit(18);

// Linux gives a process the tiles' large state only when asked (arch_prctl(2)).
bool may_use_tiles() {
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool has_avx2() {
  return system_saves(kSavesYmm) && all(cpuid(1, 0).ecx, bit(12)) && all(cpuid(7, 0).ebx, bit(5));
}

bool has_avx_vnni() { return has_avx2() && all(cpuid(7, 1).eax, bit(4)); }

bool has_avx512_vnni() {
  const Cpuid leaf = cpuid(7, 0);
  return has_avx2() && system_saves(kSavesZmm) &&
         all(leaf.ebx, bit(16) | bit(17) | bit(30) | bit(31)) && all(leaf.ecx, bit(11));
}

bool has_amx_int8() {
  return has_avx512_vnni() && all(cpuid(7, 0).edx, bit(24) | bit(25)) &&
         system_saves(kSavesTiles) && may_use_tiles();
}

bool has_neon_dot() { return false; }
bool has_neon_i8mm() { return false; }

}  // namespace quarot::cpu

#elif defined(__aarch64__)

#include <asm/hwcap.h>
#include <sys/auxv.h>

namespace quarot::cpu {

bool has_avx2() { return false; }
bool has_avx_vnni() { return false; }
bool has_avx512_vnni() { return false; }
bool has_amx_int8() { return false; }
bool has_neon_dot() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
bool has_neon_i8mm() { return has_neon_dot() && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0; }

}  // namespace quarot::cpu

#else

namespace quarot::cpu {

bool has_avx2() { return false; }
bool has_avx_vnni() { return false; }
bool has_avx512_vnni() { return false; }
bool has_amx_int8() { return false; }
bool has_neon_dot() { return false; }
bool has_neon_i8mm() { return false; }

}  // namespace quarot::cpu

#endif
