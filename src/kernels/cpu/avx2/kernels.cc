#include "kernels/cpu/avx2/ymm.h"
#include "kernels/cpu/features.h"
#include "kernels/cpu/tables.h"

namespace quarot::cpu {
namespace {

// AVX2 multiplies u8 × s8 with vpmaddubsw, which adds two neighbouring products into an int16 and
// saturates, so every operand is kept to a nibble u ≤ 15 and sums stay in int16 only as long as
// they are exact. With activations of b bits, |a| ≤ 2^(b−1), a pair is at most 2·15·2^(b−1) in
// magnitude: 240 for 4 bits, 3840 for 8. The extreme is the negative one, a = −2^(b−1), and n pairs
// stay within −32768 while n ≤ ⌊32768 / (2·15·2^(b−1))⌋: 136 for 4 bits (136·240 = 32640), 8 for
// 8 bits (8·3840 = 30720). On the positive side |a| ≤ 2^(b−1) − 1, which is smaller still. A block
// adds two pairs to each sum. 8-bit weights u = 16·h + l are two planes of nibbles.
struct Avx2 : Ymm {
  static constexpr int kVectors = 2;
  static constexpr int kRows = 4;  // 8 int16 sums, 2 or 4 weights, 1 activation, 1 mask, 1 product
  template <int kBits>
  static constexpr int kPlanes = kBits / 4;
  static int64_t exact_blocks(int activation_bits) {
    return (32768 / (2 * 15 << (activation_bits - 1))) / 2;
  }

  template <int kBits>
  static void load(const uint8_t* p, int plane, Int& lo, Int& hi) {
    if constexpr (kBits == 4) {
      const Int both = load_int(p);
      lo = low_nibbles(both);
      hi = high_nibbles(both);
    } else {
      const Int first = load_int(p);
      const Int second = load_int(p + 128);
      lo = plane == 0 ? low_nibbles(first) : high_nibbles(first);
      hi = plane == 0 ? low_nibbles(second) : high_nibbles(second);
    }
  }
  static Int dot(Int sum, Int w, Int a) {
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, a));
    asm("" : "+x"(sum));  // or GCC adds in another order, for which the registers do not suffice
    return sum;
  }
  static Int widen(Int total, Int sum, int plane) {
    const Int weight = _mm256_set1_epi16(plane == 0 ? 1 : 16);
    return _mm256_add_epi32(total, _mm256_madd_epi16(sum, weight));
  }
};

}  // namespace

const Kernels kAvx2 = {
    .name = "avx2",
    .available = has_avx2,
    .gemm = gemm_range<Avx2>,
    .floats = &kAvx2Floats,
    .dot_peak = dot_peak<Avx2>,
};

}  // namespace quarot::cpu
