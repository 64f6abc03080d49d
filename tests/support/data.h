// Where the tests find what is not part of the project: evaluation texts, golden values, tiny
// models and tokenizers in one folder, and the SmolLM2 model from its Python package.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>

namespace quarot::testing {

namespace detail {
inline std::optional<std::filesystem::path> existing(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) return path;
  return std::nullopt;
}
}  // namespace detail

// $QUAROT_DATA, else ../shared/data beside the checkout.
inline std::optional<std::filesystem::path> data_folder() {
  if (const char* path = std::getenv("QUAROT_DATA")) return detail::existing(path);
  return detail::existing(std::filesystem::path(QUAROT_SOURCE_DIR) / ".." / "shared" / "data");
}

// $QUAROT_SMOLLM2, else where scripts/fetch-model keeps the GGUF.
inline std::optional<std::filesystem::path> smollm2() {
  if (const char* path = std::getenv("QUAROT_SMOLLM2")) return detail::existing(path);
  const char* home = std::getenv("HOME");
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const std::filesystem::path folder = cache != nullptr
                                           ? std::filesystem::path(cache)
                                           : std::filesystem::path(home ? home : "/") / ".cache";
  return detail::existing(folder / "quarot" / "SmolLM2-135M-Instruct.Q4_1.gguf");
}

// Whether the tests that take many minutes run whole.
inline bool full() {
  const char* value = std::getenv("QUAROT_FULL");
  return value != nullptr && std::string_view(value) == "1";
}

// CI has all data: there, a test that finds none has lost its way.
inline bool must_not_skip() {
  const char* ci = std::getenv("CI");
  return ci != nullptr && std::string_view(ci) == "true";
}

}  // namespace quarot::testing

// Skips the test, visibly, where `optional` (data_folder() or smollm2()) is empty; with CI=true
// fails it.
#define QUAROT_NEEDS(optional)                   \
  if (optional) {                                \
  } else if (::quarot::testing::must_not_skip()) \
    GTEST_FAIL() << #optional << " is not here"; \
  else                                           \
    GTEST_SKIP() << #optional << " is not here"
