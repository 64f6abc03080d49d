// Orthogonal operators on vectors of length n: how a basis of a space is changed. DESIGN.md,
// section 3.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quarot/status.h"
#include "rotation/hadamard_plan.h"
#include "tensor/matrix.h"

namespace quarot {

// An orthogonal n × n matrix B that can be applied to many vectors. Copies share what they hold.
class Orthogonal {
 public:
  static Orthogonal identity(int64_t n);
  static Orthogonal hadamard(int64_t n);  // H, deterministic
  static Orthogonal randomised_hadamard(int64_t n,
                                        uint64_t seed);  // H·diag(s), s = ±1 from the seed
  static Orthogonal random(int64_t n, uint64_t seed);    // Haar-distributed: random reflections
  static Result<Orthogonal> dense(
      BasicMatrix<double> matrix);  // kInvalidArgument unless orthonormal to 1e-9

  // Block structure for attention heads: vectors are [groups][inner]; H_groups ⊗ I_inner.
  static Orthogonal across(int64_t groups, int64_t inner);
  // I_blocks ⊗ b: the same operator on each consecutive block.
  static Orthogonal blocks(int64_t blocks, const Orthogonal& b);
  // The product that applies the first part first. At least one part, all of one size.
  static Orthogonal compose(const std::vector<Orthogonal>& parts);

  int64_t size() const;
  bool is_identity() const;
  std::string description() const;

  // x ← B x, or x ← Bᵀ x, for every row x of the matrix. Rows have size() elements. What a row
  // becomes depends on that row alone: not on the other rows, the threads or the instruction set.
  void apply(MatrixView<float> rows) const;
  void apply(MatrixView<double> rows) const;
  void apply_transposed(MatrixView<float> rows) const;
  void apply_transposed(MatrixView<double> rows) const;

  // B as a dense matrix: for tests and for small sizes.
  BasicMatrix<double> matrix() const;

  // What a kernel needs to run the same operator: null unless it is made of one fast transform
  // (with its signs, its outer block count and its inner stride). Points into this operator: valid
  // while it or a copy lives.
  struct Fast {
    const HadamardPlan* plan;
    std::span<const float> signs;  // empty: all +1; applied before H
    int64_t blocks = 1;            // independent consecutive blocks
    int64_t inner = 1;             // each block is [plan->n][inner]
  };
  std::optional<Fast> fast() const;

 private:
  struct Operator;
  explicit Orthogonal(std::shared_ptr<const Operator> op) : op_(std::move(op)) {}
  std::shared_ptr<const Operator> op_;
};

// How the output of attention is mixed across heads, H_{k·n_h} ⊗ I_{d_h/k} with the smallest power
// of two k that divides d_h for which H_{k·n_h} is a Hadamard matrix (9 heads of 64 → 36 × 16).
// Falls back to the plan of n_h itself, with its DCT. One head has nothing to mix: the identity.
Orthogonal cross_head_hadamard(int64_t heads, int64_t head_dim);

}  // namespace quarot
