// What the tests of this room share.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "formats/tensor_table.h"

namespace quarot::testing {

// A folder of its own for each test, removed afterwards.
class FolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              fmt::format("quarot-formats-{}-{}", ::getpid(), test->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path write(const std::string& name, std::string_view contents) const {
    std::ofstream(folder_ / name, std::ios::binary) << contents;
    return folder_ / name;
  }

  std::filesystem::path folder_;
};

// Σ bits(xᵢ)·(2i + 1) mod 2⁶⁴: exact, sees the order, and one line of numpy:
//   b = x.view(uint32).ravel().astype(uint64); (b * (2 * arange(b.size, dtype=uint64) + 1)).sum()
inline uint64_t checksum(std::span<const float> values) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < values.size(); ++i) {
    sum += uint64_t{std::bit_cast<uint32_t>(values[i])} * (2 * i + 1);
  }
  return sum;
}

// Checksums of several tensors in one: h = h·0x9e3779b97f4a7c15 + c, from 0.
inline uint64_t fold(uint64_t sum, uint64_t next) { return sum * 0x9e3779b97f4a7c15U + next; }

// Builds binary files piece by piece.
class Bytes {
 public:
  template <typename T>
  requires std::is_arithmetic_v<T> Bytes& put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  Bytes& put(std::string_view raw) {
    bytes_.append(raw);
    return *this;
  }
  Bytes& text(std::string_view text) {  // as GGUF has it: the length first
    return put(static_cast<uint64_t>(text.size())).put(text);
  }
  Bytes& pad(size_t alignment, size_t more = 0) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment + more);
    return *this;
  }
  const std::string& str() const { return bytes_; }

 private:
  std::string bytes_;
};

inline FileView in_memory(std::string_view bytes) {
  return {"hostile.bin", std::as_bytes(std::span(bytes)), nullptr};
}

// One hostile input: the parser must refuse it with this message, naming the file.
struct Hostile {
  std::string name;
  std::string bytes;
  ErrorCode code;
  std::string message;
};

template <typename R>
void expect_refused(const Hostile& hostile, const R& result) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), hostile.code) << result.error().message();
  EXPECT_TRUE(result.error().message().starts_with("hostile.bin: ")) << result.error().message();
  EXPECT_NE(result.error().message().find(hostile.message), std::string::npos)
      << result.error().message();
}

inline std::string test_name(const ::testing::TestParamInfo<Hostile>& info) {
  return info.param.name;
}

}  // namespace quarot::testing
