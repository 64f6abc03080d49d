// The integer matrix product of reference/gemm.h, on weights packed once at load.
#pragma once

#include <cstdint>

#include "base/memory.h"
#include "kernels/cpu/gemm_task.h"
#include "quarot/status.h"
#include "tensor/matrix.h"

namespace quarot::cpu {

struct Kernels;

inline constexpr int64_t kInputPadding = 64;  // inputs are padded with zeros to a multiple of this

constexpr int64_t padded_inputs(int64_t inputs) {
  return (inputs + kInputPadding - 1) / kInputPadding * kInputPadding;
}

// A weight [outputs, inputs] of 4 or 8 bits in tiles of 32 outputs × all inputs. The layout is the
// same for every instruction set:
//
//   data [⌈outputs/32⌉][inputs/8] blocks; a block is 8 inputs of the tile's 32 outputs.
//   4 bits, 128 bytes: byte 4·c + i holds u(c, i) in its low nibble and u(c, 4+i) in its high one,
//     c = 0…31 the output, i = 0…3, u = w + 8.
//   8 bits, 256 bytes: byte 4·c + i holds u(c, i), byte 128 + 4·c + i holds u(c, 4+i), u = w + 128.
//
// So four inputs of one output are the four bytes that a dot-product instruction adds into that
// output's int32 lane; unpacking a nibble is one mask or one shift and a mask; 16 outputs × 64
// inputs are an AMX tile; and a thread's tiles are one sequential stream. Weights are unsigned
// because u8 × s8 is what x86 multiplies: Σ a·w = Σ a·u − offset·Σ a, whence `sums` below.
struct PackedWeight {
  int64_t outputs = 0;
  int64_t inputs = 0;
  int bits = 4;
  int64_t group = 0;            // inputs that share a scale; `inputs` where there is one group
  AlignedVector<uint8_t> data;  // outputs padded to 32 and inputs to 64, with zero weights
  AlignedVector<float> scales;  // [tile][inputs/group][32]
  AlignedVector<float> bias;    // [tile][32], or empty

  int64_t groups() const { return inputs / group; }
  int64_t tiles() const { return (outputs + kTileOutputs - 1) / kTileOutputs; }
  int64_t tile_bytes() const { return padded_inputs(inputs) * kTileOutputs * bits / 8; }
  int32_t offset() const { return 1 << (bits - 1); }
};

// values [outputs, inputs] in −2^(bits−1)…2^(bits−1)−1, scales [outputs, groups], bias [outputs] or
// empty. kInvalidArgument unless bits is 4 or 8, the shapes agree, inputs ≤ 131072 (so that int32
// sums are exact) and a group, where there are several, is a multiple of 32.
Result<PackedWeight> pack_weight(int bits, MatrixView<const int8_t> values, ConstMatrixRef scales,
                                 std::span<const float> bias = {});

// Row stride of activation values, in bytes: room for the padding, and rows of a block of tokens
// never fall on the same cache set, as they would at a multiple of 4096.
constexpr int64_t activation_stride(int64_t inputs) {
  const int64_t padded = padded_inputs(inputs);
  return padded % 1024 == 0 ? padded + 64 : padded;
}

// y [rows, outputs] = a·wᵀ, scaled, + bias; += with accumulate. y's rows may be strided.
void gemm(const Kernels& kernels, const Activations& a, const PackedWeight& w, MatrixRef y,
          bool accumulate = false);

}  // namespace quarot::cpu
