#include "kernels/cpu/table.h"

#include <algorithm>

#include "base/parallel.h"
#include "kernels/cpu/dispatch.h"

namespace quarot::cpu {
namespace {

constexpr int64_t kMultipliesPerThread = 1 << 17;  // fewer are not worth waking one

// x with zeros behind each row, to `cols` columns.
Matrix padded(ConstMatrixRef x, int64_t cols) {
  Matrix y(x.rows(), cols, 0.0F);
  for (int64_t r = 0; r < x.rows(); ++r) std::ranges::copy(x.row(r), y.row_data(r));
  return y;
}

}  // namespace

void multiply(const Kernels& kernels, ConstMatrixRef x, const RowTable& table, MatrixRef y,
              std::span<const float> bias, bool accumulate) {
  assert(x.cols() == table.cols() && y.rows() == x.rows() && y.cols() == table.rows());
  if (x.rows() == 0) return;
  const int64_t whole = table.row_words() * table.per_word();
  Matrix copy;
  if (whole != x.cols()) x = (copy = padded(x, whole));
  TableTask task;
  task.rows = x.rows();
  task.x = x.data();
  task.x_stride = x.stride();
  task.storage = table.storage();
  task.words = table.words();
  task.scales = table.scales();
  task.row_words = table.row_words();
  task.groups = table.groups();
  task.group_words = task.row_words / task.groups;
  task.bias = bias.empty() ? nullptr : bias.data();
  task.outputs = table.rows();
  task.y = y.data();
  task.y_stride = y.stride();
  task.accumulate = accumulate;
  const int64_t panels = (table.tiles() + kTablePanel - 1) / kTablePanel;
  const int64_t panel = x.rows() * whole * kTableTile * kTablePanel;
  parallel_for(panels, kMultipliesPerThread / panel + 1, [&](int64_t first, int64_t last) {
    AlignedVector<float> scratch(static_cast<size_t>(kTableScratch));
    kernels.floats->table(task, first * kTablePanel, std::min(last * kTablePanel, table.tiles()),
                          scratch.data());
  });
}

}  // namespace quarot::cpu
