#include "kernels/cuda/table/table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/cuda/bench.cuh"
#include "quant/row_table.h"

namespace quarot::cuda {
namespace {

bool has_gpu() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

void expect_ok(const Status& status) {
  EXPECT_TRUE(status.ok()) << status.error().message();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

// A table of random integers, here and on the GPU. What lies behind the words there is not zero.
struct Tables {
  Tables(int bits, int64_t rows, int64_t cols) {
    std::mt19937 random(static_cast<unsigned>(rows * cols));
    QuantizedWeight weight;
    weight.quant.bits = bits;
    weight.values = BasicMatrix<int8_t>(rows, cols);
    const int levels = 1 << bits;
    for (int8_t& q : weight.values.elements()) {
      q = static_cast<int8_t>(static_cast<int>(random() % static_cast<unsigned>(levels)) -
                              levels / 2);
    }
    weight.scales = Matrix(rows, 1);
    for (float& s : weight.scales.elements()) s = 1e-3F * static_cast<float>(random() % 1000 + 1);
    host = RowTable(weight);
    const int64_t tile_words = host.row_words() * RowTable::kTileRows;
    std::vector<uint32_t> all(host.words(), host.words() + host.tiles() * tile_words);
    all.resize(all.size() + kTableSlack, ~0U);
    words.emplace(all);
    scales.emplace(
        std::vector<float>(host.scales(), host.scales() + host.tiles() * RowTable::kTileRows));
    device = {words->get(), scales->get(), bits, rows, cols};
  }
  RowTable host;
  std::optional<DeviceBuffer<uint32_t>> words;
  std::optional<DeviceBuffer<float>> scales;
  IntegerTable device;
};

TEST(Table, RowsAreThoseOfTheHost) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  for (const int bits : {8, 4}) {
    const Tables table(bits, 77, 107);
    const std::vector<int32_t> tokens = {0, 76, 15, 16, 40, 40};
    const DeviceBuffer<int32_t> device_tokens(tokens);
    DeviceBuffer<float> y(tokens.size() * 107);
    expect_ok(embed(table.device, device_tokens.get(), y.get(), std::ssize(tokens), nullptr));
    const std::vector<float> found = y.download();
    std::vector<float> row(107);
    for (size_t i = 0; i < tokens.size(); ++i) {
      table.host.read_row(tokens[i], row);
      for (size_t c = 0; c < row.size(); ++c) EXPECT_EQ(found[i * 107 + c], row[c]) << bits;
    }
  }
}

// 70 rows and each of fewer: relative to the size of the terms, and the same bits in all of them.
// The last two tables are large enough that a warp takes two tiles.
TEST(Table, ProductsAreThoseOfTheIntegers) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  struct Shape {
    int64_t rows, cols;
  };
  for (const Shape& shape : {Shape{1000, 576},
                             {33, 100},
                             {5, 30},
                             {4100, 4096},
                             {50, 8200},
                             {70001, 200},
                             {70001, 1800}}) {
    for (const int bits : {8, 4}) {
      const Tables table(bits, shape.rows, shape.cols);
      const Matrix weights = table.host.to_matrix();
      constexpr int64_t kMost = 70;
      std::vector<float> x(static_cast<size_t>(kMost * shape.cols));
      std::mt19937 random(3);
      std::normal_distribution<float> normal;
      for (float& e : x) e = normal(random);
      const DeviceBuffer<float> device_x(x);
      std::vector<float> all;
      for (const int64_t count :
           {kMost, int64_t{1}, int64_t{3}, int64_t{5}, int64_t{16}, int64_t{17}, int64_t{32}}) {
        DeviceBuffer<float> y(static_cast<size_t>(count * shape.rows));
        y.fill_bytes(0xff);
        expect_ok(multiply(table.device, device_x.get(), y.get(), count, nullptr));
        const std::vector<float> found = y.download();
        if (count == kMost) {
          all = found;
        } else {
          EXPECT_TRUE(std::equal(found.begin(), found.end(), all.begin())) << count << " rows";
        }
      }
      double worst = 0;
      for (int64_t r = 0; r<kMost; r += shape.rows> 4000 ? 23 : 1) {
        for (int64_t n = 0; n<shape.rows; n += shape.rows> 10000 ? 13 : 1) {
          double sum = 0;
          double size = 0;
          for (int64_t c = 0; c < shape.cols; ++c) {
            const double term =
                double{x[static_cast<size_t>(r * shape.cols + c)]} * double{weights(n, c)};
            sum += term;
            size += term * term;
          }
          const double off = std::fabs(all[static_cast<size_t>(r * shape.rows + n)] - sum);
          worst = std::max(worst, std::isnan(off) ? 1e9 : off / std::sqrt(size));
        }
      }
      EXPECT_LT(worst, 1e-4) << shape.rows << " × " << shape.cols << ", " << bits << " bits";
    }
  }
}

TEST(Table, OtherBitsAreRefused) {
  IntegerTable table;
  table.bits = 5;
  EXPECT_NE(multiply(table, nullptr, nullptr, 1, nullptr).error().message().find("expected 4 or 8"),
            std::string::npos);
}

}  // namespace
}  // namespace quarot::cuda
