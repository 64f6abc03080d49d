#include "probe/report_json.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

namespace quarot {

namespace {

using nlohmann::json;

double rounded(double x) {
  const std::string text = fmt::format("{:.5g}", x);
  double value = x;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

template <typename Range>
json numbers(const Range& values) {
  json array = json::array();
  for (const auto value : values) array.push_back(rounded(double{value}));
  return array;
}

json rows(const Matrix& matrix) {
  json array = json::array();
  for (int64_t r = 0; r < matrix.rows(); ++r) array.push_back(numbers(matrix.row(r)));
  return array;
}

json statistics(const SiteStatistics& s) {
  return {{"peak_over_rms", rounded(s.peak_over_rms)},
          {"kurtosis", rounded(s.kurtosis)},
          {"loudest", rounded(s.loudest)},
          {"norm", rounded(s.norm)},
          {"incoherence", rounded(s.incoherence)},
          {"loud_channels", s.loud_channels},
          {"channel_peak", numbers(s.channel_peak)},
          {"channel_rms", numbers(s.channel_rms)}};
}

json point(const Probe& probe, size_t layer, size_t p) {
  const PointProbe& point = probe.layers[layer].points[p];
  json row = {{"layer", layer},
              {"site", space_name(kPoints[p])},
              {"before", statistics(point.before)},
              {"after", statistics(point.after)}};
  if (p < kSites.size() && !probe.operators.empty()) {
    const LayerTreatments& t = probe.layers[layer].treatments;
    row["exactness"] = {{"error", rounded(t.exactness[p])},
                        {"norm_before", rounded(t.norm_before[p])},
                        {"norm_after", rounded(t.norm_after[p])}};
  }
  return row;
}

json points(const Probe& probe, size_t first, size_t last) {
  json array = json::array();
  for (size_t layer = 0; layer < probe.layers.size(); ++layer) {
    for (size_t p = first; p < last; ++p) array.push_back(point(probe, layer, p));
  }
  return array;
}

json weights(const Probe& probe) {
  json array = json::array();
  for (size_t layer = 0; layer < probe.layers.size(); ++layer) {
    for (const Role role : kRoles) {
      const auto i = static_cast<size_t>(role);
      array.push_back(
          {{"layer", layer},
           {"linear", spaces_of(role).name},
           {"incoherence", rounded(probe.layers[layer].weight_incoherence[i])},
           {"rotated_incoherence", rounded(probe.layers[layer].rotated_weight_incoherence[i])}});
    }
  }
  return array;
}

json loud_places(const Probe& probe) {
  json array = json::array();
  for (const LoudPlace& p : probe.loud_places) {
    array.push_back({{"window", p.window},
                     {"position", p.position},
                     {"token", p.token},
                     {"channel", p.channel},
                     {"layer", p.loudest_layer},
                     {"value", rounded(p.loudest.value)},
                     {"over_median", rounded(p.loudest.over_median)},
                     {"massive_layers", p.layers}});
  }
  return array;
}

json treatments(const Probe& probe) {
  json array = json::array();
  for (size_t layer = 0; layer < probe.layers.size(); ++layer) {
    for (size_t b = 0; b < kTrialBits.size(); ++b) {
      for (const Role role : kRoles) {
        const auto& errors = probe.layers[layer].treatments.errors[b][static_cast<size_t>(role)];
        json row = {{"layer", layer}, {"linear", spaces_of(role).name}, {"bits", kTrialBits[b]}};
        for (size_t t = 0; t < kTreatments.size(); ++t) row[kTreatments[t]] = rounded(errors[t]);
        array.push_back(std::move(row));
      }
    }
  }
  return array;
}

json cache_treatments(const Probe& probe) {
  json array = json::array();
  for (size_t layer = 0; layer < probe.layers.size(); ++layer) {
    for (const size_t p : {kKeyPoint, kValuePoint}) {
      const LayerProbe& found = probe.layers[layer];
      const CacheErrors& errors = p == kKeyPoint ? found.keys : found.values;
      for (size_t b = 0; b < kTrialBits.size(); ++b) {
        json row = {{"layer", layer}, {"site", space_name(kPoints[p])}, {"bits", kTrialBits[b]}};
        for (size_t t = 0; t < kCacheTreatments.size(); ++t)
          row[kCacheTreatments[t]] = rounded(errors[b][t]);
        array.push_back(std::move(row));
      }
    }
  }
  return array;
}

json search(const AlphaSearch& found) {
  return {{"errors", numbers(found.errors)}, {"alpha", found.alpha()}, {"at_end", found.at_end()}};
}

json searches(const Probe& probe) {
  json array = json::array();
  for (size_t layer = 0; layer < probe.layers.size(); ++layer) {
    const LayerTreatments& t = probe.layers[layer].treatments;
    for (size_t b = 0; b < kTrialBits.size(); ++b) {
      for (size_t s = 0; s < kSites.size(); ++s) {
        array.push_back({{"layer", layer},
                         {"site", space_name(kSites[s])},
                         {"bits", kTrialBits[b]},
                         {"smoothing", search(t.smoothing[b][s])},
                         {"before_rotating", search(t.balancing[b][s])}});
      }
    }
  }
  return array;
}

json loss_json(const Loss& loss) { return {{"nll", rounded(loss.nll)}, {"kl", rounded(loss.kl)}}; }

json attribution(const Probe& probe) {
  json array = json::array();
  for (const AttributionRow& row : probe.attribution) {
    array.push_back({{"basis", row.basis},
                     {"group", row.group},
                     {"part", row.part},
                     {"quantised", row.only ? "only this" : "all but this"},
                     {"nll", rounded(row.loss.nll)},
                     {"kl", rounded(row.loss.kl)}});
  }
  json heat = json::array();
  for (const auto& row : probe.heat) heat.push_back(numbers(row));
  return {
      {"tokens", probe.attributed},
      {"bits", probe.bits},
      {"float", loss_json(probe.float_loss)},
      {"rows", array},
      {"layer_by_site_kl", heat},
      {"depth", {{"own", numbers(probe.depth_own)}, {"rotated", numbers(probe.depth_rotated)}}}};
}

json operators(const Probe& probe) {
  json array = json::array();
  for (const OperatorReport& op : probe.operators) {
    json row = {{"space", op.name},
                {"size", op.size},
                {"made", op.made},
                {"hadamard", op.is_hadamard},
                {"deviation", rounded(op.deviation)},
                {"fast_operations", op.fast_operations},
                {"dense_operations", op.dense_operations},
                {"fast_seconds", rounded(op.fast_seconds)}};
    if (op.dense_seconds > 0) row["dense_seconds"] = rounded(op.dense_seconds);
    array.push_back(std::move(row));
  }
  return array;
}

json surface(const Surface& s) {
  return {{"layer", s.layer},       {"site", space_name(kSites[s.site])}, {"tokens", s.tokens},
          {"channels", s.channels}, {"before", rows(s.before)},           {"after", rows(s.after)}};
}

}  // namespace

json to_json(const Probe& probe) {
  json report = {{"model", probe.model},
                 {"format", probe.format},
                 {"recipe", probe.recipe},
                 {"tokens", probe.tokens},
                 {"windows", probe.windows},
                 {"sites", points(probe, 0, kSites.size())},
                 {"cache", points(probe, kSites.size(), kPoints.size())},
                 {"weights", weights(probe)},
                 {"loudest_tokens", loud_places(probe)},
                 {"surface", surface(probe.surface)},
                 {"logit_error", probe.logit_error},
                 {"seconds", rounded(probe.seconds)},
                 {"peak_bytes", probe.peak_bytes}};
  if (probe.operators.empty()) return report;
  report["held_out_tokens"] = probe.held_out;
  report["alphas"] = kTrialAlphas;
  report["treatments"] = treatments(probe);
  report["cache_treatments"] = cache_treatments(probe);
  report["alpha_searches"] = searches(probe);
  report["attribution"] = attribution(probe);
  report["operators"] = operators(probe);
  return report;
}

}  // namespace quarot
