#include "quant/pack.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "support/data.h"

namespace quarot {
namespace {

template <typename T>
BasicMatrix<T> matrix(const nlohmann::json& rows) {
  BasicMatrix<T> m(static_cast<int64_t>(rows.size()), static_cast<int64_t>(rows.at(0).size()));
  for (int64_t r = 0; r < m.rows(); ++r) {
    for (int64_t c = 0; c < m.cols(); ++c) m(r, c) = rows.at(r).at(c).get<T>();
  }
  return m;
}

TEST(Pack, TheSixteenNibblesInOrder) {
  BasicMatrix<int8_t> values(1, 16);
  for (int i = 0; i < 16; ++i) values(0, i) = static_cast<int8_t>(i - 8);
  const BasicMatrix<int32_t> words = pack_int32(values, 4);
  ASSERT_EQ(words.cols(), 2);
  EXPECT_EQ(static_cast<uint32_t>(words(0, 0)), 0x76543210U);
  EXPECT_EQ(static_cast<uint32_t>(words(0, 1)), 0xFEDCBA98U);
}

TEST(Pack, EqualsCompressedTensors) {
  const auto folder = testing::data_folder();
  QUAROT_NEEDS(folder);
  std::ifstream file(*folder / "golden" / "pack-quantized.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  ASSERT_FALSE(cases.empty());
  for (const auto& golden : cases) {
    const int bits = golden.at("bits");
    const auto values = matrix<int8_t>(golden.at("q"));
    const auto expected = matrix<int32_t>(golden.at("packed"));
    const auto packed = pack_int32(values, bits);
    ASSERT_EQ(packed.cols(), expected.cols());
    EXPECT_TRUE(std::ranges::equal(packed.elements(), expected.elements()));
    const auto unpacked = unpack_int32(expected, values.cols(), bits);
    ASSERT_TRUE(unpacked.ok());
    EXPECT_TRUE(std::ranges::equal(unpacked->elements(), values.elements()));
  }
}

RC_GTEST_PROP(Pack, UnpackUndoesPack, ()) {
  const int bits = *rc::gen::element(4, 8);
  const int half = 1 << (bits - 1);
  BasicMatrix<int8_t> values(*rc::gen::inRange(0, 5), *rc::gen::inRange(0, 40));
  for (int8_t& v : values.elements()) v = static_cast<int8_t>(*rc::gen::inRange(-half, half));
  const auto words = pack_int32(values, bits);
  RC_ASSERT(words.cols() == packed_words(values.cols(), bits));
  const auto back = unpack_int32(words, values.cols(), bits);
  RC_ASSERT(back.ok());
  RC_ASSERT(std::ranges::equal(back->elements(), values.elements()));
}

TEST(Pack, RefusesWordsThatDoNotFit) {
  const BasicMatrix<int32_t> words(2, 3, 0);
  EXPECT_TRUE(unpack_int32(words, 17, 4).ok());
  for (const int64_t width : {int64_t{16}, int64_t{25}, int64_t{-24}, INT64_MAX}) {
    const auto result = unpack_int32(words, width, 4);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code(), ErrorCode::kCorrupt);
  }
  for (const int bits : {0, 3, -4, 16, 64}) {
    const auto result = unpack_int32(words, 17, bits);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code(), ErrorCode::kUnsupported);
  }
}

}  // namespace
}  // namespace quarot
