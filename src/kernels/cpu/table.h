// Float rows times a RowTable: lm_head, and weights under float activations.
#pragma once

#include "quant/row_table.h"
#include "tensor/matrix.h"

namespace quarot::cpu {

struct Kernels;

// y [rows, table rows] = x·tableᵀ + bias (empty: none); += with accumulate. The table is read once
// for few rows and decoded in registers. Every output is the same sum in the same order: by fma in
// ascending column, whatever else is in x, whatever the threads or the instruction set.
void multiply(const Kernels& kernels, ConstMatrixRef x, const RowTable& table, MatrixRef y,
              std::span<const float> bias = {}, bool accumulate = false);

}  // namespace quarot::cpu
