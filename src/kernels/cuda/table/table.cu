#include "kernels/cuda/table/table.h"

#include "kernels/cuda/table/table_kernel.cuh"

namespace quarot::cuda {
namespace {

using namespace table;

constexpr int kEmbedThreads = 256;

__global__ void __launch_bounds__(kEmbedThreads)
    embed_kernel(const IntegerTable table, const int32_t* tokens, float* y, int row_words) {
  const int64_t token = tokens[blockIdx.x];
  const int per_word = 32 / table.bits;
  const auto mask = static_cast<int>((1U << table.bits) - 1);
  const int zero = 1 << (table.bits - 1);
  const uint32_t* row = table.words + token / kTileRows * row_words * kTileRows + token % kTileRows;
  const float scale = table.scales[token];
  float* out = y + blockIdx.x * table.cols;
  for (int c = threadIdx.x; c < table.cols; c += kEmbedThreads) {
    const uint32_t word = row[c / per_word * kTileRows];
    const int field = static_cast<int>(word >> (c % per_word * table.bits)) & mask;
    out[c] = static_cast<float>(field - zero) * scale;
  }
}

int64_t row_words(const IntegerTable& table) {
  const int64_t per_word = 32 / table.bits;
  return (table.cols + per_word - 1) / per_word;
}

Status check_table(const IntegerTable& table) {
  if (table.bits == 4 || table.bits == 8) return {};
  return error(ErrorCode::kUnsupported, "a table of {} bits: expected 4 or 8", table.bits);
}

template <int kBits, int kTiles, int kColumnTiles>
Status launch(Task task, const Device& device, cudaStream_t stream) {
  constexpr int kBatchBytes = kBatch * 8 * kColumnTiles * kChunkWords * int{sizeof(Fields<kBits>)};
  const int batches = (task.chunks + kBatch - 1) / kBatch;
  const int fit = device.shared_memory / kBatchBytes;
  const int slices = (batches + fit - 1) / fit;
  const int slice_batches = (batches + slices - 1) / slices;
  task.slice_chunks = slice_batches * kBatch;
  const auto kernel = multiply_table<kBits, kTiles, kColumnTiles>;
  QUAROT_RETURN_IF_ERROR(
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 slice_batches * kBatchBytes),
            "a table"));
  const int most = (task.tiles + kTiles * kWarps - 1) / (kTiles * kWarps);
  const int blocks = std::min(device.multiprocessors, most);
  return launch_early("a table", kernel, dim3(static_cast<unsigned>(blocks)), kThreads,
                      slice_batches * kBatchBytes, stream, task);
}

// Of many rows, with as many tiles that every warp has two: half as often x is staged and read.
template <int kBits>
Status launch(const Task& task, const Device& device, cudaStream_t stream) {
  const bool pairs = task.tiles >= 2 * kWarps * device.multiprocessors;
  if (task.tokens <= 4) return launch<kBits, 1, 1>(task, device, stream);
  if (task.tokens <= 8) return launch<kBits, 1, 2>(task, device, stream);
  if (task.tokens <= 16) {
    return pairs ? launch<kBits, 2, 4>(task, device, stream)
                 : launch<kBits, 1, 4>(task, device, stream);
  }
  return pairs ? launch<kBits, 2, 8>(task, device, stream)
               : launch<kBits, 1, 8>(task, device, stream);
}

}  // namespace

Status embed(const IntegerTable& table, const int32_t* tokens, float* y, int64_t count,
             cudaStream_t stream) {
  QUAROT_RETURN_IF_ERROR(check_table(table));
  if (count == 0) return {};
  embed_kernel<<<static_cast<unsigned>(count), kEmbedThreads, 0, stream>>>(
      table, tokens, y, static_cast<int>(row_words(table)));
  return check_launch("embed");
}

Status multiply(const IntegerTable& table, const float* x, float* y, int64_t count,
                cudaStream_t stream) {
  QUAROT_RETURN_IF_ERROR(check_table(table));
  QUAROT_ASSIGN_OR_RETURN(const Device device, current_device());
  Task task{};
  task.words = table.words;
  task.scales = table.scales;
  task.rows = static_cast<int>(table.rows);
  task.cols = static_cast<int>(table.cols);
  task.row_words = static_cast<int>(row_words(table));
  task.tiles = (task.rows + kTileRows - 1) / kTileRows;
  task.chunks = (task.row_words + kChunkWords - 1) / kChunkWords;
  for (int64_t first = 0; first < count; first += kTableRows) {
    task.tokens = static_cast<int>(std::min(kTableRows, count - first));
    task.x = x + first * table.cols;
    task.y = y + first * table.rows;
    QUAROT_RETURN_IF_ERROR(table.bits == 8 ? launch<8>(task, device, stream)
                                           : launch<4>(task, device, stream));
  }
  return {};
}

}  // namespace quarot::cuda
