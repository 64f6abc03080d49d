// cuda_gemm_bench [--json] [M N K [PATH]]: the GEMM's time and percentage of its limit, the int8
// tensor peak or the memory's bandwidth, whichever bounds it; without a shape, those of Llama 2 7B
// and 70B. Random operands, taken in turn from more of them than L2 holds; bf16 output; the median
// of 21 samples. PATH: auto, stream, wgmma, int8_mma or int4_mma.
#include <array>
#include <cstring>
#include <string>
#include <string_view>

#include "kernels/cuda/bench.cuh"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/packed.h"

namespace quarot::cuda {
namespace {

constexpr double kPeakTops = 1979;       // H200 datasheet, int8, dense
constexpr double kPeakTerabytes = 4.8;   // H200 datasheet
constexpr size_t kRotation = 256 << 20;  // bytes of operands in turn, against 50 MB of L2
constexpr size_t kSlack = 4096;          // whole words of random bytes

struct Shape {
  int64_t m, n, k;
};
constexpr std::array<const char*, 5> kPathNames = {"auto", "stream", "wgmma", "int4_mma",
                                                   "int8_mma"};

struct Operands {
  Operands(const Shape& s, unsigned seed)
      : activations(static_cast<size_t>(s.m * s.k) + kSlack),
        weight(static_cast<size_t>(packed_weight_bytes(s.n, s.k)) + kSlack),
        output(static_cast<size_t>(s.m * s.n)) {
    fill_random(activations.get(), activations.size(), seed);
    fill_random(weight.get(), weight.size(), seed + 1);
  }
  DeviceBuffer<uint8_t> activations;
  DeviceBuffer<uint8_t> weight;
  DeviceBuffer<uint16_t> output;
};

void bench(const Shape& s, GemmPath path, bool json) {
  const size_t bytes =
      static_cast<size_t>(packed_weight_bytes(s.n, s.k) + s.m * s.k + 2 * s.m * s.n);
  std::vector<Operands> operands;
  for (size_t total = 0; total < kRotation || operands.size() < 2; total += bytes) {
    operands.emplace_back(s, 2 * static_cast<unsigned>(operands.size()));
  }
  const DeviceBuffer<float> activation_scales(std::vector<float>(static_cast<size_t>(s.m), 0.01F));
  const DeviceBuffer<float> weight_scales(std::vector<float>(static_cast<size_t>(s.n), 0.01F));
  DeviceBuffer<uint8_t> workspace(static_cast<size_t>(gemm_workspace_bytes(s.m, s.n)));
  workspace.fill_bytes(0);
  const double ms = median_ms(
      [&](int i) {
        Operands& o = operands[static_cast<size_t>(i) % operands.size()];
        Gemm p{.m = s.m, .n = s.n, .k = s.k};
        if (path == GemmPath::kInt4Mma) p.activations_type = GemmActivations::kInt4;
        p.activations = o.activations.get();
        p.activation_scales = activation_scales.get();
        p.weight = o.weight.get();
        p.weight_scales = weight_scales.get();
        p.output_type = GemmOutput::kBFloat16;
        p.output = o.output.get();
        p.workspace = workspace.get();
        if (const Status status = gemm(p, nullptr, path); !status.ok()) {
          std::fprintf(stderr, "%s\n", status.error().message().c_str());
          std::exit(1);
        }
      },
      21, s.m > 512 ? 4 : 32);
  const double tops = 2.0 * s.m * s.n * s.k / ms * 1e-9;
  const double terabytes = bytes / ms * 1e-9;
  const char* name = kPathNames[static_cast<size_t>(path)];
  if (json) {
    std::printf(
        "{\"m\": %ld, \"n\": %ld, \"k\": %ld, \"path\": \"%s\", \"us\": %.2f, \"tops\": %.1f, "
        "\"tops_percent\": %.1f, \"tb_s\": %.3f, \"tb_s_percent\": %.1f}\n",
        s.m, s.n, s.k, name, ms * 1e3, tops, 100 * tops / kPeakTops, terabytes,
        100 * terabytes / kPeakTerabytes);
  } else {
    std::printf("%6ld %6ld %6ld %-9s %9.2f us %7.1f TOPS %5.1f %%  %6.3f TB/s %5.1f %%\n", s.m, s.n,
                s.k, name, ms * 1e3, tops, 100 * tops / kPeakTops, terabytes,
                100 * terabytes / kPeakTerabytes);
  }
  std::fflush(stdout);
}

constexpr Shape kLlama[] = {{0, 4096, 4096},  {0, 12288, 4096}, {0, 11008, 4096}, {0, 22016, 4096},
                            {0, 4096, 11008}, {0, 8192, 8192},  {0, 28672, 8192}, {0, 8192, 28672}};

int main(int argc, char** argv) {
  int first = 1;
  const bool json = argc > 1 && std::string_view(argv[1]) == "--json";
  if (json) ++first;
  if (argc - first >= 3) {
    const Shape shape{std::atol(argv[first]), std::atol(argv[first + 1]),
                      std::atol(argv[first + 2])};
    size_t path = 0;
    while (argc - first > 3 && path + 1 < kPathNames.size() &&
           std::string_view(argv[first + 3]) != kPathNames[path]) {
      ++path;
    }
    bench(shape, static_cast<GemmPath>(path), json);
    return 0;
  }
  for (const int64_t m : {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}) {
    for (const Shape& s : kLlama) bench({m, s.n, s.k}, GemmPath::kAutomatic, json);
  }
  return 0;
}

}  // namespace
}  // namespace quarot::cuda

int main(int argc, char** argv) { return quarot::cuda::main(argc, argv); }
