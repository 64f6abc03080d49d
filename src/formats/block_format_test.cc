#include "formats/block_format.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <array>
#include <cmath>

#include "base/parallel.h"
#include "formats/testing.h"

namespace quarot {
namespace {

using testing::checksum;

// Bytes of a linear congruential generator, so that Python can make the same.
std::string stream(size_t count) {
  std::string bytes(count, '\0');
  uint32_t state = 1;
  for (char& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<char>(state >> 24);
  }
  return bytes;
}

struct Golden {
  uint32_t type;
  std::vector<size_t> high_bytes;  // of a block's floats: bit 6 is cleared, so that they are finite
  uint64_t sum;
  std::array<float, 4> samples;  // elements 0, 1, n/2 + 17 and n - 1
};

// gguf 0.19 (Python): quants.dequantize() of 64 blocks of stream().
const Golden kGolden[] = {
    {0,
     {3},
     0x000005adb99adac0U,
     {-0x1.02bc78p-22F, -0x1.8cbc18p-98F, 0x1.2e1f3ep-92F, 0x1.1aafe4p-126F}},              // F32
    {1, {1}, 0x000006f117d2c000U, {0x1.8fp-8F, -0x1.204p-2F, 0x1.dc4p+0F, 0x1.23cp-14F}},   // F16
    {30, {1}, 0x000005411cbd0000U, {0x1.78p-67F, -0x1.02p-22F, 0x1.e2p-1F, 0x1.1ep-118F}},  // BF16
    {2, {1}, 0x001e812fb8959800U, {-0x1.5d2p-5F, -0x1.8fp-6F, 0x1.aa4p-2F, -0x1.f6ep+0F}},  // Q4_0
    {3,
     {1, 3},
     0x0021ddb9eeabd547U,
     {-0x1.aaep-3F, -0x1.91fp-3F, 0x1.1bcp-13F, -0x1.b84p-11F}},                           // Q4_1
    {6, {1}, 0x001f35ba15821600U, {0x1.2b4p-5F, -0x1.8fp-7F, -0x1.207p-5F, 0x1.33ep-3F}},  // Q5_0
    {7,
     {1, 3},
     0x0020a0866f13bc9aU,
     {-0x1.075p-2F, -0x1.0d8cp-2F, 0x1.366bp+0F, 0x1.45bp-8F}},  // Q5_1
    {8,
     {1},
     0x001fc490e2a9a8c0U,
     {-0x1.8be2p-1F, -0x1.d9dp-2F, -0x1.c5e8p+5F, -0x1.7db8p+3F}},  // Q8_0
    {10,
     {81, 83},
     0x077513164c5b822cU,
     {-0x1.09bp-10F, -0x1.55dd8p-5F, -0x1.28dp-9F, 0x1.356p-10F}},  // Q2_K
    {11,
     {109},
     0x0754803559a2e240U,
     {-0x1.b858p-10F, -0x1.259p-11F, -0x1.8bdcp+2F, -0x1.f9ep-8F}},  // Q3_K
    {12,
     {1, 3},
     0x08e913f8ec013e80U,
     {0x1.0058p+1F, 0x1.585cp+0F, 0x1.33d14p-1F, 0x1.73ec8p-7F}},  // Q4_K
    {13,
     {1, 3},
     0x07e8a396a28aba64U,
     {0x1.a32cp+0F, 0x1.b206p+1F, -0x1.69d9p-3F, 0x1.885ecp+2F}},  // Q5_K
    {14,
     {209},
     0x07febfc41e069908U,
     {-0x1.060e4p+11F, 0x1.2b7ep+7F, -0x1.cep+6F, -0x1.ec99p-7F}},  // Q6_K
    {20,
     {1},
     0x001fb19a85881f00U,
     {-0x1.443p-1F, -0x1.317cp-2F, 0x1.a6eb8p+2F, -0x1.d235p+4F}},  // IQ4_NL
};

TEST(BlockFormat, DecodesAsTheReferenceDoes) {
  for (const Golden& golden : kGolden) {
    const BlockFormat& format = *ggml_format(golden.type);
    SCOPED_TRACE(format.name);
    constexpr int64_t kBlocks = 64;
    std::string bytes = stream(static_cast<size_t>(kBlocks * format.block_bytes));
    for (int64_t block = 0; block < kBlocks; ++block) {
      for (const size_t high : golden.high_bytes) {
        char& byte = bytes[static_cast<size_t>(block * format.block_bytes) + high];
        byte = static_cast<char>(byte & 0xbf);
      }
    }
    const auto count = static_cast<size_t>(kBlocks * format.block_elements);
    std::vector<float> values(count);
    // One byte off any alignment, as safetensors may have it.
    const std::string shifted = " " + bytes;
    format.decode(std::as_bytes(std::span(shifted)).data() + 1, kBlocks, values.data());
    EXPECT_EQ(values[0], golden.samples[0]);
    EXPECT_EQ(values[1], golden.samples[1]);
    EXPECT_EQ(values[count / 2 + 17], golden.samples[2]);
    EXPECT_EQ(values[count - 1], golden.samples[3]);
    EXPECT_EQ(checksum(values), golden.sum);
  }
}

// Element counts and bytes as gguf.constants.GGML_QUANT_SIZES has them.
TEST(BlockFormat, HasTheReferenceSizes) {
  const std::tuple<uint32_t, const char*, int64_t, int64_t> kSizes[] = {
      {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},
      {3, "Q4_1", 32, 20},      {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},
      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 40},      {10, "Q2_K", 256, 84},
      {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
      {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66},
      {17, "IQ2_XS", 256, 74},  {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
      {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},  {22, "IQ2_S", 256, 82},
      {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
      {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},
      {29, "IQ1_M", 256, 56},   {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},
      {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17}};
  for (const auto& [type, name, elements, bytes] : kSizes) {
    const BlockFormat* format = ggml_format(type);
    ASSERT_NE(format, nullptr) << name;
    EXPECT_EQ(format->name, name);
    EXPECT_EQ(format->block_elements, elements) << name;
    EXPECT_EQ(format->block_bytes, bytes) << name;
  }
  EXPECT_EQ(ggml_format(4), nullptr);
  EXPECT_EQ(ggml_format(0xffffffffU), nullptr);
}

TEST(BlockFormat, IntegersReadAsNumbers) {
  const auto decode = [](const char* dtype, auto value) {
    float out = 0;
    safetensors_format(dtype)->decode(reinterpret_cast<const std::byte*>(&value), 1, &out);
    return out;
  };
  EXPECT_EQ(decode("F64", 0.1), 0.1F);
  EXPECT_EQ(decode("F64", 1e300), INFINITY);
  EXPECT_EQ(decode("I64", int64_t{-5'000'000'000}), -5e9F);
  EXPECT_EQ(decode("I32", int32_t{-7}), -7.0F);
  EXPECT_EQ(decode("I16", int16_t{-7}), -7.0F);
  EXPECT_EQ(decode("I8", int8_t{-7}), -7.0F);
  EXPECT_EQ(decode("U64", ~uint64_t{0}), 0x1p64F);
  EXPECT_EQ(decode("U32", ~uint32_t{0}), 0x1p32F);
  EXPECT_EQ(decode("U16", ~uint16_t{0}), 65535.0F);
  EXPECT_EQ(decode("U8", ~uint8_t{0}), 255.0F);
}

TEST(BlockFormat, BytesOfAShape) {
  const BlockFormat& f16 = *safetensors_format("F16");
  const BlockFormat& q4k = *ggml_format(12);
  EXPECT_EQ(*f16.bytes({}), 2);
  EXPECT_EQ(*f16.bytes(std::vector<int64_t>{3, 5}), 30);
  EXPECT_EQ(*f16.bytes(std::vector<int64_t>{3, 0, 5}), 0);
  EXPECT_EQ(*q4k.bytes(std::vector<int64_t>{2, 512}), 4 * 144);
  EXPECT_FALSE(q4k.bytes({}).ok());
  EXPECT_FALSE(q4k.bytes(std::vector<int64_t>{256, 2}).ok());
  EXPECT_FALSE(f16.bytes(std::vector<int64_t>{-1}).ok());
  EXPECT_FALSE(f16.bytes(std::vector<int64_t>{int64_t{1} << 32, int64_t{1} << 31}).ok());
  EXPECT_FALSE(f16.bytes(std::vector<int64_t>{int64_t{1} << 32, 0, int64_t{1} << 32}).ok());
}

TEST(TensorInfo, RowsAndColumns) {
  const auto info = [](const std::vector<int64_t>& shape) {
    return TensorInfo{"x", "F32", shape, 0};
  };
  EXPECT_EQ(info({}).rows(), 1);
  EXPECT_EQ(info({}).cols(), 1);
  EXPECT_EQ(info({7}).rows(), 1);
  EXPECT_EQ(info({7}).cols(), 7);
  EXPECT_EQ(info({2, 3, 7}).rows(), 6);
  EXPECT_EQ(info({2, 3, 7}).cols(), 7);
}

// Any rows, on any number of threads, are those of the whole.
TEST(TensorTable, ReadsRowsAsSlicesOfTheWhole) {
  const int threads = thread_count();
  EXPECT_TRUE(rc::check([] {
    const BlockFormat& format = *ggml_format(*rc::gen::element<uint32_t>(0, 2, 14));
    const int64_t cols = 256 * *rc::gen::inRange<int64_t>(1, 5);
    const int64_t rows = 2 * *rc::gen::inRange<int64_t>(1, 300);
    const int64_t head = *rc::gen::element<int64_t>(0, 2, rows);
    const std::vector<int64_t> shape = {rows, cols};
    const std::string bytes = stream(static_cast<size_t>(*format.bytes(shape)));
    TensorTable table("file");
    RC_ASSERT(table
                  .add({"w", std::string(format.name), shape, *format.bytes(shape)},
                       {&format, std::as_bytes(std::span(bytes)), nullptr, head})
                  .ok());
    const int64_t first = *rc::gen::inRange<int64_t>(0, rows);
    const int64_t count = *rc::gen::inRange<int64_t>(0, rows - first + 1);
    set_thread_count(1);
    const Matrix whole = *table.read("w");
    set_thread_count(3);
    const Matrix part = *table.read_rows("w", first, count);
    RC_ASSERT(part.rows() == count);
    const auto slice = whole.view().rows(first, count);
    RC_ASSERT(checksum(part.elements()) == checksum({slice.data(), part.elements().size()}));
  }));
  set_thread_count(threads);
}

TEST(TensorTable, RefusesWhatIsNotThere) {
  const std::string bytes(8, '\0');
  TensorTable table("file");
  const BlockFormat* format = safetensors_format("BOOL");
  ASSERT_TRUE(
      table.add({"mask", "BOOL", {4, 2}, 8}, {format, std::as_bytes(std::span(bytes)), nullptr})
          .ok());
  EXPECT_EQ(table.add({"mask", "BOOL", {0}, 0}, {format, {}, nullptr}).error().code(),
            ErrorCode::kCorrupt);
  EXPECT_EQ(table.read("none").error().message(), "file: no tensor \"none\" among its 1 tensors");
  EXPECT_EQ(table.read("mask").error().code(), ErrorCode::kUnsupported);
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 5},
                                     {-1, 1},
                                     {4, 1},
                                     {1, INT64_MAX},
                                     {INT64_MAX, 1},
                                     {0, -1}}) {
    EXPECT_EQ(table.read_rows("mask", first, count).error().code(), ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace quarot
