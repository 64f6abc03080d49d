#include "formats/llama2c.h"

#include <gtest/gtest.h>

#include <climits>

#include "formats/parsers.h"
#include "formats/testing.h"
#include "support/data.h"

namespace quarot {
namespace {

using testing::Bytes;
using testing::checksum;
using testing::Hostile;

std::string header(std::array<int32_t, 7> fields) {
  Bytes bytes;
  for (const int32_t field : fields) bytes.put(field);
  return bytes.str();
}

// dim 8, hidden 3, 2 layers, 2 heads of 4, 1 kv head, vocabulary of 5, not tied, 3 positions. Every
// weight is its index in the file.
constexpr std::array<int32_t, 7> kSmall = {8, 3, 2, 2, 1, -5, 3};
constexpr int kSmallFloats = 5 * 8 + 2 * (8 + 64 + 32 + 32 + 64 + 8 + 3 * 24) + 8 + 3 * 4 + 5 * 8;

std::string small_file() {
  Bytes bytes;
  bytes.put(header(kSmall));
  for (int i = 0; i < kSmallFloats; ++i) bytes.put(static_cast<float>(i));
  return bytes.str();
}

TEST(Llama2c, RowsComeInHuggingFaceOrder) {
  const std::string bytes = small_file();
  const auto contents = parse_llama2c(testing::in_memory(bytes));
  ASSERT_TRUE(contents.ok()) << contents.error().message();
  EXPECT_FALSE(contents->header.tied);
  EXPECT_EQ(contents->header.vocab, 5);
  const TensorTable& table = contents->tensors;
  EXPECT_EQ(table.infos().size(), 1U + 2 * 9 + 1 + 1);

  // q of layer 1 starts behind the embedding, both layers' gains and q of layer 0.
  const float q1 = 5 * 8 + 2 * 8 + 64;
  const Matrix q = *table.read("model.layers.1.self_attn.q_proj.weight");
  const int order[] = {0, 2, 1, 3, 4, 6, 5, 7};
  for (int r = 0; r < 8; ++r) EXPECT_EQ(q(r, 3), q1 + static_cast<float>(order[r] * 8 + 3));
  const Matrix k = *table.read_rows("model.layers.0.self_attn.k_proj.weight", 1, 2);
  const float k0 = 5 * 8 + 2 * 8 + 2 * 64;
  EXPECT_EQ(k(0, 0), k0 + 2 * 8);
  EXPECT_EQ(k(1, 0), k0 + 1 * 8);
  // v is not rotary; the classifier comes last, behind the rotary tables.
  EXPECT_EQ((*table.read("model.layers.0.self_attn.v_proj.weight"))(1, 0), k0 + 2 * 32 + 8);
  const Matrix head = *table.read("lm_head.weight");
  EXPECT_EQ(head(4, 7), static_cast<float>(kSmallFloats - 1));
}

TEST(Llama2c, ReadsStories) {
  const auto data = testing::data_folder();
  QUAROT_NEEDS(data);
  const auto file = open_llama2c(*data / "models" / "stories260k" / "stories260K.bin");
  ASSERT_TRUE(file.ok()) << file.error().message();
  const Llama2cHeader& h = (*file)->header();
  EXPECT_EQ(std::tuple(h.dim, h.hidden_dim, h.layers, h.heads, h.kv_heads, h.vocab),
            std::tuple(64, 172, 5, 8, 4, 512));
  EXPECT_TRUE(h.tied);
  EXPECT_EQ((*file)->find("lm_head.weight"), nullptr);

  struct Expected {
    const char* name;
    std::vector<int64_t> shape;
    uint64_t sum;
  };
  // numpy, q and k as x.reshape(heads, d/2, 2, dim).swapaxes(1, 2), which undoes llama2.c's
  // export.py.
  const Expected kExpected[] = {
      {"model.embed_tokens.weight", {512, 64}, 0x204c85e6b6af4c62U},
      {"model.layers.0.input_layernorm.weight", {64}, 0x000003f7c10515a6U},
      {"model.layers.0.self_attn.q_proj.weight", {64, 64}, 0x007ec0d5bb844218U},
      {"model.layers.4.self_attn.k_proj.weight", {32, 64}, 0x001f47070332e7aeU},
      {"model.layers.2.self_attn.v_proj.weight", {32, 64}, 0x001f3651f6e60ba0U},
      {"model.layers.3.self_attn.o_proj.weight", {64, 64}, 0x007bfe1a2c745919U},
      {"model.layers.1.post_attention_layernorm.weight", {64}, 0x000003f43101b4fbU},
      {"model.layers.1.mlp.gate_proj.weight", {172, 64}, 0x038da61f5858c932U},
      {"model.layers.1.mlp.down_proj.weight", {64, 172}, 0x0384818087cc92f6U},
      {"model.layers.1.mlp.up_proj.weight", {172, 64}, 0x038d3537a1e180c4U},
      {"model.norm.weight", {64}, 0x000003fdc08b4ad1U},
  };
  EXPECT_EQ((*file)->tensors().size(), 2U + 5 * 9);
  for (const Expected& expected : kExpected) {
    const TensorInfo* info = (*file)->find(expected.name);
    ASSERT_NE(info, nullptr) << expected.name;
    EXPECT_EQ(info->shape, expected.shape) << expected.name;
    EXPECT_EQ(checksum((*file)->read(expected.name)->elements()), expected.sum) << expected.name;
  }
}

class HostileLlama2c : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileLlama2c, IsRefused) {
  testing::expect_refused(GetParam(), parse_llama2c(testing::in_memory(GetParam().bytes)));
}

std::vector<Hostile> hostile_files() {
  const std::string good = small_file();
  const auto with = [&](size_t field, int32_t value) {
    auto fields = kSmall;
    fields[field] = value;
    return header(fields) + good.substr(28);
  };
  constexpr auto kCorrupt = ErrorCode::kCorrupt;
  return {
      {"Empty", "", kCorrupt, "0 bytes, expected a header of 28"},
      {"HalfAHeader", good.substr(0, 27), kCorrupt, "27 bytes, expected a header of 28"},
      {"OnlyAHeader", good.substr(0, 28), kCorrupt, "28 bytes, but its header asks for"},
      {"Truncated", good.substr(0, good.size() - 1), kCorrupt, "but its header asks for"},
      {"TooLong", good + "x", kCorrupt, "but its header asks for"},
      {"NegativeDim", with(0, -8), kCorrupt, "dim -8"},
      {"NoLayers", with(2, 0), kCorrupt, "n_layers 0"},
      {"NoHeads", with(3, 0), kCorrupt, "n_heads 0"},
      {"NoVocabulary", with(5, 0), kCorrupt, "vocab_size 0"},
      {"HeadsDoNotDivide", with(3, 3), kCorrupt, "must split into n_heads 3"},
      {"OddHead", with(3, 8), kCorrupt, "heads of even size"},
      {"KvHeadsDoNotDivide", with(4, 3), kCorrupt, "n_kv_heads 3"},
      {"HugeVocabulary", with(5, INT_MIN), kCorrupt, "but its header asks for"},
      {"ManyLayers", with(2, INT_MAX), kCorrupt, "but its header asks for"},
      {"ProductsOverflow", header({1 << 30, INT_MAX, INT_MAX, 1, 1, INT_MAX, INT_MAX}), kCorrupt,
       "more than 2^63"},
      {"Versioned", with(0, 0x616b3432), ErrorCode::kUnsupported, "of version 3"},
  };
}

INSTANTIATE_TEST_SUITE_P(All, HostileLlama2c, ::testing::ValuesIn(hostile_files()),
                         testing::test_name);

}  // namespace
}  // namespace quarot
