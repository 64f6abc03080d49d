// A matrix that is looked up by rows and multiplied by few vectors or many: the embedding, lm_head,
// a weight under float activations. It stays as small as it is stored: nothing expands it whole.
#pragma once

#include "quant/quantizer.h"
#include "quant/storage.h"

namespace quarot {

// Elements lie in words of 32 bits, in tiles of 16 rows:
//
//   words   uint32 [⌈rows/16⌉][⌈cols/n⌉][16], n = 32/bits elements a word: element c of row r is
//           field c mod n, the lowest first, of word [r/16][c/n][r mod 16]. Floats are their bits,
//           integers q + 2^(bits−1), standing for scale·q.
//   scales  float [⌈rows/16⌉][groups][16], of integers; groups are consecutive columns
//
// So a vector holds a column of 16 rows: a product adds up in its lanes and never across them.
class RowTable {
 public:
  static constexpr int64_t kTileRows = 16;

  RowTable() = default;
  // To be filled by set_rows(). A group, where there are several, is a multiple of 8 columns.
  RowTable(int64_t rows, int64_t cols, Storage storage, int64_t groups = 1);
  explicit RowTable(ConstMatrixRef values);          // as float32
  explicit RowTable(const QuantizedWeight& weight);  // symmetric, of 4 or 8 bits

  // Rows first, first + 1, …: floats, rounded to nearest where they are stored in 16 bits, …
  void set_rows(int64_t first, ConstMatrixRef values);
  // … or integers as pack_int32() lays them out, with their scales [rows, groups].
  void set_rows(int64_t first, MatrixView<const int32_t> words, ConstMatrixRef scales);

  void read_row(int64_t row, std::span<float> out) const;
  Matrix to_matrix() const;

  bool empty() const { return rows_ == 0; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  Storage storage() const { return storage_; }
  bool is_integer() const { return storage_ == Storage::kInt8 || storage_ == Storage::kInt4; }
  int64_t groups() const { return groups_; }
  int64_t tiles() const { return (rows_ + kTileRows - 1) / kTileRows; }
  int64_t row_words() const { return (cols_ + per_word_ - 1) / per_word_; }
  int64_t per_word() const { return per_word_; }
  const uint32_t* words() const { return words_.data(); }
  const float* scales() const { return scales_.empty() ? nullptr : scales_.data(); }
  int64_t bytes() const { return static_cast<int64_t>(4 * (words_.size() + scales_.size())); }

 private:
  size_t word_index(int64_t row, int64_t word) const {
    return static_cast<size_t>((row / kTileRows * row_words() + word) * kTileRows +
                               row % kTileRows);
  }
  size_t scale_index(int64_t row, int64_t group) const {
    return static_cast<size_t>((row / kTileRows * groups_ + group) * kTileRows + row % kTileRows);
  }

  int64_t rows_ = 0;
  int64_t cols_ = 0;
  Storage storage_ = Storage::kF32;
  int64_t per_word_ = 1;
  int64_t groups_ = 1;
  AlignedVector<uint32_t> words_;
  AlignedVector<float> scales_;
};

}  // namespace quarot
