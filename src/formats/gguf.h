// GGUF versions 2 and 3: metadata, then tensors in llama.cpp's block formats.
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <variant>

#include "formats/tensor_source.h"

namespace quarot {

// A metadata value. Integers of every width widen to int64_t (uint64_t above 2⁶³ is an error),
// floats to double; arrays keep one element type. Nested arrays are refused.
using GgufValue = std::variant<bool, int64_t, double, std::string, std::vector<bool>,
                               std::vector<int64_t>, std::vector<double>, std::vector<std::string>>;

class GgufFile : public TensorSource {
 public:
  virtual const std::map<std::string, GgufValue, std::less<>>& metadata() const = 0;

  // The value if the key is there and has that type (an integer also reads as double).
  template <typename T>
  std::optional<T> get(std::string_view key) const;

  // The metadata as the file stores it.
  virtual std::span<const std::byte> metadata_bytes() const = 0;
};

// A GGUF file with this one's metadata and no tensors: keeps a tokenizer and its chat template.
Status write_gguf_metadata(const GgufFile& gguf, const std::filesystem::path& path);

// Validates the whole header: counts against the file's size, offsets against the alignment, bounds
// and each other, names against duplicates. Tensors are read dequantised; q/k row order is as in
// the file.
Result<std::unique_ptr<GgufFile>> open_gguf(const std::filesystem::path& path);

template <typename T>
std::optional<T> GgufFile::get(std::string_view key) const {
  const auto it = metadata().find(key);
  if (it == metadata().end()) return std::nullopt;
  if (const T* value = std::get_if<T>(&it->second)) return *value;
  if constexpr (std::is_same_v<T, double>) {
    if (const auto* value = std::get_if<int64_t>(&it->second)) return static_cast<double>(*value);
  }
  return std::nullopt;
}

}  // namespace quarot
