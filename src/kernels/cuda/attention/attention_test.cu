#include "kernels/cuda/attention/attention.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <random>

#include "kernels/cuda/attention/attention_reference.h"
#include "kernels/cuda/bench.cuh"

namespace quarot::cuda {
namespace {

bool has_gpu() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

struct Case {
  int head_dim = 128;
  int key_bits = 4;
  int value_bits = 4;
  int kv_heads = 2;
  int group = 4;  // query heads a KV head
  int window = 0;
  std::vector<int32_t> lengths = {1};
};

struct Problem {
  Problem(const Case& c, unsigned seed)
      : layout{c.head_dim, stored_bits(c.key_bits), stored_bits(c.value_bits)}, random(seed) {
    cache = make_cache(layout, c.kv_heads, c.lengths, random);
    std::vector<float> key(static_cast<size_t>(c.head_dim));
    std::vector<float> value(key.size());
    for (size_t s = 0; s < c.lengths.size(); ++s) {
      for (int token = 0; token < c.lengths[s]; ++token) {
        for (int head = 0; head < c.kv_heads; ++head) {
          const float loud = token == 0 ? 3.0F : 1.0F;  // an attention sink
          for (float& x : key) x = loud * (normal(random) + 0.5F);
          for (float& x : value) x = 0.02F * normal(random) + 0.01F;
          if (token % 97 == 5) std::fill(value.begin(), value.end(), 0.0F);
          store_token(cache, static_cast<int>(s), token, head, key.data(), value.data(), c.key_bits,
                      c.value_bits, 0.95F);
        }
      }
    }
  }

  // float16 queries, and the same as floats.
  std::vector<__half> queries(size_t rows, int heads) {
    std::vector<__half> q(rows * heads * layout.head_dim);
    for (__half& x : q) x = __float2half_rn(2 * normal(random));
    return q;
  }

  PageLayout layout;
  std::mt19937 random;
  std::normal_distribution<float> normal;
  HostCache cache;
};

struct DeviceCache {
  explicit DeviceCache(const HostCache& host)
      : pool(host.pool), table(host.table), lengths(host.lengths) {
    view.layout = host.layout;
    view.pool = pool.get();
    view.page_table = table.get();
    view.table_stride = host.table_stride;
    view.lengths = lengths.get();
    view.kv_heads = host.kv_heads;
  }
  DeviceBuffer<uint8_t> pool;
  DeviceBuffer<int32_t> table;
  DeviceBuffer<int32_t> lengths;
  PagedCache view;
};

AttentionShape shape_of(const Case& c) {
  AttentionShape shape;
  shape.sequences = static_cast<int>(c.lengths.size());
  shape.query_heads = c.kv_heads * c.group;
  shape.max_length = *std::max_element(c.lengths.begin(), c.lengths.end());
  shape.window = c.window;
  shape.scale = 1.0F / std::sqrt(static_cast<float>(c.head_dim));
  return shape;
}

// ‖out − reference‖ / ‖reference‖ over all heads of the rows; row r is sequence `owner[r]` at
// `position[r]`.
double relative_error(const Problem& p, const Case& c, const std::vector<__half>& q,
                      const std::vector<float>& out, const std::vector<int>& owner,
                      const std::vector<int>& position) {
  const int heads = c.kv_heads * c.group;
  const int d = c.head_dim;
  double difference = 0;
  double norm = 0;
  std::vector<float> query(static_cast<size_t>(d));
  for (size_t row = 0; row < owner.size(); ++row) {
    for (int head = 0; head < heads; ++head) {
      const size_t at = (row * heads + head) * d;
      for (int i = 0; i < d; ++i) query[i] = __half2float(q[at + i]);
      const auto expected = attend(p.cache, owner[row], head / c.group, query.data(), position[row],
                                   c.window, shape_of(c).scale);
      for (int i = 0; i < d; ++i) {
        const double got = out[at + i];
        difference += (got - expected[i]) * (got - expected[i]);
        norm += expected[i] * expected[i];
      }
    }
  }
  return std::sqrt(difference / norm);
}

std::vector<float> decode(const Problem& p, const Case& c, const std::vector<__half>& q) {
  const DeviceCache cache(p.cache);
  const AttentionShape shape = shape_of(c);
  const DeviceBuffer<__half> queries(q);
  DeviceBuffer<float> out(q.size());
  DeviceBuffer<uint8_t> workspace(decode_workspace_bytes(shape, cache.view));
  workspace.fill_bytes(0);
  for (int run = 0; run < 2; ++run) {  // the second finds the workspace as the first left it
    out.fill_bytes(0xff);
    const Status status =
        attention_decode(queries.get(), cache.view, shape, workspace.get(), out.get(), nullptr);
    EXPECT_TRUE(status.ok()) << status.error().message();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  return out.download();
}

void expect_decode(const Case& c, unsigned seed) {
  Problem p(c, seed);
  const auto q = p.queries(c.lengths.size(), c.kv_heads * c.group);
  std::vector<int> owner(c.lengths.size());
  std::iota(owner.begin(), owner.end(), 0);
  std::vector<int> position;
  for (const int length : c.lengths) position.push_back(length - 1);
  const double error = relative_error(p, c, q, decode(p, c, q), owner, position);
  EXPECT_LT(error, 1e-3) << "head_dim " << c.head_dim << " K" << c.key_bits << " V" << c.value_bits
                         << " group " << c.group << " window " << c.window;
}

constexpr std::array<std::array<int, 2>, 11> kBits = {
    {{4, 4}, {16, 16}, {8, 8}, {8, 4}, {4, 8}, {4, 2}, {2, 4}, {2, 2}, {8, 2}, {2, 8}, {3, 3}}};
constexpr std::array<int, 9> kHeadDims = {16, 32, 48, 64, 80, 96, 112, 128, 256};

TEST(AttentionDecode, EveryLayout) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  unsigned seed = 1;
  for (const int head_dim : kHeadDims) {
    for (const auto& [k, v] : kBits) expect_decode({head_dim, k, v, 2, 3, 0, {1, 70, 193}}, ++seed);
  }
}

TEST(AttentionDecode, RaggedBatchesGroupsAndWindows) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  for (const int group : {1, 2, 4, 7, 8, 12}) {
    expect_decode({128, 4, 4, 2, group, 0, {511, 512, 513, 1, 2500, 64, 65}}, 100U + group);
    expect_decode({64, 4, 4, 1, group, 100, {50, 100, 101, 700, 1111}}, 200U + group);
  }
  expect_decode({128, 16, 16, 2, 4, 600, {511, 2500, 1300}}, 300);
}

TEST(AttentionDecode, ALongSequence) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  expect_decode({128, 4, 4, 1, 4, 0, {70001}}, 400);
  expect_decode({64, 8, 8, 1, 1, 40000, {70001}}, 401);
}

TEST(AttentionDecode, DoesNotDependOnTheRestOfTheBatch) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  const Case together{128, 4, 4, 2, 4, 0, {3000, 40, 1500}};
  Problem p(together, 500);
  const auto q = p.queries(3, 8);
  const auto all = decode(p, together, q);
  Problem alone = p;
  alone.cache.lengths = {1500};
  alone.cache.table.erase(alone.cache.table.begin(),
                          alone.cache.table.begin() + 2 * p.cache.table_stride);
  Case one = together;
  one.lengths = {1500};
  const size_t row = 8 * 128;
  const auto out = decode(alone, one, {q.begin() + 2 * row, q.end()});
  for (size_t i = 0; i < row; ++i) {
    ASSERT_EQ(out[i], all[2 * row + i]) << i;
  }
}

// Appending on the way makes the same cache and the same sums, bit for bit, as a kernel before.
void expect_append(const Case& c, int rotary_dims, bool norm, unsigned seed) {
  Problem p(c, seed);
  const int d = c.head_dim;
  const int heads = c.kv_heads * c.group;
  const int width = (heads + 2 * c.kv_heads) * d;
  const size_t count = c.lengths.size();
  const auto floats = [&](size_t size) {
    std::vector<float> values(size);
    for (float& x : values) x = p.normal(p.random);
    return values;
  };
  const DeviceBuffer<float> qkv(floats(count * width));
  const DeviceBuffer<float> gain(floats(static_cast<size_t>(d)));
  const DeviceBuffer<float> center(floats(static_cast<size_t>(c.kv_heads) * d));
  std::vector<int32_t> positions;
  std::vector<int32_t> sequences;
  for (const int length : c.lengths) {
    sequences.push_back(static_cast<int32_t>(positions.size()));
    positions.push_back(length - 1);
  }
  const AttentionShape shape = shape_of(c);
  std::vector<float2> turns(static_cast<size_t>(shape.max_length) * std::max(1, rotary_dims / 2));
  for (float2& turn : turns) turn = {p.normal(p.random), p.normal(p.random)};
  const DeviceBuffer<float2> device_turns(turns);
  const DeviceBuffer<int32_t> device_positions(positions);
  const DeviceBuffer<int32_t> device_sequences(sequences);
  HeadBatch batch;
  batch.element = Element::kFloat32;
  batch.tokens = static_cast<int>(count);
  batch.query_heads = heads;
  batch.kv_heads = c.kv_heads;
  batch.q = qkv.get();
  batch.k = qkv.get() + heads * d;
  batch.v = qkv.get() + (heads + c.kv_heads) * d;
  batch.q_stride = batch.k_stride = batch.v_stride = width;
  batch.sequences = device_sequences.get();
  batch.positions = device_positions.get();
  batch.q_gain = batch.k_gain = norm ? gain.get() : nullptr;
  batch.eps = 1e-5F;
  const Rotary rotary{device_turns.get(), rotary_dims, false};
  const bool walsh = (d & (d - 1)) == 0;
  const HeadRotation rotation{walsh ? 1 : 0,
                              walsh ? std::countr_zero(static_cast<unsigned>(d)) : 0};
  std::vector<uint8_t> pools[2];
  std::vector<float> outs[2];
  for (const bool on_the_way : {false, true}) {
    DeviceCache cache(p.cache);
    CacheWriter writer;
    writer.layout = p.layout;
    writer.key_bits = c.key_bits;
    writer.value_bits = c.value_bits;
    writer.key_center = center.get();
    writer.pool = cache.pool.get();
    writer.page_table = cache.table.get();
    writer.table_stride = p.cache.table_stride;
    DeviceBuffer<__half> q(count * heads * d);
    DeviceBuffer<float> out(q.size());
    out.fill_bytes(0xff);
    DeviceBuffer<uint8_t> workspace(decode_workspace_bytes(shape, cache.view));
    workspace.fill_bytes(0);
    if (!on_the_way) {
      const Status done = rotate_and_append(batch, rotary, rotation, writer, q.get(), nullptr);
      ASSERT_TRUE(done.ok()) << done.error().message();
    }
    const Status status =
        on_the_way
            ? append_and_decode(batch, rotary, rotation, writer, cache.view, shape, workspace.get(),
                                out.get(), nullptr)
            : attention_decode(q.get(), cache.view, shape, workspace.get(), out.get(), nullptr);
    ASSERT_TRUE(status.ok()) << status.error().message();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    pools[on_the_way ? 1 : 0] = cache.pool.download();
    outs[on_the_way ? 1 : 0] = out.download();
  }
  EXPECT_EQ(pools[0], pools[1]) << "head_dim " << d << " K" << c.key_bits << " V" << c.value_bits;
  EXPECT_EQ(outs[0], outs[1]) << "head_dim " << d << " K" << c.key_bits << " V" << c.value_bits;
}

TEST(AttentionDecode, AppendsOnTheWay) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  unsigned seed = 5000;
  for (const int head_dim : kHeadDims) {
    for (const auto& [k, v] : kBits) {
      expect_append({head_dim, k, v, 2, 3, 0, {1, 70, 193}}, head_dim / 32 * 16, false, ++seed);
    }
  }
  for (const int group : {1, 4, 8, 12}) {
    expect_append({128, 4, 4, 2, group, 0, {511, 512, 513, 1, 2500, 64, 65}}, 128, true, ++seed);
    expect_append({64, 4, 4, 1, group, 100, {50, 100, 101, 700, 1111}}, 64, false, ++seed);
  }
}

// The last chunks[s] tokens of each sequence are the queries.
void expect_prefill(const Case& c, const std::vector<int>& chunks, unsigned seed) {
  Problem p(c, seed);
  const int heads = c.kv_heads * c.group;
  std::vector<int32_t> starts = {0};
  std::vector<int> owner;
  std::vector<int> position;
  for (size_t s = 0; s < chunks.size(); ++s) {
    starts.push_back(starts.back() + chunks[s]);
    for (int i = 0; i < chunks[s]; ++i) {
      owner.push_back(static_cast<int>(s));
      position.push_back(c.lengths[s] - chunks[s] + i);
    }
  }
  const auto q = p.queries(owner.size(), heads);
  const DeviceCache cache(p.cache);
  const DeviceBuffer<__half> queries(q);
  const DeviceBuffer<int32_t> device_starts(starts);
  DeviceBuffer<float> out(q.size());
  out.fill_bytes(0xff);
  const Status status = attention_prefill(queries.get(), device_starts.get(),
                                          *std::max_element(chunks.begin(), chunks.end()),
                                          cache.view, shape_of(c), out.get(), nullptr);
  ASSERT_TRUE(status.ok()) << status.error().message();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_LT(relative_error(p, c, q, out.download(), owner, position), 1e-3)
      << "head_dim " << c.head_dim << " K" << c.key_bits << " V" << c.value_bits << " group "
      << c.group << " window " << c.window;
}

TEST(AttentionPrefill, EveryLayout) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  unsigned seed = 600;
  for (const int head_dim : kHeadDims) {
    for (const auto& [k, v] : kBits) {
      expect_prefill({head_dim, k, v, 2, 2, 0, {1, 70, 150}}, {1, 70, 33}, ++seed);
    }
  }
}

TEST(AttentionPrefill, RaggedChunksGroupsAndWindows) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  for (const int group : {1, 3, 8}) {
    expect_prefill({128, 4, 4, 1, group, 0, {300, 64, 129, 517}}, {300, 64, 1, 200}, 800U + group);
    expect_prefill({64, 4, 4, 1, group, 90, {300, 64, 129, 517}}, {300, 64, 128, 200},
                   900U + group);
  }
  expect_prefill({256, 8, 4, 1, 2, 77, {400}}, {390}, 1000);
}

TEST(AttentionDecode, SaysWhatItHasNotGot) {
  AttentionShape shape;
  shape.sequences = 1, shape.query_heads = 4, shape.max_length = 1;
  PagedCache cache;
  cache.kv_heads = 3;
  EXPECT_EQ(attention_decode(nullptr, cache, shape, nullptr, nullptr, nullptr).error().code(),
            ErrorCode::kInvalidArgument);
  cache.kv_heads = 4;
  cache.layout.head_dim = 72;
  EXPECT_EQ(attention_decode(nullptr, cache, shape, nullptr, nullptr, nullptr).error().code(),
            ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace quarot::cuda
