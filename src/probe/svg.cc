#include "probe/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "probe/assets.h"
#include "text/utf8.h"

namespace quarot {

namespace {

// What would not be seen, or would change how the text around it is read: controls, and the formats
// that set the direction of text, join its letters or stand for nothing (Unicode's
// Default_Ignorable and Bidi_Control, but for what belongs to emoji).
bool is_hidden(char32_t c) {
  const auto within = [c](char32_t low, char32_t high) { return c >= low && c <= high; };
  return within(0x7f, 0x9f) || c == 0xad || c == 0x61c || within(0x200b, 0x200c) ||
         within(0x200e, 0x200f) || within(0x2028, 0x202e) || within(0x2060, 0x206f) ||
         c == 0xfeff || within(0xfff9, 0xfffb) || within(0xe0000, 0xe007f);
}

std::string escaped(std::string_view character, char32_t value) {
  switch (value) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '"':
      return "&quot;";
    case '\'':
      return "&#39;";
    default:
      break;
  }
  if (value < 0x20) {
    std::string picture;
    append_utf8(picture, 0x2400 + value);
    return picture;
  }
  return is_hidden(value) ? fmt::format("[U+{:04X}]", static_cast<uint32_t>(value))
                          : std::string(character);
}

}  // namespace

std::string escaped(std::string_view text) {
  const std::string valid = lossy_utf8(text);
  std::string safe;
  for (std::string_view rest = valid; !rest.empty();) {
    const CodePoint next = first_code_point(rest);
    safe += escaped(rest.substr(0, next.length), next.value);
    rest.remove_prefix(next.length);
  }
  return safe;
}

void Svg::rect(double x, double y, double width, double height, std::string_view attributes) {
  body_ += fmt::format("<rect x=\"{:.5g}\" y=\"{:.5g}\" width=\"{:.5g}\" height=\"{:.5g}\" {}/>", x,
                       y, std::max(width, 0.0), std::max(height, 0.0), attributes);
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view css) {
  body_ +=
      fmt::format("<line x1=\"{:.5g}\" y1=\"{:.5g}\" x2=\"{:.5g}\" y2=\"{:.5g}\" class=\"{}\"/>",
                  x1, y1, x2, y2, css);
}

void Svg::path(std::string_view data, std::string_view attributes) {
  body_ += fmt::format("<path d=\"{}\" {}/>", data, attributes);
}

void Svg::text(double x, double y, std::string_view text, std::string_view css) {
  body_ += fmt::format("<text x=\"{:.5g}\" y=\"{:.5g}\" class=\"{}\">{}</text>", x, y, css,
                       escaped(text));
}

std::string Svg::markup(std::string_view label, std::string_view style) const {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.5g} {:.5g}\" "
      "role=\"{}\" aria-label=\"{}\">{}{}</svg>",
      width_, height_, role_, escaped(label), style, body_);
}

std::string Svg::inline_markup(std::string_view label) const { return markup(label, ""); }

std::string Svg::file(std::string_view label) const {
  return markup(label, fmt::format("<style>{}</style>", kFigureCss)) + "\n";
}

double Axis::operator()(double value) const {
  const auto scale = [&](double x) { return logarithmic ? std::log(std::max(x, low)) : x; };
  const double range = scale(high) - scale(low);
  const double t = range > 0 ? (scale(value) - scale(low)) / range : 0;
  return from + std::clamp(t, 0.0, 1.0) * (to - from);
}

std::string cividis(double t) {
  static constexpr std::array<std::array<int, 3>, 9> kStops = {{{0, 34, 78},
                                                                {18, 53, 112},
                                                                {59, 73, 108},
                                                                {87, 93, 109},
                                                                {112, 113, 115},
                                                                {138, 134, 120},
                                                                {165, 156, 116},
                                                                {195, 179, 105},
                                                                {254, 232, 56}}};
  const double place = std::clamp(t, 0.0, 1.0) * (kStops.size() - 1);
  const size_t i = std::min(static_cast<size_t>(place), kStops.size() - 2);
  const auto mix = [&](size_t channel) {
    const double a = kStops[i][channel];
    const double b = kStops[i + 1][channel];
    return static_cast<int>(std::lround(a + (b - a) * (place - static_cast<double>(i))));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", mix(0), mix(1), mix(2));
}

}  // namespace quarot
