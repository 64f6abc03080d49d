#include "probe/treatments.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "probe/site_statistics.h"
#include "tensor/gemm.h"

namespace quarot {

namespace {

// What α is chosen by: so many of the calibration rows, and of each reader's outputs.
constexpr int64_t kSearchRows = 96;
constexpr int64_t kSearchOutputs = 256;

// What site_scale() reads of the rows.
ChannelStatistics channel_statistics(ConstMatrixRef rows) {
  ChannelStatistics channels;
  const auto width = static_cast<size_t>(rows.cols());
  for (auto* values : {&channels.mean_magnitude, &channels.mean_square, &channels.largest})
    values->resize(width, 0.0);
  const auto count = static_cast<double>(rows.rows());
  for (int64_t r = 0; r < rows.rows(); ++r) {
    for (size_t c = 0; c < width; ++c) {
      const double x = std::abs(double{rows.row(r)[c]});
      channels.mean_magnitude[c] += x / count;
      channels.mean_square[c] += x * x / count;
      channels.largest[c] = std::max(channels.largest[c], x);
    }
  }
  return channels;
}

Matrix spread_rows(ConstMatrixRef rows, int64_t most) {
  const int64_t step = std::max<int64_t>((rows.rows() + most - 1) / most, 1);
  Matrix chosen((rows.rows() + step - 1) / step, rows.cols());
  for (int64_t r = 0; r < chosen.rows(); ++r)
    std::ranges::copy(rows.row(r * step), chosen.row(r).begin());
  return chosen;
}

// One site: the linears that read it, their inputs and outputs.
class SiteTrial {
 public:
  SiteTrial(const ModelConfig& config, int64_t index, Space site, const Layer& layer,
            const Matrix& calibration, const Matrix& held_out)
      : config_(config),
        index_(index),
        site_(site),
        layer_(layer),
        calibration_(calibration),
        held_out_(held_out),
        search_(spread_rows(calibration, kSearchRows)) {
    for (const Role role : kRoles) {
      if (spaces_of(role).input == site) readers_.push_back(role);
    }
    statistics_[site] = channel_statistics(calibration);
    for (const Role role : readers_)
      search_weights_.push_back(spread_rows(layer[role].weight, kSearchOutputs));
    search_outputs_ = outputs(search_, search_weights_);
    held_out_outputs_ = outputs(held_out_, weights());
  }

  Status run(const TransformSpec& rotation, const std::optional<Orthogonal>& found_basis,
             LayerTreatments& found) const {
    TransformSpec after_scale = rotation;  // a rotation that scales can stand before
    after_scale.norm_output |= after_scale.residual;
    after_scale.residual = false;
    if (rotation.finds_residual_basis()) after_scale.kind = BasisKind::kHadamard;
    const Transformer plain(config_, {});
    const Transformer rotated(config_, rotation, found_basis);
    const Transformer balanced(config_, after_scale);
    const Basis turned = rotated.basis_of(site_, {}, index_);
    check_exactness(rotation.residual, turned, found);
    search(Scaling::kSmoothQuant, plain, found.smoothing);
    search(Scaling::kBalance, balanced, found.balancing);
    for (size_t b = 0; b < kTrialBits.size(); ++b) {
      const int bits = kTrialBits[b];
      const auto smooth =
          basis(plain, Scaling::kSmoothQuant, found.smoothing[b][site_index(site_)].alpha());
      const auto balance =
          basis(balanced, Scaling::kBalance, found.balancing[b][site_index(site_)].alpha());
      measure(bits, 0, false, {}, found.errors[b]);
      measure(bits, 1, false, smooth, found.errors[b]);
      measure(bits, 2, rotation.residual, turned, found.errors[b]);
      measure(bits, 3, false, balance, found.errors[b]);
      QUAROT_RETURN_IF_ERROR(measure_gptq(bits, balance, found.errors[b]));
    }
    return {};
  }

 private:
  using Errors = std::array<std::array<double, kTreatments.size()>, kRoles.size()>;

  std::vector<Matrix> weights() const {
    std::vector<Matrix> weights;
    for (const Role role : readers_) weights.emplace_back(layer_[role].weight.view());
    return weights;
  }

  static std::vector<Matrix> outputs(const Matrix& rows, const std::vector<Matrix>& weights) {
    std::vector<Matrix> outputs;
    for (const Matrix& weight : weights) {
      outputs.emplace_back(rows.rows(), weight.rows());
      matmul_transposed(rows, weight, outputs.back());
    }
    return outputs;
  }

  std::span<const float> gain(bool folded) const {
    if (folded && site_ == Space::kAttentionInput) return layer_.attention_norm;
    if (folded && site_ == Space::kFfnInput) return layer_.ffn_norm;
    return {};
  }

  // The rows before the norm's gain, where it is folded into the readers.
  Matrix without_gain(const Matrix& rows, bool folded) const {
    Matrix bare(rows.view());
    const std::span<const float> gains = gain(folded);
    for (int64_t r = 0; r < bare.rows(); ++r) {
      for (size_t c = 0; c < gains.size(); ++c)
        bare.row(r)[c] = gains[c] != 0 ? bare.row(r)[c] / gains[c] : 0.0F;
    }
    return bare;
  }

  Matrix moved(const Matrix& rows, bool folded, const Basis& basis) const {
    Matrix result = without_gain(rows, folded);
    change_basis(result, basis);
    return result;
  }

  std::vector<Matrix> moved_weights(bool folded, const Basis& basis) const {
    std::vector<Matrix> moved = weights();
    for (Matrix& weight : moved) change_input_basis(weight, gain(folded), basis);
    return moved;
  }

  Basis basis(const Transformer& transformer, Scaling scaling, double alpha) const {
    LayerScales scales;
    scales[site_] = site_scale(scaling, alpha, config_, site_, layer_, statistics_);
    return transformer.basis_of(site_, scales, index_);
  }

  static WeightQuant weight_quant(int bits) { return {.bits = bits, .search_clip = false}; }

  static Matrix rounded(Matrix rows, int bits) {
    simulate(ActivationQuant{.bits = bits, .clip = bits < 8 ? 0.9F : 1.0F}, rows);
    return rows;
  }

  static Matrix rounded_weight(const Matrix& weight, int bits) {
    return round_to_nearest(weight_quant(bits), weight).dequantize();
  }

  void check_exactness(bool folded, const Basis& turned, LayerTreatments& found) const {
    const size_t site = site_index(site_);
    const Matrix rows = moved(held_out_, folded, turned);
    const std::vector<Matrix> exact = outputs(rows, moved_weights(folded, turned));
    for (size_t i = 0; i < exact.size(); ++i) {
      found.exactness[site] =
          std::max(found.exactness[site], relative_distance(exact[i], held_out_outputs_[i]));
    }
    found.norm_before[site] = norm_of(without_gain(held_out_, folded));
    found.norm_after[site] = norm_of(rows);
  }

  // All bits at once: what costs is moving the weights.
  void search(Scaling scaling, const Transformer& transformer,
              std::array<std::array<AlphaSearch, kSites.size()>, kTrialBits.size()>& found) const {
    for (size_t a = 0; a < kTrialAlphas.size(); ++a) {
      const Basis scaled = basis(transformer, scaling, kTrialAlphas[a]);
      const Matrix rows = moved(search_, false, scaled);
      std::vector<Matrix> scaled_weights = search_weights_;
      for (Matrix& weight : scaled_weights) change_input_basis(weight, {}, scaled);
      for (size_t b = 0; b < kTrialBits.size(); ++b)
        found[b][site_index(site_)].errors[a] = search_error(kTrialBits[b], rows, scaled_weights);
    }
  }

  double search_error(int bits, const Matrix& rows, const std::vector<Matrix>& weights) const {
    const Matrix inputs = rounded(Matrix(rows.view()), bits);
    double squares = 0;
    double total = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      Matrix output(inputs.rows(), weights[i].rows());
      matmul_transposed(inputs, rounded_weight(weights[i], bits), output);
      const double norm = norm_of(search_outputs_[i]);
      const double error = distance(output, search_outputs_[i]);
      squares += error * error;
      total += norm * norm;
    }
    return total > 0 ? std::sqrt(squares / total) : 0;
  }

  void measure(int bits, size_t treatment, bool folded, const Basis& basis, Errors& errors) const {
    const Matrix inputs = rounded(moved(held_out_, folded, basis), bits);
    std::vector<Matrix> readers = moved_weights(folded, basis);
    for (Matrix& weight : readers) weight = rounded_weight(weight, bits);
    record(inputs, readers, treatment, errors);
  }

  Status measure_gptq(int bits, const Basis& basis, Errors& errors) const {
    Hessian hessian(calibration_.cols());
    hessian.add(rounded(moved(calibration_, false, basis), bits));
    std::vector<Matrix> readers = moved_weights(false, basis);
    for (Matrix& weight : readers) {
      QUAROT_ASSIGN_OR_RETURN(const QuantizedWeight quantized,
                              gptq(weight_quant(bits), {}, weight, hessian));
      weight = quantized.dequantize();
    }
    record(rounded(moved(held_out_, false, basis), bits), readers, 4, errors);
    return {};
  }

  void record(const Matrix& inputs, const std::vector<Matrix>& weights, size_t treatment,
              Errors& errors) const {
    const std::vector<Matrix> found = outputs(inputs, weights);
    for (size_t i = 0; i < readers_.size(); ++i) {
      errors[static_cast<size_t>(readers_[i])][treatment] =
          relative_distance(found[i], held_out_outputs_[i]);
    }
  }

  const ModelConfig& config_;
  int64_t index_;
  Space site_;
  const Layer& layer_;
  const Matrix& calibration_;
  const Matrix& held_out_;
  Matrix search_;
  std::vector<Role> readers_;
  LayerStatistics statistics_;
  std::vector<Matrix> search_weights_, search_outputs_, held_out_outputs_;
};

}  // namespace

size_t AlphaSearch::best() const {
  return static_cast<size_t>(std::ranges::min_element(errors) - errors.begin());
}

Result<LayerTreatments> try_treatments(const ModelConfig& config, const TransformSpec& rotation,
                                       const std::optional<Orthogonal>& found_basis, int64_t index,
                                       const Layer& layer, const SiteRows& calibration,
                                       const SiteRows& held_out) {
  LayerTreatments found;
  for (const Space site : kSites) {
    const SiteTrial trial(config, index, site, layer, calibration[site_index(site)],
                          held_out[site_index(site)]);
    QUAROT_RETURN_IF_ERROR(trial.run(rotation, found_basis, found));
  }
  return found;
}

}  // namespace quarot
