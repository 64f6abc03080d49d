// A basis in which given vectors have no loud coordinate, learned from them.
#pragma once

#include "base/progress.h"
#include "rotation/orthogonal.h"

namespace quarot {

// The orthogonal R that, from `start` on, goes down the gradient of
//
//   mean over the rows x of ‖R·x‖₈² / ‖x‖₂²     (rows of zeros count for nothing)
//
// ‖·‖₈ stands for the largest magnitude, which sets the step of a row's quantiser and with it the
// noise, but has a gradient in every coordinate; the quantiser's own error, whose minimum is a
// Procrustes problem (DFRot, Xiang and Zhang 2024), fits the rows it is learned from and no others.
// Momentum, and steps that turn by an antisymmetric matrix, as Cayley's do (SpinQuant, Liu et al.
// 2024), brought back to the orthogonal group by Newton–Schulz iterations: everything is a product
// whose bits are defined (tensor/gemm.h), whatever the number of threads. One trial of a step costs
// 4·rows·size² multiply-adds; `progress` advances by one a trial, flat_basis_trials() in all.
Result<Orthogonal> learn_flat_basis(Matrix rows, const Orthogonal& start, Progress& progress);

int64_t flat_basis_trials();

}  // namespace quarot
