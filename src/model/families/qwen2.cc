#include "model/family.h"

namespace quarot {

namespace {

// With use_sliding_window, the layers from max_window_layers on slide.
Status configure(const JsonFields& json, ModelConfig& config) {
  QUAROT_ASSIGN_OR_RETURN(const bool slides, json.optional<bool>("use_sliding_window", false));
  if (!slides) return {};
  QUAROT_ASSIGN_OR_RETURN(const int64_t window, json.optional<int64_t>("sliding_window", 0));
  QUAROT_ASSIGN_OR_RETURN(const int64_t first,
                          json.optional<int64_t>("max_window_layers", config.layers));
  for (int64_t layer = std::max<int64_t>(first, 0); layer < config.layers; ++layer) {
    config.sliding_windows[static_cast<size_t>(layer)] = window;
  }
  return {};
}

}  // namespace

const Family kQwen2 = {.model_type = "qwen2", .linears = kLlamaLinears, .configure = configure};

const Family kQwen3 = {.model_type = "qwen3",
                       .linears = kLlamaLinears,
                       .configure = [](const JsonFields& json, ModelConfig& config) {
                         config.query_key_norm = true;
                         return configure(json, config);
                       }};

}  // namespace quarot
