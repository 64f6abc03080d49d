#include "probe/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "probe/plot.h"

namespace quarot {

Figure alpha_figure(const Probe& probe) {
  Figure figure{.id = "alpha",
                .title = "How much to smooth",
                .picture = Svg(kFigureWidth, 270),
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
    plot.ticks_x(0.5);
    for (size_t i = 0; i < means.size(); ++i)
      plot.curve(means[i], fmt::format("s{}{}", i / 2, i % 2 == 1 ? " dash" : ""));
  }
  legend(figure.picture, 45, 255, {"smoothing alone", "smoothing, then rotating"});
  figure.picture.text(400, 255, "solid: 4 bits, dashed: 8 bits; α from 0 to 1");
  figure.sentence = fmt::format(
      "Relative error of the outputs against the smoothing exponent α, mean over layers. Look for "
      "a curve that still falls at its end: of {} searches {} chose an end of the range, where the "
      "knob has run out and more smoothing cannot help.",
      searches, ends);
  return figure;
}

Figure treatment_figure(const Probe& probe) {
  Figure figure{.id = "treatments",
                .title = "What each treatment leaves",
                .picture = Svg(kFigureWidth, 300),
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
      "{}; at 8 bits {} falls to {}.",
      probe.held_out, percent(mean_error(probe, 0, 0)), percent(mean_error(probe, 0, 1)),
      percent(mean_error(probe, 0, 2)), percent(mean_error(probe, 0, 3)),
      percent(mean_error(probe, 0, 4)), percent(mean_error(probe, 1, 0)),
      percent(mean_error(probe, 1, 4)));
  return figure;
}

Figure cache_figure(const Probe& probe) {
  Figure figure{.id = "cache",
                .title = "What the cache loses",
                .picture = Svg(kFigureWidth, 270),
                .headers = {"layer", "tensor", "bits"},
                .layer_column = 0};
  figure.headers.insert(figure.headers.end(), kCacheTreatments.begin(), kCacheTreatments.end());
  const auto errors_of = [](const LayerProbe& layer, size_t tensor) -> const CacheErrors& {
    return tensor == 0 ? layer.keys : layer.values;
  };
  constexpr std::array kTensors = {"keys", "values"};
  using Means = std::array<double, kCacheTreatments.size()>;
  std::array<std::array<Means, kTensors.size()>, kTrialBits.size()> means{};
  for (size_t l = 0; l < probe.layers.size(); ++l) {
    for (size_t b = 0; b < kTrialBits.size(); ++b) {
      for (size_t tensor = 0; tensor < kTensors.size(); ++tensor) {
        auto& row = figure.rows.emplace_back(std::vector<std::string>{
            fmt::format("{}", l), kTensors[tensor], fmt::format("KV{}", kTrialBits[b])});
        for (size_t t = 0; t < kCacheTreatments.size(); ++t) {
          const double error = errors_of(probe.layers[l], tensor)[b][t];
          means[b][tensor][t] += error / static_cast<double>(probe.layers.size());
          row.push_back(percent(error));
        }
      }
    }
  }
  for (size_t b = 0; b < kTrialBits.size(); ++b) {
    const double left = 50 + 430 * static_cast<double>(b);
    double top = 0;
    for (const Means& tensor : means[b]) top = std::max(top, std::ranges::max(tensor));
    const Plot plot{&figure.picture, {0, 1, left, left + 370}, {0, 100 * top, 195, 45}};
    plot.frame(fmt::format("KV{}, relative error in %", kTrialBits[b]));
    plot.ticks_y();
    for (size_t tensor = 0; tensor < kTensors.size(); ++tensor) {
      const double x = left + 30 + 180 * static_cast<double>(tensor);
      for (size_t t = 0; t < kCacheTreatments.size(); ++t) {
        const double y = plot.y(100 * means[b][tensor][t]);
        figure.picture.rect(x + 30 * static_cast<double>(t), y, 27, 195 - y,
                            fmt::format("class=\"f{}\"", t));
      }
      figure.picture.text(x + 60, 211, kTensors[tensor], "small mid");
    }
  }
  legend(figure.picture, 50, 250, {kCacheTreatments.begin(), kCacheTreatments.end()});
  const auto& [keys, values] = means[0];
  figure.sentence = fmt::format(
      "‖X̂ − X‖/‖X − X̄‖ of the keys and the values, mean over layers, on the same tokens; what is "
      "common to all tokens does not count, since attention does not see it. Look whether the keys "
      "need centring: at 4 bits they lose {} plain, {} centred, {} rotated, {} with both; the "
      "values {}, {}, {} and {}.",
      percent(keys[0]), percent(keys[1]), percent(keys[2]), percent(keys[3]), percent(values[0]),
      percent(values[1]), percent(values[2]), percent(values[3]));
  return figure;
}

Figure depth_figure(const Probe& probe) {
  Figure figure{.id = "depth",
                .title = "Error through depth",
                .picture = Svg(kFigureWidth, 290),
                .headers = {"layer", "as it is", "rotated"},
                .layer_column = 0};
  const auto [low, high] = decades({probe.depth_own, probe.depth_rotated});
  const double last = static_cast<double>(probe.depth_own.size()) - 1;
  const Plot plot{&figure.picture, {0, last, 60, 860}, {low, high, 230, 35, true}};
  plot.frame(fmt::format("‖x̂ − x‖/‖x‖ of the residual stream, {}", probe.bits));
  plot.ticks_y();
  plot.ticks_x(std::max(round_step(last / 15), 1.0));
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
      "{} as the model is and {} rotated.",
      probe.bits, percent(probe.depth_own.back()), percent(probe.depth_rotated.back()));
  return figure;
}

}  // namespace quarot
