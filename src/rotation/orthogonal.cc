#include "rotation/orthogonal.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/parallel.h"
#include "base/random.h"
#include "rotation/fast_transform.h"
#include "rotation/haar.h"

namespace quarot {

// The const member functions run from many threads.
struct Orthogonal::Operator {
  virtual ~Operator() = default;
  virtual int64_t size() const = 0;
  virtual std::string description() const = 0;
  virtual void run(MatrixView<float> rows, bool transposed) const = 0;
  virtual void run(MatrixView<double> rows, bool transposed) const = 0;
  virtual bool is_identity() const { return false; }
  virtual std::optional<Fast> fast() const { return std::nullopt; }

  template <typename T>
  void apply(MatrixView<T> rows, bool transposed) const {
    assert(rows.rows() == 0 || rows.cols() == size());
    if (!rows.empty()) run(rows, transposed);
  }

  struct Identity;
  struct FastOperator;
  struct Dense;
  struct Blocks;
  struct Composite;
};

namespace {

// Fewer elements than this are not worth another thread.
constexpr int64_t kGrainElements = 16384;

int64_t grain(int64_t size) { return std::max<int64_t>(1, kGrainElements / size); }

}  // namespace

struct Orthogonal::Operator::Identity final : Operator {
  explicit Identity(int64_t n) : n_(n) {}
  int64_t size() const override { return n_; }
  std::string description() const override { return "identity"; }
  void run(MatrixView<float>, bool) const override {}
  void run(MatrixView<double>, bool) const override {}
  bool is_identity() const override { return true; }

  int64_t n_;
};

// I_blocks ⊗ (H ⊗ I_inner · diag(signs)).
struct Orthogonal::Operator::FastOperator final : Operator {
  FastOperator(FastTransform transform, std::vector<float> signs, int64_t blocks)
      : transform_(std::move(transform)), signs_(std::move(signs)), blocks_(blocks) {}

  int64_t size() const override { return blocks_ * transform_.size(); }
  std::string description() const override {
    std::string text = transform_.plan().description;
    if (!signs_.empty()) text += " with random signs";
    if (transform_.inner() > 1) {
      text += fmt::format(" across {} groups of {}", transform_.plan().n, transform_.inner());
    }
    if (blocks_ > 1) text += fmt::format(" on each of {} blocks", blocks_);
    return text;
  }
  void run(MatrixView<float> rows, bool transposed) const override { each(rows, transposed); }
  void run(MatrixView<double> rows, bool transposed) const override { each(rows, transposed); }
  std::optional<Fast> fast() const override {
    return Fast{&transform_.plan(), signs_, blocks_, transform_.inner()};
  }

  template <typename T>
  void each(MatrixView<T> rows, bool transposed) const {
    const TransformKernels<T> kernels = transform_kernels<T>();
    const int64_t n = transform_.size();
    parallel_for(rows.rows() * blocks_, grain(n), [&](int64_t first, int64_t last) {
      AlignedVector<T> scratch(static_cast<size_t>(transform_.scratch_size<T>()));
      for (int64_t i = first; i < last; ++i) {
        T* x = rows.row_data(i / blocks_) + i % blocks_ * n;
        if (!transposed) scale(x);
        transform_.apply(x, scratch.data(), transposed, kernels);
        if (transposed) scale(x);
      }
    });
  }

  template <typename T>
  void scale(T* x) const {
    const T factor = static_cast<T>(transform_.scale());
    const int64_t n = transform_.size();
    if (signs_.empty()) {
      for (int64_t i = 0; i < n; ++i) x[i] *= factor;
    } else {
      for (int64_t i = 0; i < n; ++i) x[i] *= factor * static_cast<T>(signs_[i]);
    }
  }

  FastTransform transform_;
  std::vector<float> signs_;
  int64_t blocks_;
};

struct Orthogonal::Operator::Dense final : Operator {
  Dense(BasicMatrix<double> b, std::string name)
      : b_(std::move(b)), single_(b_.rows(), b_.rows()), name_(std::move(name)) {
    std::ranges::transform(b_.elements(), single_.elements().begin(),
                           [](double x) { return static_cast<float>(x); });
  }

  int64_t size() const override { return b_.rows(); }
  std::string description() const override { return fmt::format("{}({})", name_, size()); }
  void run(MatrixView<float> rows, bool transposed) const override {
    each(rows, single_.data(), transposed);
  }
  void run(MatrixView<double> rows, bool transposed) const override {
    each(rows, b_.data(), transposed);
  }

  // Some rows at a time, as the columns of a matrix: each pass over B serves all of them, and a
  // row's sums do not depend on its neighbours.
  template <typename T>
  void each(MatrixView<T> rows, const T* entries, bool transposed) const {
    constexpr int64_t kTile = 128 / sizeof(T);
    const TransformKernels<T> kernels = transform_kernels<T>();
    const int64_t n = size();
    const int64_t tiles = (rows.rows() + kTile - 1) / kTile;
    parallel_for(tiles, 1, [&](int64_t first, int64_t last) {
      AlignedVector<T> x(static_cast<size_t>(n * kTile));
      AlignedVector<T> y(static_cast<size_t>(n * kTile));
      for (int64_t t = first; t < last; ++t) {
        const int64_t width = std::min(kTile, rows.rows() - t * kTile);
        const MatrixView<T> tile = rows.rows(t * kTile, width);
        for (int64_t r = 0; r < width; ++r) {
          for (int64_t j = 0; j < n; ++j) x[j * width + r] = tile(r, j);
        }
        kernels.product(entries, transposed ? 1 : n, transposed ? n : 1, n, width, x.data(),
                        y.data());
        for (int64_t r = 0; r < width; ++r) {
          for (int64_t j = 0; j < n; ++j) tile(r, j) = y[j * width + r];
        }
      }
    });
  }

  BasicMatrix<double> b_;
  Matrix single_;  // b_ for float rows
  std::string name_;
};

struct Orthogonal::Operator::Blocks final : Operator {
  Blocks(int64_t blocks, std::shared_ptr<const Operator> b) : blocks_(blocks), b_(std::move(b)) {}

  int64_t size() const override { return blocks_ * b_->size(); }
  std::string description() const override {
    return fmt::format("{} on each of {} blocks", b_->description(), blocks_);
  }
  void run(MatrixView<float> rows, bool transposed) const override { each(rows, transposed); }
  void run(MatrixView<double> rows, bool transposed) const override { each(rows, transposed); }

  template <typename T>
  void each(MatrixView<T> rows, bool transposed) const {
    if (rows.stride() == rows.cols()) {
      b_->run(MatrixView<T>(rows.data(), rows.rows() * blocks_, b_->size()), transposed);
      return;
    }
    for (int64_t r = 0; r < rows.rows(); ++r) {
      b_->run(MatrixView<T>(rows.row_data(r), blocks_, b_->size()), transposed);
    }
  }

  int64_t blocks_;
  std::shared_ptr<const Operator> b_;
};

struct Orthogonal::Operator::Composite final : Operator {
  explicit Composite(std::vector<std::shared_ptr<const Operator>> parts)
      : parts_(std::move(parts)) {}

  int64_t size() const override { return parts_.front()->size(); }
  std::string description() const override {
    std::string text = parts_.front()->description();
    for (size_t i = 1; i < parts_.size(); ++i) text += ", then " + parts_[i]->description();
    return text;
  }
  void run(MatrixView<float> rows, bool transposed) const override { each(rows, transposed); }
  void run(MatrixView<double> rows, bool transposed) const override { each(rows, transposed); }

  template <typename T>
  void each(MatrixView<T> rows, bool transposed) const {
    if (transposed) {
      std::for_each(parts_.rbegin(), parts_.rend(),
                    [&](const auto& part) { part->run(rows, true); });
    } else {
      for (const auto& part : parts_) part->run(rows, false);
    }
  }

  std::vector<std::shared_ptr<const Operator>> parts_;
};

Orthogonal Orthogonal::identity(int64_t n) {
  return Orthogonal(std::make_shared<const Operator::Identity>(n));
}

Orthogonal Orthogonal::hadamard(int64_t n) { return across(n, 1); }

Orthogonal Orthogonal::randomised_hadamard(int64_t n, uint64_t seed) {
  Random random(seed);
  std::vector<float> signs(static_cast<size_t>(n));
  std::ranges::generate(signs, [&] { return static_cast<float>(random.sign()); });
  return Orthogonal(std::make_shared<const Operator::FastOperator>(
      FastTransform(plan_hadamard(n), 1), std::move(signs), 1));
}

Orthogonal Orthogonal::random(int64_t n, uint64_t seed) {
  return Orthogonal(
      std::make_shared<const Operator::Dense>(haar_random(n, seed), "random orthogonal"));
}

Result<Orthogonal> Orthogonal::dense(BasicMatrix<double> matrix) {
  constexpr double kTolerance = 1e-9;
  if (matrix.rows() != matrix.cols()) {
    return error(ErrorCode::kInvalidArgument,
                 "an orthogonal matrix is square, this one has {} rows and {} columns",
                 matrix.rows(), matrix.cols());
  }
  BasicMatrix<double> gram(matrix.view());
  const Orthogonal result(
      std::make_shared<const Operator::Dense>(std::move(matrix), "dense orthogonal"));
  result.apply(gram);  // row r is B·b_r, the products of row r with every row
  for (int64_t i = 0; i < gram.rows(); ++i) {
    for (int64_t j = 0; j < gram.cols(); ++j) {
      const double expected = i == j ? 1 : 0;
      if (std::abs(gram(i, j) - expected) <= kTolerance) continue;
      return error(ErrorCode::kInvalidArgument,
                   "the matrix is not orthogonal: rows {} and {} have the product {}, expected {} "
                   "to within {}; orthonormalise its rows first",
                   i, j, gram(i, j), expected, kTolerance);
    }
  }
  return result;
}

Orthogonal Orthogonal::across(int64_t groups, int64_t inner) {
  if (groups == 1) return identity(inner);
  return Orthogonal(std::make_shared<const Operator::FastOperator>(
      FastTransform(plan_hadamard(groups), inner), std::vector<float>(), 1));
}

Orthogonal Orthogonal::blocks(int64_t blocks, const Orthogonal& b) {
  if (blocks == 1) return b;
  if (b.is_identity()) return identity(blocks * b.size());
  if (const auto* fast = dynamic_cast<const Operator::FastOperator*>(b.op_.get())) {
    return Orthogonal(std::make_shared<const Operator::FastOperator>(fast->transform_, fast->signs_,
                                                                     fast->blocks_ * blocks));
  }
  return Orthogonal(std::make_shared<const Operator::Blocks>(blocks, b.op_));
}

Orthogonal Orthogonal::compose(const std::vector<Orthogonal>& parts) {
  assert(!parts.empty());
  std::vector<std::shared_ptr<const Operator>> operators;
  for (const Orthogonal& part : parts) {
    assert(part.size() == parts.front().size());
    if (!part.is_identity()) operators.push_back(part.op_);
  }
  if (operators.empty()) return parts.front();
  if (operators.size() == 1) return Orthogonal(operators.front());
  return Orthogonal(std::make_shared<const Operator::Composite>(std::move(operators)));
}

int64_t Orthogonal::size() const { return op_->size(); }
bool Orthogonal::is_identity() const { return op_->is_identity(); }
std::string Orthogonal::description() const { return op_->description(); }
std::optional<Orthogonal::Fast> Orthogonal::fast() const { return op_->fast(); }

void Orthogonal::apply(MatrixView<float> rows) const { op_->apply(rows, false); }
void Orthogonal::apply(MatrixView<double> rows) const { op_->apply(rows, false); }
void Orthogonal::apply_transposed(MatrixView<float> rows) const { op_->apply(rows, true); }
void Orthogonal::apply_transposed(MatrixView<double> rows) const { op_->apply(rows, true); }

BasicMatrix<double> Orthogonal::matrix() const {
  BasicMatrix<double> result(size(), size(), 0);
  for (int64_t i = 0; i < size(); ++i) result(i, i) = 1;
  apply_transposed(result);  // row i is Bᵀ·e_i
  return result;
}

Orthogonal cross_head_hadamard(int64_t heads, int64_t head_dim) {
  for (int64_t k = 1; head_dim % k == 0; k *= 2) {
    if (plan_hadamard(k * heads).is_hadamard) return Orthogonal::across(k * heads, head_dim / k);
  }
  return Orthogonal::across(heads, head_dim);
}

}  // namespace quarot
