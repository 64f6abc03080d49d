// Attention over the quantised cache beside the same kernels with a float16 cache.
//   attention_bench [--json]
#include <cmath>
#include <cstring>
#include <optional>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/bench.cuh"

namespace quarot::cuda {
namespace {

constexpr double kCopyBytesPerSecond = 4.27e12;  // measured on an H200
constexpr size_t kL2Bytes = size_t{128} << 20;   // more than any L2: what rotation must exceed

struct Shape {
  const char* model;
  int query_heads;
  int kv_heads;
  int head_dim;
};
constexpr Shape kShapes[] = {{"llama-2-7b", 32, 32, 128}, {"llama-3-8b", 32, 8, 128}};

__global__ void fill_queries(__half* q, size_t count, unsigned seed) {
  const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count)
    q[i] = __float2half(static_cast<float>((i * 2654435761U + seed) >> 16 & 255) / 64 - 2);
}
// Codes at random; params a scale near 0.01 and a zero in the middle; float16 values below 2.
__global__ void shape_pool(uint32_t* pool, size_t tiles, PageLayout layout) {
  const size_t words = layout.tile_bytes() / 4;
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < tiles * words; i += step) {
    if (layout.key_bits == 16) {
      pool[i] &= 0xbfffbfffU;
    } else if (static_cast<int>(i % words * 4) >= layout.key_params()) {
      pool[i] = pack_param(0.01F, 1 << (layout.key_bits - 1));
    }
  }
}

struct Setup {
  Setup(const Shape& s, int bits, int batch, int length, int new_tokens) {
    layout = {s.head_dim, bits, bits};
    pages = (length + kPageTokens - 1) / kPageTokens;
    pool_blocks = size_t(batch) * pages * s.kv_heads;
    copies = static_cast<int>(kL2Bytes / (pool_blocks * layout.block_bytes()) + 1);
    pool.emplace(copies * pool_blocks * layout.block_bytes());
    fill_random(pool->get(), pool->size(), 7);
    shape_pool<<<1024, 256>>>(reinterpret_cast<uint32_t*>(pool->get()),
                              copies * pool_blocks * (kPageTokens / kTileTokens), layout);
    std::vector<int32_t> ids(size_t(batch) * pages);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = int32_t(i * 7919 % ids.size());
    table.emplace(ids);
    lengths.emplace(std::vector<int32_t>(batch, length));
    const size_t rows = size_t(batch) * new_tokens;
    q.emplace(rows * s.query_heads * s.head_dim);
    out.emplace(q->size());
    fill_queries<<<unsigned(q->size() / 256 + 1), 256>>>(q->get(), q->size(), 3);
    shape.sequences = batch, shape.query_heads = s.query_heads, shape.max_length = length;
    shape.scale = 1 / std::sqrt(float(s.head_dim));
    kv_heads = s.kv_heads;
    workspace.emplace(decode_workspace_bytes(shape, cache(0)));
    workspace->fill_bytes(0);
  }
  PagedCache cache(int copy) const {
    PagedCache view;
    view.layout = layout;
    view.pool = pool->get() + size_t(copy % copies) * pool_blocks * layout.block_bytes();
    view.page_table = table->get();
    view.table_stride = pages;
    view.lengths = lengths->get();
    view.kv_heads = kv_heads;
    return view;
  }
  PageLayout layout;
  int pages;
  int kv_heads;
  size_t pool_blocks;
  int copies;
  std::optional<DeviceBuffer<uint8_t>> pool, workspace;
  std::optional<DeviceBuffer<int32_t>> table, lengths;
  std::optional<DeviceBuffer<__half>> q;
  std::optional<DeviceBuffer<float>> out;
  AttentionShape shape;
};

void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.error().message().c_str());
  std::exit(1);
}

double decode_us(const Shape& s, int bits, int batch, int length, double& bytes) {
  Setup setup(s, bits, batch, length, 1);
  bytes = double(setup.pool_blocks) * setup.layout.block_bytes();
  return 1e3 * median_ms([&](int i) {
           must(attention_decode(setup.q->get(), setup.cache(i), setup.shape,
                                 setup.workspace->get(), setup.out->get(), nullptr));
         });
}

void bench_decode(bool json) {
  struct Load {
    int batch, length;
  };
  constexpr Load kLoads[] = {{1, 256},    {1, 1024}, {1, 4096},  {1, 8192}, {1, 32768},
                             {1, 131072}, {8, 4096}, {64, 4096}, {64, 1024}};
  if (!json) std::printf("decode %-11s batch length bits    us  of copy  vs 16\n", "model");
  for (const Shape& s : kShapes) {
    for (const Load& load : kLoads) {
      double of16 = 0;
      for (const int bits : {16, 8, 4, 2}) {
        double bytes = 0;
        const double us = decode_us(s, bits, load.batch, load.length, bytes);
        if (bits == 16) of16 = us;
        const double share = bytes / kCopyBytesPerSecond / (us * 1e-6);
        std::printf(
            json ? "{\"op\":\"decode\",\"model\":\"%s\",\"batch\":%d,\"length\":%d,\"bits\":%d,"
                   "\"us\":%.2f,\"of_copy\":%.3f,\"ratio\":%.2f}\n"
                 : "decode %-11s %5d %6d %4d %8.2f  %5.3f  %5.2f\n",
            s.model, load.batch, load.length, bits, us, share, of16 / us);
      }
    }
  }
}

// Floating-point operations of causal attention, two products of 2·d each a visible pair.
double prefill_flops(const Shape& s, int batch, int length, int chunk) {
  const double pairs = double(chunk) * (length - chunk) + double(chunk) * (chunk + 1) / 2;
  return 4.0 * s.head_dim * s.query_heads * batch * pairs;
}

void bench_prefill(bool json) {
  struct Load {
    int batch, length, chunk;
  };
  constexpr Load kLoads[] = {
      {1, 2048, 2048}, {16, 2048, 2048}, {1, 16384, 16384}, {1, 32768, 2048}};
  for (const Shape& s : kShapes) {
    for (const Load& load : kLoads) {
      double of16 = 0;
      for (const int bits : {16, 8, 4, 2}) {
        Setup setup(s, bits, load.batch, load.length, load.chunk);
        std::vector<int32_t> starts;
        for (int i = 0; i <= load.batch; ++i) starts.push_back(i * load.chunk);
        const DeviceBuffer<int32_t> device_starts(starts);
        const double us = 1e3 * median_ms(
                                    [&](int i) {
                                      must(attention_prefill(
                                          setup.q->get(), device_starts.get(), load.chunk,
                                          setup.cache(i), setup.shape, setup.out->get(), nullptr));
                                    },
                                    5, 2);
        if (bits == 16) of16 = us;
        std::printf(
            json ? "{\"op\":\"prefill\",\"model\":\"%s\",\"batch\":%d,\"length\":%d,"
                   "\"chunk\":%d,\"bits\":%d,\"us\":%.1f,\"tflops\":%.1f,\"ratio\":%.2f}\n"
                 : "prefill %-11s %3d x %6d, chunk %6d, %2d bits %9.1f us %6.1f TFLOPS %5.2f\n",
            s.model, load.batch, load.length, load.chunk, bits, us,
            prefill_flops(s, load.batch, load.length, load.chunk) / us * 1e-6, of16 / us);
      }
    }
  }
}

}  // namespace
}  // namespace quarot::cuda

int main(int argc, char** argv) {
  const bool json = argc > 1 && std::strcmp(argv[1], "--json") == 0;
  quarot::cuda::bench_decode(json);
  quarot::cuda::bench_prefill(json);
}
