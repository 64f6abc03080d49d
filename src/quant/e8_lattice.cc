#include "quant/e8_lattice.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/parallel.h"
#include "base/simd.h"
#include "quant/cholesky.h"
#include "tensor/gemm.h"

namespace quarot {

namespace {

constexpr size_t kWidth = kE8Width;
constexpr size_t kShapes = 256;
constexpr float kShift = 0.25F;
constexpr double kOptimalRms = 1.03;  // of weights in units of the lattice
constexpr double kFirstRetry = 1e-4;

// The vectors s, element after element: [8][256].
struct Shapes {
  std::array<std::array<float, kShapes>, kWidth> element;
  std::array<float, kShapes> norm;   // ‖s‖²
  std::array<uint8_t, kShapes> odd;  // whether an odd number of signs makes the sum even
};

// Every vector of ½, 3/2, 5/2, in lexicographic order.
void visit_shapes(auto&& visit) {
  std::array<float, kWidth> s;
  for (int code = 0; code < 6561; ++code) {  // 3^8
    int digits = code;
    for (size_t i = kWidth; i-- > 0; digits /= 3) s[i] = 0.5F + static_cast<float>(digits % 3);
    float norm = 0;
    for (const float x : s) norm += x * x;
    visit(s, norm);
  }
}

Shapes make_shapes() {
  Shapes shapes;
  size_t count = 0;
  const auto add = [&](const std::array<float, kWidth>& s, float norm) {
    float sum = 0;
    for (size_t i = 0; i < kWidth; ++i) {
      shapes.element[i][count] = s[i];
      sum += s[i];
    }
    shapes.norm[count] = norm;
    shapes.odd[count] = static_cast<uint8_t>(static_cast<int>(sum) % 2);
    ++count;
  };
  visit_shapes([&](const auto& s, float norm) {
    if (norm <= 10) add(s, norm);
  });
  visit_shapes([&](const auto& s, float norm) {
    const bool flat = std::ranges::find(s, 2.5F) == s.end();  // then 12 is five 3/2 and three ½
    if (norm == 12 && flat && count < kShapes) add(s, norm);
  });
  return shapes;
}

const Shapes& shapes() {
  static const Shapes kMade = make_shapes();
  return kMade;
}

struct Found {
  size_t shape = 0;
  float gain = 0;  // ‖v‖² less the squared distance
};

// The best s∘σ for v = x − t: signs as v's, one flipped where the sum would be odd, the one that
// costs least.
QUAROT_SIMD_CLONES Found best_shape(const Shapes& all, const float* magnitude, int negatives) {
  alignas(64) float dot[kShapes] = {};
  alignas(64) float least[kShapes];
  std::fill_n(least, kShapes, std::numeric_limits<float>::infinity());
  for (size_t i = 0; i < kWidth; ++i) {
    const float m = magnitude[i];
    const float* s = all.element[i].data();
    for (size_t k = 0; k < kShapes; ++k) {
      const float term = m * s[k];
      dot[k] += term;
      least[k] = term < least[k] ? term : least[k];
    }
  }
  Found found{0, -std::numeric_limits<float>::infinity()};
  for (size_t k = 0; k < kShapes; ++k) {
    const bool flip = (all.odd[k] ^ (negatives & 1)) != 0;
    const float gain = 2 * dot[k] - (flip ? 4 * least[k] : 0.0F) - all.norm[k];
    if (gain > found.gain) found = {k, gain};
  }
  return found;
}

uint16_t encode(const E8Vector& v, size_t shape, bool minus_quarter) {
  const Shapes& all = shapes();
  unsigned signs = 0;
  for (size_t i = 0; i < kWidth; ++i) signs |= static_cast<unsigned>(v[i] < 0) << i;
  if (((std::popcount(signs) & 1) ^ all.odd[shape]) != 0) {
    size_t flip = 0;
    for (size_t i = 1; i < kWidth; ++i) {
      if (std::abs(v[i]) * all.element[i][shape] < std::abs(v[flip]) * all.element[flip][shape])
        flip = i;
    }
    signs ^= 1U << flip;
  }
  return static_cast<uint16_t>(shape | (signs & 0x7fU) << 8 | unsigned{minus_quarter} << 15);
}

float row_scale(std::span<const float> row) {
  double sum = 0;
  for (const float w : row) sum += double{w} * w;
  return static_cast<float>(std::sqrt(sum / static_cast<double>(row.size())) / kOptimalRms);
}

// Eight columns of every row, in place.
void round_block(std::span<const float> scales, MatrixRef block) {
  parallel_for(block.rows(), 64, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const float scale = scales[static_cast<size_t>(r)];
      E8Vector x{};
      if (scale > 0) {
        for (size_t i = 0; i < kWidth; ++i) x[i] = block.row(r)[i] / scale;
        x = e8_point(nearest_e8(x));
      }
      for (size_t i = 0; i < kWidth; ++i) block.row(r)[i] = scale * x[i];
    }
  });
}

std::vector<float> row_scales(ConstMatrixRef weight) {
  std::vector<float> scales;
  for (int64_t r = 0; r < weight.rows(); ++r) scales.push_back(row_scale(weight.row(r)));
  return scales;
}

// H + damp·mean(diag H) = R·Rᵀ with R upper triangular: the Cholesky factor of H read backwards.
Result<BasicMatrix<double>> upper_factor(const Matrix& h, double damp) {
  const int64_t n = h.rows();
  double mean = 0;
  for (int64_t i = 0; i < n; ++i) mean += h(i, i) / static_cast<double>(n);
  for (damp = std::max(damp, 0.0); damp <= 1; damp = damp > 0 ? 10 * damp : kFirstRetry) {
    BasicMatrix<double> backwards(n, n);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) backwards(i, j) = h(n - 1 - i, n - 1 - j);
      backwards(i, i) += damp * (mean > 0 ? mean : 1);
    }
    if (!cholesky(backwards.view())) continue;
    BasicMatrix<double> factor(n, n);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) factor(i, j) = backwards(n - 1 - i, n - 1 - j);
    }
    return factor;
  }
  return error(ErrorCode::kInvalidArgument,
               "the Hessian of {} inputs is not positive definite, however damped; calibrate on "
               "more text",
               n);
}

// What the errors of columns 0 … first − 1 add to the target of the block at `first`: R above the
// block, times the inverse of R's triangle there. [first, 8]
Matrix feedback(const BasicMatrix<double>& factor, int64_t first) {
  Matrix result(first, kE8Width);
  for (int64_t r = 0; r < first; ++r) {
    std::array<double, kWidth> x{};
    for (int64_t c = 0; c < kE8Width; ++c) {
      double sum = factor(r, first + c);
      for (int64_t k = 0; k < c; ++k) sum -= x[k] * factor(first + k, first + c);
      x[c] = sum / factor(first + c, first + c);
      result(r, c) = static_cast<float>(x[c]);
    }
  }
  return result;
}

}  // namespace

E8Vector e8_point(uint16_t code) {
  const Shapes& all = shapes();
  const size_t shape = code & 0xffU;
  unsigned signs = code >> 8 & 0x7fU;
  signs |= static_cast<unsigned>((std::popcount(signs) & 1) ^ all.odd[shape]) << 7;
  E8Vector point;
  for (size_t i = 0; i < kWidth; ++i) {
    const float s = all.element[i][shape];
    point[i] = ((signs >> i & 1U) != 0 ? -s : s) + ((code >> 15) != 0 ? -kShift : kShift);
  }
  return point;
}

uint16_t nearest_e8(const E8Vector& x) {
  float best = -std::numeric_limits<float>::infinity();
  uint16_t code = 0;
  float length = 0;  // of x, which both shifts' gains are compared under
  for (const float value : x) length += value * value;
  for (const bool minus : {false, true}) {
    E8Vector v;
    E8Vector magnitude;
    int negatives = 0;
    float norm = 0;
    for (size_t i = 0; i < kWidth; ++i) {
      v[i] = x[i] - (minus ? -kShift : kShift);
      magnitude[i] = std::abs(v[i]);
      negatives += static_cast<int>(v[i] < 0);
      norm += v[i] * v[i];
    }
    const Found found = best_shape(shapes(), magnitude.data(), negatives);
    const float gain = found.gain - norm + length;
    if (gain > best) {
      best = gain;
      code = encode(v, found.shape, minus);
    }
  }
  return code;
}

Matrix round_to_e8(ConstMatrixRef weight) {
  Matrix rounded(weight);
  const std::vector<float> scales = row_scales(weight);
  for (int64_t c = 0; c < weight.cols(); c += kE8Width)
    round_block(scales, rounded.view().cols(c, kE8Width));
  return rounded;
}

Result<Matrix> ldlq_to_e8(ConstMatrixRef weight, const Hessian& hessian, float damp) {
  QUAROT_ASSIGN_OR_RETURN(const BasicMatrix<double> factor,
                          upper_factor(hessian.matrix(), double{damp}));
  const std::vector<float> scales = row_scales(weight);
  Matrix rounded(weight);
  Matrix errors(weight.rows(), weight.cols());  // weight − rounded, of the columns rounded so far
  for (int64_t first = 0; first < weight.cols(); first += kE8Width) {
    const MatrixRef block = rounded.view().cols(first, kE8Width);
    if (first > 0) {
      matmul(ConstMatrixRef(errors.view()).cols(0, first), feedback(factor, first), block, true);
    }
    round_block(scales, block);
    for (int64_t r = 0; r < weight.rows(); ++r) {
      for (int64_t c = first; c < first + kE8Width; ++c)
        errors(r, c) = weight(r, c) - rounded(r, c);
    }
  }
  return rounded;
}

}  // namespace quarot
