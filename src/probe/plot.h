// Charts out of SVG: frames, ticks, curves, legends.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "probe/svg.h"

namespace quarot {

constexpr double kFigureWidth = 880;

std::string number(double x);   // four digits, or all before the point
std::string percent(double x);  // "12.3 %"

// What a stranger chose, such as a token's text: at most 40 characters of it.
std::string shortened(std::string_view text);

// The least of 1, 2 and 5 times a power of ten that is not below `least`.
double round_step(double least);

// Frame, ticks and curves of one small chart.
struct Plot {
  Svg* svg;
  Axis x, y;

  void frame(std::string_view title) const;
  void ticks_x(double step) const;
  void ticks_y() const;
  void curve(std::span<const double> values, std::string_view css) const;  // over all of x

 private:
  void tick_y(double value, std::string_view label) const;
};

// A name beside a square of its colour.
void legend(Svg& svg, double x, double y, const std::vector<std::string>& names);

// The powers of ten about all positive values, at most six of them.
std::pair<double, double> decades(std::initializer_list<std::span<const double>> all);

}  // namespace quarot
