// How an operator becomes what the row kernels read: the A fragments of mma m16n8k16, lane (g, t)
// with rows g, g + 8, g, g + 8 of a tile at columns 2t, 2t, 2t + 8, 2t + 8 and the next. Where they
// are ±1, their signs: [row tile][four k-steps][lane], step s's register r at bits 15 − 4s − r (the
// first of the two columns) and 31 − 4s − r. Else [term][row tile][k-step][lane] × 16 bytes.
#include <cuda_fp16.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "kernels/cuda/fused/fused.h"
#include "kernels/cuda/fused/sign_factor.h"

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

int tiles_of(const DenseFactor& dense) { return (dense.size() + 15) / 16; }

// The place of the first of the two entries in register `reg` of a lane.
struct Place {
  int row;
  int column;
};
Place place_of(int tile, int step, int lane, int reg) {
  return {16 * tile + lane / 4 + reg % 2 * 8, 16 * step + lane % 4 * 2 + reg / 2 * 8};
}

// Rows past the end are the first one again: their products do not exceed the others'.
std::vector<uint32_t> sign_words(const DenseFactor& dense) {
  constexpr int kSteps = 4;
  const int tiles = tiles_of(dense);
  const auto negative = [&](int row, int column) {
    return dense(row < dense.size() ? row : 0, column) < 0 ? 1U : 0U;
  };
  std::vector<uint32_t> words;
  for (int tile = 0; tile < tiles; ++tile) {
    for (int first = 0; first < tiles; first += kSteps) {
      for (int lane = 0; lane < 32; ++lane) {
        uint32_t word = 0;
        for (int bit = 0; bit < 4 * kSteps; ++bit) {
          const auto [row, column] = place_of(tile, first + bit / 4, lane, bit % 4);
          word |= negative(row, column) << (15 - bit) | negative(row, column + 1) << (31 - bit);
        }
        words.push_back(word);
      }
    }
  }
  return words;
}

std::vector<uint32_t> term_words(const DenseFactor& dense) {
  const int tiles = tiles_of(dense);
  std::vector<uint32_t> words;
  for (const bool second : {false, true}) {
    const auto entry = [&](int row, int column) {
      const double x = dense(row, column);
      return second ? x - rounded(x) : x;
    };
    for (int tile = 0; tile < tiles; ++tile) {
      for (int step = 0; step < tiles; ++step) {
        for (int lane = 0; lane < 32; ++lane) {
          for (int reg = 0; reg < 4; ++reg) {
            const auto [row, column] = place_of(tile, step, lane, reg);
            words.push_back(pack(entry(row, column), entry(row, column + 1)));
          }
        }
      }
    }
  }
  return words;
}

// As column_row.cuh does it.
template <int m>
bool equals_known_factor(const DenseFactor& dense) {
  static constexpr SignTable<m> kTable = paley<m - 1>();
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < m; ++j) {
      if ((dense(i, j) < 0) != (kTable.at[i][j] < 0)) return false;
    }
  }
  return true;
}
bool is_known_factor(const DenseFactor& dense, const RowRotation& rotation) {
  const auto matches = [&]<size_t i>() {
    constexpr ColumnShape kShape = kColumnShapes[i];
    return rotation.m == kShape.m && rotation.walsh_bits == kShape.log2 &&
           equals_known_factor<kShape.m>(dense);
  };
  const auto any = [&]<size_t... i>(std::index_sequence<i...>) {
    return (matches.template operator()<i>() || ...);
  };
  return dense.signs() && any(std::make_index_sequence<std::size(kColumnShapes)>{});
}

// As walsh_row.cuh does it.
bool has_butterflies(int m, int log2, int inner) {
  if (m != 1) return false;
  if (inner == 1) return log2 >= 10 && log2 <= 13;
  if (inner == 64) return log2 == 5 || log2 == 6;
  return inner == 128 && log2 >= 4 && log2 <= 6;
}

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
  rotation.known = is_known_factor(dense, rotation);
  rotation.first = std::countr_zero(static_cast<unsigned>(inner));
  rotation.log2 = has_butterflies(m, log2, inner) ? log2 + rotation.first : 0;
  if (rotation.columns % kLeastColumns != 0) {
    return error(ErrorCode::kUnsupported,
                 "rotation of {} x 2^{} x {}: {} columns beside the dense factor; expected a "
                 "multiple of {}",
                 m, log2, inner, rotation.columns, kLeastColumns);
  }
  return dense.signs() ? sign_words(dense) : term_words(dense);
}

}  // namespace quarot::cuda
