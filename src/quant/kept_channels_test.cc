#include "quant/kept_channels.h"

#include <gtest/gtest.h>

namespace quarot {
namespace {

TEST(KeptCount, IsAtMostAnEighthAndLeavesWholeGroups) {
  const KeptChannels quik = {.count = 256};
  EXPECT_EQ(kept_count(quik, 4096, 1), 256);
  EXPECT_EQ(kept_count(quik, 1536, 1), 192);
  EXPECT_EQ(kept_count(quik, 576, 1), 72);
  const KeptChannels atom = {.count = 128};
  EXPECT_EQ(kept_count(atom, 4096, 128), 128);
  EXPECT_EQ(kept_count(atom, 576, 64), 64);
  EXPECT_EQ(kept_count(atom, 576, 128), 64);  // 512 are left
  EXPECT_EQ(kept_count(atom, 576, 100), 0);   // 76 would have to be kept
  EXPECT_FALSE(check(atom, 576, 100).ok());
  EXPECT_TRUE(check(atom, 576, 64).ok());
  EXPECT_FALSE(check({.threshold = 6}, 576, 64).ok());
  EXPECT_FALSE(check({.count = 1, .threshold = 6}, 576, 1).ok());
  EXPECT_FALSE(check({.count = -1}, 576, 1).ok());
  EXPECT_FALSE(check({.threshold = -1}, 576, 1).ok());
}

TEST(OrderChannels, PutsTheLargestLast) {
  const std::vector<double> largest = {5, 1, 9, 2, 3, 7, 4, 6, 1, 1, 1, 1, 1, 1, 1, 8};
  ChannelOrder order = order_channels({.count = 2}, largest, 1);
  EXPECT_TRUE(std::ranges::equal(order.last(), std::vector<int32_t>{15, 2}));
  EXPECT_TRUE(std::ranges::equal(
      order.rest(), std::vector<int32_t>{0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}));
  order = order_channels({.count = 2, .sorted = true}, largest, 1);
  EXPECT_TRUE(std::ranges::equal(
      order.rest(), std::vector<int32_t>{1, 8, 9, 10, 11, 12, 13, 14, 3, 4, 6, 0, 7, 5}));
}

Matrix one_row(std::vector<float> values) {
  Matrix row(1, static_cast<int64_t>(values.size()));
  std::ranges::copy(values, row.data());
  return row;
}

// The rest has scale 2/1 of 2 bits, grid {−4, −2, 0, 2}; the kept one, 100, would have made it 100.
TEST(SimulateAroundKept, LeavesKeptChannelsOutOfTheScale) {
  const ChannelOrder order = {.channels = {0, 2, 3, 1}, .kept = 1};
  const ActivationQuant q = {.bits = 2, .clip = 1};
  Matrix row = one_row({1.2F, 100.3F, -2, 0.8F});
  simulate(q, {.count = 1}, order, row);
  EXPECT_TRUE(std::ranges::equal(row.elements(), std::vector<float>{2, 100.3F, -2, 0}));
  // With 2 bits of its own the kept one has its own scale.
  row = one_row({1.2F, 100.3F, -2, 0.8F});
  simulate(q, {.count = 1, .bits = 2}, order, row);
  EXPECT_TRUE(std::ranges::equal(row.elements(), std::vector<float>{2, 100.3F, -2, 0}));
}

TEST(SimulateAroundKept, DoesNothingToFloats) {
  Matrix row = one_row({1.2F, 100.3F, -2, 0.8F});
  simulate({}, {.count = 1, .bits = 2}, {.channels = {0, 2, 3, 1}, .kept = 1}, row);
  EXPECT_TRUE(std::ranges::equal(row.elements(), std::vector<float>{1.2F, 100.3F, -2, 0.8F}));
}

// LLM.int8(): a channel that one token of the batch takes above the threshold is kept for all.
TEST(SimulateAroundKept, ThresholdDecidesForTheBatch) {
  const ActivationQuant q = {.bits = 2, .clip = 1};
  Matrix rows(2, 3);
  std::ranges::copy(std::vector<float>{1, -6.5F, 0.3F, 0.2F, 0.1F, 5}, rows.data());
  simulate(q, {.threshold = 6}, {}, rows);
  EXPECT_TRUE(std::ranges::equal(rows.elements(), std::vector<float>{1, -6.5F, 0, 0, 0.1F, 5}));
}

}  // namespace
}  // namespace quarot
