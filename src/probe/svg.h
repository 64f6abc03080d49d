// SVG, as much of it as the report's figures need. Colours are classes of figure.css, so that the
// same picture serves light and dark.
#pragma once

#include <string>
#include <string_view>

namespace quarot {

// Text for HTML, SVG and their attributes: markup becomes text, control characters their pictures
// (U+2400 …), what is invisible or turns the direction of text its number, bytes that are no UTF-8
// U+FFFD.
std::string escaped(std::string_view text);

class Svg {
 public:
  // `role`: "img", or "group" where parts of it can be chosen.
  Svg(double width, double height, std::string_view role = "img")
      : width_(width), height_(height), role_(role) {}

  // `attributes` is markup, of this program's own making.
  void rect(double x, double y, double width, double height, std::string_view attributes);
  void line(double x1, double y1, double x2, double y2, std::string_view css);
  void path(std::string_view data, std::string_view attributes);
  void text(double x, double y, std::string_view text, std::string_view css = "");
  void raw(std::string_view markup) { body_ += markup; }

  // With a label for those who do not see it; a file of its own has figure.css inside.
  std::string inline_markup(std::string_view label) const;
  std::string file(std::string_view label) const;

 private:
  std::string markup(std::string_view label, std::string_view style) const;

  double width_, height_;
  std::string_view role_;
  std::string body_;
};

// Position of a value on an axis, linear or logarithmic.
struct Axis {
  double low = 0, high = 1;
  double from = 0, to = 1;
  bool logarithmic = false;

  double operator()(double value) const;
};

// Cividis (Nuñez et al. 2018), perceptually ordered for all kinds of colour vision; t in [0, 1].
std::string cividis(double t);

}  // namespace quarot
