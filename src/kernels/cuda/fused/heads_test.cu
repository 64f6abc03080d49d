#include "kernels/cuda/fused/heads.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/cuda/fused/cache_reference.h"
#include "kernels/cuda/fused/fused_reference.h"
#include "kernels/cuda/fused/fused_test.h"

namespace quarot::cuda {
namespace {

struct HeadTest {
  int head_dim;
  int key_bits = 4;
  int value_bits = 4;
  int rotary_dims = 0;
  bool interleaved = false;
  int m = 0;
  int log2 = 0;
  Element element = Element::kBFloat16;
  bool norm = false;
  int tokens = 70;
};

// Also that the tokens come out the same in two halves.
void expect_heads(const HeadTest& t) {
  const int tokens = t.tokens;
  constexpr int kQueryHeads = 3;
  constexpr int kKvHeads = 2;
  const int d = t.head_dim;
  CacheWriter cache;
  cache.layout = {d, stored_bits(t.key_bits), stored_bits(t.value_bits)};
  cache.key_bits = t.key_bits;
  cache.value_bits = t.value_bits;
  const int block_bytes = cache.layout.block_bytes();
  DeviceBuffer<uint8_t> pool(size_t{6} * kKvHeads * block_bytes);
  pool.fill_bytes(0x5a);
  const std::vector<int32_t> table = {4, 1, 3, 5, 0, 2};  // two sequences of three pages
  const DeviceBuffer<int32_t> device_table(table);
  cache.pool = pool.get();
  cache.page_table = device_table.get();
  cache.table_stride = 3;
  const auto centers = normals(size_t{kKvHeads} * d);
  const DeviceBuffer<float> device_centers(centers);
  cache.key_center = device_centers.get();

  DeviceRows q(normals(size_t(tokens) * kQueryHeads * d), t.element);
  DeviceRows k(normals(size_t(tokens) * kKvHeads * d), t.element);
  DeviceRows v(normals(size_t(tokens) * kKvHeads * d), t.element);
  std::vector<int32_t> sequences;
  std::vector<int32_t> positions;
  for (int i = 0; i < tokens; ++i) {
    sequences.push_back(i % 2);
    positions.push_back(60 + i);
  }
  const DeviceBuffer<int32_t> device_sequences(sequences);
  const DeviceBuffer<int32_t> device_positions(positions);
  std::vector<float2> turns;
  for (int position = 0; position < 192; ++position) {
    for (int i = 0; i < t.rotary_dims / 2; ++i) {
      const double angle = position * std::pow(1e4, -2.0 * i / t.rotary_dims);
      turns.push_back({static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle))});
    }
  }
  turns.push_back({});
  const DeviceBuffer<float2> device_turns(turns);
  const std::vector<double> factor = random_factor(std::max(1, t.m), true);
  const DeviceBuffer<float> device_factor(std::vector<float>(factor.begin(), factor.end()));
  const auto q_gain = normals(static_cast<size_t>(d));
  const auto k_gain = normals(static_cast<size_t>(d));
  const DeviceBuffer<float> device_q_gain(q_gain);
  const DeviceBuffer<float> device_k_gain(k_gain);
  constexpr float kEps = 1e-5F;
  HeadBatch batch;
  batch.element = t.element;
  if (t.norm) batch.q_gain = device_q_gain.get(), batch.k_gain = device_k_gain.get();
  batch.eps = kEps;
  batch.tokens = tokens;
  batch.query_heads = kQueryHeads;
  batch.kv_heads = kKvHeads;
  batch.q = q.get(), batch.k = k.get(), batch.v = v.get();
  batch.q_stride = kQueryHeads * d;
  batch.k_stride = batch.v_stride = kKvHeads * d;
  batch.sequences = device_sequences.get();
  batch.positions = device_positions.get();
  const Rotary rotary{device_turns.get(), t.rotary_dims, t.interleaved};
  const HeadRotation rotation{t.m, t.log2, device_factor.get()};
  const auto run = [&](int first, int count, __half* out) {
    const size_t bytes = t.element == Element::kFloat32 ? 4 : 2;
    const auto from = [&](DeviceRows& x, int64_t stride) {
      return static_cast<const uint8_t*>(x.get()) + bytes * first * stride;
    };
    HeadBatch part = batch;
    part.tokens = count;
    part.q = from(q, part.q_stride), part.k = from(k, part.k_stride);
    part.v = from(v, part.v_stride);
    part.sequences += first;
    part.positions += first;
    const Status status =
        rotate_and_append(part, rotary, rotation, cache, out + first * part.q_stride, nullptr);
    ASSERT_TRUE(status.ok()) << status.error().message();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  };
  DeviceBuffer<__half> q_out(q.floats.size());
  run(0, tokens, q_out.get());
  if (tokens > 70) {
    const std::vector<uint8_t> bytes = pool.download();
    DeviceBuffer<__half> q_parts(q.floats.size());
    pool.fill_bytes(0x5a);
    run(0, 64, q_parts.get());
    run(64, tokens - 64, q_parts.get());
    EXPECT_EQ(pool.download(), bytes) << "head_dim " << d;
    const auto whole = q_out.download();
    const auto parts = q_parts.download();
    EXPECT_EQ(std::memcmp(whole.data(), parts.data(), 2 * whole.size()), 0) << "head_dim " << d;
  }

  const auto rotated = [&](const std::vector<float>& from, size_t at, int position,
                           const std::vector<float>& gain) {
    std::vector<double> x(from.begin() + at, from.begin() + at + d);
    if (t.norm) norm_reference(x, gain.data(), kEps);
    const std::vector<double> old = x;
    const int half = t.rotary_dims / 2;
    for (int i = 0; i < half; ++i) {
      const float2 c = turns[static_cast<size_t>(position) * half + i];
      const int a = t.interleaved ? 2 * i : i;
      const int b = t.interleaved ? 2 * i + 1 : i + half;
      x[a] = old[a] * c.x - old[b] * c.y;
      x[b] = old[b] * c.x + old[a] * c.y;
    }
    if (t.m > 0) rotate_reference(factor, t.m, t.log2, 1, x);
    return x;
  };
  const auto queries = q_out.download();
  const auto bytes = pool.download();
  int different = 0;
  for (int token = 0; token < tokens; ++token) {
    const int position = positions[token];
    for (int head = 0; head < kQueryHeads; ++head) {
      const size_t at = (size_t{kQueryHeads} * token + head) * d;
      const auto expected = rotated(q.floats, at, position, q_gain);
      for (int i = 0; i < d; ++i) {
        ASSERT_NEAR(__half2float(queries[at + i]), expected[i], 2e-3 * (1 + std::abs(expected[i])));
      }
    }
    for (int head = 0; head < kKvHeads; ++head) {
      const size_t at = (size_t{kKvHeads} * token + head) * d;
      const auto turned = rotated(k.floats, at, position, k_gain);
      std::vector<float> key;
      for (int i = 0; i < d; ++i) {
        key.push_back(static_cast<float>(turned[i]) - centers[static_cast<size_t>(head) * d + i]);
      }
      std::vector<uint8_t> block(static_cast<size_t>(block_bytes));
      const PageLayout& l = cache.layout;
      const int row = position % kPageTokens;
      std::vector<double> meant(static_cast<size_t>(d));
      store_cache_row(key.data(), d, t.key_bits, l.key_bits, cache.key_clip,
                      block.data() + l.key_row(row), block.data() + l.key_param(row), meant.data());
      store_cache_row(v.floats.data() + at, d, t.value_bits, l.value_bits, cache.value_clip,
                      block.data() + l.value_row(row), block.data() + l.value_param(row),
                      meant.data());
      const int page = table[sequences[token] * 3 + position / kPageTokens];
      const uint8_t* got =
          bytes.data() + (static_cast<size_t>(page) * kKvHeads + head) * block_bytes;
      const auto same = [&](int offset, int count) {
        return std::equal(got + offset, got + offset + count, block.data() + offset);
      };
      ASSERT_TRUE(same(l.value_row(row), l.value_row_bytes()));
      if (l.value_bits < 16) {
        ASSERT_TRUE(same(l.value_param(row), 4));
      }
      different += same(l.key_row(row), l.key_row_bytes()) ? 0 : 1;
    }
  }
  // Keys pass through float arithmetic, so one near a tie may round the other way; float16
  // likewise.
  const int rows = tokens * kKvHeads;
  EXPECT_LE(different, t.key_bits == 16  ? rows / 2
                       : t.key_bits == 8 ? rows / 10
                                         : 2)
      << "head_dim " << d;
}

TEST(FusedHeads, RotateAndAppend) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  expect_heads({128, 4, 4, 0, false, 0, 0, Element::kFloat32});
  expect_heads({128, 4, 4, 128, false, 1, 7});
  expect_heads({64, 2, 8, 64, true, 1, 6});
  expect_heads({80, 4, 3, 32, false, 20, 2});
  expect_heads({96, 3, 4, 96, false, 12, 3});
  expect_heads({112, 8, 2, 112, false, 28, 2, Element::kFloat32});
  expect_heads({256, 4, 4, 256, false, 1, 8});
  expect_heads({16, 4, 4, 16, false, 1, 4});
  expect_heads({48, 8, 8, 48, true, 12, 2});
  expect_heads({128, 16, 16, 128, false, 1, 7});
  expect_heads({128, 4, 4, 128, false, 1, 7, Element::kFloat32, true});
  expect_heads({80, 4, 4, 32, false, 20, 2, Element::kBFloat16, true});
}

TEST(FusedHeads, RotateAndAppendManyTokens) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  expect_heads({128, 4, 4, 128, false, 1, 7, Element::kFloat32, false, 130});
  expect_heads({128, 3, 8, 128, false, 1, 7, Element::kBFloat16, false, 130});
  expect_heads({128, 4, 4, 128, false, 0, 0, Element::kFloat32, false, 130});
  expect_heads({64, 2, 4, 64, false, 1, 6, Element::kFloat32, false, 130});
  expect_heads({64, 16, 16, 64, false, 1, 6, Element::kFloat32, false, 130});
  expect_heads({96, 4, 4, 96, false, 12, 3, Element::kFloat32, false, 130});
  expect_heads({128, 4, 4, 128, true, 1, 7, Element::kFloat32, true, 130});
}

}  // namespace
}  // namespace quarot::cuda
