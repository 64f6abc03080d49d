#include "kernels/cuda/gemm/packed.h"

#include <cassert>

namespace quarot::cuda {
namespace {

uint8_t nibbles(int8_t low, int8_t high) {
  return static_cast<uint8_t>((low & 0xf) | (high & 0xf) << 4);
}

int8_t at(MatrixView<const int8_t> values, int64_t row, int64_t column) {
  return row < values.rows() && column < values.cols() ? values(row, column) : int8_t{0};
}

void pack_block(MatrixView<const int8_t> values, int64_t row, int64_t column, uint8_t* block) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int word = 0; word < 4; ++word) {
      const int64_t r = row + lane / 4 + 8 * (word % 2);
      for (int byte = 0; byte < 4; ++byte) {
        const int64_t c = column + 32 * (word / 2) + 4 * (lane % 4) + byte;
        *block++ = nibbles(at(values, r, c), at(values, r, c + 16));
      }
    }
  }
}

}  // namespace

void pack_weight(MatrixView<const int8_t> values, std::span<uint8_t> packed) {
  assert(std::ssize(packed) == packed_weight_bytes(values.rows(), values.cols()));
  uint8_t* block = packed.data();
  for (int64_t row = 0; row < values.rows(); row += kBlockRows) {
    for (int64_t column = 0; column < values.cols(); column += kBlockColumns) {
      pack_block(values, row, column, block);
      block += kBlockBytes;
    }
  }
}

void pack_activations(MatrixView<const int8_t> values, std::span<uint8_t> packed) {
  assert(values.cols() % 32 == 0 && std::ssize(packed) == values.rows() * values.cols() / 2);
  uint8_t* out = packed.data();
  for (int64_t row = 0; row < values.rows(); ++row) {
    for (int64_t column = 0; column < values.cols(); column += 32) {
      const int8_t* in = values.row_data(row) + column;
      for (int j = 0; j < 16; ++j) *out++ = nibbles(in[j], in[j + 16]);
    }
  }
}

}  // namespace quarot::cuda
