// The parsers behind open_*(): bytes in, a checked table of contents out, nothing allocated that
// the bytes do not account for. Apart so that a fuzzer can feed them without a file.
#pragma once

#include <map>
#include <string>

#include "formats/gguf.h"
#include "formats/llama2c.h"
#include "formats/tensor_table.h"

namespace quarot {

struct SafetensorsContents {
  TensorTable tensors;
  std::map<std::string, std::string> metadata;
};
Result<SafetensorsContents> parse_safetensors(const FileView& file);

// The weight_map of a model.safetensors.index.json turned around: the tensors wanted from each
// shard. A shard is the plain name of a file beside the index.
using ShardMap = std::map<std::string, std::vector<std::string>>;
Result<ShardMap> parse_safetensors_index(std::string_view text, const std::filesystem::path& path);

struct GgufContents {
  TensorTable tensors;
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::span<const std::byte> metadata_bytes;  // of the file
};
Result<GgufContents> parse_gguf(const FileView& file);

struct Llama2cContents {
  TensorTable tensors;
  Llama2cHeader header;
};
Result<Llama2cContents> parse_llama2c(const FileView& file);

}  // namespace quarot
