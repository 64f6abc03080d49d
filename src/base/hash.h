// Content hashes for checksums and cache keys: XXH3, 128 bits, as 32 hexadecimal digits. They find
// damage, not forgery.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace quarot {

std::string content_hash(std::span<const std::byte> bytes);
std::string content_hash(std::string_view text);

}  // namespace quarot
