#include "kernels/cuda/fused/fused.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>

#include "kernels/cuda/fused/fused_reference.h"
#include "kernels/cuda/fused/fused_test.h"
#include "kernels/cuda/fused/sign_factor.h"

namespace quarot::cuda {
namespace {

struct Rotated {
  int m = 0;  // 0: none
  int log2 = 0;
  int inner = 1;
  bool hadamard = true;
  bool random_signs = false;
  bool known = false;  // the factor is the Hadamard matrix that the program builds
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
  const std::vector<double> factor =
      t.rotated.known ? hadamard_factor(t.rotated.m)
                      : random_factor(std::max(1, t.rotated.m), t.rotated.hadamard);
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
    ASSERT_EQ(rows.rotation.known, t.rotated.known);
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
    bool known = false;
  } kTests[] = {{RowOperation::kSwiglu, 172, 6, 1},      {RowOperation::kPlain, 172, 6, 1},
                {RowOperation::kSwiglu, 28, 9, 1},       {RowOperation::kPlain, 28, 9, 1},
                {RowOperation::kSwiglu, 107, 7, 1},      {RowOperation::kPlain, 107, 7, 1},
                {RowOperation::kSwiglu, 28, 10, 1},      {RowOperation::kPlain, 28, 10, 1},
                {RowOperation::kPlain, 12, 7, 1},        {RowOperation::kPlain, 76, 6, 1},
                {RowOperation::kPlain, 44, 7, 1},        {RowOperation::kPlain, 76, 7, 1},
                {RowOperation::kPlain, 148, 7, 1},       {RowOperation::kPlain, 28, 0, 128},
                {RowOperation::kSwiglu, 924, 5, 1},      {RowOperation::kPlain, 924, 5, 1},
                {RowOperation::kPlain, 36, 0, 64},       {RowOperation::kNorm, 1, 12, 1},
                {RowOperation::kNorm, 20, 8, 1},         {RowOperation::kNorm, 28, 7, 1},
                {RowOperation::kNorm, 36, 6, 1},         {RowOperation::kNorm, 36, 4, 1},
                {RowOperation::kNorm, 172, 6, 1},        {RowOperation::kNorm, 28, 9, 1},
                {RowOperation::kNorm, 107, 7, 1},        {RowOperation::kPlain, 172, 0, 64},
                {RowOperation::kPlain, 96, 0, 128},      {RowOperation::kNorm, 924, 5, 1},
                {RowOperation::kNorm, 1, 13, 1},         {RowOperation::kNorm, 12, 7, 1, true},
                {RowOperation::kNorm, 20, 8, 1, true},   {RowOperation::kSwiglu, 12, 7, 1, true},
                {RowOperation::kSwiglu, 44, 7, 1, true}, {RowOperation::kPlain, 44, 7, 1, true}};
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
    const std::vector<double> factor =
        t.known ? hadamard_factor(t.m) : random_factor(t.m, t.m != 107);
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

// Those of float32 rows, and of others, which tensor cores turn.
TEST(FusedRows, KnownFactors) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  for (const ColumnShape& s : kColumnShapes) {
    const Rotated rotated{s.m, s.log2, 1, true, true, true};
    const int n = s.m << s.log2;
    for (const auto operation :
         {RowOperation::kPlain, RowOperation::kNorm, RowOperation::kSwiglu}) {
      expect_rows({n, operation, rotated, Element::kFloat32});
      expect_rows({n, operation, rotated, Element::kFloat32, 8, false, 100, false});
    }
    expect_rows({n, RowOperation::kPlain, rotated});
  }
}

template <int m>
void expect_known_factor() {
  static constexpr SignTable<m> kTable = paley<m - 1>();
  const SignMatrix expected = hadamard_matrix(m);
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < m; ++j) ASSERT_EQ(kTable.at[i][j], expected(i, j)) << m;
  }
}

// The compiler's matrices are those that the weights were turned by.
TEST(FusedRows, KnownFactorsAreTheProgramsHadamardMatrices) {
  expect_known_factor<12>();
  expect_known_factor<20>();
  expect_known_factor<44>();
  expect_known_factor<28>();  // of a field that is not of a prime order
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

}  // namespace
}  // namespace quarot::cuda
