// Row-major matrices: owning, and views of others' memory. A vector is a matrix of one row.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <span>
#include <type_traits>

#include "base/memory.h"

namespace quarot {

// rows × cols elements; row r starts at data + r·stride, stride ≥ cols.
template <typename T>
class MatrixView {
 public:
  MatrixView() = default;
  MatrixView(T* data, int64_t rows, int64_t cols, int64_t stride)
      : data_(data), rows_(rows), cols_(cols), stride_(stride) {}
  MatrixView(T* data, int64_t rows, int64_t cols) : MatrixView(data, rows, cols, cols) {}

  // A view of T reads as a view of const T.
  operator MatrixView<const T>() const  // NOLINT: as T* converts to const T*
      requires(!std::is_const_v<T>) {
    return {data_, rows_, cols_, stride_};
  }

  T* data() const { return data_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t stride() const { return stride_; }
  bool empty() const { return rows_ == 0 || cols_ == 0; }

  T* row_data(int64_t r) const { return data_ + r * stride_; }
  std::span<T> row(int64_t r) const {
    assert(r >= 0 && r < rows_);
    return {row_data(r), static_cast<size_t>(cols_)};
  }
  T& operator()(int64_t r, int64_t c) const {
    assert(r >= 0 && r < rows_ && c >= 0 && c < cols_);
    return data_[r * stride_ + c];
  }

  MatrixView rows(int64_t first, int64_t count) const {
    assert(first >= 0 && count >= 0 && first + count <= rows_);
    return {row_data(first), count, cols_, stride_};
  }
  MatrixView cols(int64_t first, int64_t count) const {
    assert(first >= 0 && count >= 0 && first + count <= cols_);
    return {data_ + first, rows_, count, stride_};
  }

 private:
  T* data_ = nullptr;
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  int64_t stride_ = 0;
};

// Owns rows × cols elements, aligned to kAlignment, without gaps between rows.
template <typename T>
class BasicMatrix {
 public:
  BasicMatrix() = default;
  BasicMatrix(int64_t rows, int64_t cols) { resize(rows, cols); }  // elements uninitialised
  BasicMatrix(int64_t rows, int64_t cols, T value) : BasicMatrix(rows, cols) {
    std::fill(data_.begin(), data_.end(), value);
  }
  explicit BasicMatrix(MatrixView<const T> view) : BasicMatrix(view.rows(), view.cols()) {
    for (int64_t r = 0; r < rows_; ++r) std::ranges::copy(view.row(r), row(r).begin());
  }

  // Contents are lost unless the shape stays; memory is kept when it suffices.
  void resize(int64_t rows, int64_t cols) {
    rows_ = rows;
    cols_ = cols;
    data_.resize(static_cast<size_t>(rows * cols));
  }

  T* data() { return data_.data(); }
  const T* data() const { return data_.data(); }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t size() const { return rows_ * cols_; }
  bool empty() const { return size() == 0; }

  T* row_data(int64_t r) { return data() + r * cols_; }
  std::span<T> row(int64_t r) { return view().row(r); }
  std::span<const T> row(int64_t r) const { return view().row(r); }
  T& operator()(int64_t r, int64_t c) { return view()(r, c); }
  const T& operator()(int64_t r, int64_t c) const { return view()(r, c); }
  std::span<T> elements() { return {data_.data(), data_.size()}; }
  std::span<const T> elements() const { return {data_.data(), data_.size()}; }

  MatrixView<T> view() { return {data(), rows_, cols_}; }
  MatrixView<const T> view() const { return {data(), rows_, cols_}; }
  operator MatrixView<T>() { return view(); }  // NOLINT: as an array decays to a pointer
  operator MatrixView<const T>() const { return view(); }  // NOLINT

 private:
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  AlignedVector<T> data_;
};

template <typename T>
BasicMatrix<std::remove_const_t<T>> transposed(MatrixView<T> matrix) {
  BasicMatrix<std::remove_const_t<T>> result(matrix.cols(), matrix.rows());
  for (int64_t r = 0; r < matrix.rows(); ++r) {
    for (int64_t c = 0; c < matrix.cols(); ++c) result(c, r) = matrix(r, c);
  }
  return result;
}

using Matrix = BasicMatrix<float>;
using MatrixRef = MatrixView<float>;
using ConstMatrixRef = MatrixView<const float>;

}  // namespace quarot
