// Any recipe on the CPU, in float32: weights of any kind, bits and groups; without quantisers it is
// the float model. Where weights and activations are integers, so are the floats multiplied here,
// small enough for float32 to add them exactly: the result is the packed kernels', bit for bit.
#pragma once

#include <array>

#include "runtime/cpu_backend.h"
#include "runtime/site_observer.h"

namespace quarot {

class SimulatedBackend final : public CpuBackend {
 public:
  // The model must outlive the backend.
  SimulatedBackend(const Model& model, const Precision& precision);
  SimulatedBackend(std::shared_ptr<const Model> model, const Precision& precision);

  void set_observer(SiteObserver* observer) { observer_ = observer; }

  // What lives from one operation to the next, swapped with what `state` holds: so that a layer can
  // be finished for many batches before the next one begins.
  struct State {
    Batch batch;
    Matrix residual;
    Matrix attention;
  };
  void exchange(State& state);

  // What the linears at the last site read, where its weights are float.
  ConstMatrixRef input() const { return input_; }

  void append_cache(int64_t layer) override;
  void attend(int64_t layer) override;

 private:
  void set_input(int64_t layer, Space site, const RowTask& task) override;
  void project(int64_t layer, Space site, MatrixRef y, bool accumulate) override;

  void own_pages_to_quantize();
  void quantize_page(int64_t layer, const SequenceChunk& chunk, int64_t page);
  void quantize_keys(MatrixRef keys, const Matrix& cos, const Matrix& sin) const;

  const std::optional<Orthogonal>& online_at(Space site) const;
  void turn_heads_in_half(int64_t layer);
  void observe_heads(int64_t layer, Space space, HeadsTask task);
  void multiply_levels(const Linear& linear, MatrixRef y, bool accumulate);
  void add_levels(const QuantizedWeight& weight, int64_t first, MatrixRef sums);
  void multiply_exactly(int64_t first, int64_t count, int64_t piece);

  // Weights held as integers under float activations, once used: the packed backend's product.
  std::vector<std::array<RowTable, kRoles.size()>> tables_;
  SiteObserver* observer_ = nullptr;

  Matrix input_;      // floats, or the integers of quantised activations where weights are such too
  Matrix scales_;     // [rows, groups] of these integers; empty: floats
  int64_t most_ = 0;  // the largest magnitude that they can have
  Matrix levels_;     // of a block of a weight's rows
  Matrix product_;
  BasicMatrix<double> total_;
};

}  // namespace quarot
