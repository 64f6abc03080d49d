// Any bytes as a rank file.
#include "text/byte_level_tokenizer.h"
#include "use_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  quarot::fuzz::use(quarot::parse_rank_file(quarot::fuzz::text_of(bytes, size), "qwen", {}));
  return 0;
}
