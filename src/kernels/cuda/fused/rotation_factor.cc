// How an operator becomes what the row kernel reads: the dense factor as the A fragments of
// mma m16n8k16, [term][row tile][k-step][lane] × 16 bytes.
#include <cuda_fp16.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "kernels/cuda/fused/fused.h"

namespace quarot::cuda {
namespace {

constexpr int kWarpWalshBits = 8;  // a warp transforms runs of up to 256 in its registers
constexpr int kLeastColumns = 16;

uint32_t pack(double low, double high) {
  const __half halves[2] = {__double2half(low), __double2half(high)};
  uint32_t word = 0;
  std::memcpy(&word, halves, 4);
  return word;
}

double rounded(double x) { return static_cast<double>(__half2float(__double2half(x))); }

// F ⊗ Walsh(2^bits), unscaled where F is ±1/√m.
class DenseFactor {
 public:
  DenseFactor(std::span<const double> factor, int m, int bits)
      : factor_(factor), m_(m), bits_(bits) {
    const double unit = 1 / std::sqrt(static_cast<double>(m));
    for (const double x : factor) signs_ = signs_ && std::abs(std::abs(x) - unit) < 1e-9;
  }
  bool signs() const { return signs_; }
  int size() const { return m_ << bits_; }
  double operator()(int row, int column) const {
    if (row >= size() || column >= size()) return 0;
    const int mask = (1 << bits_) - 1;
    const double walsh = std::popcount(static_cast<unsigned>(row & column & mask)) % 2 ? -1 : 1;
    if (m_ == 1) return walsh;
    const double f = factor_[static_cast<size_t>(row >> bits_) * m_ + (column >> bits_)];
    return walsh * (signs_ ? std::copysign(1.0, f) : f);
  }

 private:
  std::span<const double> factor_;
  int m_;
  int bits_;
  bool signs_ = true;
};

}  // namespace

Result<std::vector<uint32_t>> rotation_factor(std::span<const double> factor, int m, int log2,
                                              int inner, RowRotation& rotation) {
  const int walsh = inner > 1 ? 0 : std::min(log2, kWarpWalshBits);
  const DenseFactor dense(m > 1 ? factor : std::span<const double>(), m, log2 - walsh);
  rotation.m = dense.size();
  rotation.walsh_bits = walsh;
  rotation.columns = inner > 1 ? inner : 1 << walsh;
  rotation.inverse_columns = static_cast<unsigned>((uint64_t{1} << 32) / rotation.columns + 1);
  rotation.terms = dense.signs() ? 1 : 2;
  rotation.scale = static_cast<float>(1 / std::sqrt(std::ldexp(dense.signs() ? m : 1, log2)));
  if (rotation.columns % kLeastColumns != 0) {
    return error(ErrorCode::kUnsupported,
                 "rotation of {} x 2^{} x {}: {} columns beside the dense factor; expected a "
                 "multiple of {}",
                 m, log2, inner, rotation.columns, kLeastColumns);
  }
  const int tiles = (rotation.m + 15) / 16;
  std::vector<uint32_t> words;
  words.reserve(static_cast<size_t>(rotation.terms) * tiles * tiles * 128);
  for (int term = 0; term < rotation.terms; ++term) {
    const auto entry = [&](int row, int column) {
      const double x = dense(row, column);
      return term == 0 ? x : x - rounded(x);
    };
    for (int tile = 0; tile < tiles; ++tile) {
      for (int step = 0; step < tiles; ++step) {
        for (int lane = 0; lane < 32; ++lane) {
          for (int reg = 0; reg < 4; ++reg) {
            const int row = 16 * tile + lane / 4 + reg % 2 * 8;
            const int k = 16 * step + lane % 4 * 2 + reg / 2 * 8;
            words.push_back(pack(entry(row, k), entry(row, k + 1)));
          }
        }
      }
    }
  }
  return words;
}

}  // namespace quarot::cuda
