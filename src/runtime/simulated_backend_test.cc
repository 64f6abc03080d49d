// Attention over the cache against the textbook formula in float64, for every way in which tokens
// may arrive: whole, in chunks, beside another sequence; with fewer KV heads, sliding windows,
// quantised and centred caches.
#include "runtime/simulated_backend.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/transform.h"
#include "runtime/rope_tables.h"
#include "support/synthetic.h"
#include "tensor/dtype.h"

namespace quarot {
namespace {

using Rows = std::vector<std::vector<float>>;

// Rows of the queries, keys, values and attention outputs of layer 0, in the order they came.
class Recorder final : public SiteObserver {
 public:
  void observe(int64_t layer, Space space, ConstMatrixRef rows) override {
    if (layer != 0) return;
    Rows* into = space == Space::kQuery             ? &query
                 : space == Space::kKey             ? &key
                 : space == Space::kValue           ? &value
                 : space == Space::kAttentionOutput ? &output
                                                    : nullptr;
    if (into == nullptr) return;
    for (int64_t r = 0; r < rows.rows(); ++r)
      into->emplace_back(rows.row(r).begin(), rows.row(r).end());
  }
  Rows query, key, value, output;
};

struct Shape {
  int64_t heads, kv_heads, head_dim, window;
};

// softmax(q·Kᵀ/√d)·V of one sequence, every query on its own.
std::vector<double> attend(const Shape& shape, const Rows& query, const Rows& key,
                           const Rows& value, int64_t position) {
  std::vector<double> output(static_cast<size_t>(shape.heads * shape.head_dim), 0.0);
  const int64_t first = shape.window > 0 ? std::max<int64_t>(0, position - shape.window + 1) : 0;
  for (int64_t head = 0; head < shape.heads; ++head) {
    const int64_t kv = head * shape.kv_heads / shape.heads;
    std::vector<double> weight;
    double total = 0;
    for (int64_t t = first; t <= position; ++t) {
      double score = 0;
      for (int64_t i = 0; i < shape.head_dim; ++i) {
        score +=
            double{query[position][head * shape.head_dim + i]} * key[t][kv * shape.head_dim + i];
      }
      weight.push_back(std::exp(score / std::sqrt(static_cast<double>(shape.head_dim))));
      total += weight.back();
    }
    for (int64_t t = first; t <= position; ++t) {
      for (int64_t i = 0; i < shape.head_dim; ++i) {
        output[head * shape.head_dim + i] +=
            weight[t - first] / total * value[t][kv * shape.head_dim + i];
      }
    }
  }
  return output;
}

Model model_of(const Shape& shape) {
  nlohmann::json config = testing::config_json({{"num_hidden_layers", 1},
                                                {"num_attention_heads", shape.heads},
                                                {"num_key_value_heads", shape.kv_heads},
                                                {"head_dim", shape.head_dim}});
  if (shape.window > 0) {
    config["model_type"] = "mistral";
    config["sliding_window"] = shape.window;
  }
  return testing::random_model(config, 1);
}

void feed(SimulatedBackend& backend, int sequence, const std::vector<Token>& tokens,
          int64_t chunk) {
  const auto size = static_cast<int64_t>(tokens.size());
  for (int64_t done = 0; done < size; done += chunk) {
    const int64_t count = std::min(chunk, size - done);
    const Batch batch{{tokens.begin() + done, tokens.begin() + done + count},
                      {{sequence, 0, count, done}}};
    testing::expect_ok(check_batch(batch, backend.config()));
    forward(backend, batch);
  }
}

void expect_exact_attention(const Shape& shape, const Recorder& seen) {
  for (size_t t = 0; t < seen.output.size(); ++t) {
    const std::vector<double> exact =
        attend(shape, seen.query, seen.key, seen.value, static_cast<int64_t>(t));
    for (size_t i = 0; i < exact.size(); ++i)
      ASSERT_NEAR(seen.output[t][i], exact[i], 3e-6) << "position " << t << ", channel " << i;
  }
}

// 150 tokens are more than two blocks of 64 queries.
TEST(Attention, EqualsTheFormula) {
  const std::vector<Token> tokens = testing::random_tokens(150, 96, 2);
  for (const Shape& shape : {Shape{4, 4, 16, 0}, Shape{6, 2, 16, 0}, Shape{7, 1, 8, 0},
                             Shape{6, 2, 16, 1}, Shape{6, 3, 8, 5}, Shape{4, 1, 8, 64},
                             Shape{4, 2, 8, 70}, Shape{4, 2, 8, 150}, Shape{4, 2, 8, 1000}}) {
    const Model model = model_of(shape);
    for (const int64_t chunk : {150, 64, 37, 1}) {
      SimulatedBackend backend(model, {});
      Recorder seen;
      backend.set_observer(&seen);
      feed(backend, backend.add_sequence(), tokens, chunk);
      SCOPED_TRACE(::testing::Message() << shape.heads << " heads on " << shape.kv_heads
                                        << ", window " << shape.window << ", chunks of " << chunk);
      ASSERT_EQ(seen.output.size(), tokens.size());
      expect_exact_attention(shape, seen);
    }
  }
}

TEST(Attention, OfOneSequenceDoesNotSeeAnother) {
  const Shape shape{6, 2, 16, 0};
  const Model model = model_of(shape);
  const std::vector<Token> tokens = testing::random_tokens(30, 96, 3);
  SimulatedBackend backend(model, {});
  const int a = backend.add_sequence();
  const int b = backend.add_sequence();
  feed(backend, b, testing::random_tokens(40, 96, 4), 40);
  Recorder seen;
  backend.set_observer(&seen);
  feed(backend, a, tokens, 11);
  expect_exact_attention(shape, seen);
}

// A dropped sequence's number and memory are used again, and nothing of it is seen.
TEST(Attention, OfAReusedSequenceStartsAfresh) {
  const Shape shape{6, 2, 16, 0};
  const Model model = model_of(shape);
  SimulatedBackend backend(model, {});
  const int first = backend.add_sequence();
  feed(backend, first, testing::random_tokens(90, 96, 5), 90);
  const int64_t bytes = backend.cache_bytes();
  backend.drop_sequence(first);
  ASSERT_EQ(backend.add_sequence(), first);
  Recorder seen;
  backend.set_observer(&seen);
  feed(backend, first, testing::random_tokens(20, 96, 6), 20);
  EXPECT_EQ(backend.cache_bytes(), bytes);
  expect_exact_attention(shape, seen);
}

// The cache holds quantise(k − c_k) and quantise(v − c_v), head by head.
TEST(Attention, SeesTheQuantisedAndCentredCache) {
  const Shape shape{6, 2, 16, 0};
  Model model = model_of(shape);
  Random random(7);
  model.layers[0].key_center = testing::random_vector(random, 32, 0, 2);
  model.layers[0].value_center = testing::random_vector(random, 32, 0, 2);
  Precision precision;
  precision.keys.bits = 4;
  precision.values.bits = 3;
  SimulatedBackend backend(model, precision);
  Recorder seen;
  backend.set_observer(&seen);
  feed(backend, backend.add_sequence(), testing::random_tokens(40, 96, 8), 13);
  const auto cached = [&](Rows& rows, const std::vector<float>& center, const CacheQuant& quant) {
    for (std::vector<float>& row : rows) {
      for (size_t i = 0; i < row.size(); ++i) row[i] -= center[i];
      simulate(quant, MatrixRef(row.data(), shape.kv_heads, shape.head_dim));
    }
  };
  cached(seen.key, model.layers[0].key_center, precision.keys);
  cached(seen.value, model.layers[0].value_center, precision.values);
  expect_exact_attention(shape, seen);
}

// Rows page·32 … of every head, quantised as a page of keys or values.
void quantize_page(const Shape& shape, const RopeConfig& rope, const PageQuant& pages,
                   const CacheQuant& quant, bool keys, int64_t page, Rows& rows) {
  Matrix cos, sin;
  fill_rope_tables(rope, {std::vector<Token>(32), {{0, 0, 32, page * 32}}}, cos, sin);
  for (int64_t head = 0; head < shape.kv_heads; ++head) {
    const auto at = [&](int64_t t, int64_t i) -> float& {
      return rows[page * 32 + t][head * shape.head_dim + i];
    };
    const auto turn = [&](double direction) {
      for (int64_t t = 0; t < 32 && keys && pages.keys_before_rope; ++t) {
        for (int64_t i = 0; i < cos.cols(); ++i) {
          const double angle = direction * std::atan2(double{sin(t, i)}, double{cos(t, i)});
          const double a = at(t, i);
          const double b = at(t, i + cos.cols());
          at(t, i) = static_cast<float>(a * std::cos(angle) - b * std::sin(angle));
          at(t, i + cos.cols()) = static_cast<float>(b * std::cos(angle) + a * std::sin(angle));
        }
      }
    };
    turn(-1);
    const bool by_channel = keys && pages.keys_by_channel;
    Matrix block(by_channel ? shape.head_dim : 32, by_channel ? 32 : shape.head_dim);
    const auto in_block = [&](int64_t t, int64_t i) -> float& {
      return by_channel ? block(i, t) : block(t, i);
    };
    for (int64_t t = 0; t < 32; ++t) {
      for (int64_t i = 0; i < shape.head_dim; ++i) in_block(t, i) = at(t, i);
    }
    simulate_page(quant.bits, quant.clip, block.cols(), pages.outliers, block);
    for (int64_t t = 0; t < 32; ++t) {
      for (int64_t i = 0; i < shape.head_dim; ++i) at(t, i) = in_block(t, i);
    }
    turn(1);
  }
}

// Each query sees the pages that a whole page and the recent tokens came after quantised, the rest
// in float: whatever the chunks in which tokens come.
TEST(Attention, SeesPagesQuantisedOnceTheyAreOld) {
  const Shape shape{6, 2, 16, 0};
  const Model model = model_of(shape);
  for (const PageQuant& pages :
       {PageQuant{.keys_by_channel = true, .recent = 32}, PageQuant{.recent = 64},
        PageQuant{.keys_by_channel = true, .keys_before_rope = true, .outliers = 0.1}}) {
    Precision precision;
    precision.keys.bits = 2;
    precision.values.bits = 3;
    precision.pages = pages;
    for (const int64_t chunk : {150, 37, 1}) {
      SimulatedBackend backend(model, precision);
      Recorder seen;
      backend.set_observer(&seen);
      feed(backend, backend.add_sequence(), testing::random_tokens(150, 96, 8), chunk);
      int64_t old = 0;
      for (int64_t t = 0; t < 150; ++t) {
        for (; (old + 1) * 32 + pages.recent <= t; ++old) {
          quantize_page(shape, model.config.rope, pages, precision.keys, true, old, seen.key);
          quantize_page(shape, model.config.rope, pages, precision.values, false, old, seen.value);
        }
        const std::vector<double> exact = attend(shape, seen.query, seen.key, seen.value, t);
        for (size_t i = 0; i < exact.size(); ++i)
          ASSERT_NEAR(seen.output[t][i], exact[i], 3e-6) << "position " << t << ", channel " << i;
      }
      EXPECT_EQ(old, pages.recent == 32 ? 3 : pages.recent == 64 ? 2 : 4);
    }
  }
}

// Every site behind an online transform, and q and k behind R3, hold halves that are the floats
// rounded, to what their inputs' rounding moves them.
TEST(SimulatedBackend, TurnsInHalfPrecision) {
  Model model = testing::random_model(testing::config_json({{"model_type", "qwen3"}}), 9);
  model.online = online_transforms(
      model.config, {.norm_output = true, .heads = true, .query_key = true, .ffn = true});
  class Everything final : public SiteObserver {
   public:
    void observe(int64_t layer, Space space, ConstMatrixRef rows) override {
      if (layer == 0 && space != Space::kValue) seen.emplace_back(rows);
    }
    std::vector<Matrix> seen;
  };
  const auto observed = [&](bool half) {
    Precision precision;
    precision.half_online = half;
    SimulatedBackend backend(model, precision);
    Everything everything;
    backend.set_observer(&everything);
    feed(backend, backend.add_sequence(), testing::random_tokens(20, 96, 10), 20);
    return everything.seen;
  };
  const std::vector<Matrix> floats = observed(false);
  const std::vector<Matrix> halves = observed(true);
  ASSERT_EQ(halves.size(), 6U);
  for (size_t i = 0; i < halves.size(); ++i) {
    for (const float x : halves[i].elements()) EXPECT_EQ(x, f16_to_float(float_to_f16(x)));
    const double error = testing::relative_error(halves[i], floats[i]);
    EXPECT_GT(error, 1e-5) << i;
    EXPECT_LT(error, 1e-3) << i;
  }
}

TEST(SimulatedBackend, QuantisesWhatEachSiteReads) {
  const Model model = testing::random_model(testing::config_json(), 9);
  const std::vector<Token> tokens = testing::random_tokens(20, 96, 10);
  Precision precision;
  precision.activations.clip = 1;  // rounding alone
  const Matrix exact = testing::logits_of(model, tokens, precision);
  double previous = 1;
  for (const int bits : {4, 6, 8}) {
    precision.activations.bits = bits;
    const double error =
        testing::relative_error(testing::logits_of(model, tokens, precision), exact);
    EXPECT_GT(error, 0) << bits;
    EXPECT_LT(error, previous / 2) << bits;  // two bits more: a quarter of the rounding error
    previous = error;
  }
}

TEST(CheckBatch, RefusesWhatDoesNotFit) {
  const ModelConfig config = testing::value_of(parse_config(testing::config_json(), "test"));
  testing::expect_ok(check_batch({{0, 95}, {{0, 0, 2, 0}}}, config));
  for (const Batch& batch :
       {Batch{{96}, {{0, 0, 1, 0}}}, Batch{{-1}, {{0, 0, 1, 0}}}, Batch{{1, 2}, {{0, 0, 1, 0}}},
        Batch{{1}, {{0, 0, 2, 0}}}, Batch{{1, 2}, {{0, 1, 1, 0}}}, Batch{{1}, {{0, 0, 1, -1}}},
        Batch{{1}, {{0, 0, 0, 0}, {0, 0, 1, 0}}}}) {
    const Status status = check_batch(batch, config);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace quarot
