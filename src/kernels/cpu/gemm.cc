#include "kernels/cpu/gemm.h"

#include <algorithm>

#include "base/error.h"
#include "base/parallel.h"
#include "kernels/cpu/dispatch.h"

namespace quarot::cpu {
namespace {

constexpr int64_t kMaxInputs = 131072;
constexpr int64_t kMinGroup = 32;

constexpr int64_t kRowMultiple = 96;  // of every instruction set's register block

int64_t block_rows(const Kernels& kernels, int64_t stride) {
  return std::max(kernels.block_bytes / stride / kRowMultiple, int64_t{1}) * kRowMultiple;
}

// Kept by each thread from product to product: fresh pages would cost more than a small one. Not on
// the stack, for that of a thread of the caller's may be small.
std::byte* workspace(const Kernels& kernels) {
  thread_local AlignedVector<std::byte> memory;
  const auto bytes = static_cast<size_t>(kernels.workspace_bytes);
  if (memory.size() < bytes) memory.resize(bytes);
  return memory.data();
}

// Multiply-adds below which waking another thread costs more than it saves.
constexpr int64_t kGrain = 1 << 17;

Status check(int bits, MatrixView<const int8_t> values, ConstMatrixRef scales,
             std::span<const float> bias) {
  if (bits != 4 && bits != 8) {
    return error(ErrorCode::kInvalidArgument, "packed weights have 4 or 8 bits, not {}", bits);
  }
  if (values.empty() || values.cols() > kMaxInputs) {
    return error(ErrorCode::kInvalidArgument,
                 "a packed weight has 1 to {} inputs and at least one output, not {} and {}",
                 kMaxInputs, values.cols(), values.rows());
  }
  const int64_t groups = scales.cols();
  if (scales.rows() != values.rows() || groups < 1 || values.cols() % groups != 0 ||
      (groups > 1 && values.cols() / groups % kMinGroup != 0)) {
    return error(ErrorCode::kInvalidArgument,
                 "scales [{}, {}] do not fit a weight [{}, {}]: expected one row an output, and "
                 "groups of a multiple of {} inputs",
                 scales.rows(), groups, values.rows(), values.cols(), kMinGroup);
  }
  if (!bias.empty() && bias.size() != static_cast<size_t>(values.rows())) {
    return error(ErrorCode::kInvalidArgument, "a bias of {} for {} outputs", bias.size(),
                 values.rows());
  }
  return {};
}

// Rows first…last−1 of `values`, all of one tile, into its blocks.
void pack_tile(MatrixView<const int8_t> values, int bits, int64_t tile, uint8_t* data) {
  const int offset = 1 << (bits - 1);
  const int64_t first = tile * kTileOutputs;
  const int64_t outputs = std::min(kTileOutputs, values.rows() - first);
  const auto value = [&](int64_t c, int64_t k) {
    const int w = c < outputs && k < values.cols() ? values(first + c, k) : 0;
    return static_cast<uint8_t>(w + offset);
  };
  for (int64_t block = 0; block < padded_inputs(values.cols()) / 8; ++block) {
    for (int64_t c = 0; c < kTileOutputs; ++c) {
      for (int64_t i = 0; i < 4; ++i) {
        const uint8_t low = value(c, block * 8 + i);
        const uint8_t high = value(c, block * 8 + 4 + i);
        if (bits == 4) {
          data[c * 4 + i] = static_cast<uint8_t>(low | high << 4);
        } else {
          data[c * 4 + i] = low;
          data[128 + c * 4 + i] = high;
        }
      }
    }
    data += 32 * bits;
  }
}

}  // namespace

Result<PackedWeight> pack_weight(int bits, MatrixView<const int8_t> values, ConstMatrixRef scales,
                                 std::span<const float> bias) {
  QUAROT_RETURN_IF_ERROR(check(bits, values, scales, bias));
  PackedWeight w;
  w.outputs = values.rows();
  w.inputs = values.cols();
  w.bits = bits;
  w.group = w.inputs / scales.cols();
  w.data.resize(static_cast<size_t>(w.tiles() * w.tile_bytes()));
  parallel_for(w.tiles(), 1, [&](int64_t first, int64_t last) {
    for (int64_t tile = first; tile < last; ++tile) {
      pack_tile(values, bits, tile, w.data.data() + tile * w.tile_bytes());
    }
  });
  w.scales.assign(static_cast<size_t>(w.tiles() * w.groups() * kTileOutputs), 0.0F);
  for (int64_t n = 0; n < w.outputs; ++n) {
    for (int64_t g = 0; g < w.groups(); ++g) {
      const int64_t row = n / kTileOutputs * w.groups() + g;
      w.scales[static_cast<size_t>(row * kTileOutputs + n % kTileOutputs)] = scales(n, g);
    }
  }
  if (!bias.empty()) {
    w.bias.assign(static_cast<size_t>(w.tiles() * kTileOutputs), 0.0F);
    std::ranges::copy(bias, w.bias.begin());
  }
  return w;
}

void gemm(const Kernels& kernels, const Activations& a, const PackedWeight& w, MatrixRef y,
          bool accumulate) {
  assert(y.rows() == a.rows && y.cols() == w.outputs);
  GemmTask task;
  task.a = a;
  task.w = w.data.data();
  task.w_scales = w.scales.data();
  task.bias = w.bias.empty() ? nullptr : w.bias.data();
  task.bits = w.bits;
  task.outputs = w.outputs;
  task.tile_bytes = w.tile_bytes();
  task.groups = w.groups();
  task.group_blocks = (w.groups() == 1 ? padded_inputs(w.inputs) : w.group) / 8;
  task.y = y.data();
  task.y_stride = y.stride();
  task.accumulate = accumulate;
  const int64_t rows = std::min(block_rows(kernels, a.stride), a.rows);
  if (rows == 0) return;
  // The work is cut in a line through blocks of rows, each a line of tiles.
  const int64_t tiles = w.tiles();
  const int64_t blocks = (a.rows + rows - 1) / rows;
  const int64_t grain = std::max(kGrain / (rows * w.inputs * kTileOutputs), int64_t{1});
  parallel_for(blocks * tiles, grain, [&](int64_t first, int64_t last) {
    while (first < last) {
      const int64_t row = first / tiles * rows;
      const int64_t tile = first % tiles;
      const int64_t end = std::min(tiles, tile + last - first);
      kernels.gemm(task, {row, std::min(row + rows, a.rows), tile, end, workspace(kernels)});
      first += end - tile;
    }
  });
}

}  // namespace quarot::cpu
