#include "kernels/cuda/plain/plain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/cuda/bench.cuh"
#include "kernels/cuda/plain/page.h"
#include "kernels/reference/cache.h"
#include "kernels/reference/rows.h"
#include "quant/kept_channels.h"
#include "quant/page_quant.h"
#include "quant/quantizer.h"
#include "tensor/dtype.h"

namespace quarot::cuda {
namespace {

bool has_gpu() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

std::vector<float> normals(size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(count);
  for (float& e : x) e = normal(generator);
  return x;
}

void expect_ok(const Status& status) {
  EXPECT_TRUE(status.ok()) << status.error().message();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

struct Shape {
  int64_t width;
  int64_t m;  // 0: no rotation
  int log2;
  int64_t inner;
  int64_t scale_groups = 1;
};

// The task on the device and in the reference: the same bits.
void expect_equal(RowSource source, int bits, const Shape& s) {
  constexpr int64_t kRows = 5;
  const auto x = normals(static_cast<size_t>(kRows * s.width), 1);
  const auto up = normals(x.size(), 2);
  const auto gain = normals(static_cast<size_t>(s.width), 3);
  const auto factor = normals(static_cast<size_t>(std::max<int64_t>(s.m * s.m, 1)), 4);
  const DeviceBuffer<float> device_x(x), device_up(up), device_gain(gain), device_factor(factor);
  const HadamardTask hadamard{s.m, s.log2, s.inner, factor.data(), 0.37F};
  HadamardTask device_hadamard = hadamard;
  device_hadamard.factor = device_factor.get();

  const int64_t stride = (s.width + 63) / 64 * 64;
  std::vector<int8_t> values(static_cast<size_t>(kRows * stride), 99);
  std::vector<float> scales(static_cast<size_t>(kRows * s.scale_groups));
  std::vector<int32_t> sums(static_cast<size_t>(kRows * s.scale_groups));
  std::vector<float> y(x.size());
  DeviceBuffer<int8_t> device_values(values);
  DeviceBuffer<float> device_scales(scales), device_y(y);
  RowTask task;
  task.rows = kRows;
  task.width = task.x_stride = task.up_stride = task.y_stride = s.width;
  task.source = source;
  task.x = x.data(), task.up = up.data(), task.gain = gain.data(), task.y = y.data();
  task.eps = 1e-5F;
  task.hadamard = s.m > 0 ? &hadamard : nullptr;
  task.clip = 0.9F;
  task.groups = task.scale_groups = s.scale_groups;
  task.values_stride = stride;
  if (bits > 0) {
    task.bits = bits;
    task.values = values.data(), task.scales = scales.data(), task.sums = sums.data();
  }
  reference::rows(task);
  task.x = device_x.get(), task.up = device_up.get(), task.gain = device_gain.get();
  task.hadamard = s.m > 0 ? &device_hadamard : nullptr;
  task.y = device_y.get();
  if (bits > 0) task.values = device_values.get(), task.scales = device_scales.get();
  expect_ok(rows(task, nullptr));
  if (bits > 0) {
    EXPECT_EQ(device_values.download(), values) << s.width;
    EXPECT_EQ(device_scales.download(), scales) << s.width;
  } else {
    EXPECT_EQ(device_y.download(), y) << s.width;
  }
}

TEST(PlainRows, EqualTheReference) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  const Shape shapes[] = {{64, 0, 0, 1},      {172, 43, 2, 1},      {96, 12, 3, 1},
                          {576, 36, 0, 16},   {96, 6, 0, 16},       {4096, 1, 12, 1},
                          {11008, 172, 6, 1}, {1536, 12, 7, 1, 12}, {100, 0, 0, 1, 2},
                          {256, 1, 4, 4}};
  for (const Shape& shape : shapes) {
    for (const RowSource source : {RowSource::kCopy, RowSource::kRmsNorm, RowSource::kSwiGlu}) {
      for (const int bits : {0, 4, 8}) expect_equal(source, bits, shape);
    }
  }
}

TEST(PlainHeads, EqualTheReference) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  constexpr int64_t kTokens = 7;
  constexpr int64_t kHeads = 3;
  for (const auto& [dim, m, log2, rotary] :
       {std::tuple{64, 1, 6, 64}, {80, 20, 2, 32}, {128, 0, 0, 128}, {16, 1, 4, 0}}) {
    const auto size = static_cast<size_t>(kTokens * kHeads * dim);
    const auto x = normals(size, 1);
    const auto gain = normals(static_cast<size_t>(dim), 2);
    const auto turns = normals(static_cast<size_t>(kTokens * std::max(rotary, 2)), 3);
    const auto centre = normals(static_cast<size_t>(kHeads * dim), 4);
    const auto factor = normals(static_cast<size_t>(std::max(m * m, 1)), 5);
    const DeviceBuffer<float> device_x(x), device_gain(gain), device_turns(turns),
        device_centre(centre), device_factor(factor);
    std::vector<float> y(size);
    DeviceBuffer<float> device_y(y);
    HadamardTask hadamard{m, log2, 1, factor.data(), 0.25F};
    HeadsTask task;
    task.tokens = kTokens;
    task.heads = kHeads;
    task.head_dim = dim;
    task.x_stride = task.y_stride = kHeads * dim;
    task.eps = 1e-6F;
    task.rotary = rotary;
    task.scale = 0.125F;
    const auto run = [&](const float* from, const float* g, const float* t, const float* c,
                         const float* f, float* to) {
      hadamard.factor = f;
      task.x = from, task.gain = g, task.centre = c, task.y = to;
      task.cos = rotary > 0 ? t : nullptr;
      task.sin = t + kTokens * (rotary / 2);
      task.hadamard = m > 0 ? &hadamard : nullptr;
    };
    run(x.data(), gain.data(), turns.data(), centre.data(), factor.data(), y.data());
    reference::heads(task);
    run(device_x.get(), device_gain.get(), device_turns.get(), device_centre.get(),
        device_factor.get(), device_y.get());
    expect_ok(heads(task, nullptr));
    EXPECT_EQ(device_y.download(), y) << dim;
  }
}

TEST(PlainSimulate, EqualsTheQuantisers) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  constexpr int64_t kRows = 9;
  constexpr int64_t kWidth = 192;
  for (const int bits : {2, 3, 4, 8}) {
    for (const int64_t group : {int64_t{0}, int64_t{48}, int64_t{3}}) {
      auto x = normals(kRows * kWidth, 7);
      std::fill(x.begin() + 5, x.begin() + 300, 0.0F);
      x[777] = NAN;
      x[900] = INFINITY;
      for (const bool symmetric : {true, false}) {
        std::vector<float> expected = x;
        quarot::simulate(ActivationQuant{bits, group, 0.9F, symmetric},
                         MatrixRef(expected.data(), kRows, kWidth));
        DeviceBuffer<float> device(x);
        expect_ok(simulate({bits, group == 0 ? kWidth : group, 0.9F, symmetric}, device.get(),
                           kRows, kWidth, nullptr));
        EXPECT_EQ(device.download(), expected) << bits << " bits, groups of " << group;
      }
    }
  }
}

TEST(PlainSimulate, EqualsTheQuantisersAroundKeptChannels) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  constexpr int64_t kRows = 9;
  constexpr int64_t kWidth = 100;
  const auto x = normals(kRows * kWidth, 8);
  DeviceBuffer<float> device(x);
  DeviceBuffer<float> device_largest(kWidth);
  expect_ok(largest_magnitudes(device.get(), device_largest.get(), kRows, kWidth, nullptr));
  std::vector<float> largest(kWidth, 0.0F);
  for (size_t i = 0; i < x.size(); ++i) {
    largest[i % kWidth] = std::max(largest[i % kWidth], std::abs(x[i]));
  }
  EXPECT_EQ(device_largest.download(), largest);

  const ActivationQuant quant{4, 24, 0.9F, true};
  const KeptChannels kept{.count = 4, .bits = 8, .sorted = true};
  const ChannelOrder order =
      order_channels(kept, std::vector<double>(largest.begin(), largest.end()), 24);
  ASSERT_EQ(order.kept, 4);
  std::vector<float> expected = x;
  quarot::simulate(quant, kept, order, MatrixRef(expected.data(), kRows, kWidth));
  const DeviceBuffer<int32_t> channels(order.channels);
  Simulation task{4, 24, 0.9F, true, channels.get(), kWidth};
  expect_ok(simulate(task, device.get(), kRows, kWidth - 4, nullptr));
  task.bits = 8, task.group = 4, task.channels += kWidth - 4;
  expect_ok(simulate(task, device.get(), kRows, 4, nullptr));
  EXPECT_EQ(device.download(), expected);
}

// Keys by channel, before RoPE and after; values by token; with outliers and without.
TEST(PlainPage, EqualsTheQuantiser) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  constexpr int64_t kHeads = 3;
  constexpr int64_t kTokens = quarot::kPageTokens;
  for (const int64_t dim : {int64_t{16}, int64_t{96}}) {
    auto x = normals(static_cast<size_t>(kTokens * kHeads * dim), 21);
    x[7] = 40;
    x[100] = NAN;
    for (const double outliers : {0.0, 0.02}) {
      for (const bool by_channel : {true, false}) {
        std::vector<float> expected = x;
        for (int64_t head = 0; head < kHeads; ++head) {
          const MatrixRef page(expected.data() + head * dim, kTokens, dim, kHeads * dim);
          Matrix rows = by_channel ? transposed(page) : Matrix(page);
          simulate_page(3, 0.9F, by_channel ? kTokens : dim / 2, outliers, rows);
          if (by_channel) rows = transposed(rows.view());
          for (int64_t t = 0; t < kTokens; ++t) std::ranges::copy(rows.row(t), page.row(t).begin());
        }
        DeviceBuffer<float> device(x);
        PageTask task;
        task.x = device.get();
        task.stride = kHeads * dim;
        task.heads = kHeads, task.head_dim = dim;
        task.bits = 3, task.clip = 0.9F, task.outliers = outliers;
        task.by_channel = by_channel, task.group = dim / 2;
        expect_ok(simulate_page(task, nullptr));
        const auto found = device.download();
        for (size_t i = 0; i < found.size(); ++i) {
          if (!std::isnan(expected[i]) || !std::isnan(found[i])) {
            ASSERT_EQ(found[i], expected[i]) << dim << ", element " << i;
          }
        }
      }
    }
  }
}

TEST(PlainHalf, RoundsAsTheHostDoes) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  auto x = normals(1000, 5);
  x[3] = 70000, x[4] = 1e-7F, x[5] = -3e-5F;
  DeviceBuffer<float> device(x);
  expect_ok(round_to_half(device.get(), std::ssize(x), nullptr));
  for (float& e : x) e = f16_to_float(float_to_f16(e));
  EXPECT_EQ(device.download(), x);
}

TEST(PlainSplit, TwoHalvesAreTheFloat) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  const auto x = normals(3 * 50, 9);
  const DeviceBuffer<float> device(x);
  DeviceBuffer<__half> halves(2 * x.size());
  expect_ok(split_rows(device.get(), halves.get(), 3, 50, nullptr));
  const auto got = halves.download();
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t at = i / 50 * 100 + i % 50;
    EXPECT_NEAR(__half2float(got[at]) + __half2float(got[at + 50]), x[i], 1e-6F);
  }
}

TEST(PlainSoftmax, OverWhatIsSeen) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  Softmax task;
  task.heads = 2, task.queries = 5, task.position = 300, task.factor = 0.5F;
  for (const int64_t window : {0, 17}) {
    task.window = window;
    task.first_key = window > 0 ? task.position - window + 1 : 0;
    task.keys = task.position + task.queries - task.first_key;
    const auto scores = normals(static_cast<size_t>(task.heads * task.queries * task.keys), 11);
    DeviceBuffer<float> device(scores);
    task.scores = device.get();
    expect_ok(softmax(task, nullptr));
    const auto got = device.download();
    for (int64_t row = 0; row < task.heads * task.queries; ++row) {
      const int64_t end = task.position + row % task.queries - task.first_key + 1;
      const int64_t begin = window > 0 ? end - window : 0;
      double sum = 0;
      for (int64_t i = begin; i < end; ++i) sum += std::exp(0.5 * scores[row * task.keys + i]);
      for (int64_t i = 0; i < task.keys; ++i) {
        const double p = std::exp(0.5 * scores[row * task.keys + i]) / sum;
        EXPECT_NEAR(got[row * task.keys + i], i >= begin && i < end ? p : 0.0, 1e-6) << i;
      }
    }
  }
}

TEST(PlainScores, OfATokenInEachRow) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  constexpr int64_t kRows = 4;
  constexpr int64_t kWidth = 3001;
  auto logits = normals(kRows * kWidth, 13);
  const std::vector<int32_t> targets = {0, 3000, 17, 18};
  logits[1 * kWidth + 3000] = 90;
  logits[2 * kWidth + 17] = logits[2 * kWidth + 18] = 30;  // of equals the first is greedy's
  logits[3 * kWidth + 17] = logits[3 * kWidth + 18] = -200;
  const DeviceBuffer<float> device(logits);
  const DeviceBuffer<int32_t> device_targets(targets);
  DeviceBuffer<RowScore> scores(kRows);
  expect_ok(score_rows(device.get(), device_targets.get(), scores.get(), kRows, kWidth, nullptr));
  const auto got = scores.download();
  for (int64_t r = 0; r < kRows; ++r) {
    const float* row = logits.data() + r * kWidth;
    double sum = 0;
    for (int64_t i = 0; i < kWidth; ++i) sum += std::exp(double{row[i]});
    EXPECT_EQ(got[r].logit, row[targets[r]]);
    EXPECT_NEAR(got[r].log_sum_exp, std::log(sum), 1e-6 * std::fabs(std::log(sum)));
    EXPECT_EQ(got[r].greedy, std::max_element(row, row + kWidth) - row == targets[r] ? 1 : 0);
  }
}

}  // namespace
}  // namespace quarot::cuda
