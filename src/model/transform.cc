#include "model/transform.h"

#include <algorithm>

#include "base/function_ref.h"
#include "base/random.h"
#include "model/json_fields.h"

namespace quarot {

namespace {

constexpr std::pair<BasisKind, std::string_view> kKindNames[] = {
    {BasisKind::kHadamard, "hadamard"}, {BasisKind::kPlainHadamard, "plain-hadamard"},
    {BasisKind::kRandom, "random"},     {BasisKind::kPrincipal, "principal"},
    {BasisKind::kLearned, "learned"},
};

std::string_view kind_name(BasisKind kind) {
  return std::ranges::find(kKindNames, kind, [](const auto& row) { return row.first; })->second;
}

constexpr std::pair<std::string_view, bool TransformSpec::*> kFlags[] = {
    {"residual", &TransformSpec::residual},   {"norm_output", &TransformSpec::norm_output},
    {"value", &TransformSpec::value},         {"heads", &TransformSpec::heads},
    {"query_key", &TransformSpec::query_key}, {"ffn", &TransformSpec::ffn},
};

Orthogonal residual_basis(const TransformSpec& spec, int64_t size) {
  switch (spec.kind) {
    case BasisKind::kHadamard:
      return Orthogonal::randomised_hadamard(size, spec.seed);
    case BasisKind::kPlainHadamard:
      return Orthogonal::hadamard(size);
    case BasisKind::kRandom:
      return Orthogonal::random(size, spec.seed);
    case BasisKind::kPrincipal:
    case BasisKind::kLearned:
      break;
  }
  return Orthogonal::identity(size);
}

// A table in float32 with its rows changed, some at a time: of a large vocabulary it is the largest
// thing there is, and not to be held once more.
RowTable changed(const RowTable& table, FunctionRef<void(Matrix&)> change) {
  constexpr int64_t kRows = 1024;
  RowTable result(table.rows(), table.cols(), Storage::kF32);
  for (int64_t first = 0; first < table.rows(); first += kRows) {
    Matrix rows(std::min(kRows, table.rows() - first), table.cols());
    for (int64_t r = 0; r < rows.rows(); ++r) table.read_row(first + r, rows.row(r));
    change(rows);
    result.set_rows(first, rows);
  }
  return result;
}

// The same values for every query head of a KV head.
template <typename T>
std::vector<T> for_query_heads(const ModelConfig& config, const std::vector<T>& per_kv_head) {
  if (per_kv_head.empty()) return {};
  std::vector<T> values;
  for (int64_t head = 0; head < config.heads; ++head) {
    const auto first = per_kv_head.begin() + head / config.group() * config.head_dim;
    values.insert(values.end(), first, first + config.head_dim);
  }
  return values;
}

std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.empty()) return b;
  if (b.empty()) return a;
  std::vector<double> result(a.size());
  std::ranges::transform(a, b, result.begin(), std::multiplies<>());
  return result;
}

// Attention weights sum to one, so what leaves V returns through o_proj as a constant.
void move_value_center_to_bias(const ModelConfig& config, const std::vector<float>& center,
                               Linear& output) {
  if (center.empty()) return;
  const std::vector<float> constant = for_query_heads(config, center);
  output.bias.resize(static_cast<size_t>(output.weight.rows()), 0.0F);
  for (int64_t r = 0; r < output.weight.rows(); ++r) {
    double sum = output.bias[static_cast<size_t>(r)];
    for (int64_t c = 0; c < output.weight.cols(); ++c)
      sum += double{output.weight(r, c)} * constant[static_cast<size_t>(c)];
    output.bias[static_cast<size_t>(r)] = static_cast<float>(sum);
  }
}

void multiply_gain(std::vector<float>& gain, const std::vector<double>& scale) {
  for (size_t i = 0; i < scale.size(); ++i) gain[i] = static_cast<float>(gain[i] * scale[i]);
}

}  // namespace

void to_json(nlohmann::json& json, const TransformSpec& spec) {
  json = nlohmann::json::object();
  for (const auto& [name, member] : kFlags) json[std::string(name)] = spec.*member;
  json["kind"] = kind_name(spec.kind);
  json["seed"] = spec.seed;
}

Result<TransformSpec> parse_transform_spec(const nlohmann::json& json, const std::string& where,
                                           TransformSpec base) {
  if (!json.is_object())
    return error(ErrorCode::kCorrupt, "{}: expected an object of transforms", where);
  const JsonFields fields(json, where);
  QUAROT_RETURN_IF_ERROR(fields.check_names(TransformSpec(), "the transforms"));
  for (const auto& [name, member] : kFlags) {
    QUAROT_ASSIGN_OR_RETURN(base.*member, fields.optional<bool>(name, base.*member));
  }
  QUAROT_ASSIGN_OR_RETURN(const std::string kind,
                          fields.optional<std::string>("kind", std::string(kind_name(base.kind))));
  const auto row = std::ranges::find(kKindNames, kind, [](const auto& r) { return r.second; });
  if (row == std::end(kKindNames)) {
    return error(ErrorCode::kCorrupt,
                 "{}: kind \"{}\" is not hadamard, plain-hadamard, random, principal or learned",
                 where, kind);
  }
  base.kind = row->first;
  QUAROT_ASSIGN_OR_RETURN(base.seed, fields.optional<uint64_t>("seed", base.seed));
  if (base.residual && base.norm_output) {
    return error(ErrorCode::kInvalidArgument,
                 "{}: residual and norm_output stand in each other's place; choose one", where);
  }
  return base;
}

OnlineTransforms online_transforms(const ModelConfig& config, const TransformSpec& spec) {
  OnlineTransforms online;
  // The signs of a randomised Hadamard are folded into the gain before it.
  if (spec.norm_output) {
    online.norm_output = spec.kind == BasisKind::kRandom ? residual_basis(spec, config.hidden)
                                                         : Orthogonal::hadamard(config.hidden);
  }
  if (spec.heads) online.heads = cross_head_hadamard(config.heads, config.head_dim);
  if (spec.query_key) online.query_key = Orthogonal::hadamard(config.head_dim);
  if (spec.ffn) online.ffn = Orthogonal::hadamard(config.ffn);
  return online;
}

Transformer::Transformer(const ModelConfig& config, const TransformSpec& spec,
                         const std::optional<Orthogonal>& found)
    : config_(config), spec_(spec), online_(online_transforms(config, spec)) {
  if (spec.residual) residual_ = found ? *found : residual_basis(spec, config.hidden);
  if (spec.value) value_ = Orthogonal::hadamard(config.head_dim);
}

std::map<std::string, std::string> Transformer::descriptions() const {
  std::map<std::string, std::string> made;
  for (const auto& [name, op] : {std::pair{"residual", &residual_},
                                 {"value", &value_},
                                 {"norm_output", &online_.norm_output},
                                 {"heads", &online_.heads},
                                 {"query_key", &online_.query_key},
                                 {"ffn", &online_.ffn}}) {
    if (*op) made[name] = (*op)->description();
  }
  return made;
}

std::vector<double> Transformer::signs(const char* purpose, int64_t index, int64_t size) const {
  if (!spec_.norm_output || spec_.kind != BasisKind::kHadamard) return {};
  Random random(spec_.seed, fmt::format("{} {}", purpose, index));
  std::vector<double> values(static_cast<size_t>(size));
  for (double& value : values) value = random.sign();
  return values;
}

Basis Transformer::basis_of(Space space, const LayerScales& scales, int64_t index) const {
  Basis basis;
  const auto norm_output = [&](const std::vector<double>& scale, const char* purpose) {
    if (residual_) basis.rotate(*residual_);
    basis.scale(product(scale, signs(purpose, index, config_.hidden)));
    if (online_.norm_output) basis.rotate(*online_.norm_output);
  };
  switch (space) {
    case Space::kResidual:
    case Space::kFinal:
      if (residual_) basis.rotate(*residual_);
      break;
    case Space::kAttentionInput:
      norm_output(scales.attention_input, "attention input");
      break;
    case Space::kFfnInput:
      norm_output(scales.ffn_input, "ffn input");
      break;
    case Space::kValue:
      basis.scale(scales.value);
      if (value_) basis.rotate(Orthogonal::blocks(config_.kv_heads, *value_));
      break;
    case Space::kAttentionOutput:
      basis.scale(for_query_heads(config_, scales.value));
      if (value_) basis.rotate(Orthogonal::blocks(config_.heads, *value_));
      if (online_.heads) basis.rotate(*online_.heads);
      break;
    case Space::kUp:
      basis.scale(scales.ffn_hidden);
      break;
    case Space::kFfnHidden:
      basis.scale(scales.ffn_hidden);
      if (online_.ffn) basis.rotate(*online_.ffn);
      break;
    case Space::kQuery:  // R3 is online on both sides of the scores
    case Space::kKey:
    case Space::kGate:
    case Space::kVocabulary:
      break;
  }
  return basis;
}

void Transformer::transform_outer(Model& model) const {
  model.online = online_;
  if (!unties()) return;
  model.config.tied_embeddings = false;
  model.lm_head =
      changed(model.head(), [&](Matrix& rows) { transform_head(rows, model.final_norm); });
  std::ranges::fill(model.final_norm, 1.0F);
  model.embedding = changed(model.embedding, [&](Matrix& rows) { transform_embedding(rows); });
}

void Transformer::transform_embedding(Matrix& rows) const {
  // They are vectors of the residual stream; B⁻ᵀ = B, since this basis is orthogonal.
  if (residual_) change_input_basis(rows, {}, basis_of(Space::kResidual, {}, 0));
}

void Transformer::transform_head(Matrix& rows, const std::vector<float>& final_norm) const {
  if (residual_) change_input_basis(rows, final_norm, basis_of(Space::kResidual, {}, 0));
}

// Of the norm before a site, where a fused R1 makes it part of what reads there.
std::span<const float> Transformer::folded_gain(const Layer& layer, Space site) const {
  if (!residual_) return {};
  if (site == Space::kAttentionInput) return layer.attention_norm;
  if (site == Space::kFfnInput) return layer.ffn_norm;
  return {};
}

void Transformer::transform_layer(Layer& layer, int64_t index, const LayerScales& scales,
                                  const LayerCenters& centers) const {
  move_value_center_to_bias(config_, centers.value, layer[Role::kOutput]);
  for (const Role role : kRoles) {
    const RoleSpaces spaces = spaces_of(role);
    const Basis output = basis_of(spaces.output, scales, index);
    Linear& linear = layer[role];
    change_input_basis(linear.weight, folded_gain(layer, spaces.input),
                       basis_of(spaces.input, scales, index));
    change_output_basis(linear.weight, output);
    change_basis(linear.bias, output);
  }
  if (residual_) {
    std::ranges::fill(layer.attention_norm, 1.0F);
    std::ranges::fill(layer.ffn_norm, 1.0F);
  }
  multiply_gain(layer.attention_norm,
                product(scales.attention_input, signs("attention input", index, config_.hidden)));
  multiply_gain(layer.ffn_norm,
                product(scales.ffn_input, signs("ffn input", index, config_.hidden)));

  layer.key_center = centers.key;
  if (online_.query_key) {
    Basis keys;
    keys.rotate(Orthogonal::blocks(config_.kv_heads, *online_.query_key));
    change_basis(layer.key_center, keys);
  }
  layer.value_center = centers.value;
  change_basis(layer.value_center, basis_of(Space::kValue, scales, index));
}

void Transformer::transform_inputs(Matrix& rows, Space site, const Layer& original, int64_t index,
                                   const LayerScales& scales, const LayerCenters& centers) const {
  const std::span<const float> gain = folded_gain(original, site);
  std::vector<float> center;
  if (site == Space::kAttentionOutput) center = for_query_heads(config_, centers.value);
  for (int64_t r = 0; r < rows.rows(); ++r) {
    const std::span<float> row = rows.row(r);
    for (size_t c = 0; c < gain.size(); ++c) row[c] = gain[c] == 0 ? 0 : row[c] / gain[c];
    for (size_t c = 0; c < center.size(); ++c) row[c] -= center[c];
  }
  if (const Basis basis = basis_of(site, scales, index); !basis.is_identity())
    change_basis(rows, basis);
}

}  // namespace quarot
