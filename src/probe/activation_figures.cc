#include "probe/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "probe/plot.h"

namespace quarot {

namespace {

constexpr double kRidgeStep = 9;  // between one token and the next behind it

// How far the peaks reach above the floor of the token at the back.
double headroom(const Matrix& rows, double scale) {
  double most = 0;
  for (int64_t t = 0; t < rows.rows(); ++t) {
    const double behind = kRidgeStep * static_cast<double>(rows.rows() - 1 - t);
    most = std::max(most, scale * std::ranges::max(rows.row(t)) - behind);
  }
  return most;
}

// Tokens one behind the other, each a mountain range over the channels; `base` is the floor of the
// one at the back.
void ridges(Svg& svg, const Matrix& rows, double left, double base, double scale,
            std::string_view css) {
  const double bin = 390.0 / static_cast<double>(rows.cols());
  for (int64_t t = rows.rows() - 1; t >= 0; --t) {  // the last token stands at the back
    const double floor = base + kRidgeStep * static_cast<double>(rows.rows() - 1 - t);
    const double shift = 1.2 * static_cast<double>(t);
    std::string data = fmt::format("M{:.4g} {:.4g}", left + shift, floor);
    for (int64_t c = 0; c < rows.cols(); ++c) {
      data += fmt::format("L{:.4g} {:.4g}", left + shift + bin * (static_cast<double>(c) + 0.5),
                          floor - scale * rows(t, c));
    }
    data += fmt::format("L{:.4g} {:.4g}", left + shift + 390, floor);
    svg.path(data, fmt::format("class=\"ridge {}\"", css));
  }
}

double largest(const Matrix& rows) {
  return rows.empty() ? 0 : *std::ranges::max_element(rows.elements());
}

// The layer where the site's peaks stand tallest.
size_t loudest_layer(const Probe& probe, size_t site) {
  size_t best = 0;
  for (size_t l = 1; l < probe.layers.size(); ++l) {
    if (probe.layers[l].points[site].before.peak_over_rms >
        probe.layers[best].points[site].before.peak_over_rms)
      best = l;
  }
  return best;
}

std::vector<double> descending(std::vector<double> values) {
  std::ranges::sort(values, std::greater<>());
  return values;
}

}  // namespace

Figure surface_figure(const Probe& probe) {
  const Surface& s = probe.surface;
  const double before = largest(s.before);
  const double after = largest(s.after);
  const double scale = 130 / std::max({before, after, 1e-30});
  const double base = 30 + std::max(headroom(s.before, scale), headroom(s.after, scale));
  const double height = base + kRidgeStep * static_cast<double>(s.before.rows()) + 30;
  Figure figure{.id = "surface",
                .title = "Loud channels, and where they went",
                .picture = Svg(kFigureWidth, height)};
  ridges(figure.picture, s.before, 20, base, scale, "s0");
  ridges(figure.picture, s.after, 455, base, scale, "s1");
  figure.picture.text(20, 14, fmt::format("before: up to {}", number(before)), "head");
  figure.picture.text(455, 14, fmt::format("rotated, same scale: up to {}", number(after)), "head");
  figure.picture.text(20, height - 8, "channels →   tokens ↗", "small");
  figure.sentence = fmt::format(
      "Each line is |x| of one token over the {} channels that layer {}'s {} carries, the site "
      "with the tallest peaks of this model. Look for lone peaks on the left: the tallest is {}. "
      "Rotated, the same tokens reach {}, {:.3g} times less.",
      s.channels, s.layer, space_name(kSites[s.site]), number(before), number(after),
      after > 0 ? before / after : 0);
  figure.headers = {"token", "largest before", "largest rotated"};
  for (int64_t t = 0; t < s.before.rows(); ++t) {
    figure.rows.push_back({shortened(s.tokens[static_cast<size_t>(t)]),
                           number(*std::ranges::max_element(s.before.row(t))),
                           number(*std::ranges::max_element(s.after.row(t)))});
  }
  return figure;
}

Figure channels_figure(const Probe& probe) {
  Figure figure{.id = "channels",
                .title = "Channel peaks, sorted",
                .picture = Svg(kFigureWidth, 490),
                .headers = {"site", "layer", "channels", "above 6.0", "above 6.0 rotated",
                            "loudest", "loudest rotated", "median peak"}};
  double widest = 0;
  std::string widest_site;
  for (size_t site = 0; site < kPoints.size(); ++site) {
    const size_t layer = loudest_layer(probe, site);
    const PointProbe& point = probe.layers[layer].points[site];
    const std::vector<double> before = descending(point.before.channel_peak);
    const std::vector<double> after = descending(point.after.channel_peak);
    const auto [low, high] = decades({before, after});
    const size_t row = site / 3;
    const double left = 45 + 290 * static_cast<double>(site % 3);
    const double top = 45 + 220 * static_cast<double>(row);
    const Plot plot{&figure.picture, {0, 1, left, left + 235}, {low, high, top + 160, top, true}};
    plot.frame(fmt::format("{}, layer {}", space_name(kPoints[site]), layer));
    plot.ticks_y();
    plot.curve(before, "s0");
    plot.curve(after, "s1");
    const double median = before[before.size() / 2];
    if (median > 0 && before[0] / median > widest) {
      widest = before[0] / median;
      widest_site = space_name(kPoints[site]);
    }
    figure.rows.push_back({std::string(space_name(kPoints[site])), fmt::format("{}", layer),
                           fmt::format("{}", before.size()),
                           fmt::format("{}", point.before.loud_channels),
                           fmt::format("{}", point.after.loud_channels), number(before[0]),
                           number(after[0]), number(median)});
  }
  legend(figure.picture, 45, 475, {"before", "rotated"});
  figure.sentence = fmt::format(
      "The largest |x| of every channel, loudest first, at each site, and of the keys and values "
      "of the cache, at the loudest layer of each. A cliff at the left end is an outlier: at the "
      "{} the loudest channel peaks at {:.3g} times the median one. Rotated, the curve should "
      "lie flat.",
      widest_site, widest);
  return figure;
}

Figure hadamard_figure(const Probe& probe) {
  const Surface& s = probe.surface;
  const int64_t size = std::min<int64_t>(probe.config.head_dim, 64);
  Figure figure{.id = "hadamard",
                .title = "The rotation itself",
                .picture = Svg(kFigureWidth, 270),
                .headers = {"space", "width", "made as", "max |HHᵀ − I|", "operations", "dense",
                            "measured", "dense measured"}};
  const BasicMatrix<double> h = Orthogonal::hadamard(size).matrix();
  const double cell = 224.0 / static_cast<double>(size);
  std::string minus;
  for (int64_t r = 0; r < size; ++r) {
    for (int64_t c = 0; c < size; ++c) {
      if (h(r, c) < 0) {
        minus +=
            fmt::format("M{:.4g} {:.4g}h{:.4g}v{:.4g}h-{:.4g}z", 20 + cell * static_cast<double>(c),
                        30 + cell * static_cast<double>(r), cell, cell, cell);
      }
    }
  }
  figure.picture.text(20, 20, fmt::format("order {}: + light, − dark", size), "head");
  figure.picture.rect(20, 30, 224, 224, "fill=\"#fee838\"");
  figure.picture.path(minus, "fill=\"#00224e\"");
  const auto loud = std::ranges::max_element(s.loud_row, {}, [](float x) { return std::abs(x); });
  const double peak = std::abs(*loud);
  const double spread =
      std::abs(*std::ranges::max_element(s.spread, {}, [](float x) { return std::abs(x); }));
  const double step = 560 / static_cast<double>(s.spread.size());
  const auto place = static_cast<double>(loud - s.loud_row.begin());
  figure.picture.text(290, 20, fmt::format("one coordinate of {} …", number(peak)), "head");
  figure.picture.line(290, 130, 850, 130, "rule");
  figure.picture.rect(290 + step * place, 35, std::max(step, 2.0), 95, "class=\"f0\"");
  figure.picture.text(290, 155,
                      fmt::format("… spread by H over {} of {} at most, same scale",
                                  s.spread.size(), number(spread)),
                      "head");
  figure.picture.line(290, 215, 850, 215, "rule");
  const double scale = 95 / std::max(peak, 1e-30);
  std::string bars;
  for (size_t i = 0; i < s.spread.size(); ++i) {
    bars += fmt::format("M{:.4g} 215h{:.3g}v{:.3g}h-{:.3g}z", 290 + step * static_cast<double>(i),
                        step, -scale * s.spread[i], step);
  }
  figure.picture.path(bars, "class=\"f1 s1\"");
  double worst = 0;
  for (const OperatorReport& op : probe.operators) {
    worst = std::max(worst, op.deviation);
    figure.rows.push_back(
        {op.name, fmt::format("{}", op.size), op.made, number(op.deviation),
         fmt::format("{}", op.fast_operations), fmt::format("{}", op.dense_operations),
         fmt::format("{:.3g} µs", 1e6 * op.fast_seconds),
         op.dense_seconds > 0 ? fmt::format("{:.3g} µs", 1e6 * op.dense_seconds) : ""});
  }
  const OperatorReport& ffn = probe.operators.back();
  figure.sentence = fmt::format(
      "Rows of signs, all at right angles: max |HHᵀ − I| is {} over this model's widths. A lone "
      "coordinate of {} becomes {} entries of {} or less, and none of its energy is lost. {}",
      number(worst), number(peak), s.spread.size(), number(spread),
      ffn.fast_operations < ffn.dense_operations
          ? fmt::format("The fast transform of the FFN's {} takes {} operations a vector where the "
                        "matrix would take {}.",
                        ffn.size, ffn.fast_operations, ffn.dense_operations)
          : fmt::format("The FFN's {} is multiplied by the whole matrix: it has no fast transform.",
                        ffn.size));
  return figure;
}

}  // namespace quarot
