// GPT-2's byte alphabet: each byte as one printable character, so that a vocabulary of byte strings
// can be written as text. https://github.com/openai/gpt-2/blob/master/src/encoder.py
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace quarot {

// The character of each byte, in UTF-8: itself where printable, else the next free one from U+0100.
const std::array<std::string, 256>& byte_alphabet();

std::string to_byte_alphabet(std::string_view bytes);

// The bytes that the text stands for; none if it holds a character outside the alphabet.
std::optional<std::string> from_byte_alphabet(std::string_view text);

}  // namespace quarot
