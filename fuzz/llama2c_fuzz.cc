#include <cstddef>
#include <cstdint>

#include "formats/parsers.h"
#include "read_all.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto contents =
      quarot::parse_llama2c({"input", std::as_bytes(std::span(data, size)), nullptr});
  if (contents.ok()) quarot::read_all(contents->tensors);
  return 0;
}
