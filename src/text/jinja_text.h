// Python's str seen from UTF-8: lengths, slices and classes count code points. A byte that is not
// UTF-8 counts as one character and is kept as it is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quarot::jinja {

// Takes the first character off `text`, which is not empty.
std::string_view take_character(std::string_view& text);
// Its code point; of a stray byte, U+FFFD.
int32_t code_point(std::string_view character);
void append_code_point(std::string& out, uint32_t point);  // surrogates become U+FFFD

int64_t character_count(std::string_view text);
std::vector<std::string_view> characters(std::string_view text);

bool is_space(std::string_view character);  // str.isspace of one character
bool is_letter(std::string_view character);
bool is_digit(std::string_view character);

enum class Side { kLeft, kRight, kBoth };
// str.strip: white space where `set` is null, else the characters of *set.
std::string_view strip(std::string_view text, Side side, const std::string_view* set = nullptr);

// One code point to one, but ß, whose upper case is SS.
std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
// str.title: every letter after something that is no letter.
std::string title(std::string_view text);
// Jinja's title filter: every character after white space or one of -({[<.
std::string title_words(std::string_view text);

// str.splitlines, line ends dropped or kept.
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);

}  // namespace quarot::jinja
