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

  Model original_;
  std::vector<Token> ids_;
};

// A value on a rounding boundary may fall either way, and what follows differs from there on: so
// most tokens agree to round-off, and all of them to a small part of what quantisation does.
TEST_P(Packed, AgreesWithSimulated) {
  QUAROT_NEEDS(data_folder());
  for (const char* name : {"naive", "quarot", "balanced"}) {
    for (const int bits : {4, 8}) {
      Recipe recipe = value_of(recipe_by_name(name));
      recipe.precision.activations.bits = bits;
      recipe.precision.keys.bits = recipe.precision.values.bits = bits;
      const Model model = prepared(recipe);
      const auto packed = value_of(make_backend(model, recipe.precision, Execution::kPacked));
      const auto simulated = value_of(make_backend(model, recipe.precision, Execution::kSimulated));
      const Matrix a = logits(*packed);
      const Matrix b = logits(*simulated);
      const Matrix original = testing::logits_of(original_, ids_);
      int64_t equal = 0;
      for (int64_t r = 0; r < a.rows(); ++r) {
        equal +=
            testing::relative_error(Matrix(a.view().rows(r, 1)), Matrix(b.view().rows(r, 1))) < 1e-4
                ? 1
                : 0;
      }
      EXPECT_GE(equal, bits == 4 ? a.rows() * 6 / 10 : 0) << name;
      EXPECT_LT(testing::relative_error(a, b), 0.35 * testing::relative_error(b, original))
          << name << ", A" << bits;
    }
  }
}

TEST_P(Packed, NeitherBatchNorChunkNorThreadsChangeABit) {
  QUAROT_NEEDS(data_folder());
  const Recipe recipe = value_of(recipe_by_name("balanced"));
  const auto backend =
      value_of(make_backend(prepared(recipe), recipe.precision, Execution::kPacked));
  const Matrix whole = logits(*backend);
  const int threads = thread_count();
  for (const int count : {1, 2, 3}) {
    set_thread_count(count);
    const int other = backend->add_sequence();
    const int sequence = backend->add_sequence();
    Matrix row(1, original_.config.vocab);
    forward(*backend, {{ids_.begin(), ids_.begin() + 13}, {{sequence, 0, 13, 0}}});
    std::vector<Token> mixed(ids_.rbegin(), ids_.rbegin() + 9);
    mixed.insert(mixed.end(), ids_.begin() + 13, ids_.end());
    forward(*backend,
            {mixed, {{other, 0, 9, 0}, {sequence, 9, static_cast<int64_t>(ids_.size()) - 13, 13}}});
    backend->logits(static_cast<int64_t>(mixed.size()) - 1, 1, row);
    const auto expected = whole.row(whole.rows() - 1);
    EXPECT_TRUE(std::ranges::equal(row.row(0), expected));
    backend->drop_sequence(other);
    backend->drop_sequence(sequence);
  }
  set_thread_count(threads);
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
  EXPECT_TRUE(std::ranges::equal(forked.elements(), alone_second.elements()));
  EXPECT_TRUE(std::ranges::equal(went_on.elements(), alone_first.elements()));
}

TEST_P(Packed, RefusesWhatHasNoPackedForm) {
  QUAROT_NEEDS(data_folder());
  Recipe recipe = value_of(recipe_by_name("quarot"));
  recipe.precision.activations.bits = kFloatBits;
  const auto refused = make_backend(prepared(recipe), recipe.precision, Execution::kPacked);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kUnsupported);
}

INSTANTIATE_TEST_SUITE_P(Families, Packed, ::testing::ValuesIn(testing::kTinyModels),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace quarot
