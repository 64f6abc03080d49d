// cuda_table_bench [ROWS COLS]: lm_head as a table of integers: the time of a product with few
// rows, and the bytes of the table and of the outputs in that time against the memory's bandwidth;
// without a shape, those of Llama 2 7B and Llama 3 8B. Random data, from more tables in turn than
// L2 holds; the median of 21 samples of 8 launches each.
#include "kernels/cuda/bench.cuh"
#include "kernels/cuda/table/table.h"

namespace quarot::cuda {
namespace {

constexpr double kPeakTerabytes = 4.8;   // H200 datasheet
constexpr size_t kRotation = 256 << 20;  // bytes of tables in turn, against 50 MB of L2

void bench(int bits, int64_t rows, int64_t cols) {
  const size_t words = static_cast<size_t>((rows + 15) / 16 * 16 * (cols * bits / 32));
  std::vector<DeviceBuffer<uint32_t>> tables;
  for (size_t total = 0; total < kRotation || tables.size() < 2; total += 4 * words) {
    tables.emplace_back(words + kTableSlack);
    fill_random(tables.back().get(), 4 * words, static_cast<uint32_t>(tables.size()));
  }
  const DeviceBuffer<float> scales(std::vector<float>(static_cast<size_t>(rows + 15), 0.01F));
  for (const int64_t count : {1, 2, 4, 8, 16, 32, 64, 128}) {
    std::vector<float> host(static_cast<size_t>(count * cols));
    for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<float>(i % 997) / 500 - 1;
    const DeviceBuffer<float> x(host);
    DeviceBuffer<float> y(static_cast<size_t>(count * rows));
    const double ms = median_ms([&](int i) {
      const uint32_t* turn = tables[static_cast<size_t>(i) % tables.size()].get();
      const Status status =
          multiply({turn, scales.get(), bits, rows, cols}, x.get(), y.get(), count, nullptr);
      if (status.ok()) return;
      std::fprintf(stderr, "%s\n", status.error().message().c_str());
      std::exit(1);
    });
    const double passes = static_cast<double>((count + kTableRows - 1) / kTableRows);
    const double bytes = passes * 4.0 * static_cast<double>(words) +
                         4.0 * static_cast<double>(rows + count * (cols + rows));
    std::printf("%d bits %6ld x %4ld, %3ld rows %8.1f us  %5.3f TB/s %5.1f %%\n", bits, rows, cols,
                count, 1e3 * ms, bytes / ms * 1e-9, 100 * bytes / ms * 1e-9 / kPeakTerabytes);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace quarot::cuda

int main(int argc, char** argv) {
  for (const int bits : {8, 4}) {
    if (argc > 2) {
      quarot::cuda::bench(bits, std::atol(argv[1]), std::atol(argv[2]));
      continue;
    }
    quarot::cuda::bench(bits, 32000, 4096);
    quarot::cuda::bench(bits, 128256, 4096);
  }
  return 0;
}
