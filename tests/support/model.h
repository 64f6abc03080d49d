// Models that tests run, and shorthands that fail the test where a Result has no value.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "model/model.h"
#include "runtime/simulated_backend.h"
#include "support/data.h"

namespace quarot::testing {

// The value, or a failed assertion with the error's message.
template <typename T>
T value_of(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().message());
  return *std::move(result);
}

inline void expect_ok(const Status& status) {
  EXPECT_TRUE(status.ok()) << status.error().message();
}

inline nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

inline Model load(const std::filesystem::path& path) {
  const auto checkpoint = value_of(open_checkpoint(path));
  return value_of(load_model(*checkpoint));
}

// Logits of all tokens in one forward pass, [tokens, vocab].
inline Matrix logits_of(const Model& model, const std::vector<Token>& tokens,
                        const Precision& precision = {}) {
  SimulatedBackend backend(model, precision);
  const auto rows = static_cast<int64_t>(tokens.size());
  forward(backend, {tokens, {{backend.add_sequence(), 0, rows, 0}}});
  Matrix logits(rows, model.config.vocab);
  backend.logits(0, rows, logits);
  return logits;
}

// ‖a − b‖ / ‖b‖.
inline double relative_error(const Matrix& a, const Matrix& b) {
  double difference = 0;
  double norm = 0;
  for (int64_t i = 0; i < a.size(); ++i) {
    const double d = double{a.data()[i]} - b.data()[i];
    difference += d * d;
    norm += double{b.data()[i]} * b.data()[i];
  }
  return std::sqrt(difference / norm);
}

inline constexpr const char* kTinyModels[] = {"llama", "llama-rope3", "mistral",
                                              "qwen2", "qwen3",       "phi3"};

}  // namespace quarot::testing
