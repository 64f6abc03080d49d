#include "probe/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "probe/plot.h"

namespace quarot {

Figure heat_figure(const Probe& probe) {
  const auto layers = static_cast<double>(probe.heat.size());
  const double cell = std::min(26.0, 780 / layers);
  Figure figure{.id = "heat",
                .title = "Which layer, which site",
                .picture = Svg(kFigureWidth, 261, "group"),
                .headers = {"layer"},
                .layer_column = 0};
  double low = 1e300;
  double high = 0;
  double total = 0;
  size_t worst_layer = 0;
  size_t worst_site = 0;
  for (size_t l = 0; l < probe.heat.size(); ++l) {
    for (size_t s = 0; s < kPoints.size(); ++s) {
      const double kl = std::max(probe.heat[l][s], 1e-9);
      total += kl;
      low = std::min(low, kl);
      if (kl <= high) continue;
      high = kl;
      worst_layer = l;
      worst_site = s;
    }
  }
  const Axis shade{low, high, 0, 1, true};
  for (size_t s = 0; s < kPoints.size(); ++s) {
    figure.picture.text(94, 46 + 28 * static_cast<double>(s), space_name(kPoints[s]), "small end");
    figure.headers.emplace_back(space_name(kPoints[s]));
  }
  for (size_t l = 0; l < probe.heat.size(); ++l) {
    const double x = 100 + cell * static_cast<double>(l);
    figure.picture.raw(
        fmt::format("<g data-pick=\"{0}\" tabindex=\"0\" role=\"button\" aria-pressed=\"false\" "
                    "aria-label=\"layer {0}\">",
                    l));
    std::vector<std::string> row = {fmt::format("{}", l)};
    for (size_t s = 0; s < kPoints.size(); ++s) {
      figure.picture.rect(x, 28 + 28 * static_cast<double>(s), cell - 1, 27,
                          fmt::format("fill=\"{}\"", cividis(shade(probe.heat[l][s]))));
      row.push_back(number(probe.heat[l][s]));
    }
    figure.picture.raw("</g>");
    if (l % (layers > 40 ? 5 : 1) == 0)
      figure.picture.text(x + cell / 2, 211, fmt::format("{}", l), "small mid");
    figure.rows.push_back(std::move(row));
  }
  figure.picture.text(100, 18,
                      "KL to float when one site, keys or values of one layer alone are quantised",
                      "head");
  for (int i = 0; i < 60; ++i) {
    figure.picture.rect(100 + 4 * i, 228, 4.3, 10, fmt::format("fill=\"{}\"", cividis(i / 59.0)));
  }
  figure.picture.text(100, 253, number(low), "small");
  figure.picture.text(340, 253, number(high), "small end");
  figure.sentence = fmt::format(
      "Rotated, {}: one row a site (its activations and the weights that read them), one for the "
      "keys and one for the values that a layer caches; one cell quantised, all else float. The "
      "brightest cell is layer {}'s {} with {} nats, {} of the sum of all cells. Click a layer, or "
      "choose it with Tab, the arrows and Enter, to see its rows alone in every table.",
      probe.bits, worst_layer, space_name(kPoints[worst_site]), number(high),
      percent(high / total));
  return figure;
}

Figure attribution_figure(const Probe& probe) {
  Figure figure{.id = "attribution",
                .title = "Where the error comes from",
                .picture = Svg(kFigureWidth, 330),
                .headers = {"basis", "part", "quantised", "KL", "loss − float"}};
  std::vector<const AttributionRow*> shown;
  double high = 0;
  for (const AttributionRow& row : probe.attribution) {
    if (row.group != "layer" && row.basis == "rotated" && row.group != "rotation") {
      if (row.only) shown.push_back(&row);
      high = std::max(high, row.loss.kl);
    }
    figure.rows.push_back({row.basis, row.group == "layer" ? "layer " + row.part : row.part,
                           row.group == "rotation" ? "all, without it"
                           : row.only              ? "only this"
                                                   : "all but this",
                           number(row.loss.kl), number(row.loss.nll - probe.float_loss.nll)});
  }
  const Axis bar{0, high, 0, 560};
  double y = 40;
  const AttributionRow* worst = nullptr;
  for (const AttributionRow* row : shown) {
    const AttributionRow* others = probe.find("rotated", row->group, row->part, false);
    figure.picture.text(140, y + 14, row->part, "end");
    figure.picture.rect(150, y, bar(row->loss.kl), 10, "class=\"f0\"");
    if (others != nullptr)
      figure.picture.rect(150, y + 11, bar(others->loss.kl), 10, "class=\"f1\"");
    figure.picture.text(155 + bar(std::max(row->loss.kl, others ? others->loss.kl : 0)), y + 14,
                        others
                            ? fmt::format("{} / {}", number(row->loss.kl), number(others->loss.kl))
                            : number(row->loss.kl),
                        "small");
    if (row->group == "site" && (worst == nullptr || row->loss.kl > worst->loss.kl)) worst = row;
    y += 29;
  }
  figure.picture.text(150, 20, "KL to float, rotated, nats a token", "head");
  legend(figure.picture, 420, 20, {"only this quantised", "all but this"});
  const AttributionRow* own = probe.find("own", "all", "everything", true);
  const AttributionRow* all = probe.find("rotated", "all", "everything", true);
  figure.sentence = fmt::format(
      "KL from the float model's predictions over {} tokens. Everything at {} costs {} as the "
      "model is and {} rotated. Of the sites alone the {} costs most: {}; the sum over parts need "
      "not be the whole, since errors meet on the way.",
      probe.attributed, probe.bits, number(own->loss.kl), number(all->loss.kl), worst->part,
      number(worst->loss.kl));
  return figure;
}

Figure rotations_figure(const Probe& probe) {
  Figure figure{.id = "rotations",
                .title = "What each rotation contributes",
                .picture = Svg(kFigureWidth, 220),
                .headers = {"rotations", "KL", "loss − float"}};
  const AttributionRow* own = probe.find("own", "all", "everything", true);
  const AttributionRow* all = probe.find("rotated", "all", "everything", true);
  std::vector<std::pair<std::string, const Loss*>> bars = {{"all of them", &all->loss}};
  const AttributionRow* most = nullptr;
  for (const AttributionRow& row : probe.attribution) {
    if (row.group != "rotation") continue;
    bars.emplace_back("without " + row.part, &row.loss);
    if (most == nullptr || row.loss.kl > most->loss.kl) most = &row;
  }
  bars.emplace_back("none", &own->loss);
  double high = 0;
  for (const auto& [name, loss] : bars) high = std::max(high, loss->kl);
  const Axis bar{0, high, 0, 620};
  double y = 35;
  for (const auto& [name, loss] : bars) {
    figure.picture.text(110, y + 13, name, "end");
    figure.picture.rect(120, y, bar(loss->kl), 18, "class=\"f1\"");
    figure.picture.text(126 + bar(loss->kl), y + 13, number(loss->kl), "small");
    figure.rows.push_back({name, number(loss->kl), number(loss->nll - probe.float_loss.nll)});
    y += 28;
  }
  figure.picture.text(120, 20, fmt::format("KL to float at {}", probe.bits), "head");
  figure.sentence = most == nullptr
                        ? "This recipe does not rotate."
                        : fmt::format(
                              "Everything at {}, one rotation left out at a time. {} is missed "
                              "most: without it the KL is {} instead of {}.",
                              probe.bits, most->part, number(most->loss.kl), number(all->loss.kl));
  return figure;
}

}  // namespace quarot
