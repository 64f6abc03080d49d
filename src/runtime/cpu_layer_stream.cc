#include "runtime/cpu_layer_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/memory.h"
#include "runtime/vector_math.h"
#include "tensor/gemm.h"

namespace quarot {

namespace {

void copy_rows(ConstMatrixRef from, MatrixRef to) {
  for (int64_t r = 0; r < from.rows(); ++r) std::ranges::copy(from.row(r), to.row_data(r));
}

}  // namespace

// Half: another stream, the layers and their Hessians need memory too.
Status CpuLayerStream::reserve(int64_t tokens) { return reserve(tokens, available_bytes() / 2); }

Status CpuLayerStream::reserve(int64_t tokens, int64_t memory_limit) {
  Result<ScratchMemory> memory = ScratchMemory::make(state_bytes(tokens), memory_limit);
  if (!memory.ok()) {
    return memory.error().with_context(
        fmt::format("calibration: the residual streams of {} tokens", tokens));
  }
  memory_ = *std::move(memory);
  reserved_rows_ = tokens;
  return {};
}

MatrixRef CpuLayerStream::residual_of(const Window& window) const {
  const int64_t width = model().config.hidden;
  auto* rows = reinterpret_cast<float*>(memory_.data());
  return {rows + window.first_row * width, window.rows(), width};
}

MatrixRef CpuLayerStream::attention_of(const Window& window) const {
  const int64_t width = model().config.width(Space::kAttentionOutput);
  auto* rows = reinterpret_cast<float*>(memory_.data()) + reserved_rows_ * model().config.hidden;
  return {rows + window.first_row * width, window.rows(), width};
}

Status CpuLayerStream::add_window(std::span<const Token> tokens, Matrix embedded) {
  const auto count = static_cast<int64_t>(tokens.size());
  if (rows_ + count > reserved_rows_) {
    return error(ErrorCode::kInvalidArgument,
                 "calibration: {} tokens were reserved, {} and {} more given", reserved_rows_,
                 rows_, count);
  }
  windows_.push_back({{tokens.begin(), tokens.end()}, rows_});
  rows_ += count;
  copy_rows(embedded, residual_of(windows_.back()));
  return {};
}

Status CpuLayerStream::run_window(int64_t index, Step step, SiteObserver* observer) {
  const Window& window = windows_[static_cast<size_t>(index)];
  state_.batch = {window.tokens, {{0, 0, window.rows(), 0}}};
  state_.residual = Matrix(residual_of(window));
  state_.attention = Matrix(attention_of(window));
  backend_.set_observer(observer);
  const int sequence = backend_.add_sequence();  // id 0: the only one at a time
  backend_.exchange(state_);
  step(backend_);
  backend_.exchange(state_);
  backend_.drop_sequence(sequence);
  copy_rows(state_.residual, residual_of(window));
  copy_rows(state_.attention, attention_of(window));
  return {};
}

Result<StreamMoments> CpuLayerStream::moments(Space site, Step step, const ResidualTarget* target) {
  const int64_t width = model().config.width(site);
  StreamMoments moments{Hessian(width), {}};
  if (target != nullptr) moments.lacking.emplace(model().config.hidden, width);
  for (int64_t window = 0; window < windows(); ++window) {
    QUAROT_RETURN_IF_ERROR(check_progress());
    QUAROT_RETURN_IF_ERROR(run_window(window, step, nullptr));
    moments.inputs.add(backend_.input());
    if (target != nullptr) moments.lacking->add(lack(window, site, *target), backend_.input());
  }
  return moments;
}

// What the residual stream would lack after the writer that reads the site.
Matrix CpuLayerStream::lack(int64_t window, Space site, const ResidualTarget& target) const {
  const Linear& writer = model().layers[0][first_reader(site)];
  Matrix result(target.stream->residual(window));
  if (!target.basis.is_identity()) change_basis(result, target.basis);
  Matrix reached(residual(window));
  matmul_transposed(backend_.input(), writer.weight, reached, true);
  for (int64_t r = 0; r < result.rows(); ++r) {
    if (!writer.bias.empty()) add(writer.bias, reached.row(r));
    subtract(reached.row(r), result.row(r));
  }
  return result;
}

}  // namespace quarot
