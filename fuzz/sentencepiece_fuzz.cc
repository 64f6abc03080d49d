// Any bytes as tokenizer.model and as a llama2.c vocabulary.
#include "text/sentencepiece.h"

#include "use_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const auto text = quarot::fuzz::text_of(bytes, size);
  for (const auto& model :
       {quarot::parse_sentencepiece_model(text), quarot::parse_llama2c_vocabulary(text)}) {
    if (model.ok()) quarot::fuzz::use(quarot::make_sentencepiece_tokenizer(*model, {}));
  }
  return 0;
}
