// A basis of one space, x̃ = B·x, B a product of diagonals and orthogonal operators; and what a
// change of basis does to a linear: W̃ = B_out·W·B_in⁻¹, b̃ = B_out·b. DESIGN.md, section 2. All in
// float64.
#pragma once

#include <span>
#include <variant>
#include <vector>

#include "model/model.h"
#include "rotation/orthogonal.h"

namespace quarot {

class Basis {
 public:
  // Appended factors apply after those already there.
  void scale(std::vector<double> diagonal);  // entries ≠ 0; an empty one is ignored
  void rotate(const Orthogonal& op);

  bool is_identity() const { return factors_.empty(); }

  void apply(MatrixView<double> rows) const;                     // every row x ← B·x
  void apply_inverse_transposed(MatrixView<double> rows) const;  // every row w ← B⁻ᵀ·w

 private:
  std::vector<std::variant<std::vector<double>, Orthogonal>> factors_;
};

// weight ← weight·diag(gain)·B⁻¹; an empty gain is all ones.
void change_input_basis(Matrix& weight, std::span<const float> gain, const Basis& basis);

// weight ← B·weight.
void change_output_basis(Matrix& weight, const Basis& basis);

// values ← B·values, for a bias or a constant.
void change_basis(std::vector<float>& values, const Basis& basis);

// Every row x ← B·x.
void change_basis(Matrix& rows, const Basis& basis);

}  // namespace quarot
