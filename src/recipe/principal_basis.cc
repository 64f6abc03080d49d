#include "recipe/principal_basis.h"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "quant/hessian.h"
#include "recipe/calibration.h"
#include "runtime/make_backend.h"

namespace quarot {

namespace {

// What the norms give, without their gains.
class NormObserver final : public SiteObserver {
 public:
  explicit NormObserver(int64_t width) : hessian(width) {}

  void observe(int64_t, Space space, ConstMatrixRef rows) override {
    if (space != Space::kAttentionInput && space != Space::kFfnInput) return;
    const std::vector<float>& gain =
        space == Space::kAttentionInput ? layer->attention_norm : layer->ffn_norm;
    Matrix plain(rows);
    for (int64_t r = 0; r < plain.rows(); ++r) {
      for (size_t c = 0; c < gain.size(); ++c)
        plain.row(r)[c] = gain[c] != 0 ? plain.row(r)[c] / gain[c] : 0.0F;
    }
    hessian.add(plain);
  }

  const Layer* layer = nullptr;
  Hessian hessian;
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

}  // namespace

Result<Orthogonal> principal_basis(const Recipe& recipe,
                                   std::span<const std::vector<Token>> windows,
                                   const NextLayer& floats, const Model& model, Progress& progress,
                                   Device device) {
  QUAROT_ASSIGN_OR_RETURN(const std::unique_ptr<LayerStream> stream,
                          make_layer_stream(model.config, {}, {}, device, progress));
  const auto measured = first_windows(windows, recipe.calibration_tokens);
  QUAROT_RETURN_IF_ERROR(stream->reserve(count_tokens(measured)));
  for (const std::vector<Token>& window : measured) {
    QUAROT_RETURN_IF_ERROR(stream->add_window(window, embedding_rows(model.embedding, window)));
  }
  NormObserver observer(model.config.hidden);
  progress.stage("finding principal components", model.config.layers);
  for (int64_t i = 0; i < model.config.layers; ++i) {
    QUAROT_ASSIGN_OR_RETURN(Layer layer, floats());
    observer.layer = &stream->put_layer(i, std::move(layer));
    QUAROT_RETURN_IF_ERROR(stream->run_layer(&observer));
    stream->take_layer();
    progress.advance(1);
  }
  return Orthogonal::dense(eigenvectors(observer.hessian.matrix()));
}

}  // namespace quarot
