// Packed weights on the CPU: of 4 or 8 bits, multiplied with quantised activations as integers or
// with float ones decoded in registers. The same numbers as the simulated backend computes, in a
// fraction of the memory.
#pragma once

#include <array>

#include "kernels/cpu/gemm.h"
#include "runtime/cpu_backend.h"

namespace quarot {

class PackedBackend final : public CpuBackend {
 public:
  // kUnsupported, saying what, for a model or a precision that has no packed form: such a one runs
  // simulated.
  static Status check(const Model& model, const Precision& precision);

  // Packs the weights for the kernels and keeps of the model what else it needs. The layers that
  // the model lacks come from `next_layer`, each packed before the next.
  static Result<std::unique_ptr<PackedBackend>> create(Model model, const Precision& precision,
                                                       const NextLayer& next_layer = {});

 private:
  // The linears that read one site, one below the other: a single product computes them all.
  struct Product {
    cpu::PackedWeight integers;  // under quantised activations, or
    RowTable table;              // under float ones, with its bias
    std::vector<float> bias;
  };
  using PackedLayer = std::array<Product, kSites.size()>;

  PackedBackend(std::shared_ptr<const Model> model, const Precision& precision,
                const cpu::Kernels& kernels, std::vector<PackedLayer> layers)
      : CpuBackend(std::move(model), precision, kernels), layers_(std::move(layers)) {}

  static Result<Product> pack(Layer& layer, Space site, bool float_activations);
  const Product& product(int64_t layer, Space site) const;

  void set_input(int64_t layer, Space site, const RowTask& task) override;
  void project(int64_t layer, Space site, MatrixRef y, bool accumulate) override;

  std::vector<PackedLayer> layers_;

  // The input: floats, or quantised as the kernels write and read it.
  Matrix input_;
  AlignedVector<int8_t> values_;
  AlignedVector<float> scales_;
  AlignedVector<int32_t> sums_;
  cpu::Activations activations_;
};

}  // namespace quarot
