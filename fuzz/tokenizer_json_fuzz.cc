// Any bytes as tokenizer.json; what opens encodes and decodes a text with a bit of everything.
#include "use_tokenizer.h"

#include "text/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  quarot::fuzz::use(quarot::parse_tokenizer_json(quarot::fuzz::text_of(bytes, size), {}));
  return 0;
}
