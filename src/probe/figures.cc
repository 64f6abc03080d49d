#include "probe/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace quarot {

namespace {

constexpr double kWidth = 880;

std::string number(double x) { return fmt::format("{:.4g}", x); }
std::string percent(double x) { return fmt::format("{:.1f} %", 100 * x); }

// Frame, ticks and curves of one small chart.
struct Plot {
  Svg* svg;
  Axis x, y;

  void frame(std::string_view title) const {
    svg->line(x.from, y.from, x.to, y.from, "rule");
    svg->line(x.from, y.from, x.from, y.to, "rule");
    svg->text(x.from, y.to - 8, title, "head");
  }

  void tick_y(double value, std::string_view label) const {
    svg->line(x.from - 4, y(value), x.to, y(value), "rule");
    svg->text(x.from - 7, y(value) + 4, label, "small end");
  }

  void ticks_y() const {
    if (y.logarithmic) {
      const int first = static_cast<int>(std::ceil(std::log10(y.low) - 1e-9));
      const int last = static_cast<int>(std::floor(std::log10(y.high) + 1e-9));
      const int step = std::max(1, (last - first) / 4);
      for (int e = first; e <= last; e += step) tick_y(std::pow(10.0, e), number(std::pow(10, e)));
      return;
    }
    for (int i = 0; i <= 4; ++i) {
      const double value = y.low + (y.high - y.low) * i / 4;
      tick_y(value, fmt::format("{:.3g}", value));
    }
  }

  void ticks_x(int count, std::string_view form = "{:.3g}") const {
    for (int i = 0; i <= count; ++i) {
      const double value = x.low + (x.high - x.low) * i / count;
      svg->text(x(value), y.from + 14, fmt::format(fmt::runtime(form), value), "small mid");
    }
  }

  template <typename Range>
  void curve(const Range& values, std::string_view css) const {
    std::string data;
    const auto n = static_cast<double>(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const double place = x.low + (x.high - x.low) * static_cast<double>(i) / std::max(n - 1, 1.0);
      data += fmt::format("{}{:.4g} {:.4g}", i == 0 ? "M" : "L", x(place), y(values[i]));
    }
    svg->path(data, fmt::format("class=\"curve {}\"", css));
  }
};

// A name beside a square of its colour.
void legend(Svg& svg, double x, double y, const std::vector<std::string>& names) {
  for (size_t i = 0; i < names.size(); ++i) {
    svg.rect(x, y - 9, 10, 10, fmt::format("class=\"f{}\"", i));
    svg.text(x + 15, y, names[i]);
    x += 30 + 6.8 * static_cast<double>(names[i].size());
  }
}

std::pair<double, double> decades(std::initializer_list<std::span<const double>> all) {
  double low = 1e300;
  double high = 0;
  for (const std::span<const double> values : all) {
    for (const double v : values) {
      if (v > 0) low = std::min(low, v);
      high = std::max(high, v);
    }
  }
  if (high <= 0) return {0.1, 1};
  low = std::max(low, high * 1e-6);
  return {std::pow(10, std::floor(std::log10(low))), std::pow(10, std::ceil(std::log10(high)))};
}

// Tokens one behind the other, each a mountain range over the channels.
void ridges(Svg& svg, const Matrix& rows, double left, double scale, std::string_view css) {
  constexpr double kStep = 9;
  constexpr double kBase = 150;
  const double bin = 390.0 / static_cast<double>(rows.cols());
  for (int64_t t = rows.rows() - 1; t >= 0; --t) {  // the last token stands at the back
    const double floor = kBase + kStep * static_cast<double>(rows.rows() - 1 - t);
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

Figure surface_figure(const Probe& probe) {
  const Surface& s = probe.surface;
  const double before = largest(s.before);
  const double after = largest(s.after);
  const double height = 180 + 9 * static_cast<double>(s.before.rows());
  Figure figure{.id = "surface",
                .title = "Loud channels, and where they went",
                .picture = Svg(kWidth, height)};
  const double scale = 130 / std::max({before, after, 1e-30});
  ridges(figure.picture, s.before, 20, scale, "s0");
  ridges(figure.picture, s.after, 455, scale, "s1");
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
    figure.rows.push_back({s.tokens[static_cast<size_t>(t)],
                           number(*std::ranges::max_element(s.before.row(t))),
                           number(*std::ranges::max_element(s.after.row(t)))});
  }
  return figure;
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

Figure channels_figure(const Probe& probe) {
  Figure figure{.id = "channels",
                .title = "Channel peaks, sorted",
                .picture = Svg(kWidth, 270),
                .headers = {"site", "layer", "channels", "above 6.0", "above 6.0 rotated",
                            "loudest", "loudest rotated", "median peak"}};
  double widest = 0;
  std::string widest_site;
  for (size_t site = 0; site < kSites.size(); ++site) {
    const size_t layer = loudest_layer(probe, site);
    const PointProbe& point = probe.layers[layer].points[site];
    const std::vector<double> before = descending(point.before.channel_peak);
    const std::vector<double> after = descending(point.after.channel_peak);
    const auto [low, high] = decades({before, after});
    const double left = 45 + 212 * static_cast<double>(site);
    const Plot plot{&figure.picture, {0, 1, left, left + 160}, {low, high, 215, 45, true}};
    plot.frame(fmt::format("{}, layer {}", space_name(kSites[site]), layer));
    plot.ticks_y();
    plot.curve(before, "s0");
    plot.curve(after, "s1");
    const double median = before[before.size() / 2];
    if (median > 0 && before[0] / median > widest) {
      widest = before[0] / median;
      widest_site = space_name(kSites[site]);
    }
    figure.rows.push_back({std::string(space_name(kSites[site])), fmt::format("{}", layer),
                           fmt::format("{}", before.size()),
                           fmt::format("{}", point.before.loud_channels),
                           fmt::format("{}", point.after.loud_channels), number(before[0]),
                           number(after[0]), number(median)});
  }
  legend(figure.picture, 45, 255, {"before", "rotated"});
  figure.sentence = fmt::format(
      "The largest |x| of every channel, loudest first, at each site's loudest layer. A cliff at "
      "the "
      "left end is an outlier: at the {} the loudest channel peaks {:.3g} times above the median "
      "one. "
      "Rotated, the curve should lie flat.",
      widest_site, widest);
  return figure;
}

Figure alpha_figure(const Probe& probe) {
  Figure figure{.id = "alpha",
                .title = "How much to smooth",
                .picture = Svg(kWidth, 270),
                .headers = {"layer", "site", "bits", "best α", "error", "at the end",
                            "best α before rotating", "error rotated"},
                .layer_column = 0};
  int ends = 0;
  int searches = 0;
  for (size_t site = 0; site < kSites.size(); ++site) {
    std::array<std::array<double, kTrialAlphas.size()>, 4> means{};
    for (size_t l = 0; l < probe.layers.size(); ++l) {
      const LayerTreatments& t = probe.layers[l].treatments;
      for (size_t b = 0; b < kTrialBits.size(); ++b) {
        const AlphaSearch& smooth = t.smoothing[b][site];
        const AlphaSearch& balance = t.balancing[b][site];
        for (size_t a = 0; a < kTrialAlphas.size(); ++a) {
          const auto n = static_cast<double>(probe.layers.size());
          means[b][a] += smooth.errors[a] / n;
          means[2 + b][a] += balance.errors[a] / n;
        }
        ++searches;
        ends += smooth.at_end() ? 1 : 0;
        figure.rows.push_back({fmt::format("{}", l), std::string(space_name(kSites[site])),
                               fmt::format("{}", kTrialBits[b]), number(smooth.alpha()),
                               percent(smooth.errors[smooth.best()]), smooth.at_end() ? "yes" : "",
                               number(balance.alpha()), percent(balance.errors[balance.best()])});
      }
    }
    const auto [low, high] = decades({means[0], means[1], means[2], means[3]});
    const double left = 45 + 212 * static_cast<double>(site);
    const Plot plot{&figure.picture, {0, 1, left, left + 160}, {low, high, 200, 45, true}};
    plot.frame(space_name(kSites[site]));
    plot.ticks_y();
    plot.ticks_x(2);
    for (size_t i = 0; i < means.size(); ++i)
      plot.curve(means[i], fmt::format("s{}{}", i / 2, i % 2 == 1 ? " dash" : ""));
  }
  legend(figure.picture, 45, 255, {"smoothing alone", "smoothing, then rotating"});
  figure.picture.text(400, 255, "solid: 4 bits, dashed: 8 bits; α from 0 to 1");
  figure.sentence = fmt::format(
      "Relative error of the outputs against the smoothing exponent α, mean over layers. Look for "
      "a "
      "curve that still falls at its end: of {} searches {} chose an end of the range, where the "
      "knob "
      "has run out and more smoothing cannot help.",
      searches, ends);
  return figure;
}

Figure treatment_figure(const Probe& probe) {
  Figure figure{.id = "treatments",
                .title = "What each treatment leaves",
                .picture = Svg(kWidth, 300),
                .headers = {"layer", "linear", "bits"},
                .layer_column = 0};
  figure.headers.insert(figure.headers.end(), kTreatments.begin(), kTreatments.end());
  for (size_t b = 0; b < kTrialBits.size(); ++b) {
    const double left = 50 + 430 * static_cast<double>(b);
    std::array<std::array<double, kTreatments.size()>, kRoles.size()> means{};
    double top = 0;
    for (size_t l = 0; l < probe.layers.size(); ++l) {
      for (size_t r = 0; r < kRoles.size(); ++r) {
        const auto& errors = probe.layers[l].treatments.errors[b][r];
        std::vector<std::string> row = {fmt::format("{}", l),
                                        std::string(spaces_of(kRoles[r]).name),
                                        fmt::format("W{0}A{0}", kTrialBits[b])};
        for (size_t t = 0; t < errors.size(); ++t) {
          means[r][t] += errors[t] / static_cast<double>(probe.layers.size());
          row.push_back(percent(errors[t]));
        }
        figure.rows.push_back(std::move(row));
      }
    }
    for (const auto& role : means) top = std::max(top, *std::ranges::max_element(role));
    const Plot plot{&figure.picture, {0, 1, left, left + 370}, {0, 100 * top, 225, 45}};
    plot.frame(fmt::format("W{0}A{0}, relative error in %", kTrialBits[b]));
    plot.ticks_y();
    for (size_t r = 0; r < means.size(); ++r) {
      const double x = left + 4 + 52.5 * static_cast<double>(r);
      for (size_t t = 0; t < kTreatments.size(); ++t) {
        const double y = plot.y(100 * means[r][t]);
        figure.picture.rect(x + 9 * static_cast<double>(t), y, 8, 225 - y,
                            fmt::format("class=\"f{}\"", t));
      }
      figure.picture.text(x + 22, 241, spaces_of(kRoles[r]).name, "small mid");
    }
  }
  legend(figure.picture, 50, 280, {kTreatments.begin(), kTreatments.end()});
  figure.sentence = fmt::format(
      "‖Ŵx̂ − Wx‖/‖Wx‖ of each kind of linear, mean over layers, on {} tokens that chose nothing. "
      "At 4 bits plain rounding loses {}, the best smoothing {}, a rotation {}, both {}, with GPTQ "
      "{}; "
      "at 8 bits {} falls to {}.",
      probe.held_out, percent(mean_error(probe, 0, 0)), percent(mean_error(probe, 0, 1)),
      percent(mean_error(probe, 0, 2)), percent(mean_error(probe, 0, 3)),
      percent(mean_error(probe, 0, 4)), percent(mean_error(probe, 1, 0)),
      percent(mean_error(probe, 1, 4)));
  return figure;
}

Figure depth_figure(const Probe& probe) {
  Figure figure{.id = "depth",
                .title = "Error through depth",
                .picture = Svg(kWidth, 290),
                .headers = {"layer", "as it is", "rotated"},
                .layer_column = 0};
  const auto [low, high] = decades({probe.depth_own, probe.depth_rotated});
  const double last = static_cast<double>(probe.depth_own.size()) - 1;
  const Plot plot{&figure.picture, {0, last, 60, 860}, {low, high, 230, 35, true}};
  plot.frame(fmt::format("‖x̂ − x‖/‖x‖ of the residual stream, {}", probe.bits));
  plot.ticks_y();
  plot.ticks_x(static_cast<int>(std::clamp(last, 1.0, 10.0)), "{:.0f}");
  plot.curve(probe.depth_own, "s0");
  plot.curve(probe.depth_rotated, "s1");
  legend(figure.picture, 60, 275, {"as it is", "rotated"});
  for (size_t l = 0; l < probe.depth_own.size(); ++l) {
    figure.rows.push_back(
        {fmt::format("{}", l), percent(probe.depth_own[l]), percent(probe.depth_rotated[l])});
  }
  figure.sentence = fmt::format(
      "With everything quantised to {}, how far the residual stream behind each layer is from the "
      "float model's. Look for jumps: they name the layers that break. Behind the last layer it is "
      "{} "
      "as the model is and {} rotated.",
      probe.bits, percent(probe.depth_own.back()), percent(probe.depth_rotated.back()));
  return figure;
}

Figure heat_figure(const Probe& probe) {
  const auto layers = static_cast<double>(probe.heat.size());
  const double cell = std::min(26.0, 780 / layers);
  Figure figure{.id = "heat",
                .title = "Which layer, which site",
                .picture = Svg(kWidth, 205),
                .headers = {"layer"},
                .layer_column = 0};
  double low = 1e300;
  double high = 0;
  double total = 0;
  size_t worst_layer = 0;
  size_t worst_site = 0;
  for (size_t l = 0; l < probe.heat.size(); ++l) {
    for (size_t s = 0; s < kSites.size(); ++s) {
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
  for (size_t s = 0; s < kSites.size(); ++s) {
    figure.picture.text(94, 46 + 28 * static_cast<double>(s), space_name(kSites[s]), "small end");
    figure.headers.emplace_back(space_name(kSites[s]));
  }
  for (size_t l = 0; l < probe.heat.size(); ++l) {
    const double x = 100 + cell * static_cast<double>(l);
    figure.picture.raw(
        fmt::format("<g data-pick=\"{0}\" tabindex=\"0\" role=\"button\" "
                    "aria-pressed=\"false\" aria-label=\"layer {0}\">",
                    l));
    std::vector<std::string> row = {fmt::format("{}", l)};
    for (size_t s = 0; s < kSites.size(); ++s) {
      figure.picture.rect(x, 28 + 28 * static_cast<double>(s), cell - 1, 27,
                          fmt::format("fill=\"{}\"", cividis(shade(probe.heat[l][s]))));
      row.push_back(number(probe.heat[l][s]));
    }
    figure.picture.raw("</g>");
    if (l % (layers > 40 ? 5 : 1) == 0)
      figure.picture.text(x + cell / 2, 155, fmt::format("{}", l), "small mid");
    figure.rows.push_back(std::move(row));
  }
  figure.picture.text(100, 18, "KL to float when one site of one layer alone is quantised", "head");
  for (int i = 0; i < 60; ++i) {
    figure.picture.rect(100 + 4 * i, 172, 4.3, 10, fmt::format("fill=\"{}\"", cividis(i / 59.0)));
  }
  figure.picture.text(100, 197, number(low), "small");
  figure.picture.text(340, 197, number(high), "small end");
  figure.sentence = fmt::format(
      "Rotated, {}: activations and weights of one site of one layer quantised, all else float. "
      "The "
      "brightest cell is layer {}'s {} with {} nats, {} of the sum of all cells. Click a layer, or "
      "choose it with Tab and Enter, to see its rows alone in every table.",
      probe.bits, worst_layer, space_name(kSites[worst_site]), number(high), percent(high / total));
  return figure;
}

Figure attribution_figure(const Probe& probe) {
  Figure figure{.id = "attribution",
                .title = "Where the error comes from",
                .picture = Svg(kWidth, 330),
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
      "model is "
      "and {} rotated. Of the sites alone the {} costs most: {}; the sum over parts need not be "
      "the "
      "whole, since errors meet on the way.",
      probe.attributed, probe.bits, number(own->loss.kl), number(all->loss.kl), worst->part,
      number(worst->loss.kl));
  return figure;
}

Figure rotations_figure(const Probe& probe) {
  Figure figure{.id = "rotations",
                .title = "What each rotation contributes",
                .picture = Svg(kWidth, 220),
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
  figure.sentence =
      most == nullptr ? "This recipe does not rotate."
                      : fmt::format(
                            "Everything at {}, one rotation left out at a time. {} is missed most: "
                            "without it the KL is {} instead of {}.",
                            probe.bits, most->part, number(most->loss.kl), number(all->loss.kl));
  return figure;
}

Figure hadamard_figure(const Probe& probe) {
  const Surface& s = probe.surface;
  const int64_t size = std::min<int64_t>(probe.config.head_dim, 64);
  Figure figure{.id = "hadamard",
                .title = "The rotation itself",
                .picture = Svg(kWidth, 270),
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
      "coordinate of {} becomes {} entries of {} or less, and none of its energy is lost. The fast "
      "transform of the FFN's {} takes {} operations a vector where the matrix would take {}.",
      number(worst), number(peak), s.spread.size(), number(spread), ffn.size, ffn.fast_operations,
      ffn.dense_operations);
  return figure;
}

}  // namespace

double mean_error(const Probe& probe, size_t bits, size_t treatment) {
  double sum = 0;
  for (const LayerProbe& layer : probe.layers) {
    for (const auto& role : layer.treatments.errors[bits]) sum += role[treatment];
  }
  return sum / static_cast<double>(probe.layers.size() * kRoles.size());
}

std::vector<Figure> figures(const Probe& probe) {
  std::vector<Figure> all = {surface_figure(probe), channels_figure(probe)};
  if (probe.operators.empty()) return all;
  all.push_back(alpha_figure(probe));
  all.push_back(treatment_figure(probe));
  all.push_back(depth_figure(probe));
  all.push_back(heat_figure(probe));
  all.push_back(attribution_figure(probe));
  all.push_back(rotations_figure(probe));
  all.push_back(hadamard_figure(probe));
  return all;
}

}  // namespace quarot
