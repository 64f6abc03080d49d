#include "base/scratch_memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

namespace quarot {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBytes = 3 << 20;

class ScratchMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / "scratch_memory_test";
    fs::create_directories(folder_);
    ::setenv("TMPDIR", folder_.c_str(), 1);
  }
  void TearDown() override {
    ::unsetenv("TMPDIR");
    fs::remove_all(folder_);
  }
  fs::path folder_;
};

TEST_F(ScratchMemoryTest, IsZerosThatKeepWhatIsWritten) {
  for (const int64_t limit : {kBytes, int64_t{0}}) {
    auto made = ScratchMemory::make(kBytes, limit);
    ASSERT_TRUE(made.ok()) << made.error().message();
    const ScratchMemory memory = *std::move(made);
    EXPECT_EQ(memory.on_disk(), limit == 0);
    ASSERT_EQ(memory.bytes(), kBytes);
    for (int64_t i = 0; i < kBytes; i += 4096) {
      ASSERT_EQ(memory.data()[i], std::byte{0});
      memory.data()[i] = static_cast<std::byte>(i >> 12);
    }
    for (int64_t i = 0; i < kBytes; i += 4096) {
      ASSERT_EQ(memory.data()[i], static_cast<std::byte>(i >> 12));
    }
    EXPECT_TRUE(fs::is_empty(folder_)) << "its file has a name";
  }
}

TEST_F(ScratchMemoryTest, SaysWhereThereIsNoRoom) {
  ::setenv("TMPDIR", "/nowhere", 1);
  const auto made = ScratchMemory::make(kBytes, 0);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code(), ErrorCode::kOutOfMemory);
  EXPECT_NE(made.error().message().find("/nowhere"), std::string::npos) << made.error().message();
  const auto huge = ScratchMemory::make(int64_t{1} << 60, 0);
  EXPECT_FALSE(huge.ok());
}

}  // namespace
}  // namespace quarot
