#include "formats/gguf.h"

#include <gtest/gtest.h>

#include <fstream>

#include "formats/parsers.h"
#include "formats/testing.h"
#include "support/data.h"

namespace quarot {
namespace {

using testing::Bytes;
using testing::checksum;
using testing::fold;
using testing::Hostile;

Bytes header(uint64_t tensors, uint64_t pairs, uint32_t version = 3) {
  Bytes bytes;
  return bytes.put("GGUF").put(version).put(tensors).put(pairs);
}

Bytes tensor(std::string_view name, const std::vector<uint64_t>& dimensions, uint32_t type,
             uint64_t offset) {
  Bytes bytes;
  bytes.text(name).put(static_cast<uint32_t>(dimensions.size()));
  for (const uint64_t dimension : dimensions) bytes.put(dimension);
  return bytes.put(type).put(offset);
}

// Every kind of value, then two tensors.
std::string small_file() {
  Bytes bytes = header(2, 15);
  bytes.text("u8").put(0U).put(uint8_t{200}).text("i8").put(1U).put(int8_t{-100});
  bytes.text("u16").put(2U).put(uint16_t{60000}).text("i16").put(3U).put(int16_t{-30000});
  bytes.text("u32").put(4U).put(uint32_t{4000000000}).text("i32").put(5U).put(int32_t{-5});
  bytes.text("f32").put(6U).put(0.5F).text("bool").put(7U).put(uint8_t{1});
  bytes.text("string").put(8U).text("héllo").text("u64").put(10U).put(uint64_t{1} << 62);
  bytes.text("i64").put(11U).put(int64_t{-1} << 62).text("f64").put(12U).put(0.1);
  bytes.text("strings").put(9U).put(8U).put(uint64_t{2}).text("a").text("");
  bytes.text("numbers").put(9U).put(3U).put(uint64_t{2}).put(int16_t{-1}).put(int16_t{2});
  bytes.text("flags").put(9U).put(7U).put(uint64_t{2}).put(uint8_t{0}).put(uint8_t{1});
  bytes.put(tensor("b", {3, 2}, 0, 32).str()).put(tensor("a", {32}, 8, 64).str()).pad(32, 32);
  for (int i = 0; i < 6; ++i) bytes.put(static_cast<float>(i));
  bytes.pad(32).put(uint16_t{0x3c00});  // 1.0
  for (int i = 0; i < 32; ++i) bytes.put(static_cast<int8_t>(i - 16));
  return bytes.str();
}

class GgufTest : public testing::FolderTest {};

TEST_F(GgufTest, ReadsMetadataOfEveryType) {
  const auto opened = open_gguf(write("small.gguf", small_file()));
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  const GgufFile& file = **opened;
  EXPECT_EQ(file.metadata().size(), 15U);
  EXPECT_EQ(file.get<int64_t>("u8"), 200);
  EXPECT_EQ(file.get<int64_t>("i8"), -100);
  EXPECT_EQ(file.get<int64_t>("u16"), 60000);
  EXPECT_EQ(file.get<int64_t>("i16"), -30000);
  EXPECT_EQ(file.get<int64_t>("u32"), 4000000000);
  EXPECT_EQ(file.get<int64_t>("i32"), -5);
  EXPECT_EQ(file.get<int64_t>("u64"), int64_t{1} << 62);
  EXPECT_EQ(file.get<int64_t>("i64"), int64_t{-1} << 62);
  EXPECT_EQ(file.get<double>("f32"), 0.5);
  EXPECT_EQ(file.get<double>("f64"), 0.1);
  EXPECT_EQ(file.get<double>("i32"), -5.0);
  EXPECT_EQ(file.get<bool>("bool"), true);
  EXPECT_EQ(file.get<std::string>("string"), "héllo");
  EXPECT_EQ(file.get<std::vector<std::string>>("strings"), (std::vector<std::string>{"a", ""}));
  EXPECT_EQ(file.get<std::vector<int64_t>>("numbers"), (std::vector<int64_t>{-1, 2}));
  EXPECT_EQ(file.get<std::vector<bool>>("flags"), (std::vector<bool>{false, true}));
  EXPECT_EQ(file.get<int64_t>("f32"), std::nullopt);
  EXPECT_EQ(file.get<int64_t>("none"), std::nullopt);
}

TEST_F(GgufTest, ReadsTensorsOutermostDimensionFirst) {
  const auto opened = open_gguf(write("small.gguf", small_file()));
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  const GgufFile& file = **opened;
  ASSERT_EQ(file.tensors().size(), 2U);
  EXPECT_EQ(file.tensors()[0].name, "b");
  EXPECT_EQ(file.tensors()[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ((*file.read("b"))(1, 2), 5.0F);
  EXPECT_EQ((*file.read_rows("b", 1, 1))(0, 0), 3.0F);
  EXPECT_EQ(file.find("a")->type, "Q8_0");
  EXPECT_EQ((*file.read("a"))(0, 31), 15.0F);
}

// No prefix of a file is mistaken for one, and none crashes.
TEST(Gguf, EveryTruncationIsRefused) {
  const std::string whole = small_file();
  ASSERT_TRUE(parse_gguf(testing::in_memory(whole)).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string prefix = whole.substr(0, size);
    EXPECT_FALSE(parse_gguf(testing::in_memory(prefix)).ok()) << size;
  }
}

// gguf 0.19 (Python), quants.dequantize() of each tensor in file order.
TEST(Gguf, ReadsSmolLm2BitForBit) {
  const auto path = testing::smollm2();
  QUAROT_NEEDS(path);
  const auto file = open_gguf(*path);
  ASSERT_TRUE(file.ok()) << file.error().message();
  ASSERT_EQ((*file)->tensors().size(), 272U);
  EXPECT_EQ((*file)->metadata().size(), 33U);
  EXPECT_EQ((*file)->get<std::string>("general.architecture"), "llama");
  EXPECT_EQ((*file)->get<int64_t>("llama.block_count"), 30);
  EXPECT_EQ((*file)->get<std::vector<std::string>>("tokenizer.ggml.tokens")->size(), 49152U);
  uint64_t all = 0;
  for (const TensorInfo& info : (*file)->tensors()) {
    const Matrix values = *(*file)->read(info.name);
    const uint64_t sum = checksum(values.elements());
    all = fold(all, sum);
    if (info.name == "token_embd.weight") {
      EXPECT_EQ(sum, 0xee6fa1c00885e840U);
    }
    if (info.name == "blk.0.ffn_down.weight") {
      EXPECT_EQ(sum, 0x7b2ad7026db98c00U);
    }
  }
  EXPECT_EQ(all, 0x725f0cce1fc39940U);
}

int64_t resident_file_kib() {
  std::ifstream status("/proc/self/status");
  std::string word;
  int64_t value = 0;
  while (status >> word) {
    if (word == "RssFile:") status >> value;
  }
  return value;
}

TEST(Gguf, DropsPagesAfterReading) {
  const auto path = testing::smollm2();
  QUAROT_NEEDS(path);
  const auto file = open_gguf(*path);
  ASSERT_TRUE(file.ok()) << file.error().message();
  const int64_t before = resident_file_kib();
  for (const TensorInfo& info : (*file)->tensors()) ASSERT_TRUE((*file)->read(info.name).ok());
  EXPECT_LT(resident_file_kib() - before, 10 << 10);  // of 94 MiB
}

class HostileGguf : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileGguf, IsRefused) {
  testing::expect_refused(GetParam(), parse_gguf(testing::in_memory(GetParam().bytes)));
}

// One pair: a key, then `value` (its type included).
std::string pair(const Bytes& value) { return header(0, 1).text("key").put(value.str()).str(); }

// Tensors over `data` bytes of zeros.
std::string with_tensors(const std::vector<Bytes>& tensors, size_t data) {
  Bytes bytes = header(tensors.size(), 0);
  for (const Bytes& tensor : tensors) bytes.put(tensor.str());
  return bytes.pad(32, data).str();
}

std::string aligned_to(uint32_t alignment) {
  return header(1, 1)
      .text("general.alignment")
      .put(4U)
      .put(alignment)
      .put(tensor("t", {1}, 0, 0).str())
      .pad(64, 64)
      .str();
}

std::vector<Hostile> hostile_files() {
  constexpr auto kCorrupt = ErrorCode::kCorrupt;
  constexpr auto kUnsupported = ErrorCode::kUnsupported;
  constexpr uint64_t kHuge = ~uint64_t{0};
  return {
      {"Empty", "", kCorrupt, "the file ends: 4 bytes expected at byte 0, 0 left"},
      {"OtherMagic", "PK\3\4abcdefgh", kCorrupt, "no GGUF file: it starts with 0x04034b50"},
      {"BigEndian", Bytes().put("GGUF").put(0x03000000U).put(kHuge).str(), kUnsupported,
       "big-endian"},
      {"Version1", header(0, 0, 1).str(), kUnsupported, "GGUF version 1, expected 2 or 3"},
      {"Version4", header(0, 0, 4).str(), kUnsupported, "GGUF version 4, expected 2 or 3"},
      {"ManyTensors", header(kHuge, 0).str(), kCorrupt, "18446744073709551615 tensors, more than"},
      {"ManyPairs", header(0, kHuge / 13).str(), kCorrupt, "metadata pairs, more than the 0 bytes"},
      {"LongKey", header(0, 1).put(kHuge).pad(64).str(), kCorrupt,
       "metadata 1 of 1: the file ends: 18446744073709551615 bytes expected"},
      {"LongString", pair(Bytes().put(8U).put(kHuge)), kCorrupt, "metadata \"key\": the file ends"},
      {"LongArray", pair(Bytes().put(9U).put(0U).put(kHuge / 2)), kCorrupt,
       "metadata \"key\": 9223372036854775807 array elements"},
      {"LongStringArray", pair(Bytes().put(9U).put(8U).put(uint64_t{2}).text("")), kCorrupt,
       "metadata \"key\": 2 array elements"},
      {"ArrayOfArrays", pair(Bytes().put(9U).put(9U).put(uint64_t{0})), kUnsupported,
       "metadata \"key\": arrays of arrays"},
      {"UnknownValueType", pair(Bytes().put(13U).put(0U)), kCorrupt, "value type 13 is not known"},
      {"BooleanTwo", pair(Bytes().put(7U).put(uint8_t{2})), kCorrupt, "a boolean is 0 or 1, not 2"},
      {"UnsignedBeyondSigned", pair(Bytes().put(10U).put(kHuge)), kUnsupported, "beyond 2^63 - 1"},
      {"KeyTwice", header(0, 2).text("k").put(0U).put('\1').text("k").put(0U).put('\1').str(),
       kCorrupt, "metadata \"k\" is there twice"},
      {"EscapedName",
       header(0, 2).text("\x1b[2J").put(0U).put('\1').text("\x1b[2J").put(0U).put('\1').str(),
       kCorrupt, "metadata \"\\x1b[2J\" is there twice"},
      {"TensorTwice", with_tensors({tensor("t", {1}, 0, 0), tensor("t", {1}, 0, 32)}, 64), kCorrupt,
       "tensor \"t\" is there twice"},
      {"FiveDimensions", with_tensors({tensor("t", {1, 1, 1, 1, 1}, 0, 0)}, 64), kCorrupt,
       "tensor \"t\": 5 dimensions, expected at most 4"},
      {"ManyDimensions", header(1, 0).text("t").put(~0U).pad(64, 64).str(), kCorrupt,
       "tensor \"t\": 4294967295 dimensions"},
      {"DimensionBeyondSigned", with_tensors({tensor("t", {uint64_t{1} << 63}, 0, 0)}, 64),
       kUnsupported, "tensor \"t\": 9223372036854775808 is beyond"},
      {"ProductOverflows",
       with_tensors({tensor("t", {uint64_t{1} << 32, uint64_t{1} << 32}, 0, 0)}, 64), kCorrupt,
       "tensor \"t\": shape [4294967296, 4294967296] is too large"},
      {"ProductOverflowsBesideZero",
       with_tensors({tensor("t", {0, uint64_t{1} << 62, uint64_t{1} << 62}, 0, 0)}, 64), kCorrupt,
       "is too large"},
      {"BrokenBlock", with_tensors({tensor("t", {33}, 8, 0)}, 64), kCorrupt,
       "rows of 33 elements, expected a multiple of 32 for Q8_0"},
      {"UnknownType", with_tensors({tensor("t", {1}, 99, 0)}, 64), kUnsupported,
       "tensor \"t\": type 99 is not known"},
      {"Misaligned", with_tensors({tensor("t", {1}, 0, 4)}, 64), kCorrupt,
       "tensor \"t\": offset 4, expected a multiple of 32"},
      {"BeyondTheEnd", with_tensors({tensor("t", {1}, 0, 64)}, 64), kCorrupt,
       "tensor \"t\": 4 bytes at offset 64 of the data, which has 64"},
      {"LargerThanTheFile", with_tensors({tensor("t", {17}, 0, 0)}, 64), kCorrupt,
       "tensor \"t\": 68 bytes at offset 0"},
      {"OffsetOverflows", with_tensors({tensor("t", {1}, 0, kHuge - 31)}, 64), kCorrupt,
       "tensor \"t\": 4 bytes at offset"},
      {"Overlapping", with_tensors({tensor("u", {4}, 0, 32), tensor("t", {9}, 0, 0)}, 64), kCorrupt,
       "tensor \"t\" and tensor \"u\" overlap"},
      {"AlignmentZero", aligned_to(0), kCorrupt, "general.alignment must be a power of two"},
      {"AlignmentThree", aligned_to(3), kCorrupt, "general.alignment must be a power of two"},
      {"AlignmentHuge", aligned_to(1U << 31), kCorrupt, "general.alignment must be a power of two"},
  };
}

INSTANTIATE_TEST_SUITE_P(All, HostileGguf, ::testing::ValuesIn(hostile_files()),
                         testing::test_name);

TEST(Gguf, ZeroDimensionsHoldNothing) {
  const std::string bytes = with_tensors({tensor("t", {32, 0, 7}, 8, 0)}, 0);
  const auto contents = parse_gguf(testing::in_memory(bytes));
  ASSERT_TRUE(contents.ok()) << contents.error().message();
  EXPECT_EQ(contents->tensors.read("t")->rows(), 0);
}

TEST(Gguf, KnownTypesWithoutADecoderAreListedButNotRead) {
  const std::string bytes = with_tensors({tensor("t", {256}, 16, 0)}, 66);
  const auto contents = parse_gguf(testing::in_memory(bytes));
  ASSERT_TRUE(contents.ok()) << contents.error().message();
  const auto values = contents->tensors.read("t");
  ASSERT_FALSE(values.ok());
  EXPECT_EQ(values.error().code(), ErrorCode::kUnsupported);
  EXPECT_NE(values.error().message().find("IQ2_XXS"), std::string::npos);
}

}  // namespace
}  // namespace quarot
