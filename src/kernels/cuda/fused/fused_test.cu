#include "kernels/cuda/fused/fused.h"

#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <random>

#include "kernels/cuda/bench.cuh"
#include "kernels/cuda/fused/cache_reference.h"
#include "kernels/cuda/fused/fused_reference.h"
#include "kernels/cuda/fused/heads.h"

namespace quarot::cuda {
namespace {

bool has_gpu() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

std::mt19937 generator(1);

std::vector<float> normals(size_t count, float loud = 1) {
  std::normal_distribution<float> normal;
  std::vector<float> x(count);
  for (float& e : x) e = normal(generator);
  for (size_t i = 3; i < count; i += 701) x[i] *= loud;
  return x;
}

// Rows on the device in either type, and the floats they are.
struct DeviceRows {
  DeviceRows(std::vector<float> values, Element element) : floats(std::move(values)) {
    if (element == Element::kFloat32) {
      single.emplace(floats);
      return;
    }
    std::vector<__nv_bfloat16> halves;
    for (float& e : floats) {
      halves.push_back(__float2bfloat16_rn(e));
      e = __bfloat162float(halves.back());
    }
    brain.emplace(halves);
  }
  void* get() { return single ? static_cast<void*>(single->get()) : brain->get(); }
  std::vector<float> floats;
  std::optional<DeviceBuffer<float>> single;
  std::optional<DeviceBuffer<__nv_bfloat16>> brain;
};

// m × m: random signs over √m, or any numbers of that size: the kernels care for linearity only.
std::vector<double> random_factor(int m, bool signs) {
  std::vector<double> factor(static_cast<size_t>(m) * m);
  std::normal_distribution<double> normal;
  for (double& e : factor) {
    e = normal(generator) / std::sqrt(m);
    if (signs) e = std::copysign(1 / std::sqrt(m), e);
  }
  return factor;
}

struct Rotated {
  int m = 0;  // 0: none
  int log2 = 0;
  int inner = 1;
  bool hadamard = true;
  bool random_signs = false;
};

struct Output {
  std::vector<uint8_t> values;
  std::vector<float> scales;
};

struct RowTest {
  int n;
  RowOperation operation = RowOperation::kPlain;
  Rotated rotated;
  Element element = Element::kBFloat16;
  int bits = 4;
  bool int4 = true;
  float loud = 100;
  bool gain = true;
};

// Runs one operation on random rows and holds it against the reference; where `exact`, all codes
// must be equal, else a few may differ by one where the value is a tie but for round-off.
void expect_rows(const RowTest& t, bool exact = false) {
  constexpr int kRows = 5;
  const size_t elements = static_cast<size_t>(kRows) * t.n;
  Rows rows;
  rows.element = t.element;
  rows.rows = kRows;
  rows.n = t.n;
  rows.quant.bits = t.bits;
  rows.quant.pack_int4 = t.int4;
  const std::vector<double> factor = random_factor(std::max(1, t.rotated.m), t.rotated.hadamard);
  std::optional<DeviceBuffer<uint32_t>> words;
  std::vector<int8_t> signs(static_cast<size_t>(t.n), 1);
  if (t.rotated.random_signs) {
    for (int8_t& s : signs) s = generator() % 2 == 0 ? 1 : -1;
  }
  const DeviceBuffer<int8_t> device_signs(signs);
  if (t.rotated.m > 0) {
    auto packed =
        rotation_factor(factor, t.rotated.m, t.rotated.log2, t.rotated.inner, rows.rotation);
    ASSERT_TRUE(packed.ok()) << packed.error().message();
    words.emplace(*packed);
    rows.rotation.factor = words->get();
    if (t.rotated.random_signs) rows.rotation.signs = device_signs.get();
  }
  std::vector<float> values = normals(elements, t.loud);
  std::fill(values.begin() + t.n, values.begin() + 2 * t.n, 0.0F);  // a row of zeros
  for (int i = 0; i < t.n; ++i) values[2 * t.n + i] *= 1e4F;
  for (int i = 0; i < t.n; ++i) values[3 * t.n + i] *= 1e-4F;
  DeviceRows x(values, t.element);
  DeviceRows second(normals(elements), t.element);
  const std::vector<float> gain = normals(static_cast<size_t>(t.n));
  const DeviceBuffer<float> device_gain(gain);
  DeviceBuffer<uint8_t> codes(elements);
  DeviceBuffer<float> scales(kRows);
  codes.fill_bytes(0x5a);
  scales.fill_bytes(0xff);
  rows.quant.values = codes.get();
  rows.quant.scales = scales.get();
  constexpr float kEps = 1e-5F;
  const bool norm = t.operation == RowOperation::kNorm;
  const bool swiglu = t.operation == RowOperation::kSwiglu;
  rows.operation = t.operation;
  rows.x = x.get();
  rows.second = swiglu ? second.get() : nullptr;
  rows.stride = t.n;
  rows.gain = norm && t.gain ? device_gain.get() : nullptr;
  rows.eps = kEps;
  const Status status = quantize_rows(rows, nullptr);
  ASSERT_TRUE(status.ok()) << status.error().message();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);

  const auto got_codes = codes.download();
  const auto got_scales = scales.download();
  int different = 0;
  for (int r = 0; r < kRows; ++r) {
    std::vector<double> y(static_cast<size_t>(t.n));
    for (int i = 0; i < t.n; ++i) {
      const size_t at = static_cast<size_t>(r) * t.n + i;
      y[i] = x.floats[at];
      if (swiglu) y[i] = silu_reference(y[i]) * second.floats[at];
    }
    if (norm) norm_reference(y, t.gain ? gain.data() : nullptr, kEps);
    if (t.rotated.m > 0) {
      for (int i = 0; i < t.n; ++i) y[i] *= signs[i];
      rotate_reference(factor, t.rotated.m, t.rotated.log2, t.rotated.inner, y);
    }
    const QuantizedRow expected = quantize_reference(y, t.bits, rows.quant.clip);
    const size_t row_bytes = static_cast<size_t>(t.n) / (t.int4 ? 2 : 1);
    const auto got = unpack_row(got_codes.data() + r * row_bytes, t.n, t.int4);
    if (exact) {
      ASSERT_EQ(got_scales[r], expected.scale);
    } else {
      ASSERT_NEAR(got_scales[r] / expected.scale, 1, 4e-6) << "n " << t.n << " row " << r;
    }
    for (int i = 0; i < t.n; ++i) {
      ASSERT_LE(std::abs(got[i] - expected.codes[i]), exact ? 0 : 1)
          << "n " << t.n << " m " << t.rotated.m << " row " << r << " at " << i;
      different += got[i] != expected.codes[i] ? 1 : 0;
    }
  }
  EXPECT_LE(different, 2 + static_cast<int>(elements * (t.bits > 4 ? 2e-3 : 1e-4)))
      << "n " << t.n << " m " << t.rotated.m;
}

TEST(FusedRows, QuantisingFloatsIsExact) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  for (int bits = 2; bits <= 8; ++bits) {
    for (const int n : {32, 96, 576, 4096, 11008, 28672}) {
      expect_rows({n, RowOperation::kPlain, {}, Element::kFloat32, bits, bits <= 4, 1}, true);
      expect_rows({n, RowOperation::kPlain, {}, Element::kBFloat16, bits, false, 100}, true);
    }
  }
}

TEST(FusedRows, NormWithoutRotation) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  for (const Element element : {Element::kFloat32, Element::kBFloat16}) {
    for (const int n : {64, 576, 896, 4096, 8192}) {
      expect_rows({n, RowOperation::kNorm, {}, element, 4, true});
      expect_rows({n, RowOperation::kNorm, {}, element, 8, false, 100, false});
    }
  }
}

TEST(FusedRows, SwigluOfEveryModel) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  constexpr struct {
    int m, log2;
    bool hadamard;
  } kWidths[] = {{12, 7, true},   {76, 6, true}, {44, 7, true},  {76, 7, true},  {172, 6, true},
                 {107, 7, false}, {28, 9, true}, {148, 7, true}, {28, 10, true}, {924, 5, true},
                 {1, 12, true},   {1, 14, true}, {20, 6, true},  {12, 4, true}};
  for (const auto& w : kWidths) {
    const int n = w.m << w.log2;
    expect_rows({n, RowOperation::kSwiglu, {w.m, w.log2, 1, w.hadamard, true}});
    expect_rows({n,
                 RowOperation::kSwiglu,
                 {w.m, w.log2, 1, w.hadamard, false},
                 Element::kFloat32,
                 8,
                 false});
  }
  expect_rows({1536, RowOperation::kSwiglu, {}});
}

// Few rows and many take different kernels to the same bits; codes are the same packed.
TEST(FusedRows, DoNotDependOnHowManyThereAre) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  constexpr struct {
    RowOperation operation;
    int m, log2, inner;
  } kTests[] = {{RowOperation::kSwiglu, 172, 6, 1}, {RowOperation::kPlain, 172, 6, 1},
                {RowOperation::kSwiglu, 28, 9, 1},  {RowOperation::kPlain, 28, 9, 1},
                {RowOperation::kSwiglu, 107, 7, 1}, {RowOperation::kPlain, 107, 7, 1},
                {RowOperation::kSwiglu, 28, 10, 1}, {RowOperation::kPlain, 28, 10, 1},
                {RowOperation::kPlain, 12, 7, 1},   {RowOperation::kPlain, 76, 6, 1},
                {RowOperation::kPlain, 44, 7, 1},   {RowOperation::kPlain, 76, 7, 1},
                {RowOperation::kPlain, 148, 7, 1},  {RowOperation::kPlain, 28, 0, 128},
                {RowOperation::kSwiglu, 924, 5, 1}, {RowOperation::kPlain, 924, 5, 1},
                {RowOperation::kPlain, 36, 0, 64},  {RowOperation::kNorm, 1, 12, 1},
                {RowOperation::kNorm, 20, 8, 1},    {RowOperation::kNorm, 28, 7, 1},
                {RowOperation::kNorm, 36, 6, 1},    {RowOperation::kNorm, 36, 4, 1},
                {RowOperation::kNorm, 172, 6, 1},   {RowOperation::kNorm, 28, 9, 1},
                {RowOperation::kNorm, 107, 7, 1},   {RowOperation::kPlain, 172, 0, 64},
                {RowOperation::kPlain, 96, 0, 128}, {RowOperation::kNorm, 924, 5, 1},
                {RowOperation::kNorm, 1, 13, 1}};
  for (const auto& t : kTests) {
    SCOPED_TRACE(::testing::Message() << t.m << " x 2^" << t.log2 << " x " << t.inner);
    Rows rows;
    rows.element = Element::kFloat32;
    rows.operation = t.operation;
    rows.n = (t.m << t.log2) * t.inner;
    const bool swiglu = t.operation == RowOperation::kSwiglu;
    rows.stride = rows.n * (swiglu ? 2 : 1);
    rows.eps = 1e-5F;
    // For each multiprocessor more than it takes at a time.
    const int many = 300 + static_cast<int>(4'000'000 / rows.stride);
    const std::vector<double> factor = random_factor(t.m, t.m != 107);
    const auto words = rotation_factor(factor, t.m, t.log2, t.inner, rows.rotation);
    ASSERT_TRUE(words.ok());
    const DeviceBuffer<uint32_t> device_words(*words);
    rows.rotation.factor = device_words.get();
    std::vector<int8_t> signs(static_cast<size_t>(rows.n));
    for (int8_t& s : signs) s = generator() % 2 == 0 ? 1 : -1;
    const DeviceBuffer<int8_t> device_signs(signs);
    rows.rotation.signs = device_signs.get();
    const DeviceBuffer<float> gain(normals(static_cast<size_t>(rows.n)));
    if (t.operation == RowOperation::kNorm) rows.gain = gain.get();
    const DeviceBuffer<float> x(normals(static_cast<size_t>(many) * rows.stride));
    const auto run = [&](int first, int count, bool int4) {
      DeviceBuffer<uint8_t> codes(static_cast<size_t>(count) * rows.n / (int4 ? 2 : 1));
      DeviceBuffer<float> scales(static_cast<size_t>(count));
      rows.x = x.get() + static_cast<size_t>(first) * rows.stride;
      rows.second = x.get() + static_cast<size_t>(first) * rows.stride + rows.n;
      rows.rows = count;
      rows.quant = {4, int4, 0.9F, codes.get(), scales.get()};
      EXPECT_TRUE(quantize_rows(rows, nullptr).ok());
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      return std::pair(codes.download(), scales.download());
    };
    const auto [all_codes, all_scales] = run(0, many, false);
    const auto row_of = [&](int row) {
      return std::span(all_codes).subspan(static_cast<size_t>(row) * rows.n, rows.n);
    };
    for (const int first : {0, 17, 39, 131, 132, 299, many - 150, many - 1}) {
      const auto [codes, scales] = run(first, 1, false);
      EXPECT_EQ(scales[0], all_scales[first]) << first;
      EXPECT_TRUE(std::ranges::equal(codes, row_of(first))) << first;
    }
    const auto [packed, packed_scales] = run(0, many, true);
    EXPECT_EQ(packed_scales, all_scales);
    for (const int row : {0, 132, many - 1}) {
      const auto unpacked =
          unpack_row(packed.data() + static_cast<size_t>(row) * rows.n / 2, rows.n, true);
      EXPECT_TRUE(std::ranges::equal(unpacked, row_of(row), {}, {}, [](uint8_t code) {
        return static_cast<int8_t>(code);
      })) << row;
    }
  }
}

TEST(FusedRows, NormWithRotation) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  constexpr struct {
    int m, log2;
  } kWidths[] = {{36, 4}, {28, 5}, {1, 11}, {12, 7}, {28, 7}, {1, 12},
                 {20, 8}, {12, 9}, {1, 13}, {1, 10}, {1, 8}};
  for (const auto& w : kWidths) {
    const int n = w.m << w.log2;
    expect_rows({n, RowOperation::kNorm, {w.m, w.log2}});
    expect_rows({n,
                 RowOperation::kNorm,
                 {w.m, w.log2, 1, true, true},
                 Element::kFloat32,
                 8,
                 false,
                 100,
                 false});
  }
}

TEST(FusedRows, AcrossHeads) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  constexpr struct {
    int m, log2, inner;
  } kHeads[] = {{36, 0, 16}, {28, 0, 128}, {1, 4, 128}, {1, 5, 128}, {1, 6, 128}, {1, 5, 64},
                {1, 6, 64},  {20, 1, 128}, {12, 0, 64}, {1, 3, 80},  {28, 0, 32}};
  for (const auto& h : kHeads) {
    const int n = (h.m << h.log2) * h.inner;
    expect_rows({n, RowOperation::kPlain, {h.m, h.log2, h.inner}});
    expect_rows(
        {n, RowOperation::kPlain, {h.m, h.log2, h.inner, true, true}, Element::kFloat32, 8, false});
  }
}

TEST(FusedRows, SaysWhatItHasNotGot) {
  Rows rows;
  rows.rows = 1;
  rows.n = 24;
  EXPECT_EQ(quantize_rows(rows, nullptr).error().code(), ErrorCode::kInvalidArgument);
  RowRotation rotation;
  EXPECT_EQ(rotation_factor(random_factor(12, true), 12, 1, 1, rotation).error().code(),
            ErrorCode::kUnsupported);
}

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
