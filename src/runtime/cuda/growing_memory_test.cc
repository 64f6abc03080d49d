#include "runtime/cuda/growing_memory.h"

#include <gtest/gtest.h>

#include "runtime/cuda/device.h"
#include "runtime/cuda/page_pool.h"

namespace quarot::cuda {
namespace {

constexpr int64_t kMegabyte = int64_t{1} << 20;

class CudaMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status gpu = check_device(); !gpu.ok()) GTEST_SKIP() << gpu.error().message();
  }
  static uint8_t byte_at(const uint8_t* data) {
    uint8_t byte = 0;
    EXPECT_EQ(cudaMemcpy(&byte, data, 1, cudaMemcpyDeviceToHost), cudaSuccess);
    return byte;
  }
};

TEST_F(CudaMemory, GrowsWhereItStands) {
  auto made = GrowingMemory::reserve(64 * kMegabyte, "a test");
  ASSERT_TRUE(made.ok()) << made.error().message();
  GrowingMemory memory = *std::move(made);
  EXPECT_EQ(memory.bytes(), 0);
  ASSERT_TRUE(memory.grow(1, "a test").ok());
  uint8_t* const data = memory.data();
  const int64_t first = memory.bytes();
  ASSERT_EQ(first % memory.granularity(), 0);
  ASSERT_EQ(cudaMemset(data, 7, static_cast<size_t>(first)), cudaSuccess);
  ASSERT_TRUE(memory.grow(40 * kMegabyte, "a test").ok());
  EXPECT_EQ(memory.data(), data);
  EXPECT_GE(memory.bytes(), 40 * kMegabyte);
  EXPECT_EQ(byte_at(data + first - 1), 7);
  EXPECT_EQ(cudaMemset(data, 9, static_cast<size_t>(memory.bytes())), cudaSuccess);
  EXPECT_EQ(byte_at(data + memory.bytes() - 1), 9);
}

TEST_F(CudaMemory, GivesBackWhatItTook) {
  const int64_t before = used_bytes();
  {
    auto made = GrowingMemory::reserve(256 * kMegabyte, "a test");
    ASSERT_TRUE(made.ok());
    ASSERT_TRUE(made->grow(256 * kMegabyte, "a test").ok());
    EXPECT_GE(used_bytes() - before, 256 * kMegabyte);
  }
  EXPECT_LT(used_bytes() - before, 64 * kMegabyte);
}

TEST_F(CudaMemory, MoreThanTheGpuHasIsAMessageWithTheNumbers) {
  const int64_t all = *total_bytes();
  auto made = GrowingMemory::reserve(2 * all, "a test");
  ASSERT_TRUE(made.ok()) << made.error().message();
  const Status grown = made->grow(all, "a test");
  ASSERT_FALSE(grown.ok());
  EXPECT_EQ(grown.error().code(), ErrorCode::kOutOfMemory);
  EXPECT_NE(grown.error().message().find("GB needed"), std::string::npos)
      << grown.error().message();
  EXPECT_EQ(made->bytes(), 0);
  EXPECT_TRUE(made->grow(kMegabyte, "a test").ok());
}

TEST_F(CudaMemory, PagesStayWhereTheyAre) {
  const PageLayout layout{128, 4, 4};
  PagePool pool(layout, 2, 8);
  const int sequence = pool.add_sequence();
  ASSERT_TRUE(pool.reserve(sequence, 0, 1, nullptr).ok());
  uint8_t* const second = pool.layer(1);
  const int64_t bytes = pool.bytes();
  const int64_t tokens = 2 * bytes / (8 * layout.block_bytes()) * kPageTokens;
  ASSERT_TRUE(pool.reserve(sequence, 1, tokens, nullptr).ok());
  EXPECT_EQ(pool.layer(1), second);
  EXPECT_GT(pool.bytes(), bytes);
  const PageList pages = pool.pages(sequence);
  ASSERT_EQ(std::ssize(pages), tokens / kPageTokens);
  const int64_t page_bytes = 8 * layout.block_bytes();
  for (const int32_t page : pages) {
    ASSERT_LE((page + 1) * page_bytes, pool.bytes() / 2) << "a page beyond its layer's memory";
    EXPECT_EQ(byte_at(second + page * page_bytes), 0);
  }
  EXPECT_LE(pool.bytes(), 2 * (std::ssize(pages) * page_bytes * 17 / 16 + 4 * kMegabyte))
      << "more than a sixteenth to spare";
}

}  // namespace
}  // namespace quarot::cuda
