// Pages handed out, shared, copied and taken back.
#include "runtime/paged_cache.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstring>
#include <map>

#include "base/random.h"

namespace quarot {
namespace {

TEST(PagedCache, FreedPagesAreUsedAgain) {
  PagedCache cache({64, 4, 4, 1}, 6);
  const int a = cache.add_sequence();
  cache.reserve(a, 0, 100);
  const int64_t bytes = cache.bytes();
  cache.drop_sequence(a);
  cache.reserve(cache.add_sequence(), 0, 100);
  EXPECT_EQ(cache.bytes(), bytes);
}

TEST(PagedCache, MemoryIsBitsTimesElementsAndScales) {
  const int64_t heads = 6;
  for (const int bits : {2, 3, 4, 8}) {
    PagedCache cache({128, bits, bits, 1}, heads);
    cache.reserve(cache.add_sequence(), 0, 3200);
    // K and V: the elements, a float scale and a byte of zero a token and head.
    const double least = 3200.0 * heads * 2 * (128.0 * bits / 8 + 4 + 1);
    EXPECT_LT(static_cast<double>(cache.bytes()), 1.05 * least) << bits;
  }
}

TEST(PagedCache, ForksShareWhatNeitherHasWritten) {
  PagedCache cache({64, 4, 4, 1}, 6);
  const int a = cache.add_sequence();
  cache.reserve(a, 0, 10 * kPageTokens);
  const int64_t bytes = cache.bytes();
  const int b = cache.fork_sequence(a, 10 * kPageTokens - 5);
  EXPECT_EQ(cache.bytes(), bytes);
  cache.reserve(b, 10 * kPageTokens - 5, 10 * kPageTokens);  // its own last page
  EXPECT_EQ(cache.bytes(), bytes / 10 * 11);
  cache.drop_sequence(a);  // whose pages b still reads, but for the last
  cache.reserve(cache.add_sequence(), 0, kPageTokens);
  EXPECT_EQ(cache.bytes(), bytes / 10 * 11);
}

// Against sequences that share nothing: each holds what was written to it, whatever became of the
// others, and pages neither leak nor are handed out twice.
void check_random_use(uint64_t seed) {
  Random random(seed);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random.below(static_cast<uint64_t>(n)));
  };
  PagedCache cache({16, 4, 4, 1}, 1);
  std::map<int, std::vector<uint8_t>> expected;  // a byte of each token
  const auto token_at = [](std::byte* const* pages, int64_t t) {
    return reinterpret_cast<uint8_t*>(pages[t / kPageTokens]) + t % kPageTokens;
  };
  for (int step = 0; step < 60; ++step) {
    const int64_t action = expected.empty() ? 0 : below(8);
    const auto any = [&] { return std::next(expected.begin(), below(std::ssize(expected))); };
    if (action == 0) {
      expected[cache.add_sequence()];
    } else if (action == 1) {
      const auto gone = any();
      cache.drop_sequence(gone->first);
      expected.erase(gone);
    } else if (action <= 3) {
      const auto origin = any();
      const int64_t tokens = below(std::ssize(origin->second) + 1);
      const int fork = cache.fork_sequence(origin->first, tokens);
      RC_ASSERT(!expected.contains(fork));
      expected[fork].assign(origin->second.begin(), origin->second.begin() + tokens);
    } else {
      auto& [sequence, bytes] = *any();
      const int64_t position = below(std::ssize(bytes) + 1);  // may write over what was there
      bytes.resize(static_cast<size_t>(position + 1 + below(3 * kPageTokens)));
      std::byte* const* pages = cache.reserve(sequence, position, std::ssize(bytes));
      for (int64_t t = position; t < std::ssize(bytes); ++t)
        *token_at(pages, t) = bytes[static_cast<size_t>(t)] = static_cast<uint8_t>(below(256));
    }
  }
  for (const auto& [sequence, bytes] : expected) {
    const int64_t size = std::ssize(bytes);
    if (size == 0) continue;
    std::byte* const* pages = cache.reserve(sequence, size, size);
    for (int64_t t = 0; t < size; ++t)
      RC_ASSERT(*token_at(pages, t) == bytes[static_cast<size_t>(t)]);
  }
  for (const auto& [sequence, bytes] : expected) cache.drop_sequence(sequence);
  const int64_t bytes = cache.bytes();
  const int64_t pages = bytes / CacheLayout{16, 4, 4, 1}.page_bytes();
  cache.reserve(cache.add_sequence(), 0, pages * kPageTokens);  // every page is free again
  RC_ASSERT(cache.bytes() == bytes);
}

TEST(PagedCache, SequencesNeverSeeEachOthersWrites) { EXPECT_TRUE(rc::check(check_random_use)); }

}  // namespace
}  // namespace quarot
