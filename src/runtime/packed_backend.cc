#include "runtime/packed_backend.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "kernels/cpu/cache.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/table.h"

namespace quarot {

namespace {

std::vector<Role> readers_of(Space site) {
  std::vector<Role> roles;
  std::ranges::copy_if(kRoles, std::back_inserter(roles),
                       [&](Role role) { return spaces_of(role).input == site; });
  return roles;
}

Status check_layer(const Layer& layer, const ActivationQuant& a) {
  for (const Linear& linear : layer.linears) {
    if (!linear.quantized || !linear.quantized->quant.symmetric ||
        (linear.quantized->quant.bits != 4 && linear.quantized->quant.bits != 8)) {
      return error(ErrorCode::kUnsupported,
                   "packed weights are symmetric, of 4 or 8 bits; run others simulated");
    }
    const int64_t width = linear.quantized->values.cols();
    const int64_t group = width / linear.quantized->scales.cols();
    if (a.enabled() && a.group != 0 && a.group != group) {
      return error(ErrorCode::kUnsupported,
                   "activations in groups of {} on weights in groups of {}: packed products need "
                   "the same groups, or one scale a token",
                   a.group, group);
    }
    const int64_t multiple = a.enabled() ? 32 : 8;
    if (group != width && group % multiple != 0) {
      return error(ErrorCode::kUnsupported,
                   "weights in groups of {}: packed ones need a multiple of {}", group, multiple);
    }
  }
  // One product computes them all, with the bits and groups of the first.
  for (const Role role : kRoles) {
    const QuantizedWeight& own = *layer[role].quantized;
    const Role first = readers_of(spaces_of(role).input).front();
    const QuantizedWeight& shared = *layer[first].quantized;
    if (own.quant.bits == shared.quant.bits && own.scales.cols() == shared.scales.cols()) continue;
    return error(ErrorCode::kUnsupported,
                 "{} has other bits or groups than {}: packed weights that read one site need the "
                 "same",
                 spaces_of(role).name, spaces_of(first).name);
  }
  return {};
}

}  // namespace

Status PackedBackend::check(const Model& model, const Precision& precision) {
  const ActivationQuant& a = precision.activations;
  if (a.enabled() && !a.symmetric) {
    return error(ErrorCode::kUnsupported,
                 "packed weights are multiplied with symmetric activations of 2 to 8 bits, or with "
                 "floats");
  }
  for (const Layer& layer : model.layers) QUAROT_RETURN_IF_ERROR(check_layer(layer, a));
  return cpu::check(cache_layout(model.config, precision));
}

Result<std::unique_ptr<PackedBackend>> PackedBackend::create(Model model,
                                                             const Precision& precision,
                                                             const NextLayer& next_layer) {
  QUAROT_RETURN_IF_ERROR(check(model, precision));
  QUAROT_ASSIGN_OR_RETURN(const cpu::Kernels* kernels, cpu::kernels());
  const auto count = static_cast<size_t>(model.config.layers);
  std::vector<PackedLayer> layers(count);
  for (size_t i = 0; i < count; ++i) {
    if (i == model.layers.size()) {
      QUAROT_ASSIGN_OR_RETURN(Layer next, next_layer());
      if (const Status fits = check_layer(next, precision.activations); !fits.ok())
        return fits.error().with_context(fmt::format("layer {}, unlike those before it", i));
      model.layers.push_back(std::move(next));
    }
    for (const Space site : kSites) {
      QUAROT_ASSIGN_OR_RETURN(layers[i][site_index(site)],
                              pack(model.layers[i], site, !precision.activations.enabled()));
    }
  }
  auto rest = std::make_shared<const Model>(std::move(model));
  return std::unique_ptr<PackedBackend>(
      new PackedBackend(std::move(rest), precision, *kernels, std::move(layers)));
}

// Takes the weights out of the layer.
Result<PackedBackend::Product> PackedBackend::pack(Layer& layer, Space site,
                                                   bool float_activations) {
  const std::vector<Role> roles = readers_of(site);
  const QuantizedWeight& first = *layer[roles.front()].quantized;
  int64_t outputs = 0;
  bool any_bias = false;
  for (const Role role : roles) {
    outputs += layer[role].quantized->values.rows();
    any_bias = any_bias || !layer[role].bias.empty();
  }
  QuantizedWeight all;
  all.quant = first.quant;
  all.values.resize(outputs, first.values.cols());
  all.scales.resize(outputs, first.scales.cols());
  Product product;
  int64_t row = 0;
  for (const Role role : roles) {
    Linear linear = std::exchange(layer[role], Linear());
    const int64_t rows = linear.quantized->values.rows();
    std::ranges::copy(linear.quantized->values.elements(), all.values.row_data(row));
    std::ranges::copy(linear.quantized->scales.elements(), all.scales.row_data(row));
    if (any_bias) {
      linear.bias.resize(static_cast<size_t>(rows), 0.0F);
      product.bias.insert(product.bias.end(), linear.bias.begin(), linear.bias.end());
    }
    row += rows;
  }
  if (float_activations) {
    product.table = RowTable(all);
    return product;
  }
  QUAROT_ASSIGN_OR_RETURN(product.integers, cpu::pack_weight(all.quant.bits, all.values.view(),
                                                             all.scales, product.bias));
  return product;
}

const PackedBackend::Product& PackedBackend::product(int64_t layer, Space site) const {
  return layers_[static_cast<size_t>(layer)][site_index(site)];
}

void PackedBackend::set_input(int64_t layer, Space site, const RowTask& task) {
  const ActivationQuant quant = this->layer(layer).at(site, precision().activations);
  RowTask rows = task;
  if (!quant.enabled()) {
    input_.resize(task.rows, task.width);
    rows.y = input_.data();
    rows.y_stride = input_.cols();
    return cpu::rows(kernels(), rows);
  }
  const int64_t stride = cpu::activation_stride(task.width);
  rows.bits = quant.bits;
  rows.clip = quant.clip;
  rows.groups = product(layer, site).integers.groups();
  rows.scale_groups = quant.group == 0 ? 1 : rows.groups;
  values_.resize(static_cast<size_t>(rows.rows * stride));
  scales_.resize(static_cast<size_t>(rows.rows * rows.scale_groups));
  sums_.resize(static_cast<size_t>(rows.rows * rows.groups));
  rows.values = values_.data();
  rows.values_stride = stride;
  rows.scales = scales_.data();
  rows.sums = sums_.data();
  cpu::rows(kernels(), rows);
  activations_ = {rows.rows,   rows.bits,         rows.values, stride,
                  rows.scales, rows.scale_groups, rows.sums};
}

void PackedBackend::project(int64_t layer, Space site, MatrixRef y, bool accumulate) {
  const Product& p = product(layer, site);
  if (precision().activations.enabled()) {
    cpu::gemm(kernels(), activations_, p.integers, y, accumulate);
  } else {
    cpu::multiply(kernels(), input_, p.table, y, p.bias, accumulate);
  }
}

}  // namespace quarot
