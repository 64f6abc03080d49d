#include "kernels/cuda/gemm/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <tuple>

#include "kernels/cuda/bench.cuh"
#include "kernels/cuda/check.h"
#include "kernels/cuda/gemm/gemm_reference.h"
#include "kernels/cuda/gemm/packed.h"
#include "rotation/hadamard.h"
#include "tensor/dtype.h"

namespace quarot::cuda {
namespace {

using Int8Matrix = BasicMatrix<int8_t>;

bool device_present() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

Int8Matrix random_values(int64_t rows, int64_t columns, int low, int high, std::mt19937& random) {
  Int8Matrix values(rows, columns);
  std::uniform_int_distribution<int> value(low, high);
  for (int8_t& v : values.elements()) v = static_cast<int8_t>(value(random));
  return values;
}

std::vector<float> random_floats(int64_t count, float low, float high, std::mt19937& random) {
  std::vector<float> values(static_cast<size_t>(count));
  std::uniform_real_distribution<float> value(low, high);
  for (float& v : values) v = value(random);
  return values;
}

size_t bytes_of(GemmOutput type) {
  return type == GemmOutput::kFloat32 || type == GemmOutput::kInt32 ? 4 : 2;
}

// A random problem on host and device.
struct Problem {
  Problem(int64_t m, int64_t n, int64_t k, GemmActivations type, unsigned seed)
      : random(seed),
        activations(type == GemmActivations::kInt4 ? random_values(m, k, -8, 7, random)
                                                   : random_values(m, k, -128, 127, random)),
        weight(random_values(n, k, -8, 7, random)),
        activation_scales(random_floats(m, 0.001F, 0.1F, random)),
        weight_scales(random_floats(n, 0.001F, 0.1F, random)),
        bias(random_floats(n, -100.0F, 100.0F, random)),
        packed_weight(static_cast<size_t>(packed_weight_bytes(n, k))),
        packed_activations(
            static_cast<size_t>(type == GemmActivations::kInt4 ? m * k / 2 : m * k)) {
    pack_weight(weight, packed_weight);
    if (type == GemmActivations::kInt4) {
      pack_activations(activations, packed_activations);
    } else {
      std::memcpy(packed_activations.data(), activations.data(), packed_activations.size());
    }
    arguments.m = m;
    arguments.n = n;
    arguments.k = k;
    arguments.activations_type = type;
  }

  std::mt19937 random;
  Int8Matrix activations;
  Int8Matrix weight;
  std::vector<float> activation_scales;
  std::vector<float> weight_scales;
  std::vector<float> bias;
  std::vector<uint8_t> packed_weight;
  std::vector<uint8_t> packed_activations;
  Gemm arguments;
};

// The output's bytes; `output` holds the residual where `residual` is set, else poison.
std::vector<uint8_t> run(const Problem& problem, GemmPath path, GemmOutput type, bool bias,
                         const std::vector<uint8_t>* residual) {
  Gemm p = problem.arguments;
  const DeviceBuffer<uint8_t> activations(problem.packed_activations);
  const DeviceBuffer<uint8_t> weight(problem.packed_weight);
  const DeviceBuffer<float> activation_scales(problem.activation_scales);
  const DeviceBuffer<float> weight_scales(problem.weight_scales);
  const DeviceBuffer<float> biases(problem.bias);
  DeviceBuffer<uint8_t> workspace(static_cast<size_t>(gemm_workspace_bytes(p.m, p.n)));
  DeviceBuffer<uint8_t> output(static_cast<size_t>(p.m * p.n) * bytes_of(type));
  workspace.fill_bytes(0);
  output.fill_bytes(0xff);
  p.activations = activations.get();
  p.weight = weight.get();
  p.activation_scales = activation_scales.get();
  p.weight_scales = weight_scales.get();
  p.bias = bias ? biases.get() : nullptr;
  p.workspace = workspace.get();
  p.output = output.get();
  p.output_type = type;
  if (residual != nullptr) {
    output.upload(*residual);
    p.residual = output.get();
  }
  const Status status = gemm(p, nullptr, path);
  EXPECT_TRUE(status.ok()) << status.error().message();
  require(cudaDeviceSynchronize(), "gemm");
  for (const uint8_t byte : workspace.download()) EXPECT_EQ(byte, 0);
  return output.download();
}

std::vector<int32_t> run_sums(const Problem& problem, GemmPath path) {
  const auto bytes = run(problem, path, GemmOutput::kInt32, false, nullptr);
  std::vector<int32_t> sums(bytes.size() / 4);
  std::memcpy(sums.data(), bytes.data(), bytes.size());
  return sums;
}

void expect_equal(const std::vector<int32_t>& found, const BasicMatrix<int32_t>& expected) {
  size_t wrong = 0;
  for (int64_t t = 0; t < expected.rows(); ++t) {
    for (int64_t c = 0; c < expected.cols(); ++c) {
      const int32_t sum = found[static_cast<size_t>(t * expected.cols() + c)];
      if (sum == expected(t, c)) continue;
      if (++wrong <= 3)
        ADD_FAILURE() << "token " << t << " channel " << c << ": " << sum << ", expected "
                      << expected(t, c);
    }
  }
  EXPECT_EQ(wrong, 0U);
}

struct Path {
  const char* name;
  GemmPath path;
  GemmActivations activations;
  int64_t most_tokens;
  int capability;  // the only one, or 0

  friend void PrintTo(const Path& path, std::ostream* out) { *out << path.name; }
};
constexpr Path kPaths[] = {
    {"int8_mma", GemmPath::kInt8Mma, GemmActivations::kInt8, 1 << 20, 0},
    {"int4_mma", GemmPath::kInt4Mma, GemmActivations::kInt4, 1 << 20, 0},
    {"stream", GemmPath::kStream, GemmActivations::kInt8, kStreamRows, 0},
    {"wgmma", GemmPath::kWgmma, GemmActivations::kInt8, 1 << 20, 90},
};

class GemmTest : public ::testing::TestWithParam<Path> {
 protected:
  void SetUp() override {
    if (!device_present()) GTEST_SKIP() << "no CUDA device is here";
    const auto device = current_device();
    ASSERT_TRUE(device.ok()) << device.error().message();
    if (GetParam().capability != 0 && device->capability != GetParam().capability) {
      GTEST_SKIP() << GetParam().name << " needs compute capability " << GetParam().capability;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Paths, GemmTest, ::testing::ValuesIn(kPaths),
                         [](const auto& info) { return info.param.name; });

// Tokens, channels and depths on both sides of every tile's edge, and models' own.
TEST_P(GemmTest, SumsEqualTheReference) {
  const std::tuple<int64_t, int64_t, int64_t> shapes[] = {
      {1, 1, 32},       {1, 576, 576},    {1, 4096, 4096},   {1, 1000, 28672}, {2, 17, 96},
      {3, 49, 160},     {5, 1024, 4096},  {7, 130, 13696},   {8, 256, 1536},   {9, 4100, 896},
      {13, 272, 28672}, {16, 8192, 512},  {16, 96, 14336},   {17, 300, 1536},  {32, 258, 11008},
      {32, 16, 28672},  {32, 49152, 96},  {33, 257, 576},    {64, 512, 128},   {100, 255, 4096},
      {128, 256, 896},  {129, 16, 1536},  {256, 512, 64},    {300, 777, 672},  {384, 1536, 576},
      {1025, 300, 320}, {128, 36000, 96}, {2100, 1300, 256}, {60, 300, 8192}};
  unsigned seed = 1;
  for (const auto& [m, n, k] : shapes) {
    if (m > GetParam().most_tokens) continue;
    SCOPED_TRACE(::testing::Message() << "m " << m << " n " << n << " k " << k);
    const Problem problem(m, n, k, GetParam().activations, seed++);
    expect_equal(run_sums(problem, GetParam().path),
                 reference_sums(problem.activations, problem.weight));
  }
}

TEST_P(GemmTest, SumsAreExactAtTheExtremes) {
  Problem problem(20, 40, 28672, GetParam().activations, 3);
  const bool int4 = GetParam().activations == GemmActivations::kInt4;
  for (int8_t& v : problem.weight.elements()) v = -8;
  for (int8_t& v : problem.activations.elements()) v = int4 ? -8 : -128;
  pack_weight(problem.weight, problem.packed_weight);
  if (int4) {
    pack_activations(problem.activations, problem.packed_activations);
  } else {
    std::fill(problem.packed_activations.begin(), problem.packed_activations.end(), uint8_t{128});
  }
  for (const int32_t sum : run_sums(problem, GetParam().path)) {
    ASSERT_EQ(sum, 28672 * (int4 ? 64 : 1024));
  }
}

// Every rounding is stated, so floats are equal too, in all types, with and without bias and
// residual.
TEST_P(GemmTest, OutputsEqualTheReferenceBitForBit) {
  const std::pair<int64_t, int64_t> shapes[] = {{1, 256}, {15, 301}, {30, 102}, {200, 512}};
  for (const auto& [m, n] : shapes) {
    if (m > GetParam().most_tokens) continue;
    Problem problem(m, n, 1056, GetParam().activations, 7);
    const auto sums = reference_sums(problem.activations, problem.weight);
    const auto residuals = random_floats(m * n, -50.0F, 50.0F, problem.random);
    for (const GemmOutput type :
         {GemmOutput::kFloat32, GemmOutput::kBFloat16, GemmOutput::kFloat16}) {
      const auto encode = [&](float value, uint8_t* to) {
        uint32_t bits = std::bit_cast<uint32_t>(value);
        if (type == GemmOutput::kBFloat16) bits = float_to_bf16(value);
        if (type == GemmOutput::kFloat16) bits = float_to_f16(value);
        std::memcpy(to, &bits, bytes_of(type));
      };
      const auto decode = [&](const uint8_t* from) {
        uint32_t bits = 0;
        std::memcpy(&bits, from, bytes_of(type));
        if (type == GemmOutput::kBFloat16) return bf16_to_float(static_cast<uint16_t>(bits));
        if (type == GemmOutput::kFloat16) return f16_to_float(static_cast<uint16_t>(bits));
        return std::bit_cast<float>(bits);
      };
      const size_t size = bytes_of(type);
      std::vector<uint8_t> residual(residuals.size() * size);
      for (size_t i = 0; i < residuals.size(); ++i) encode(residuals[i], &residual[i * size]);
      for (const bool bias : {false, true}) {
        for (const bool add : {false, true}) {
          SCOPED_TRACE(::testing::Message() << "m " << m << " type " << static_cast<int>(type)
                                            << " bias " << bias << " residual " << add);
          std::vector<uint8_t> expected(residual.size());
          for (int64_t t = 0; t < m; ++t) {
            for (int64_t c = 0; c < n; ++c) {
              const auto i = static_cast<size_t>(t * n + c) * size;
              const float r = decode(&residual[i]);
              encode(reference_output(sums(t, c), problem.activation_scales[t],
                                      problem.weight_scales[c], bias ? &problem.bias[c] : nullptr,
                                      add ? &r : nullptr),
                     &expected[i]);
            }
          }
          ASSERT_EQ(run(problem, GetParam().path, type, bias, add ? &residual : nullptr), expected);
        }
      }
    }
  }
}

// A product that makes its activations itself makes what the row kernels make.
TEST(GemmRowsTest, EqualsQuantisingFirst) {
  if (!device_present()) GTEST_SKIP() << "no CUDA device is here";
  constexpr struct {
    int64_t outputs;
    RowOperation operation;
    int m, log2, inner;
    bool rotates;
  } kTests[] = {
      {12288, RowOperation::kNorm, 1, 12, 1, false}, {960, RowOperation::kNorm, 36, 4, 1, false},
      {1000, RowOperation::kNorm, 1, 13, 1, false},  {1000, RowOperation::kNorm, 1, 13, 1, true},
      {6144, RowOperation::kNorm, 1, 12, 1, true},   {960, RowOperation::kNorm, 36, 4, 1, true},
      {4096, RowOperation::kPlain, 1, 5, 128, true}, {576, RowOperation::kPlain, 36, 0, 16, true},
      {8192, RowOperation::kPlain, 1, 6, 128, true}, {576, RowOperation::kSwiglu, 12, 7, 1, true},
      {2048, RowOperation::kSwiglu, 44, 7, 1, true}, {896, RowOperation::kSwiglu, 76, 6, 1, false},
      {512, RowOperation::kSwiglu, 100, 6, 1, true}, {512, RowOperation::kNorm, 28, 7, 1, true},
      {512, RowOperation::kNorm, 20, 8, 1, true},    {512, RowOperation::kPlain, 28, 0, 128, true}};
  for (const auto& t : kTests) {
    const int width = (t.m << t.log2) * t.inner;
    SCOPED_TRACE(::testing::Message() << t.outputs << " of " << width);
    const Problem problem(1, t.outputs, width, GemmActivations::kInt8, 11);
    std::mt19937 random(12);
    const DeviceBuffer<float> x(random_floats(2 * width, -3.0F, 3.0F, random));
    const DeviceBuffer<float> gain(random_floats(width, 0.5F, 2.0F, random));
    const DeviceBuffer<uint8_t> weight(problem.packed_weight);
    const DeviceBuffer<float> weight_scales(problem.weight_scales);
    DeviceBuffer<uint8_t> codes(static_cast<size_t>(width));
    DeviceBuffer<float> scale(1);
    DeviceBuffer<uint8_t> workspace(static_cast<size_t>(gemm_workspace_bytes(1, t.outputs)));
    workspace.fill_bytes(0);
    Rows rows;
    rows.element = Element::kFloat32;
    rows.rows = 1;
    rows.n = rows.stride = width;
    rows.operation = t.operation;
    rows.x = x.get();
    rows.second = x.get() + width;
    rows.gain = t.operation == RowOperation::kNorm ? gain.get() : nullptr;
    rows.eps = 1e-5F;
    rows.quant = {4, false, 0.9F, codes.get(), scale.get()};
    const SignMatrix matrix = hadamard_matrix(t.m);
    std::vector<double> factor;
    for (const int8_t sign : matrix.elements()) factor.push_back(sign / std::sqrt(t.m));
    std::optional<DeviceBuffer<uint32_t>> words;
    if (t.rotates) {
      words.emplace(*rotation_factor(factor, t.m, t.log2, t.inner, rows.rotation));
      rows.rotation.factor = words->get();
    }
    if (!gemm_quantizes(rows)) GTEST_SKIP() << "not on this device";
    Gemm p = problem.arguments;
    p.weight = weight.get();
    p.weight_scales = weight_scales.get();
    p.activations = codes.get();
    p.activation_scales = scale.get();
    p.workspace = workspace.get();
    std::vector<float> outputs[2];
    for (const bool itself : {false, true}) {
      DeviceBuffer<float> output(static_cast<size_t>(t.outputs));
      output.fill_bytes(0xff);
      p.output = output.get();
      p.rows = itself ? &rows : nullptr;
      if (!itself) EXPECT_TRUE(quantize_rows(rows, nullptr).ok());
      const Status status = gemm(p, nullptr, GemmPath::kStream);
      ASSERT_TRUE(status.ok()) << status.error().message();
      require(cudaDeviceSynchronize(), "gemm");
      outputs[itself ? 1 : 0] = output.download();
    }
    EXPECT_EQ(outputs[0], outputs[1]);
  }
}

// A gated product is what SwiGLU makes of the product, to the bit: the codes of both are equal.
TEST(GemmGatedTest, EqualsGatingAfterwards) {
  if (!device_present()) GTEST_SKIP() << "no CUDA device is here";
  constexpr struct {
    int64_t m, n, k;
    bool bias;
  } kTests[] = {{300, 22016, 256, false}, {2048, 3072, 576, true}};
  for (const auto& t : kTests) {
    SCOPED_TRACE(::testing::Message() << t.m << " x " << t.n);
    const Problem problem(t.m, t.n, t.k, GemmActivations::kInt8, 13);
    const DeviceBuffer<uint8_t> activations(problem.packed_activations);
    const DeviceBuffer<uint8_t> weight(problem.packed_weight);
    const DeviceBuffer<float> activation_scales(
        std::vector<float>(static_cast<size_t>(t.m), 1e-3F));
    const DeviceBuffer<float> weight_scales(problem.weight_scales);
    const DeviceBuffer<float> bias(problem.bias);
    Gemm p = problem.arguments;
    p.activations = activations.get();
    p.weight = weight.get();
    p.activation_scales = activation_scales.get();
    p.weight_scales = weight_scales.get();
    p.bias = t.bias ? bias.get() : nullptr;
    if (!gemm_gates(p)) GTEST_SKIP() << "not on this device";
    std::vector<uint8_t> codes[2];
    std::vector<float> scales[2];
    for (const bool gated : {false, true}) {
      DeviceBuffer<float> output(static_cast<size_t>(t.m * t.n));
      output.fill_bytes(0xff);
      p.gated = gated;
      p.output = output.get();
      const Status status = gemm(p, nullptr);
      ASSERT_TRUE(status.ok()) << status.error().message();
      DeviceBuffer<uint8_t> values(static_cast<size_t>(t.m * t.n / 2));
      DeviceBuffer<float> row_scales(static_cast<size_t>(t.m));
      Rows rows;
      rows.element = Element::kFloat32;
      rows.rows = static_cast<int>(t.m);
      rows.n = static_cast<int>(t.n / 2);
      rows.operation = gated ? RowOperation::kPlain : RowOperation::kSwiglu;
      rows.x = output.get();
      rows.second = output.get() + rows.n;
      rows.stride = gated ? rows.n : t.n;
      rows.quant = {8, false, 1.0F, values.get(), row_scales.get()};
      ASSERT_TRUE(quantize_rows(rows, nullptr).ok());
      require(cudaDeviceSynchronize(), "gemm");
      codes[gated ? 1 : 0] = values.download();
      scales[gated ? 1 : 0] = row_scales.download();
    }
    EXPECT_EQ(scales[0], scales[1]);
    EXPECT_EQ(codes[0], codes[1]);
    EXPECT_GT(std::ranges::count_if(codes[0], [](uint8_t code) { return code != 0; }), t.n);
  }
  Gemm small;
  small.m = 4;
  small.n = 512;
  small.k = 256;
  EXPECT_FALSE(gemm_gates(small));
}

TEST(GemmArgumentsTest, SayWhatIsWrong) {
  Gemm p;
  p.m = 1;
  p.n = 16;
  p.k = 40;
  EXPECT_EQ(gemm(p, nullptr).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(gemm(p, nullptr).error().message().find("k = 40"), std::string::npos);
  p.k = 64;
  EXPECT_NE(gemm(p, nullptr).error().message().find("activations is null"), std::string::npos);
  p.m = 0;
  EXPECT_TRUE(gemm(p, nullptr).ok());
}

TEST(PackedTest, WeightsLieWhereTheLayoutSays) {
  std::mt19937 random(5);
  const Int8Matrix values = random_values(37, 100, -8, 7, random);
  std::vector<uint8_t> packed(static_cast<size_t>(packed_weight_bytes(37, 100)));
  ASSERT_EQ(packed.size(), 3U * 2 * 512);
  pack_weight(values, packed);
  for (int64_t r = 0; r < 48; ++r) {
    for (int64_t c = 0; c < 128; ++c) {
      const int64_t lane = r % 8 * 4 + c % 16 / 4;
      const int64_t word = c % 64 / 32 * 2 + r % 16 / 8;
      const uint8_t byte = packed[(r / 16 * 2 + c / 64) * 512 + lane * 16 + word * 4 + c % 4];
      const int nibble = c % 32 < 16 ? byte & 0xf : byte >> 4;
      const int expected = r < 37 && c < 100 ? values(r, c) : 0;
      ASSERT_EQ((nibble ^ 8) - 8, expected) << r << ", " << c;
    }
  }
}

}  // namespace
}  // namespace quarot::cuda
