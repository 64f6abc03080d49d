#include "quant/row_table.h"

#include <bit>
#include <cassert>

#include "base/parallel.h"
#include "quant/pack.h"
#include "tensor/dtype.h"

namespace quarot {

namespace {

constexpr int64_t kRowsPerThread = 16;

int bits_of(Storage storage) {
  switch (storage) {
    case Storage::kF32:
      return 32;
    case Storage::kF16:
    case Storage::kBF16:
      return 16;
    case Storage::kInt8:
      return 8;
    case Storage::kInt4:
      return 4;
  }
  return 0;
}

uint32_t encode(float value, Storage storage) {
  if (storage == Storage::kF16) return float_to_f16(value);
  if (storage == Storage::kBF16) return float_to_bf16(value);
  return std::bit_cast<uint32_t>(value);
}

float decode(uint32_t field, Storage storage) {
  if (storage == Storage::kF32) return std::bit_cast<float>(field);
  if (storage == Storage::kF16) return f16_to_float(static_cast<uint16_t>(field));
  if (storage == Storage::kBF16) return bf16_to_float(static_cast<uint16_t>(field));
  return static_cast<float>(static_cast<int32_t>(field) - (1 << (bits_of(storage) - 1)));
}

}  // namespace

RowTable::RowTable(int64_t rows, int64_t cols, Storage storage, int64_t groups)
    : rows_(rows),
      cols_(cols),
      storage_(storage),
      per_word_(32 / bits_of(storage)),
      groups_(groups),
      words_(static_cast<size_t>(tiles() * row_words() * kTileRows), 0U) {
  assert(groups == 1 || cols % (groups * per_word_) == 0);
  if (is_integer()) scales_.assign(static_cast<size_t>(tiles() * groups * kTileRows), 0.0F);
}

RowTable::RowTable(ConstMatrixRef values) : RowTable(values.rows(), values.cols(), Storage::kF32) {
  set_rows(0, values);
}

RowTable::RowTable(const QuantizedWeight& weight)
    : RowTable(weight.values.rows(), weight.values.cols(),
               weight.quant.bits == 4 ? Storage::kInt4 : Storage::kInt8, weight.scales.cols()) {
  assert(weight.quant.symmetric && (weight.quant.bits == 4 || weight.quant.bits == 8));
  set_rows(0, pack_int32(weight.values.view(), weight.quant.bits).view(), weight.scales);
}

void RowTable::set_rows(int64_t first, ConstMatrixRef values) {
  assert(!is_integer() && values.cols() == cols_ && first + values.rows() <= rows_);
  parallel_for(values.rows(), kRowsPerThread, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t i = 0; i < row_words(); ++i) {
        uint32_t word = encode(values(r, i * per_word_), storage_);
        if (per_word_ == 2 && 2 * i + 1 < cols_)
          word |= encode(values(r, 2 * i + 1), storage_) << 16;
        words_[word_index(first + r, i)] = word;
      }
    }
  });
}

void RowTable::set_rows(int64_t first, MatrixView<const int32_t> words, ConstMatrixRef scales) {
  assert(is_integer() && words.cols() == row_words() && scales.cols() == groups_);
  for (int64_t r = 0; r < words.rows(); ++r) {
    for (int64_t i = 0; i < words.cols(); ++i)
      words_[word_index(first + r, i)] = static_cast<uint32_t>(words(r, i));
    for (int64_t g = 0; g < groups_; ++g) scales_[scale_index(first + r, g)] = scales(r, g);
  }
}

void RowTable::read_row(int64_t row, std::span<float> out) const {
  assert(row >= 0 && row < rows_ && out.size() == static_cast<size_t>(cols_));
  const int bits = bits_of(storage_);
  const uint32_t mask = ~uint32_t{0} >> (32 - bits);
  for (int64_t c = 0; c < cols_; ++c) {
    const uint32_t word = words_[word_index(row, c / per_word_)];
    float value = decode(word >> (c % per_word_ * bits) & mask, storage_);
    if (is_integer()) value *= scales_[scale_index(row, c / (cols_ / groups_))];
    out[static_cast<size_t>(c)] = value;
  }
}

Matrix RowTable::to_matrix() const {
  Matrix values(rows_, cols_);
  parallel_for(rows_, kRowsPerThread, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) read_row(r, values.row(r));
  });
  return values;
}

}  // namespace quarot
