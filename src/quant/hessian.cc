#include "quant/hessian.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "quant/cholesky.h"
#include "tensor/gemm.h"

namespace quarot {

namespace {

constexpr int64_t kTokens = 2048;  // a block: bounds the copy and the length of a float32 sum
constexpr int64_t kTile = 128;

// [t, width] → [width, t], times `factor`.
Matrix transposed(ConstMatrixRef inputs, float factor) {
  Matrix result(inputs.cols(), inputs.rows());
  for_each_block((inputs.cols() + kTile - 1) / kTile, [&](int64_t i) {
    const int64_t last = std::min((i + 1) * kTile, inputs.cols());
    for (int64_t t = 0; t < inputs.rows(); ++t) {
      for (int64_t c = i * kTile; c < last; ++c) result(c, t) = factor * inputs(t, c);
    }
  });
  return result;
}

}  // namespace

void Hessian::add(ConstMatrixRef inputs) {
  assert(inputs.cols() == mean_.cols());
  for (int64_t first = 0; first < inputs.rows(); first += kTokens) {
    add_block(inputs.rows(first, std::min(kTokens, inputs.rows() - first)));
  }
}

void Hessian::add_block(ConstMatrixRef inputs) {
  const auto total = static_cast<double>(tokens_ + inputs.rows());
  const auto keep = static_cast<float>(static_cast<double>(tokens_) / total);
  const Matrix x = transposed(inputs, static_cast<float>(std::sqrt(2.0 / total)));

  const auto add_tile = [&](int64_t i) {
    const int64_t first = i * kTile;
    const int64_t count = std::min(kTile, mean_.rows() - first);
    const MatrixRef lower = mean_.view().rows(first, count).cols(0, first + count);
    for (int64_t r = 0; r < count; ++r) {
      for (float& h : lower.row(r)) h *= keep;
    }
    matmul_transposed(x.view().rows(first, count), x.view().rows(0, first + count), lower, true);
    for (int64_t c = 0; c < first + count; ++c) {
      for (int64_t r = std::max<int64_t>(c - first + 1, 0); r < count; ++r) {
        mean_(c, first + r) = lower(r, c);
      }
    }
  };
  // The first and the last tile together are as much work as any other such pair.
  const int64_t tiles = (mean_.rows() + kTile - 1) / kTile;
  for_each_block((tiles + 1) / 2, [&](int64_t i) {
    add_tile(i);
    if (tiles - 1 - i != i) add_tile(tiles - 1 - i);
  });
  tokens_ += inputs.rows();
}

}  // namespace quarot
