#include "probe/attribute.h"

#include <fmt/format.h>

#include "base/error.h"

namespace quarot {

namespace {

constexpr auto kPointCount = static_cast<int64_t>(kPoints.size());
constexpr auto kSiteCount = static_cast<int64_t>(kSites.size());

// Everything but `kind` quantised, or it alone.
Selection tensors(std::string_view kind, bool only) {
  Selection selection = only ? Selection::none() : Selection::all();
  if (kind == "weights") selection.weights.inside = only;
  if (kind == "activations") selection.activations.inside = only;
  if (kind == "keys") selection.keys.inside = only;
  if (kind == "values") selection.values.inside = only;
  return selection;
}

// One loss after the other, into the probe.
class Rows {
 public:
  Rows(std::string_view basis, Attribution& attribution, Probe& probe, Progress& progress)
      : basis_(basis), attribution_(attribution), probe_(probe), progress_(progress) {}

  // Its errors through depth.
  Result<std::vector<double>> everything() {
    QUAROT_RETURN_IF_ERROR(progress_.check());
    Attribution::Depth depth = attribution_.run_all();
    add("all", "everything", true, depth.loss);
    return std::move(depth.errors);
  }

  Status site(Space site, bool only) {
    QUAROT_RETURN_IF_ERROR(progress_.check());
    add("site", space_name(site), only,
        attribution_.run(only ? Selection::only_site(site) : Selection::all_but_site(site)));
    return {};
  }

  Status kind(std::string_view kind, bool only) {
    QUAROT_RETURN_IF_ERROR(progress_.check());
    add("tensor", kind, only, attribution_.run(tensors(kind, only)));
    return {};
  }

  // Alone, left out, and each of its points alone.
  Status layer(int64_t layer) {
    QUAROT_RETURN_IF_ERROR(progress_.check());
    const std::string name = fmt::format("{}", layer);
    add("layer", name, true, attribution_.run_only(layer, Selection::only_layer(layer)));
    add("layer", name, false, attribution_.run_all_but(layer));
    auto& row = probe_.heat.emplace_back();
    for (size_t p = 0; p < kPoints.size(); ++p)
      row[p] = attribution_.run_only(layer, Selection::only(layer, kPoints[p])).kl;
    progress_.advance(1 + kPointCount);
    return {};
  }

 private:
  void add(std::string_view group, std::string_view part, bool only, const Loss& loss) {
    probe_.attribution.push_back(
        {std::string(basis_), std::string(group), std::string(part), only, loss});
    progress_.advance(1);
  }

  std::string_view basis_;
  Attribution& attribution_;
  Probe& probe_;
  Progress& progress_;
};

}  // namespace

Status attribute_own(Attribution& attribution, Probe& probe, Progress& progress) {
  progress.stage("quantising the model as it is", 1 + kSiteCount);
  Rows rows("own", attribution, probe, progress);
  probe.float_loss = attribution.float_loss();
  QUAROT_ASSIGN_OR_RETURN(probe.depth_own, rows.everything());
  for (const Space site : kSites) QUAROT_RETURN_IF_ERROR(rows.site(site, true));
  return {};
}

Status attribute_rotated(Attribution& attribution, Probe& probe, Progress& progress) {
  const int64_t layers = probe.config.layers;
  constexpr std::array kKinds = {"weights", "activations", "keys", "values"};
  progress.stage("finding where the error comes from",
                 1 + 2 * kSiteCount + 2 * std::ssize(kKinds) + layers * (3 + kPointCount));
  Rows rows("rotated", attribution, probe, progress);
  QUAROT_ASSIGN_OR_RETURN(probe.depth_rotated, rows.everything());
  for (const Space site : kSites) {
    for (const bool only : {true, false}) QUAROT_RETURN_IF_ERROR(rows.site(site, only));
  }
  for (const char* kind : kKinds) {
    for (const bool only : {true, false}) QUAROT_RETURN_IF_ERROR(rows.kind(kind, only));
  }
  for (int64_t layer = 0; layer < layers; ++layer) QUAROT_RETURN_IF_ERROR(rows.layer(layer));
  return {};
}

}  // namespace quarot
