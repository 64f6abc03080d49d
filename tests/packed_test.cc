// The packed backend against the simulated one, and against itself under other batches, chunks and
// threads.
#include <gtest/gtest.h>

#include "base/parallel.h"
#include "runtime/make_backend.h"
#include "runtime/packed_backend.h"
#include "support/quantized.h"

namespace quarot {
namespace {

using testing::data_folder;
using testing::value_of;

// The tiny models whose heads the cache's pages hold (head_dim a multiple of 16).
class Packed : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!data_folder()) return;
    const auto folder = *data_folder() / "models" / "tiny" / GetParam();
    original_ = testing::load(folder);
    ids_ = testing::read_json(folder / "expected.json")["ids"].get<std::vector<Token>>();
  }

  Model prepared(const Recipe& recipe) const {
    return testing::quantized(recipe, original_, {ids_});
  }

  Matrix logits(Backend& backend) const {
    const auto rows = static_cast<int64_t>(ids_.size());
    forward(backend, {ids_, {{backend.add_sequence(), 0, rows, 0}}});
    Matrix out(rows, original_.config.vocab);
    backend.logits(0, rows, out);
    return out;
  }

  static void expect_equal(const Matrix& a, const Matrix& b) {
    ASSERT_EQ(a.size(), b.size());
    EXPECT_TRUE(std::ranges::equal(a.elements(), b.elements()))
        << "relative error " << testing::relative_error(a, b);
  }

  Model original_;
  std::vector<Token> ids_;
};

// The bits and groups of a recipe.
struct Widths {
  int w, a, kv;
  int64_t group = 0;
};

// Not close: equal. Integers add up exactly in both, and everything else is the same code.
TEST_P(Packed, EqualsSimulated) {
  QUAROT_NEEDS(data_folder());
  for (const char* name : {"naive", "quarot", "balanced"}) {
    for (const Widths& widths : {Widths{4, 4, 4},
                                 {4, 8, 8},
                                 {8, 8, 3},
                                 {8, 5, 2},
                                 {4, 4, 6, 32},
                                 {4, 16, 4},
                                 {8, 16, 16}}) {
      Recipe recipe = value_of(recipe_by_name(name));
      recipe.weights.bits = widths.w;
      recipe.weights.group = widths.group;
      recipe.precision.activations.bits = widths.a;
      recipe.precision.keys.bits = recipe.precision.values.bits = widths.kv;
      if (!check(recipe, original_.config).ok()) continue;
      const Model model = prepared(recipe);
      const auto packed = value_of(make_backend(model, recipe.precision, Execution::kPacked));
      const auto simulated = value_of(make_backend(model, recipe.precision, Execution::kSimulated));
      expect_equal(logits(*packed), logits(*simulated));
    }
  }
}

TEST_P(Packed, EqualsSimulatedWithAClipRatioASite) {
  QUAROT_NEEDS(data_folder());
  Recipe recipe = value_of(recipe_by_name("balanced"));
  recipe.precision.activations.search_clip = true;
  Model model = prepared(recipe);
  for (const Layer& layer : model.layers) {
    for (const float clip : layer.clips) EXPECT_TRUE(clip >= 0.6F && clip <= 1);
  }
  model.layers[0].clips = {0.6F, 0.7F, 0.8F, 0.95F};
  const auto packed = value_of(make_backend(model, recipe.precision, Execution::kPacked));
  const auto simulated = value_of(make_backend(model, recipe.precision, Execution::kSimulated));
  const Matrix expected = logits(*simulated);
  expect_equal(logits(*packed), expected);
  model.layers[0].clips = {};  // the ratios matter
  const auto other = value_of(make_backend(model, recipe.precision, Execution::kSimulated));
  EXPECT_GT(testing::relative_error(logits(*other), expected), 1e-3);
}

TEST_P(Packed, EqualsSimulatedWithBitsASite) {
  QUAROT_NEEDS(data_folder());
  for (const int group : {0, 32}) {
    Recipe recipe = value_of(recipe_by_name("balanced"));
    recipe.weights.group = group;
    recipe.precision.activations.search_clip = true;
    recipe.site_bits = {value_of(parse_bits_rule("o_proj=A8")),
                        value_of(parse_bits_rule("down_proj@0=W8A5")),
                        value_of(parse_bits_rule("qkv_proj@1=W8"))};
    if (!check(recipe, original_.config).ok()) continue;
    Model model = prepared(recipe);
    EXPECT_EQ(model.layers[0].activation_bits, (SiteBits{0, 8, 0, 5}));
    EXPECT_EQ(model.layers[0][Role::kDown].quantized->quant.bits, 8);
    EXPECT_EQ(model.layers[1][Role::kDown].quantized->quant.bits, 4);
    const auto packed = value_of(make_backend(model, recipe.precision, Execution::kPacked));
    const auto simulated = value_of(make_backend(model, recipe.precision, Execution::kSimulated));
    const Matrix expected = logits(*simulated);
    expect_equal(logits(*packed), expected);
    // And as floats, which need no integers to be exact.
    Model floats = model;
    dequantize(floats);
    const auto plain = value_of(make_backend(floats, recipe.precision, Execution::kSimulated));
    EXPECT_LT(testing::relative_error(logits(*plain), expected), 0.05);
    model.layers[0].activation_bits = {};  // the bits matter
    const auto other = value_of(make_backend(model, recipe.precision, Execution::kSimulated));
    EXPECT_GT(testing::relative_error(logits(*other), expected), 1e-3);
  }
}

TEST_P(Packed, RefusesBitsOfOneLinearOfASite) {
  QUAROT_NEEDS(data_folder());
  Recipe recipe = value_of(recipe_by_name("quarot"));
  recipe.site_bits = {value_of(parse_bits_rule("v_proj=W8"))};
  const Model model = prepared(recipe);
  const auto packed = make_backend(model, recipe.precision, Execution::kPacked);
  ASSERT_FALSE(packed.ok());
  EXPECT_NE(packed.error().message().find("v_proj has other bits"), std::string::npos);
  EXPECT_EQ(best_execution(model, recipe.precision), Execution::kSimulated);
}

TEST_P(Packed, TablesOfFewBits) {
  QUAROT_NEEDS(data_folder());
  const Matrix exact = testing::logits_of(original_, ids_);
  Recipe recipe;
  const auto error = [&](int embedding_bits, int head_bits) {
    recipe.embedding_bits = embedding_bits;
    recipe.head_bits = head_bits;
    const Model model = prepared(recipe);
    const bool tied = original_.lm_head.empty() && embedding_bits == head_bits;
    EXPECT_EQ(model.lm_head.empty(), tied);
    EXPECT_EQ(model.config.tied_embeddings, tied);
    return testing::relative_error(testing::logits_of(model, ids_), exact);
  };
  EXPECT_EQ(error(16, 16), 0);
  for (const auto& [embedding, head] : {std::pair{8, 16}, {16, 8}, {8, 8}}) {
    EXPECT_GT(error(embedding, head), 0);
    EXPECT_LT(error(embedding, head), 0.05);
  }
  EXPECT_GT(error(16, 4), 4 * error(16, 8));
}

TEST_P(Packed, NeitherBatchNorChunkNorPagesNorThreadsChangeABit) {
  QUAROT_NEEDS(data_folder());
  for (const int a_bits : {4, 16}) {
    Recipe recipe = value_of(recipe_by_name("balanced"));
    recipe.precision.activations.bits = a_bits;
    recipe.head_bits = a_bits;
    const auto backend =
        value_of(make_backend(prepared(recipe), recipe.precision, Execution::kPacked));
    const Matrix whole = logits(*backend);
    const auto size = static_cast<int64_t>(ids_.size());
    const int threads = thread_count();
    for (const int count : {1, 3}) {
      set_thread_count(count);
      for (const int64_t chunk : {1, 13}) {
        // Beside another sequence, whose pages lie between this one's, in pages used before.
        const int other = backend->add_sequence();
        const int sequence = backend->add_sequence();
        Matrix pieces(size, original_.config.vocab);
        for (int64_t done = 0; done < size; done += chunk) {
          const int64_t rows = std::min(chunk, size - done);
          std::vector<Token> tokens(ids_.rbegin(), ids_.rbegin() + 9);
          tokens.insert(tokens.end(), ids_.begin() + done, ids_.begin() + done + rows);
          forward(*backend, {tokens, {{other, 0, 9, done / chunk * 9}, {sequence, 9, rows, done}}});
          backend->logits(9, rows, pieces.view().rows(done, rows));
        }
        expect_equal(pieces, whole);
        backend->drop_sequence(other);
        backend->drop_sequence(sequence);
      }
    }
    set_thread_count(threads);
  }
}

// Two texts with a common beginning, which one of them computed.
TEST_P(Packed, ForksChangeNoBit) {
  QUAROT_NEEDS(data_folder());
  const Recipe recipe = value_of(recipe_by_name("balanced"));
  const auto backend =
      value_of(make_backend(prepared(recipe), recipe.precision, Execution::kPacked));
  const auto run = [&](int sequence, int64_t position, std::vector<Token> tokens) {
    const auto rows = static_cast<int64_t>(tokens.size());
    forward(*backend, {std::move(tokens), {{sequence, 0, rows, position}}});
    Matrix out(1, original_.config.vocab);
    backend->logits(rows - 1, 1, out);
    return out;
  };
  const std::vector<Token> beginning(ids_.begin(), ids_.begin() + 20);
  std::vector<Token> first = beginning;
  std::vector<Token> second = beginning;
  first.insert(first.end(), ids_.begin() + 20, ids_.begin() + 25);
  second.insert(second.end(), ids_.begin() + 3, ids_.begin() + 9);
  const Matrix alone_first = run(backend->add_sequence(), 0, first);
  const Matrix alone_second = run(backend->add_sequence(), 0, second);
  const int origin = backend->add_sequence();
  run(origin, 0, beginning);
  const int fork = backend->fork_sequence(origin, 20);
  const Matrix forked = run(fork, 20, {second.begin() + 20, second.end()});
  const Matrix went_on = run(origin, 20, {first.begin() + 20, first.end()});
  expect_equal(forked, alone_second);
  expect_equal(went_on, alone_first);
}

TEST_P(Packed, RefusesWhatHasNoPackedForm) {
  QUAROT_NEEDS(data_folder());
  Recipe recipe = value_of(recipe_by_name("quarot"));
  recipe.precision.activations.symmetric = false;
  const auto refused = make_backend(prepared(recipe), recipe.precision, Execution::kPacked);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kUnsupported);

  recipe.precision.activations.symmetric = true;
  Model mixed = prepared(recipe);
  mixed.layers[0][Role::kKey].quantized->quant.bits = 8;  // where q and v have 4
  EXPECT_FALSE(PackedBackend::check(mixed, recipe.precision).ok());
}

INSTANTIATE_TEST_SUITE_P(Families, Packed, ::testing::ValuesIn(testing::kTinyModels),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace quarot
