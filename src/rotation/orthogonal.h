// Orthogonal operators on vectors of length n: how a basis of a space is changed. DESIGN.md,
// section 3.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quarot/status.h"
#include "tensor/matrix.h"

namespace quarot {

// The structure that fast kernels need: an n-vector is seen as a row-major array [outer][m][inner];
// `factor` (m × m, orthogonal) acts on the middle index and, where `butterflies` says so, a
// Walsh–Hadamard transform acts on the rest. See FastHadamard.
enum class FactorKind {
  kNone,       // m = 1
  kSylvester,  // Walsh–Hadamard only
  kPaley1,
  kPaley2,
  kWilliamson,
  kKronecker,  // a product of the above
  kDct,        // no Hadamard matrix of this order is constructed here: an orthogonal DCT-II
};

// How the Hadamard (or nearest) of one order is made: n = 2^log2 · m, H = H_m ⊗ Walsh(2^log2).
struct HadamardPlan {
  int64_t n = 1;
  int log2 = 0;
  int64_t m = 1;
  FactorKind kind = FactorKind::kNone;
  std::string description;  // "2^6 x Paley I(12)"; for people
  std::vector<double>
      factor;  // m × m, row-major, orthonormal (entries ±1/√m for a Hadamard); empty if m = 1
  bool is_hadamard = true;  // false with the DCT fallback

  // Multiply-adds of the fast transform of one vector: n·(log2 + m).
  int64_t operations() const { return n * (log2 + (m > 1 ? m : 0)); }
};

// The plan with the smallest m for which a construction is known; always succeeds for n ≥ 1.
HadamardPlan plan_hadamard(int64_t n);

// An orthogonal n × n matrix B that can be applied to many vectors.
class Orthogonal {
 public:
  static Orthogonal identity(int64_t n);
  static Orthogonal hadamard(int64_t n);  // H, deterministic
  static Orthogonal randomised_hadamard(int64_t n,
                                        uint64_t seed);  // H·diag(s), s = ±1 from the seed
  static Orthogonal random(int64_t n, uint64_t seed);    // Haar: QR of a Gaussian, signs corrected
  static Result<Orthogonal> dense(
      BasicMatrix<double> matrix);  // kInvalidArgument unless orthonormal to 1e-9

  // Block structure for attention heads: vectors are [groups][inner]; H_groups ⊗ I_inner.
  static Orthogonal across(int64_t groups, int64_t inner);
  // I_blocks ⊗ b: the same operator on each consecutive block.
  static Orthogonal blocks(int64_t blocks, const Orthogonal& b);

  int64_t size() const;
  bool is_identity() const;
  std::string description() const;

  // x ← B x, or x ← Bᵀ x, for every row x of the matrix. Rows have size() elements.
  void apply(MatrixView<float> rows) const;
  void apply(MatrixView<double> rows) const;
  void apply_transposed(MatrixView<float> rows) const;
  void apply_transposed(MatrixView<double> rows) const;

  // B as a dense matrix: for tests and for small sizes.
  BasicMatrix<double> matrix() const;

  // What a kernel needs to run the same operator: null unless it is made of one fast transform
  // (with its signs, its outer block count and its inner stride).
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
// of two k ≤ d_h for which H_{k·n_h} is a Hadamard matrix (9 heads of 64 → 36 × 16). Falls back to
// the DCT of n_h.
Orthogonal cross_head_hadamard(int64_t heads, int64_t head_dim);

}  // namespace quarot
