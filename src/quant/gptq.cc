// GPTQ rounds columns first to last. Write D = W − Ŵ for the error so far and H = R·Rᵀ with R upper
// triangular. What is left of tr(D·H·Dᵀ) = ‖D·R‖² is least when column j is rounded from
//
//   w'_j = w_j + Σ_{k<j} D_k·R_kj / R_jj,
//
// which is Frantar et al.'s update by the Cholesky factor of H⁻¹ (that factor is R⁻¹), with no
// inverse to compute. R is the ordinary factor L when the columns are laid out backwards: position
// n−1 is rounded first, position 0 last, and each position waits for the rows of L below it. The
// rows of W do not wait for each other: a block of them goes through the whole matrix on one
// thread.
#include "quant/gptq.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "quant/cholesky.h"
#include "quant/grid.h"
#include "tensor/gemm.h"

namespace quarot {

namespace {

constexpr int64_t kRows = 64;  // rounded together: enough to feed a matrix product
constexpr double kFirstRetry = 1e-4;
constexpr double kLargestDamp = 1e4;

// The damped Hessian, factored.
struct Factor {
  std::vector<int64_t> order;  // the column at each position
  std::vector<bool> dead;      // by position
  Matrix lower;                // L, by position
  double ridge = 0;            // what damping added to the diagonal
  float damp = 0;
  bool used_double = false;
};

std::vector<int64_t> column_order(const Matrix& h, bool by_diagonal) {
  std::vector<int64_t> first_to_last(h.rows());
  std::iota(first_to_last.begin(), first_to_last.end(), 0);
  if (by_diagonal) {
    std::ranges::stable_sort(first_to_last,
                             [&](int64_t a, int64_t b) { return h(a, a) > h(b, b); });
  }
  return {first_to_last.rbegin(), first_to_last.rend()};
}

// The lower triangle by position; a dead column gets `mean` on its diagonal and touches no other.
template <typename T>
void fill(const Matrix& h, const Factor& f, double mean, MatrixView<T> a) {
  for_each_block(a.rows(), [&](int64_t r) {
    for (int64_t c = 0; c <= r; ++c) a(r, c) = static_cast<T>(h(f.order[r], f.order[c]));
    const double diagonal = f.dead[r] ? mean : double{h(f.order[r], f.order[r])};
    a(r, r) = static_cast<T>(diagonal + f.ridge);
  });
}

Result<Factor> factorise(const Matrix& h, const GptqOptions& options) {
  const int64_t n = h.rows();
  Factor f;
  f.order = column_order(h, options.act_order);
  f.dead.resize(n);
  double trace = 0;
  for (int64_t p = 0; p < n; ++p) {
    const float diagonal = h(f.order[p], f.order[p]);
    f.dead[p] = diagonal == 0;
    trace += double{diagonal};
  }
  const int64_t live = std::ranges::count(f.dead, false);
  const double mean = live > 0 ? trace / static_cast<double>(live) : 1;
  if (!std::isfinite(mean)) {
    return error(ErrorCode::kInvalidArgument,
                 "GPTQ: the Hessian of {} inputs is not finite; look for infinities among them", n);
  }
  f.lower.resize(n, n);
  for (double damp = options.damp; damp <= kLargestDamp;
       damp = damp > 0 ? 10 * damp : kFirstRetry) {
    f.damp = static_cast<float>(damp);
    f.ridge = damp * mean;
    fill(h, f, mean, f.lower.view());
    if (cholesky(f.lower.view())) return f;
    BasicMatrix<double> precise(n, n);
    fill(h, f, mean, precise.view());
    if (!cholesky(precise.view())) continue;
    std::ranges::transform(precise.elements(), f.lower.data(),
                           [](double x) { return static_cast<float>(x); });
    f.used_double = true;
    return f;
  }
  return error(ErrorCode::kInvalidArgument,
               "GPTQ: the Hessian of {} inputs is not positive definite, damped by {} of its mean "
               "diagonal; it is not one of real inputs",
               n, f.damp);
}

double squared_norm(std::span<const float> x) {
  return std::transform_reduce(x.begin(), x.end(), 0.0, std::plus<>(),
                               [](float v) { return double{v} * v; });
}

// tr(D·H·Dᵀ) and tr(W·H·Wᵀ), H undamped.
struct Energy {
  double error = 0;
  double weight = 0;
};

// Rounds rows of one weight.
class Rounder {
 public:
  Rounder(const GptqOptions& options, const Factor& factor, ConstMatrixRef weight,
          QuantizedWeight& out)
      : factor_(factor),
        lower_(factor.lower),
        weight_(weight),
        out_(out),
        n_(weight.cols()),
        group_(group_size(out.quant, n_)),
        groups_move_(group_ < n_ && !options.act_order),
        // A group's grid needs the corrections of the whole group at once.
        block_(!groups_move_ ? options.block : std::max(options.block / group_ * group_, group_)) {}

  Energy round(int64_t first, int64_t count, bool measure) const {
    Matrix x(count, n_);  // the weights by position, and their errors once rounded
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t p = 0; p < n_; ++p) {
        x(r, p) = factor_.dead[p] ? 0.0F : weight_(first + r, factor_.order[p]);
      }
      if (!groups_move_) fix_grids(first + r, x.row(r));
    }
    Energy energy;
    if (measure) energy.weight = weight_energy(x);
    Matrix correction;
    for (int64_t end = n_; end > 0;) {
      const int64_t begin = std::max<int64_t>(end - block_, 0);
      correction.resize(count, end - begin);
      matmul(x.view().cols(end, n_ - end), lower_.rows(end, n_ - end).cols(begin, end - begin),
             correction);
      for (int64_t r = 0; r < count; ++r) {
        energy.error += round_block(first + r, begin, end, x.row(r), correction.row(r).data());
      }
      end = begin;
    }
    energy.error -= factor_.ridge * squared_norm(x.elements());
    return energy;
  }

 private:
  Grid grid(int64_t row, int64_t column) const {
    const int32_t half = 1 << (out_.quant.bits - 1);
    return {.scale = out_.scales(row, column / group_),
            .zero = out_.zeros(row, column / group_),
            .lowest = -half,
            .highest = half - 1};
  }

  void set_grid(int64_t row, int64_t group, std::span<const float> w) const {
    const Grid grid = weight_grid(out_.quant, w);
    out_.scales(row, group) = grid.scale;
    out_.zeros(row, group) = grid.zero;
  }

  // The grids from the weights as given.
  void fix_grids(int64_t row, std::span<const float> x) const {
    std::vector<float> w(n_);
    for (int64_t p = 0; p < n_; ++p) w[factor_.order[p]] = x[p];
    for (int64_t g = 0; g < n_ / group_; ++g) {
      set_grid(row, g, std::span<const float>(w).subspan(g * group_, group_));
    }
  }

  // The grid of the group whose first column is at position `last`, from the weights that would
  // minimise the error were they not rounded: x + s, where s·L = correction over the group.
  void move_grid(int64_t row, int64_t last, int64_t begin, std::span<const float> x,
                 const float* correction) const {
    const int64_t first = last + 1 - group_;
    std::vector<float> s(correction + (first - begin), correction + (last + 1 - begin));
    std::vector<float> w(group_);
    for (int64_t i = group_ - 1; i >= 0; --i) {
      const float* l = lower_.row_data(first + i) + first;
      s[i] /= l[i];
      for (int64_t j = 0; j < i; ++j) s[j] -= s[i] * l[j];
      w[group_ - 1 - i] = x[first + i] + s[i];  // columns run against positions
    }
    set_grid(row, factor_.order[last] / group_, w);
  }

  // Rounds positions end−1 … begin of one row; `correction` holds Σ D_k·L_kp over k ≥ end. Returns
  // the positions' share of the damped error.
  double round_block(int64_t row, int64_t begin, int64_t end, std::span<float> x,
                     float* correction) const {
    double error = 0;
    for (int64_t p = end - 1; p >= begin; --p) {
      const int64_t column = factor_.order[p];
      if (groups_move_ && column % group_ == 0) move_grid(row, p, begin, x, correction);
      const Grid g = grid(row, column);
      const float* l = lower_.row_data(p);
      const float target = x[p] + correction[p - begin] / l[p];
      const int32_t q = g.quantize(target);
      out_.values(row, column) = static_cast<int8_t>(q);
      const double residual = double{target - g.dequantize(q)} * l[p];
      error += residual * residual;
      const float d = x[p] - g.dequantize(q);
      x[p] = d;
      for (int64_t j = begin; j < p; ++j) correction[j - begin] += d * l[j];
    }
    return error;
  }

  double weight_energy(const Matrix& x) const {
    double energy = 0;
    Matrix product;
    for (int64_t begin = 0; begin < n_; begin += block_) {
      const int64_t width = std::min(block_, n_ - begin);
      product.resize(x.rows(), width);
      matmul(x.view().cols(begin, n_ - begin), lower_.rows(begin, n_ - begin).cols(begin, width),
             product);
      energy += squared_norm(product.elements());
    }
    return energy - factor_.ridge * squared_norm(x.elements());
  }

  const Factor& factor_;
  const ConstMatrixRef lower_;
  const ConstMatrixRef weight_;
  QuantizedWeight& out_;
  const int64_t n_;
  const int64_t group_;
  const bool groups_move_;  // grids are found as their turn comes
  const int64_t block_;
};

Status check(const WeightQuant& q, const GptqOptions& options, ConstMatrixRef weight,
             const Hessian& hessian) {
  QUAROT_RETURN_IF_ERROR(check(q, weight.cols()));
  if (!q.enabled()) {
    return error(ErrorCode::kInvalidArgument,
                 "GPTQ: weights of {} bits are not rounded; choose 2 to 8", q.bits);
  }
  QUAROT_RETURN_IF_ERROR(check(options));
  if (hessian.matrix().rows() != weight.cols()) {
    return error(ErrorCode::kInvalidArgument, "GPTQ: a weight of {} inputs with a Hessian of {}",
                 weight.cols(), hessian.matrix().rows());
  }
  if (hessian.tokens() == 0) {
    return error(ErrorCode::kInvalidArgument,
                 "GPTQ: the Hessian of {} inputs has seen no tokens; add calibration inputs first",
                 weight.cols());
  }
  for (int64_t r = 0; r < weight.rows(); ++r) {
    const auto row = weight.row(r);
    const auto bad = std::ranges::find_if_not(row, [](float w) { return std::isfinite(w); });
    if (bad != row.end()) {
      return error(ErrorCode::kInvalidArgument, "GPTQ: weight [{}, {}] is {}; expected a number", r,
                   bad - row.begin(), *bad);
    }
  }
  return {};
}

}  // namespace

Status check(const GptqOptions& options) {
  if (options.block >= 1 && options.damp >= 0 && options.damp <= kLargestDamp) return {};
  return error(ErrorCode::kInvalidArgument,
               "GPTQ: blocks of {} columns, damping {}; choose at least 1 column and 0 to {}",
               options.block, options.damp, kLargestDamp);
}

Result<QuantizedWeight> gptq(const WeightQuant& q, const GptqOptions& options,
                             ConstMatrixRef weight, const Hessian& hessian, GptqReport* report) {
  QUAROT_RETURN_IF_ERROR(check(q, options, weight, hessian));
  QUAROT_ASSIGN_OR_RETURN(const Factor factor, factorise(hessian.matrix(), options));

  const int64_t groups = weight.cols() / group_size(q, weight.cols());
  QuantizedWeight result{.quant = q,
                         .values = BasicMatrix<int8_t>(weight.rows(), weight.cols()),
                         .scales = Matrix(weight.rows(), groups),
                         .zeros = BasicMatrix<int32_t>(weight.rows(), groups)};
  const Rounder rounder(options, factor, weight, result);
  std::vector<Energy> energies((weight.rows() + kRows - 1) / kRows);
  for_each_block(static_cast<int64_t>(energies.size()), [&](int64_t i) {
    const int64_t first = i * kRows;
    energies[i] = rounder.round(first, std::min(kRows, weight.rows() - first), report != nullptr);
  });

  if (report != nullptr) {
    Energy total;
    for (const Energy& e : energies) total = {total.error + e.error, total.weight + e.weight};
    *report = {.damp_used = factor.damp,
               .dead_columns = std::ranges::count(factor.dead, true),
               .error = total.weight > 0 ? std::max(total.error / total.weight, 0.0) : 0.0,
               .used_double = factor.used_double};
  }
  return result;
}

}  // namespace quarot
