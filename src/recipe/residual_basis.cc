#include "recipe/residual_basis.h"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "quant/hessian.h"
#include "recipe/calibration.h"
#include "rotation/flat_basis.h"
#include "runtime/make_backend.h"

namespace quarot {

namespace {

constexpr int64_t kRowsPerChannel = 32;
constexpr int64_t kSampleBytes = int64_t{1} << 30;

// What the norms give, without their gains.
class NormObserver : public SiteObserver {
 public:
  void observe(int64_t, Space space, ConstMatrixRef rows) final {
    if (space != Space::kAttentionInput && space != Space::kFfnInput) return;
    const std::vector<float>& gain =
        space == Space::kAttentionInput ? layer->attention_norm : layer->ffn_norm;
    Matrix plain(rows);
    for (int64_t r = 0; r < plain.rows(); ++r) {
      for (size_t c = 0; c < gain.size(); ++c)
        plain.row(r)[c] = gain[c] != 0 ? plain.row(r)[c] / gain[c] : 0.0F;
    }
    add(plain);
  }

  const Layer* layer = nullptr;

 private:
  virtual void add(const Matrix& rows) = 0;
};

class Moments final : public NormObserver {
 public:
  explicit Moments(int64_t width) : hessian(width) {}
  Hessian hessian;

 private:
  void add(const Matrix& rows) override { hessian.add(rows); }
};

class Sample final : public NormObserver {
 public:
  explicit Sample(int64_t every) : every_(every) {}

  Matrix take(int64_t width) {
    Matrix rows(std::ssize(values_) / width, width);
    std::ranges::copy(values_, rows.data());
    values_ = {};
    return rows;
  }

 private:
  void add(const Matrix& rows) override {
    for (int64_t r = 0; r < rows.rows(); ++r) {
      if (seen_++ % every_ == 0)
        values_.insert(values_.end(), rows.row(r).begin(), rows.row(r).end());
    }
  }

  int64_t every_;
  int64_t seen_ = 0;
  std::vector<float> values_;
};

BasicMatrix<double> eigenvectors(const Matrix& symmetric) {
  const int64_t n = symmetric.rows();
  Eigen::MatrixXd wide(n, n);
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t c = 0; c < n; ++c) wide(r, c) = symmetric(r, c);
  }
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(wide);  // by rising eigenvalue
  BasicMatrix<double> rows(n, n);
  for (int64_t k = 0; k < n; ++k) {
    const auto vector = solver.eigenvectors().col(n - 1 - k);
    Eigen::Index largest = 0;
    vector.cwiseAbs().maxCoeff(&largest);
    const double sign = std::copysign(1.0, vector(largest));
    for (int64_t c = 0; c < n; ++c) rows(k, c) = sign * vector(c);
  }
  return rows;
}

// One of so many rows that the sample is as large as the header says.
int64_t sample_every(const ModelConfig& config, int64_t tokens) {
  const int64_t wanted =
      std::min(kRowsPerChannel * config.hidden,
               kSampleBytes / (config.hidden * static_cast<int64_t>(sizeof(float))));
  return std::max<int64_t>(2 * config.layers * tokens / std::max<int64_t>(wanted, 1), 1);
}

Status observe_norms(const ModelConfig& config, std::span<const std::vector<Token>> windows,
                     LayerPipeline::Embed embed, const NextLayer& floats, NormObserver& observer,
                     Progress& progress, Device device) {
  QUAROT_ASSIGN_OR_RETURN(const std::unique_ptr<LayerStream> stream,
                          make_layer_stream(config, {}, {}, device, progress));
  QUAROT_RETURN_IF_ERROR(stream->reserve(count_tokens(windows)));
  for (const std::vector<Token>& window : windows) {
    QUAROT_RETURN_IF_ERROR(check_batch({window, {{0, 0, std::ssize(window), 0}}}, config));
    QUAROT_ASSIGN_OR_RETURN(Matrix rows, embed(window));
    QUAROT_RETURN_IF_ERROR(stream->add_window(window, std::move(rows)));
  }
  progress.stage("looking at the residual stream", config.layers);
  for (int64_t i = 0; i < config.layers; ++i) {
    QUAROT_ASSIGN_OR_RETURN(Layer layer, floats());
    observer.layer = &stream->put_layer(i, std::move(layer));
    QUAROT_RETURN_IF_ERROR(stream->run_layer(&observer));
    stream->take_layer();
    progress.advance(1);
  }
  return {};
}

}  // namespace

Result<std::optional<Orthogonal>> residual_basis(const Recipe& recipe, const ModelConfig& config,
                                                 std::span<const std::vector<Token>> windows,
                                                 LayerPipeline::Embed embed,
                                                 const NextLayer& floats, Progress& progress,
                                                 Device device) {
  if (!recipe.transforms.finds_residual_basis()) return std::optional<Orthogonal>();
  const auto measured = first_windows(windows, recipe.calibration_tokens);
  if (recipe.transforms.kind == BasisKind::kPrincipal) {
    Moments moments(config.hidden);
    QUAROT_RETURN_IF_ERROR(
        observe_norms(config, measured, embed, floats, moments, progress, device));
    QUAROT_ASSIGN_OR_RETURN(const Orthogonal basis,
                            Orthogonal::dense(eigenvectors(moments.hessian.matrix())));
    return std::optional(basis);
  }
  Sample sample(sample_every(config, count_tokens(measured)));
  QUAROT_RETURN_IF_ERROR(observe_norms(config, measured, embed, floats, sample, progress, device));
  progress.stage("learning the residual stream's basis", flat_basis_trials());
  const Orthogonal start = Orthogonal::randomised_hadamard(config.hidden, recipe.transforms.seed);
  QUAROT_ASSIGN_OR_RETURN(const Orthogonal basis,
                          learn_flat_basis(sample.take(config.hidden), start, progress));
  return std::optional(basis);
}

}  // namespace quarot
