#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "text/utf8.h"

namespace quarot {
namespace {

// A hostile file could make text grow without end: a replacement that would take it past this
// factor is left out.
constexpr size_t kMaxGrowth = 64;

using CodePoints = std::vector<utf8proc_int32_t>;

int combining_class(utf8proc_int32_t value) {
  return utf8proc_get_property(value)->combining_class;
}

void decompose(std::string_view text, utf8proc_option_t options, CodePoints& out) {
  std::array<utf8proc_int32_t, 32> parts{};  // the longest decomposition has 18
  while (!text.empty()) {
    const auto [value, length] = first_code_point(text);
    text.remove_prefix(length);
    int boundary = 0;
    const auto count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(value), parts.data(),
                                static_cast<utf8proc_ssize_t>(parts.size()), options, &boundary);
    if (count > 0 && count <= static_cast<utf8proc_ssize_t>(parts.size())) {
      out.insert(out.end(), parts.begin(), parts.begin() + count);
    } else {
      out.push_back(static_cast<utf8proc_int32_t>(value));
    }
  }
}

// The canonical ordering algorithm. utf8proc's own sort is quadratic in the length of a run.
void sort_combining_marks(CodePoints& points) {
  const auto is_mark = [](utf8proc_int32_t value) { return combining_class(value) != 0; };
  for (auto begin = points.begin(); begin != points.end();) {
    begin = std::find_if(begin, points.end(), is_mark);
    const auto end = std::find_if_not(begin, points.end(), is_mark);
    std::stable_sort(begin, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return combining_class(a) < combining_class(b);
    });
    begin = end;
  }
}

void append_form(std::string_view text, const Normalizer::UnicodeForm& form, std::string& out) {
  const auto options = static_cast<utf8proc_option_t>(
      UTF8PROC_STABLE | (form.compose ? UTF8PROC_COMPOSE : 0) |
      (form.compose ? 0 : UTF8PROC_DECOMPOSE) | (form.compatibility ? UTF8PROC_COMPAT : 0));
  CodePoints points;
  decompose(text, options, points);
  sort_combining_marks(points);
  auto count = static_cast<utf8proc_ssize_t>(points.size());
  if (form.compose) count = utf8proc_normalize_utf32(points.data(), count, options);
  for (utf8proc_ssize_t i = 0; i < count; ++i)
    append_utf8(out, static_cast<char32_t>(points[static_cast<size_t>(i)]));
}

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

std::string apply(const Normalizer::UnicodeForm& form, std::string_view text, size_t) {
  // ASCII is its own normal form; only its last character can meet what follows it.
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto run_start = std::find_if_not(text.begin(), text.end(), is_ascii);
    auto ascii = static_cast<size_t>(run_start - text.begin());
    if (run_start != text.end() && ascii > 0) --ascii;
    out += text.substr(0, ascii);
    text.remove_prefix(ascii);
    const auto run_end = std::find_if(run_start, text.end(), is_ascii);
    const auto run = static_cast<size_t>(run_end - text.begin());
    append_form(text.substr(0, run), form, out);
    text.remove_prefix(run);
  }
  return out;
}

std::string apply(const Normalizer::Lowercase&, std::string_view text, size_t) {
  std::string out;
  while (!text.empty()) {
    const auto [value, length] = first_code_point(text);
    text.remove_prefix(length);
    if (value == 0x130) {
      out += "i\xCC\x87";  // the one character whose lower case is two
    } else {
      append_utf8(out,
                  static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(value))));
    }
  }
  return out;
}

std::string apply(const Normalizer::Strip& strip, std::string_view text, size_t) {
  size_t begin = strip.left ? text.size() : 0;
  size_t end = strip.right ? 0 : text.size();
  for (size_t at = 0; at < text.size();) {
    const auto [value, length] = first_code_point(text.substr(at));
    if (!is_white_space(value)) {
      begin = std::min(begin, at);
      end = std::max(end, at + length);
    }
    at += length;
  }
  return begin < end ? std::string(text.substr(begin, end - begin)) : std::string();
}

std::string apply(const Normalizer::Prepend& prepend, std::string_view text, size_t limit) {
  return text.empty() || prepend.prefix.size() > limit ? std::string(text)
                                                       : prepend.prefix + std::string(text);
}

std::string apply(const Normalizer::Replace& replace, std::string_view text, size_t limit) {
  std::string out;
  size_t done = 0;
  replace.pattern.for_each_match(text, [&](size_t begin, size_t end) {
    if (out.size() > limit) return;
    out += text.substr(done, begin - done);
    out += replace.content;
    done = end;
  });
  if (out.size() > limit) return std::string(text);
  out += text.substr(done);
  return out;
}

std::string apply(const Normalizer::CollapseSpaces&, std::string_view text, size_t) {
  std::string out;
  for (const char c : text) {
    if (c != ' ' || (!out.empty() && out.back() != ' ')) out += c;
  }
  if (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

}  // namespace

void Normalizer::add(Step step) { steps_.push_back(std::move(step)); }

std::string Normalizer::apply(std::string_view text) const {
  std::string current(text);
  const size_t limit = kMaxGrowth * text.size() + 4096;
  for (const Step& step : steps_) {
    current = std::visit([&](const auto& s) { return quarot::apply(s, current, limit); }, step);
  }
  return current;
}

}  // namespace quarot
