#pragma once

#include <string_view>

namespace quarot {

// The library's version: "0.1.0".
std::string_view version();

}  // namespace quarot
