#include <cstddef>
#include <cstdint>

#include "formats/parsers.h"
#include "read_all.h"

// One input serves both parsers: a file, and the JSON of an index.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto contents =
      quarot::parse_safetensors({"input", std::as_bytes(std::span(data, size)), nullptr});
  if (contents.ok()) quarot::read_all(contents->tensors);

  const auto shards =
      quarot::parse_safetensors_index({reinterpret_cast<const char*>(data), size}, "input");
  if (shards.ok()) {
    for (const auto& [file, names] : *shards) {
      if (file.find('/') != std::string::npos || names.empty()) std::abort();
    }
  }
  return 0;
}
