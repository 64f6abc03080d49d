// The fused row operations, float32 in and int8 out, against the time a copy of their bytes takes:
// fused_bench [--json] [--rows ROWS] [WIDTH…], all without ROWS and WIDTHs.
#include <algorithm>
#include <optional>
#include <string_view>

#include "kernels/cuda/bench.cuh"
#include "kernels/cuda/fused/fused.h"
#include "kernels/cuda/fused/heads.h"
#include "rotation/hadamard.h"

namespace quarot::cuda {
namespace {

constexpr double kCopyBytesPerSecond = 4.27e12;  // measured on an H200
constexpr int kCopies = 4;                       // of the buffers, so that none stays in L2
bool json = false;
int only_rows = 0;
std::vector<int> only_widths;

bool wanted(int rows, int width) {
  return (only_rows == 0 || rows == only_rows) &&
         (only_widths.empty() || std::ranges::find(only_widths, width) != only_widths.end());
}

void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.error().message().c_str());
  std::exit(1);
}

void report(const char* operation, int rows, int n, int m, double bytes, double ms) {
  const double us = 1e3 * ms;
  std::printf(json ? "{\"op\":\"%s\",\"rows\":%d,\"n\":%d,\"m\":%d,\"us\":%.2f,\"of_copy\":%.3f}\n"
                   : "%-22s %6d x %6d  m %4d  %9.2f us  %5.3f of copy\n",
              operation, rows, n, m, us, bytes / kCopyBytesPerSecond / (us * 1e-6));
}

// Normal numbers (Box and Muller 1958), as activations nearly are.
__global__ void fill_normal(float* x, size_t count) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    uint32_t h = static_cast<uint32_t>(i) * 0x9e3779b9U ^ 0x5bd1e995U;
    h = (h ^ h >> 16) * 0x85ebca6bU;
    h = (h ^ h >> 13) * 0xc2b2ae35U;
    h ^= h >> 16;
    const float radius = sqrtf(-2 * logf(static_cast<float>((h >> 16) + 1) / 65537));
    x[i] = radius * cospif(static_cast<float>(h & 0xffff) / 32768);
  }
}

void bench_rows(const char* name, RowOperation operation, int rows, int m, int log2, int inner,
                bool rotate = true) {
  const int n = (m << log2) * inner;
  if (!wanted(rows, n)) return;
  Rows r;
  r.element = Element::kFloat32;
  r.rows = rows;
  r.n = r.stride = n;
  r.operation = operation;
  r.eps = 1e-5F;
  std::optional<DeviceBuffer<uint32_t>> factor;
  if (rotate) {
    // Where there is no Hadamard matrix of this order, a factor of two terms.
    std::vector<double> dense(size_t(m) * m, 0.1);
    if (hadamard_construction(m)) {
      const SignMatrix matrix = hadamard_matrix(m);
      dense.clear();
      for (const int8_t s : matrix.elements()) dense.push_back(s / std::sqrt(m));
    }
    auto words = rotation_factor(dense, m, log2, inner, r.rotation);
    must(words.ok() ? Status() : Status(words.error()));
    factor.emplace(*words);
    r.rotation.factor = factor->get();
  }
  const size_t elements = size_t(rows) * n;
  DeviceBuffer<float> x(kCopies * elements);
  DeviceBuffer<float> y(kCopies * elements);
  fill_normal<<<1024, 256>>>(x.get(), x.size());
  fill_normal<<<1024, 256>>>(y.get(), y.size());
  DeviceBuffer<uint8_t> values(elements);
  DeviceBuffer<float> scales(rows);
  r.quant.values = values.get();
  r.quant.scales = scales.get();
  const double ms = median_ms([&](int i) {
    r.x = x.get() + i % kCopies * elements;
    r.second = y.get() + i % kCopies * elements;
    must(quantize_rows(r, nullptr));
  });
  const double in = operation == RowOperation::kSwiglu ? 8 : 4;
  report(name, rows, n, rotate ? r.rotation.m : 0, elements * (in + 1), ms);
}

void bench_heads(int tokens, int query_heads, int kv_heads, int bits) {
  constexpr int kDim = 128;
  const int width = (query_heads + 2 * kv_heads) * kDim;
  if (!wanted(tokens, width)) return;
  DeviceBuffer<float> qkv(size_t(kCopies) * tokens * width);
  fill_normal<<<1024, 256>>>(qkv.get(), qkv.size());
  DeviceBuffer<__half> q(size_t(tokens) * query_heads * kDim);
  HeadBatch batch;
  batch.element = Element::kFloat32;
  batch.tokens = tokens;
  batch.query_heads = query_heads;
  batch.kv_heads = kv_heads;
  batch.q_stride = batch.k_stride = batch.v_stride = width;
  std::vector<int32_t> positions(tokens);
  for (int i = 0; i < tokens; ++i) positions[i] = i;
  const int pages = (tokens + kPageTokens - 1) / kPageTokens;
  std::vector<int32_t> table(pages);
  for (int i = 0; i < pages; ++i) table[i] = i;
  const DeviceBuffer<int32_t> device_positions(positions);
  const DeviceBuffer<int32_t> device_sequences(std::vector<int32_t>(tokens, 0));
  const DeviceBuffer<int32_t> device_table(table);
  batch.sequences = device_sequences.get();
  batch.positions = device_positions.get();
  DeviceBuffer<float2> turns(size_t(tokens) * kDim / 2);
  turns.fill_bytes(0x3c);
  CacheWriter cache;
  cache.layout = {kDim, bits, bits};
  cache.key_bits = cache.value_bits = bits;
  DeviceBuffer<uint8_t> pool(size_t(pages) * kv_heads * cache.layout.block_bytes());
  cache.pool = pool.get();
  cache.page_table = device_table.get();
  cache.table_stride = pages;
  const double ms = median_ms([&](int i) {
    const float* at = qkv.get() + size_t(i % kCopies) * tokens * width;
    batch.q = at;
    batch.k = at + query_heads * kDim;
    batch.v = at + (query_heads + kv_heads) * kDim;
    must(rotate_and_append(batch, {turns.get(), kDim, false}, {1, 7, nullptr}, cache, q.get(),
                           nullptr));
  });
  const double bytes =
      double(tokens) * (width * 4 + query_heads * kDim * 2 + kDim / 2 * 8) + double(pool.size());
  report(kv_heads == query_heads ? "rope+append mha" : "rope+append gqa", tokens, width, kv_heads,
         bytes, ms);
}

void bench_all() {
  for (const int rows : {2048, 8192}) {
    bench_rows("norm", RowOperation::kNorm, rows, 1, 12, 1, false);
    bench_rows("norm", RowOperation::kNorm, rows, 1, 13, 1, false);
    bench_rows("norm + H", RowOperation::kNorm, rows, 1, 12, 1);
    bench_rows("norm + H", RowOperation::kNorm, rows, 1, 13, 1);
    bench_rows("norm + H", RowOperation::kNorm, rows, 28, 7, 1);
    bench_rows("norm + H", RowOperation::kNorm, rows, 20, 8, 1);
    bench_rows("across heads", RowOperation::kPlain, rows, 1, 5, 128);
    bench_rows("across heads", RowOperation::kPlain, rows, 1, 6, 128);
    bench_rows("across heads", RowOperation::kPlain, rows, 28, 0, 128);
    bench_rows("swiglu, no H", RowOperation::kSwiglu, rows, 28, 9, 1, false);
    constexpr int kWidths[][2] = {{12, 7},  {76, 6}, {44, 7},  {76, 7},  {172, 6},
                                  {107, 7}, {28, 9}, {148, 7}, {28, 10}, {924, 5}};
    for (const auto& w : kWidths) {
      bench_rows("swiglu + H", RowOperation::kSwiglu, rows, w[0], w[1], 1);
      bench_rows("gated + H", RowOperation::kPlain, rows, w[0], w[1], 1);
    }
    bench_heads(rows, 32, 32, 4);
    bench_heads(rows, 32, 8, 4);
  }
}

}  // namespace
}  // namespace quarot::cuda

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg == "--json") {
      quarot::cuda::json = true;
    } else if (arg == "--rows" && i + 1 < argc) {
      quarot::cuda::only_rows = std::atoi(argv[++i]);
    } else {
      quarot::cuda::only_widths.push_back(std::atoi(argv[i]));
    }
  }
  quarot::cuda::bench_all();
}
