// A model as it lies on disk, whatever the format: its config in Hugging Face's terms, its tensors
// under Hugging Face's names and row order, its tokenizer.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "formats/tensor_source.h"
#include "quarot/status.h"
#include "text/tokenizer.h"

namespace quarot {

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  virtual const std::filesystem::path& path() const = 0;
  virtual std::string format() const = 0;  // for people: "safetensors", "GGUF", "llama2.c"
  virtual const nlohmann::json& config() const = 0;
  virtual const TensorSource& tensors() const = 0;
  virtual Result<std::unique_ptr<Tokenizer>> open_tokenizer() const = 0;

  // Writes the tokenizer's files into a folder, from which open_tokenizer(folder) opens the same
  // one.
  virtual Status save_tokenizer(const std::filesystem::path& folder) const = 0;

  // quarot.json, where quarot wrote this model itself.
  virtual const std::optional<nlohmann::json>& manifest() const = 0;
};

// MODEL of the command line: a Hugging Face folder (or the config.json, .safetensors or index in
// it), a .gguf file, a llama2.c .bin (its tokenizer beside it: tok512.bin, tokenizer.bin or
// tokenizer.model).
Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::filesystem::path& path);

}  // namespace quarot
