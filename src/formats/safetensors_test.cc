#include "formats/safetensors.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <set>

#include "formats/json.h"
#include "formats/parsers.h"
#include "formats/testing.h"
#include "support/data.h"

namespace quarot {
namespace {

namespace fs = std::filesystem;
using testing::Bytes;
using testing::checksum;
using testing::fold;
using testing::Hostile;

std::string file_of(std::string_view header, std::string_view data = {}) {
  return Bytes().text(header).put(data).str();
}

class SafetensorsTest : public testing::FolderTest {};

// safetensors 0.8 (Python): load_file(), checksums folded in the order of the sorted names.
TEST_F(SafetensorsTest, ReadsTinyModelsBitForBit) {
  const auto data = testing::data_folder();
  QUAROT_NEEDS(data);
  struct Expected {
    const char* model;
    size_t tensors;
    uint64_t sum;
    const char* name;  // of one tensor, whose fourth element is `element`
    std::vector<int64_t> shape;
    float element;
  };
  const Expected kExpected[] = {
      {"llama",
       21,
       0xcc2cc67bab4ddde7U,
       "model.layers.0.self_attn.k_proj.weight",
       {32, 96},
       0x1.0c255ap-4F},
      {"qwen3_moe",
       69,
       0x8193cafda88443edU,
       "model.layers.0.mlp.experts.1.gate_proj.weight",
       {48, 64},
       0x1.7189fcp-5F},
      {"opt",
       36,
       0x53e9823be045f76eU,
       "model.decoder.layers.0.fc2.weight",
       {64, 256},
       0x1.bf2984p-7F},
  };
  for (const Expected& expected : kExpected) {
    SCOPED_TRACE(expected.model);
    const auto file = open_safetensors(*data / "models" / "tiny" / expected.model);
    ASSERT_TRUE(file.ok()) << file.error().message();
    EXPECT_EQ((*file)->tensors().size(), expected.tensors);
    EXPECT_EQ((*file)->metadata().at("format"), "pt");
    EXPECT_EQ((*file)->find(expected.name)->shape, expected.shape);
    EXPECT_EQ((*file)->read(expected.name)->elements()[3], expected.element);
    std::set<std::string> names;
    for (const TensorInfo& info : (*file)->tensors()) names.insert(info.name);
    uint64_t sum = 0;
    for (const std::string& name : names) {
      sum = fold(sum, checksum((*file)->read(name)->elements()));
    }
    EXPECT_EQ(sum, expected.sum);
  }
}

TEST_F(SafetensorsTest, WhatIsWrittenIsRead) {
  const fs::path path = folder_ / "model.safetensors";
  EXPECT_TRUE(rc::check([&] {
    const auto dtypes =
        rc::gen::element(Dtype::kF64, Dtype::kF32, Dtype::kF16, Dtype::kBF16, Dtype::kI64,
                         Dtype::kI32, Dtype::kI16, Dtype::kI8, Dtype::kU8, Dtype::kBool);
    const auto names = *rc::gen::unique<std::vector<std::string>>(
        rc::gen::container<std::string>(rc::gen::inRange<char>(1, 127)));
    std::vector<TensorPlan> plan;
    std::vector<std::string> contents;
    for (const std::string& name : names) {
      const auto rank = *rc::gen::inRange<size_t>(0, 5);
      const auto shape =
          *rc::gen::container<std::vector<int64_t>>(rank, rc::gen::inRange<int64_t>(0, 5));
      plan.push_back({name, *dtypes, shape});
      size_t bytes = dtype_size(plan.back().dtype);
      for (const int64_t dimension : shape) bytes *= static_cast<size_t>(dimension);
      contents.push_back(*rc::gen::container<std::string>(bytes, rc::gen::arbitrary<char>()));
    }
    const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"quote", "\"\n"}};
    auto writer = SafetensorsWriter::create(path, plan, metadata);
    RC_ASSERT(writer.ok());
    for (size_t i = 0; i < plan.size(); ++i) {
      const auto bytes = std::as_bytes(std::span(contents[i]));
      const auto cut = *rc::gen::inRange<size_t>(0, bytes.size() + 1);
      RC_ASSERT(writer->append(names[i], bytes.subspan(0, cut)).ok());
      RC_ASSERT(writer->append(names[i], bytes.subspan(cut)).ok());
    }
    RC_ASSERT(writer->commit().ok());

    const auto file = open_safetensors(path);
    RC_ASSERT(file.ok());
    RC_ASSERT((*file)->metadata() == metadata);
    RC_ASSERT((*file)->tensors().size() == plan.size());
    for (size_t i = 0; i < plan.size(); ++i) {
      const auto raw = *(*file)->raw(names[i]);
      RC_ASSERT(raw.dtype == plan[i].dtype);
      RC_ASSERT(raw.shape == plan[i].shape);
      RC_ASSERT(std::string_view(reinterpret_cast<const char*>(raw.bytes.data()),
                                 raw.bytes.size()) == contents[i]);
      const auto values = (*file)->read(names[i]);
      RC_ASSERT(values.ok() == (raw.dtype != Dtype::kBool));
      if (raw.dtype == Dtype::kBF16) {
        for (size_t k = 0; k < values->elements().size(); ++k) {
          uint16_t bits = 0;
          std::memcpy(&bits, raw.bytes.data() + 2 * k, 2);
          RC_ASSERT(std::bit_cast<uint32_t>(values->elements()[k]) == uint32_t{bits} << 16);
        }
      }
    }
  }));
}

TEST_F(SafetensorsTest, TheWriterKeepsToItsPlan) {
  const fs::path path = folder_ / "a.safetensors";
  const std::string four(4, 'x');
  const auto bytes = std::as_bytes(std::span(four));
  {
    auto writer = SafetensorsWriter::create(
        path, {{"a", Dtype::kF32, {2}}, {"none", Dtype::kF32, {0}}, {"b", Dtype::kI8, {4}}}, {});
    ASSERT_TRUE(writer.ok());
    EXPECT_EQ(writer->append("b", bytes).error().code(), ErrorCode::kInvalidArgument);
    ASSERT_TRUE(writer->append("a", bytes).ok());
    EXPECT_EQ(writer->append("b", bytes).error().code(), ErrorCode::kInvalidArgument);
    ASSERT_TRUE(writer->append("a", bytes).ok());
    EXPECT_EQ(writer->append("a", bytes).error().code(), ErrorCode::kInvalidArgument);
    const Status early = writer->commit();
    EXPECT_NE(early.error().message().find("tensor \"b\" is incomplete"), std::string::npos);
    EXPECT_FALSE(fs::exists(path));
    ASSERT_TRUE(writer->append("b", bytes).ok());
    ASSERT_TRUE(writer->commit().ok());
    EXPECT_FALSE(writer->append("b", {}).ok());
    EXPECT_FALSE(writer->commit().ok());
  }
  const auto file = open_safetensors(folder_);  // the only one there
  ASSERT_TRUE(file.ok()) << file.error().message();
  EXPECT_EQ((*file)->read("b")->elements()[3], static_cast<float>('x'));
  EXPECT_EQ((*file)->read("none")->size(), 0);

  const auto refuse = [&](std::vector<TensorPlan> plan) {
    return SafetensorsWriter::create(folder_ / "b", std::move(plan), {}).error().code();
  };
  EXPECT_EQ(refuse({{"a", Dtype::kI8, {1}}, {"a", Dtype::kI8, {1}}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refuse({{"__metadata__", Dtype::kI8, {1}}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refuse({{"a", Dtype::kI8, {-1}}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refuse({{"a", Dtype::kI64, {INT64_MAX}}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refuse({{"\xff", Dtype::kI8, {1}}}), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(fs::exists(folder_ / "b"));
}

constexpr std::string_view kOneFloat = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";

TEST_F(SafetensorsTest, ReadsShards) {
  const auto one = [](std::string_view name, float value) {
    return file_of(fmt::format(R"({{"{}":{}}})", name, kOneFloat), Bytes().put(value).str());
  };
  write("1.safetensors", one("a", 1));
  write("2.safetensors", one("b", 2));
  write("model.safetensors.index.json",
        R"({"metadata":{},"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})");
  for (const fs::path& path : {folder_, folder_ / "model.safetensors.index.json"}) {
    const auto file = open_safetensors(path);
    ASSERT_TRUE(file.ok()) << file.error().message();
    EXPECT_EQ((*file)->tensors().size(), 2U);
    EXPECT_EQ((*file)->read("b")->elements()[0], 2.0F);
  }
  write("model.safetensors.index.json", R"({"weight_map":{"b":"1.safetensors"}})");
  const auto missing = open_safetensors(folder_);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code(), ErrorCode::kNotFound);
  EXPECT_NE(missing.error().message().find("1.safetensors: no tensor \"b\""), std::string::npos);
  write("model.safetensors.index.json", R"({"weight_map":{"b":"3.safetensors"}})");
  EXPECT_EQ(open_safetensors(folder_).error().code(), ErrorCode::kNotFound);
}

TEST_F(SafetensorsTest, SaysWhatAFolderLacks) {
  EXPECT_EQ(open_safetensors(folder_).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(open_safetensors(folder_ / "none").error().code(), ErrorCode::kNotFound);
}

TEST_F(SafetensorsTest, UnreadableTypesAreListed) {
  const auto path =
      write("f.safetensors",
            file_of(R"({"s":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}})", "ab"));
  const auto file = open_safetensors(path);
  ASSERT_TRUE(file.ok()) << file.error().message();
  EXPECT_EQ((*file)->find("s")->type, "F8_E4M3");
  EXPECT_EQ((*file)->read("s").error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ((*file)->raw("s").error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ((*file)->raw("t").error().code(), ErrorCode::kNotFound);
}

class HostileSafetensors : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileSafetensors, IsRefused) {
  testing::expect_refused(GetParam(), parse_safetensors(testing::in_memory(GetParam().bytes)));
}

// A file whose one tensor "t" says that, over `data` bytes of data.
Hostile tensor(std::string name, std::string_view entry, size_t data, std::string message,
               ErrorCode code = ErrorCode::kCorrupt) {
  return {std::move(name), file_of(fmt::format(R"({{"t":{}}})", entry), std::string(data, 'x')),
          code, std::move(message)};
}

std::vector<Hostile> hostile_files() {
  constexpr auto kCorrupt = ErrorCode::kCorrupt;
  const std::string good = file_of(fmt::format(R"({{"t":{}}})", kOneFloat), "abcd");
  return {
      {"Empty", "", kCorrupt, "0 bytes, too few"},
      {"HalfALength", good.substr(0, 7), kCorrupt, "7 bytes, too few"},
      {"OnlyALength", good.substr(0, 8), kCorrupt, "in a file of 8"},
      {"HeaderBeyondTheFile", Bytes().put(uint64_t{100}).put("{}").str(), kCorrupt,
       "header of 100 bytes in a file of 10"},
      {"HeaderLengthHuge", Bytes().put(~uint64_t{0}).put("{}").str(), kCorrupt,
       "header of 18446744073709551615 bytes"},
      {"DataMissing", good.substr(0, good.size() - 4), kCorrupt, "which has 0"},
      {"Truncated", good.substr(0, good.size() - 1), kCorrupt,
       "tensor \"t\": ends at byte 4 of the data, which has 3"},
      {"NotJson", file_of("{\"t\":"), kCorrupt, "not valid JSON"},
      {"NoObject", file_of("[]"), kCorrupt, "expected a JSON object"},
      {"Deep", file_of(std::string(1'000'000, '[')), kCorrupt, "nested deeper than 64"},
      {"DeepObjects", file_of("{\"a\":" + std::string(100, '[')), kCorrupt, "nested deeper than"},
      {"NumberOverflows", file_of(R"({"t":1e999})"), kCorrupt, "not valid JSON"},
      {"NotUtf8", file_of("{\"\xff\":1}"), kCorrupt, "not valid JSON"},
      {"NameTwice", file_of(fmt::format(R"({{"t":{0},"t":{0}}})", kOneFloat), "abcd"), kCorrupt,
       "key \"t\" is there twice"},
      tensor("KeyTwice", R"({"dtype":"F32","dtype":"F32"})", 0, "key \"dtype\" is there twice"),
      tensor("EntryIsNumber", "1", 0, "tensor \"t\": expected an object"),
      tensor("NoDtype", R"({"shape":[1],"data_offsets":[0,4]})", 4, "a string \"dtype\""),
      tensor("DtypeUnknown", R"({"dtype":"F33","shape":[1],"data_offsets":[0,4]})", 4,
             "tensor \"t\": dtype \"F33\" is not known", ErrorCode::kUnsupported),
      tensor("NoShape", R"({"dtype":"F32","data_offsets":[0,4]})", 4, "an array \"shape\""),
      tensor("ShapeNegative", R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})", 4,
             "tensor \"t\": shape must be whole numbers"),
      tensor("ShapeFraction", R"({"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})", 4,
             "shape must be whole numbers"),
      tensor("ShapeBeyondSigned",
             R"({"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4]})", 4,
             "shape must be whole numbers from 0 to 2^63 - 1"),
      tensor("ShapeOverflows",
             R"({"dtype":"F32","shape":[4294967296,4294967297],"data_offsets":[0,4]})", 4,
             "tensor \"t\": shape [4294967296, 4294967297] is too large"),
      tensor("ShapeOverflowsBesideZero",
             R"({"dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0]})", 0,
             "is too large"),
      tensor("NoOffsets", R"({"dtype":"F32","shape":[1]})", 4, "an array \"data_offsets\""),
      tensor("ThreeOffsets", R"({"dtype":"F32","shape":[1],"data_offsets":[0,4,8]})", 4,
             "expected a begin and an end"),
      tensor("OffsetsReversed", R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})", 4,
             "expected a begin and an end"),
      tensor("OffsetsBeyondTheEnd", R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})", 4,
             "ends at byte 8 of the data, which has 4"),
      tensor("SizeLies", R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", 4,
             "data_offsets span 4 bytes, expected 8 for F32 [2]"),
      tensor("GapBefore", R"({"dtype":"I8","shape":[1],"data_offsets":[1,2]})", 2,
             "tensor \"t\": begins at byte 1 of the data, expected 0: a gap"),
      tensor("BytesLeftOver", R"({"dtype":"I8","shape":[1],"data_offsets":[0,1]})", 2,
             "2 bytes of data, but the tensors end at 1"),
      {"Overlapping", file_of(fmt::format(R"({{"t":{0},"u":{0}}})", kOneFloat), "abcd"), kCorrupt,
       "begins at byte 0 of the data, expected 4: it overlaps"},
      {"MetadataIsArray", file_of(R"({"__metadata__":[]})"), kCorrupt,
       "__metadata__: expected an object"},
      {"MetadataHoldsNumbers", file_of(R"({"__metadata__":{"a":1}})"), kCorrupt,
       "__metadata__: expected strings"},
  };
}

INSTANTIATE_TEST_SUITE_P(All, HostileSafetensors, ::testing::ValuesIn(hostile_files()),
                         testing::test_name);

class HostileIndex : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileIndex, IsRefused) {
  testing::expect_refused(GetParam(), parse_safetensors_index(GetParam().bytes, "hostile.bin"));
}

std::vector<Hostile> hostile_indices() {
  constexpr auto kCorrupt = ErrorCode::kCorrupt;
  const auto shard = [&](std::string name, std::string_view file) {
    return Hostile{std::move(name), fmt::format(R"({{"weight_map":{{"t":{}}}}})", file), kCorrupt,
                   "tensor \"t\": file "};
  };
  return {
      shard("ParentFolder", R"("../m.safetensors")"),
      shard("OtherFolder", R"("sub/m.safetensors")"),
      shard("AbsolutePath", R"("/etc/passwd")"),
      shard("Backslash", R"("..\\m.safetensors")"),
      shard("Parent", R"("..")"),
      shard("Itself", R"(".")"),
      shard("EmptyName", R"("")"),
      shard("Nul", R"("m\u0000.safetensors")"),
      shard("FileIsNumber", "1"),
      {"IndexNotJson", "", kCorrupt, "not valid JSON"},
      {"IndexIsArray", "[]", kCorrupt, "expected an object \"weight_map\""},
      {"NoWeightMap", "{}", kCorrupt, "expected an object \"weight_map\""},
      {"WeightMapIsArray", R"({"weight_map":[]})", kCorrupt, "expected an object \"weight_map\""},
      {"WeightMapEmpty", R"({"weight_map":{}})", kCorrupt, "expected an object \"weight_map\""},
      {"TensorTwice", R"({"weight_map":{"t":"a","t":"b"}})", kCorrupt, "key \"t\" is there twice"},
  };
}

INSTANTIATE_TEST_SUITE_P(All, HostileIndex, ::testing::ValuesIn(hostile_indices()),
                         testing::test_name);

TEST(Json, DepthIsBounded) {
  const auto nested = [](int depth) {
    return parse_json(std::string(depth, '[') + std::string(depth, ']')).ok();
  };
  EXPECT_TRUE(nested(kMaxJsonDepth));
  EXPECT_FALSE(nested(kMaxJsonDepth + 1));
  // The same key again, but in another object.
  EXPECT_TRUE(parse_json(R"({"a":{"a":1},"b":[{"a":1},{"a":2}]})").ok());
}

}  // namespace
}  // namespace quarot
