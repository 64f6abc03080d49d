// The operations between the matrix products of a block, each one pass over its rows: normalise or
// gate, rotate, quantise. Device pointers aligned to 16 bytes; no allocation, no synchronisation.
// A row's result depends on that row alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

#include "quarot/status.h"

namespace quarot::cuda {

enum class Element { kFloat32, kBFloat16 };

// A fast orthogonal operator as the kernels want it: a row of n = m · columns elements, seen as
// row-major [m][columns], becomes (F ⊗ Walsh(2^walsh_bits)) row, where F is m × m and the Walsh
// transform acts on consecutive runs of 2^walsh_bits columns. walsh_bits is 0 (F ⊗ I: across heads)
// or makes up all the columns.
struct RowRotation {
  int m = 0;  // 0: no rotation
  int columns = 0;
  int walsh_bits = 0;
  unsigned inverse_columns = 0;   // ⌊2³² / columns⌋ + 1
  int terms = 1;                  // float16 terms a factor entry is the sum of
  float scale = 1;                // what makes the unscaled operator orthonormal
  const void* factor = nullptr;   // on the device: the words rotation_factor gave
  const int8_t* signs = nullptr;  // on the device: ±1 for each element, applied first; or null
  // Where all is a Walsh transform of rows of 2^log2, over their index bits `first` to log2 − 1,
  // and of a size that float32 butterflies are made for (walsh_row.cuh). log2 = 0: elsewhere.
  int log2 = 0;
  int first = 0;
  // Whether F is a Hadamard matrix that the compiler knows (sign_factor.h): of float32 rows
  // column_row.cuh then makes float32 additions of it.
  bool known = false;
};

// H = F ⊗ Walsh(2^log2) of F given as m × m orthonormal doubles (empty if m = 1): fills all but the
// pointers of `rotation` and returns the words to upload for `factor`. As many butterflies as pay
// are moved into the dense factor, which tensor cores apply. With inner > 1, H ⊗ I_inner.
// kUnsupported where fewer than 16 columns would remain.
Result<std::vector<uint32_t>> rotation_factor(std::span<const double> factor, int m, int log2,
                                              int inner, RowRotation& rotation);

// Symmetric per-row quantisation (DESIGN.md section 4).
struct RowQuant {
  int bits = 4;            // 2…8
  bool pack_int4 = false;  // two codes a byte: of each 32 channels byte j holds j and 16 + j
  float clip = 0.9F;
  void* values = nullptr;   // [rows, n] int8, or [rows, n / 2] packed
  float* scales = nullptr;  // [rows]
};

// What is made of a row before it is rotated.
enum class RowOperation {
  kPlain,   // x
  kNorm,    // x · gain / √(mean x² + eps)
  kSwiglu,  // silu(x) · second
};

struct Rows {
  Element element = Element::kBFloat16;
  int rows = 0;
  int n = 0;  // a multiple of 16; of 32 for packed int4
  RowOperation operation = RowOperation::kPlain;
  const void* x = nullptr;
  const void* second = nullptr;
  int64_t stride = 0;           // from row to row of both, in elements
  const float* gain = nullptr;  // [n]; null: 1, folded into the readers
  float eps = 0;
  RowRotation rotation;
  RowQuant quant;
};

Status quantize_rows(const Rows& rows, cudaStream_t stream);

}  // namespace quarot::cuda
