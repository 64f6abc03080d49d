#include "kernels/cpu/features.h"
#include "kernels/cpu/neon/gemm_isa.h"
#include "kernels/cpu/tables.h"

namespace quarot::cpu {
namespace {

// USMMLA multiplies two outputs × 8 inputs (u8) by 8 inputs × two rows (s8) and adds the four sums
// to an int32x4: twice the work of a dot product, and 8-bit weights need no second plane. A block's
// quads of inputs, zipped, are its operands.
struct NeonI8mm : NeonDot {
  static constexpr int kVectors = 2;
  static constexpr int kRows = 12;  // 24 sums, 4 weights, 2 activations, 1 mask: 32 registers

  template <int kBits>
  static void multiply_rows(const Panel& p, int64_t rows) {
    multiply_pairs<kBits, kRows / 2>(p, rows);
  }

 private:
  static constexpr int kOutputPairs = kVectors * kLanes / 2;

  template <int kBits>
  static void load_pairs(const uint8_t* p, uint8x16_t* pairs) {
    unroll<kVectors>([&](auto v) {
      Int lo;
      Int hi;
      const uint8_t* at = p + v * kLanes * 4;
      if constexpr (kBits == 4) {
        load<4>(at, 0, lo, hi);
      } else {
        lo = vreinterpretq_s32_u8(vld1q_u8(at));
        hi = vreinterpretq_s32_u8(vld1q_u8(at + 128));
      }
      pairs[2 * v] = vreinterpretq_u8_s32(vzip1q_s32(lo, hi));
      pairs[2 * v + 1] = vreinterpretq_u8_s32(vzip2q_s32(lo, hi));
    });
  }

  // An odd last row is paired with itself; nobody reads the sums of its second copy.
  template <int kBits, int kPairs>
  static void multiply_pairs(const Panel& p, int64_t rows) {
    if constexpr (kPairs > 1) {
      if (rows <= 2 * (kPairs - 1)) return multiply_pairs<kBits, kPairs - 1>(p, rows);
    }
    constexpr int kSums = kPairs * kOutputPairs;
    const int64_t last = (rows - 1) * p.a_stride;
    Int sum[kSums];
    unroll<kSums>([&](auto i) { sum[i] = zero(); });
    const int8_t* a = p.a;
    const uint8_t* w = p.w;
    for (int64_t b = 0; b < p.blocks; ++b, a += 8, w += 32 * kBits) {
      uint8x16_t outputs[kOutputPairs];
      load_pairs<kBits>(w, outputs);
      unroll<kPairs>([&](auto r) {
        const int64_t second = r + 1 < kPairs ? (2 * r + 1) * p.a_stride : last;
        const int8x16_t pair = vcombine_s8(vld1_s8(a + 2 * r * p.a_stride), vld1_s8(a + second));
        unroll<kOutputPairs>([&](auto o) {
          constexpr int kSum = r * kOutputPairs + o;
          sum[kSum] = vusmmlaq_s32(sum[kSum], outputs[o], pair);
        });
      });
    }
    unroll<kPairs * kVectors>([&](auto i) {
      constexpr int kRow = 2 * (i / kVectors);
      constexpr int kPair = i * 2;
      int32_t* out = p.sums + kRow * kTileOutputs + i % kVectors * kLanes;
      store_sums(out, vuzp1q_s32(sum[kPair], sum[kPair + 1]));
      store_sums(out + kTileOutputs, vuzp2q_s32(sum[kPair], sum[kPair + 1]));
    });
  }
};

// One row would leave half of every product unused.
void i8mm_range(const GemmTask& task, const GemmRange& range) {
  if (range.last_row - range.first_row == 1) return gemm_range<NeonDot>(task, range);
  gemm_range<NeonI8mm>(task, range);
}

int64_t i8mm_peak(int64_t rounds) {
  constexpr int kCount = 12;
  int32x4_t sums[kCount];
  unroll<kCount>([&](auto i) { sums[i] = NeonDot::zero(); });
  const uint8x16_t w = vdupq_n_u8(3);
  const int8x16_t a = vdupq_n_s8(-5);
  for (int64_t round = 0; round < rounds; ++round) {
    unroll<kCount>([&](auto i) { sums[i] = NeonDot::keep(vusmmlaq_s32(sums[i], w, a)); });
  }
  return rounds * kCount * 2 * 2 * 8;
}

}  // namespace

const Kernels kNeonI8mm = {
    .name = "neoni8mm",
    .available = has_neon_i8mm,
    .gemm = i8mm_range,
    .floats = &kNeonFloats,
    .dot_peak = i8mm_peak,
};

}  // namespace quarot::cpu
