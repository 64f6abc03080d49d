#include "probe/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/utf8.h"

namespace quarot {

std::string number(double x) {
  const double size = std::abs(x);
  return size >= 1e4 && size < 1e7 ? fmt::format("{:.0f}", x) : fmt::format("{:.4g}", x);
}
std::string percent(double x) { return fmt::format("{:.1f} %", 100 * x); }

std::string shortened(std::string_view text) {
  constexpr int kCharacters = 40;
  const std::string valid = lossy_utf8(text);
  size_t end = 0;
  for (int i = 0; i < kCharacters && end < valid.size(); ++i)
    end += first_code_point(std::string_view(valid).substr(end)).length;
  return end < valid.size() ? valid.substr(0, end) + "…" : valid;
}

double round_step(double least) {
  if (!(least > 0)) return 1;
  const double decade = std::pow(10, std::floor(std::log10(least)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (step * decade >= least) return step * decade;
  }
  return 10 * decade;
}

void Plot::frame(std::string_view title) const {
  svg->line(x.from, y.from, x.to, y.from, "rule");
  svg->line(x.from, y.from, x.from, y.to, "rule");
  svg->text(x.from, y.to - 8, title, "head");
}

void Plot::tick_y(double value, std::string_view label) const {
  svg->line(x.from - 4, y(value), x.to, y(value), "rule");
  svg->text(x.from - 7, y(value) + 4, label, "small end");
}

void Plot::ticks_y() const {
  if (!y.logarithmic) {
    const double step = round_step((y.high - y.low) / 5);
    for (int i = 0; y.low + step * i <= y.high; ++i)
      tick_y(y.low + step * i, fmt::format("{:.3g}", y.low + step * i));
    return;
  }
  const int first = static_cast<int>(std::ceil(std::log10(y.low) - 1e-9));
  const int last = static_cast<int>(std::floor(std::log10(y.high) + 1e-9));
  const int step = std::max(1, (last - first) / 4);
  for (int e = first; e <= last; e += step) tick_y(std::pow(10.0, e), number(std::pow(10, e)));
}

void Plot::ticks_x(double step) const {
  for (int i = 0; x.low + step * i <= x.high; ++i) {
    const double value = x.low + step * i;
    svg->text(x(value), y.from + 14, fmt::format("{:.3g}", value), "small mid");
  }
}

void Plot::curve(std::span<const double> values, std::string_view css) const {
  std::string data;
  const auto n = static_cast<double>(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const double place = x.low + (x.high - x.low) * static_cast<double>(i) / std::max(n - 1, 1.0);
    data += fmt::format("{}{:.4g} {:.4g}", i == 0 ? "M" : "L", x(place), y(values[i]));
  }
  svg->path(data, fmt::format("class=\"curve {}\"", css));
}

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

}  // namespace quarot
