// What to generate, and what came of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quarot/sampler.h"
#include "quarot/text.h"

namespace quarot {

struct GenerationOptions {
  SamplingOptions sampling;
  int64_t max_tokens = 256;
  int64_t prefill_chunk = 512;    // tokens of a prompt that are computed at once
  std::vector<std::string> stop;  // generation ends before any of these; they are not streamed
  bool ignore_end = false;        // go on past end-of-sequence tokens
};

enum class StopReason { kEndToken, kStopString, kMaxTokens, kContextFull };

struct Generation {
  std::vector<Token> tokens;
  std::string text;
  StopReason reason = StopReason::kMaxTokens;
  double prefill_seconds = 0;
  double decode_seconds = 0;
};

}  // namespace quarot
