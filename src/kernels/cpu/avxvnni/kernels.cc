#include "kernels/cpu/avx2/ymm.h"
#include "kernels/cpu/features.h"
#include "kernels/cpu/tables.h"

namespace quarot::cpu {
namespace {

struct AvxVnni : Ymm {
  static constexpr int kVectors = 2;
  static constexpr int kRows = 5;  // 10 sums, 2 or 4 weights, 1 activation, 1 mask: 16 registers
  template <int kBits>
  static constexpr int kPlanes = 1;
  static int64_t exact_blocks(int) { return INT64_MAX; }

  template <int kBits>
  static void load(const uint8_t* p, int, Int& lo, Int& hi) {
    lo = load_int(p);
    if constexpr (kBits == 4) {
      hi = high_nibbles(lo);
      lo = low_nibbles(lo);
    } else {
      hi = load_int(p + 128);
    }
  }
  static Int dot(Int sum, Int w, Int a) { return _mm256_dpbusd_avx_epi32(sum, w, a); }
  static Int widen(Int total, Int sum, int) { return _mm256_add_epi32(total, sum); }
};

}  // namespace

const Kernels kAvxVnni = {
    .name = "avxvnni",
    .available = has_avx_vnni,
    .gemm = gemm_range<AvxVnni>,
    .floats = &kAvx2Floats,
    .dot_peak = dot_peak<AvxVnni>,
};

}  // namespace quarot::cpu
