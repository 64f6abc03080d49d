#include "runtime/cpu_layer_stream.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/memory.h"
#include "runtime/vector_math.h"
#include "tensor/gemm.h"

namespace quarot {

Status CpuLayerStream::reserve(int64_t tokens) {
  const int64_t needed = state_bytes(tokens);
  const int64_t available = available_bytes();
  if (needed <= available) return {};
  return error(ErrorCode::kOutOfMemory,
               "calibration: the residual streams of {} tokens need {:.1f} GB, {:.1f} GB free; use "
               "fewer tokens",
               tokens, 1e-9 * static_cast<double>(needed), 1e-9 * static_cast<double>(available));
}

Status CpuLayerStream::add_window(std::span<const Token> tokens, Matrix embedded) {
  SimulatedBackend::State state;
  const auto rows = static_cast<int64_t>(tokens.size());
  state.batch = {{tokens.begin(), tokens.end()}, {{0, 0, rows, 0}}};
  state.residual = std::move(embedded);
  states_.push_back(std::move(state));
  return {};
}

Status CpuLayerStream::run_window(int64_t window, Step step, SiteObserver* observer) {
  SimulatedBackend::State& state = states_[static_cast<size_t>(window)];
  backend_.set_observer(observer);
  const int sequence = backend_.add_sequence();  // id 0: the only one at a time
  backend_.exchange(state);
  step(backend_);
  backend_.exchange(state);
  backend_.drop_sequence(sequence);
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
