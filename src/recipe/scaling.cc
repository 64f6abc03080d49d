#include "recipe/scaling.h"

#include <cmath>
#include <limits>

#include "tensor/gemm.h"

namespace quarot {

namespace {

constexpr int kSteps = 20;  // of the search, from 0 to 1

std::vector<Role> readers_of(Space site) {
  std::vector<Role> roles;
  std::ranges::copy_if(kRoles, std::back_inserter(roles),
                       [&](Role role) { return spaces_of(role).input == site; });
  return roles;
}

// Of each column of all readers: Σ W², or max |W|.
std::vector<double> measure_columns(const Layer& layer, Space site, bool largest) {
  std::vector<double> columns;
  for (const Role role : readers_of(site)) {
    const Matrix& weight = layer[role].weight;
    columns.resize(static_cast<size_t>(weight.cols()), 0.0);
    for (int64_t r = 0; r < weight.rows(); ++r) {
      const std::span<const float> row = weight.row(r);
      for (size_t c = 0; c < row.size(); ++c) {
        const double w = row[c];
        columns[c] = largest ? std::max(columns[c], std::abs(w)) : columns[c] + w * w;
      }
    }
  }
  return columns;
}

// From query heads to the KV heads they share.
std::vector<double> over_groups(const ModelConfig& config, const std::vector<double>& per_head,
                                bool largest) {
  std::vector<double> shared(static_cast<size_t>(config.width(Space::kValue)), 0.0);
  for (int64_t head = 0; head < config.heads; ++head) {
    for (int64_t i = 0; i < config.head_dim; ++i) {
      double& value = shared[static_cast<size_t>(head / config.group() * config.head_dim + i)];
      const double own = per_head[static_cast<size_t>(head * config.head_dim + i)];
      value = largest ? std::max(value, own) : value + own;
    }
  }
  return shared;
}

double scale_of(Scaling scaling, double alpha, double weight, double activation) {
  switch (scaling) {
    case Scaling::kNone:
      break;
    case Scaling::kBalance:
      return std::pow(weight / activation, alpha / 2);
    case Scaling::kSmoothQuant:
      return std::pow(weight, 1 - alpha) / std::pow(activation, alpha);
    case Scaling::kAwq:
      return std::pow(activation, -alpha);
  }
  return 1;
}

// The outputs of one site's readers, and how far a candidate's scale leaves them from these.
class SiteError {
 public:
  SiteError(const Recipe& recipe, const Transformer& transformer, int64_t index, Space site,
            const Layer& layer, const Matrix& sample)
      : recipe_(recipe), transformer_(transformer), index_(index), site_(site), sample_(sample) {
    weights_.search_clip = false;
    weights_.clip = 1;
    for (const Role role : readers_of(site)) {
      const Matrix& weight = layer[role].weight;
      readers_.push_back({&weight, Matrix(sample.rows(), weight.rows())});
      matmul_transposed(sample, weight, readers_.back().output);
    }
  }

  double operator()(const std::vector<double>& scale) const {
    LayerScales scales;
    scales[site_] = scale;
    const Basis basis = transformer_.basis_of(site_, scales, index_);
    Matrix inputs(sample_.view());
    change_basis(inputs, basis);
    simulate(recipe_.precision.activations, inputs);
    double sum = 0;
    for (const Reader& reader : readers_) {
      Matrix weight(reader.weight->view());
      change_input_basis(weight, {}, basis);
      if (weights_.enabled()) weight = round_to_nearest(weights_, weight).dequantize();
      Matrix output(inputs.rows(), weight.rows());
      matmul_transposed(inputs, weight, output);
      for (int64_t i = 0; i < output.size(); ++i) {
        const double difference = double{output.data()[i]} - reader.output.data()[i];
        sum += difference * difference;
      }
    }
    return sum;
  }

 private:
  struct Reader {
    const Matrix* weight;
    Matrix output;
  };
  const Recipe& recipe_;
  const Transformer& transformer_;
  int64_t index_;
  Space site_;
  const Matrix& sample_;
  WeightQuant weights_ = recipe_.weights;
  std::vector<Reader> readers_;
};

double search_alpha(const SiteError& error, FunctionRef<std::vector<double>(double)> scale) {
  double best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i <= kSteps; ++i) {
    const double alpha = static_cast<double>(i) / kSteps;
    const double found = error(scale(alpha));
    if (found < least) {
      least = found;
      best = alpha;
    }
  }
  return best;
}

}  // namespace

std::vector<double> site_scale(Scaling scaling, double alpha, const ModelConfig& config, Space site,
                               const Layer& layer, const LayerStatistics& statistics) {
  const bool largest = scaling == Scaling::kSmoothQuant;
  std::vector<double> weight = measure_columns(layer, site, largest);
  std::vector<double> activation = scaling == Scaling::kBalance ? statistics[site].mean_square
                                   : largest                    ? statistics[site].largest
                                                                : statistics[site].mean_magnitude;
  if (site == Space::kAttentionOutput) {
    weight = over_groups(config, weight, largest);
    activation = over_groups(config, activation, largest);
  }
  std::vector<double> scale(weight.size(), 1.0);
  for (size_t i = 0; i < scale.size(); ++i) {
    if (weight[i] > 0 && activation[i] > 0 && std::isfinite(weight[i] / activation[i]))
      scale[i] = scale_of(scaling, alpha, weight[i], activation[i]);
  }
  return scale;
}

ScaledSites scale_sites(const Recipe& recipe, const ModelConfig& config,
                        const Transformer& transformer, int64_t index, const Layer& layer,
                        const LayerStatistics& statistics) {
  ScaledSites sites;
  const ScalingSpec& spec = recipe.scaling;
  if (!spec.enabled()) return sites;
  for (const Space site : kSites) {
    const bool norm = site == Space::kAttentionInput || site == Space::kFfnInput;
    if (norm ? recipe.transforms.residual : spec.norms_only) continue;
    const auto scale = [&](double alpha) {
      return site_scale(spec.method, alpha, config, site, layer, statistics);
    };
    double& alpha = sites.alphas[site_index(site)];
    alpha = spec.alpha;
    if (spec.search) {
      const SiteError error(recipe, transformer, index, site, layer, statistics[site].sample);
      alpha = search_alpha(error, scale);
    }
    sites.scales[site] = scale(alpha);
  }
  return sites;
}

}  // namespace quarot
