// The orthogonal operators that a model's widths need: how each is made, how exact it is, what it
// costs.
#pragma once

#include <string>
#include <vector>

#include "model/config.h"
#include "rotation/orthogonal.h"

namespace quarot {

struct OperatorReport {
  std::string name;  // "residual stream (R1)"
  int64_t size = 0;
  std::string made;              // "2^4 x Paley II(36)"
  bool is_hadamard = true;       // or orthogonal by a DCT factor
  double deviation = 0;          // max |H·Hᵀ − I|, in float64
  int64_t fast_operations = 0;   // multiply-adds a vector, as the plan has them
  int64_t dense_operations = 0;  // n²
  double fast_seconds = 0;       // a vector, measured on a batch of them
  double dense_seconds = 0;      // the same by a matrix product; 0 where the matrix is too large
};

std::vector<OperatorReport> measure_operators(const ModelConfig& config);

// max |B·Bᵀ − I|.
double deviation_from_orthogonal(const Orthogonal& op);

}  // namespace quarot
