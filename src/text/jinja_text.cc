#include "text/jinja_text.h"

#include <utf8proc.h>

#include <algorithm>

namespace quarot::jinja {

namespace {

constexpr int32_t kReplacement = 0xFFFD;

// Length of the character at the front; 1 for a stray byte. Sets the code point.
size_t decode(std::string_view text, int32_t& point) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  utf8proc_int32_t decoded = -1;
  const auto size = static_cast<utf8proc_ssize_t>(std::min<size_t>(text.size(), 4));
  const utf8proc_ssize_t used = utf8proc_iterate(bytes, size, &decoded);
  point = used > 0 ? decoded : kReplacement;
  return used > 0 ? static_cast<size_t>(used) : 1;
}

std::string map_characters(std::string_view text, utf8proc_int32_t (*map)(utf8proc_int32_t)) {
  std::string mapped;
  mapped.reserve(text.size());
  while (!text.empty()) {
    const std::string_view character = take_character(text);
    const int32_t before = code_point(character);
    const int32_t after = map(before);
    if (after == before) {
      mapped += character;
    } else if (before == 0xDF) {
      mapped += "SS";
    } else {
      append_code_point(mapped, static_cast<uint32_t>(after));
    }
  }
  return mapped;
}

// Upper case where `starts` says that a word starts, lower case elsewhere.
template <typename Starts>
std::string map_words(std::string_view text, Starts starts) {
  std::string mapped;
  mapped.reserve(text.size());
  std::string_view previous;
  while (!text.empty()) {
    const std::string_view character = take_character(text);
    mapped += starts(previous) ? upper(character) : lower(character);
    previous = character;
  }
  return mapped;
}

bool ends_line(std::string_view character) {
  const int32_t point = code_point(character);
  return (point >= 0x0A && point <= 0x0D) || (point >= 0x1C && point <= 0x1E) || point == 0x85 ||
         point == 0x2028 || point == 0x2029;
}

bool strips(std::string_view character, const std::string_view* set) {
  return set == nullptr ? is_space(character) : set->find(character) != std::string_view::npos;
}

std::string_view last_character(std::string_view text) {
  for (size_t size = std::min<size_t>(4, text.size()); size > 1; --size) {
    int32_t point = 0;
    const std::string_view tail = text.substr(text.size() - size);
    if (decode(tail, point) == size) return tail;
  }
  return text.substr(text.size() - 1);
}

}  // namespace

std::string_view take_character(std::string_view& text) {
  int32_t point = 0;
  const std::string_view character = text.substr(0, decode(text, point));
  text.remove_prefix(character.size());
  return character;
}

int32_t code_point(std::string_view character) {
  int32_t point = 0;
  decode(character, point);
  return point;
}

void append_code_point(std::string& out, uint32_t point) {
  const bool valid = point <= 0x10FFFF && (point < 0xD800 || point > 0xDFFF);
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t size =
      utf8proc_encode_char(valid ? static_cast<int32_t>(point) : kReplacement, bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

int64_t character_count(std::string_view text) {
  int64_t count = 0;
  for (; !text.empty(); ++count) take_character(text);
  return count;
}

std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> all;
  while (!text.empty()) all.push_back(take_character(text));
  return all;
}

bool is_space(std::string_view character) {
  const int32_t point = code_point(character);
  if (point < 0x80)
    return point == ' ' || (point >= 9 && point <= 13) || (point >= 28 && point <= 31);
  if (point == 0x85) return true;
  const utf8proc_category_t category = utf8proc_category(point);
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP;
}

bool is_letter(std::string_view character) {
  const utf8proc_category_t category = utf8proc_category(code_point(character));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool is_digit(std::string_view character) {
  return utf8proc_category(code_point(character)) == UTF8PROC_CATEGORY_ND;
}

std::string_view strip(std::string_view text, Side side, const std::string_view* set) {
  while (side != Side::kRight && !text.empty()) {
    std::string_view rest = text;
    if (!strips(take_character(rest), set)) break;
    text = rest;
  }
  while (side != Side::kLeft && !text.empty()) {
    const std::string_view last = last_character(text);
    if (!strips(last, set)) break;
    text.remove_suffix(last.size());
  }
  return text;
}

std::string upper(std::string_view text) { return map_characters(text, utf8proc_toupper); }
std::string lower(std::string_view text) { return map_characters(text, utf8proc_tolower); }

std::string capitalize(std::string_view text) {
  return map_words(text, [](std::string_view previous) { return previous.empty(); });
}

std::string title(std::string_view text) {
  return map_words(
      text, [](std::string_view previous) { return previous.empty() || !is_letter(previous); });
}

std::string title_words(std::string_view text) {
  return map_words(text, [](std::string_view previous) {
    return previous.empty() || is_space(previous) ||
           std::string_view("-({[<").find(previous) != std::string_view::npos;
  });
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    std::string_view rest = text;
    std::string_view end;
    while (!rest.empty() && end.empty()) {
      const std::string_view character = take_character(rest);
      if (!ends_line(character)) continue;
      end = character;
      if (end == "\r" && rest.starts_with('\n')) rest.remove_prefix(1);
    }
    const size_t used = text.size() - rest.size();
    size_t kept = used;
    if (!keep_ends && !end.empty()) kept = static_cast<size_t>(end.data() - text.data());
    lines.push_back(text.substr(0, kept));
    text = rest;
  }
  return lines;
}

}  // namespace quarot::jinja
