#include "model/family.h"

#include <array>

namespace quarot {

std::span<const Family* const> families() {
  static constexpr std::array kFamilies = {&kLlama, &kMistral, &kQwen2, &kQwen3, &kPhi3};
  return kFamilies;
}

const Family* find_family(std::string_view model_type) {
  for (const Family* family : families()) {
    if (family->model_type == model_type) return family;
  }
  return nullptr;
}

Status slide_every_layer(const JsonFields& json, ModelConfig& config) {
  QUAROT_ASSIGN_OR_RETURN(const int64_t window, json.optional<int64_t>("sliding_window", 0));
  config.sliding_windows.assign(static_cast<size_t>(config.layers), window);
  return {};
}

}  // namespace quarot
