#include "tensor/gemm.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>

#include "base/parallel.h"
#include "tensor/gemm_kernel.h"
#include "tensor/gemm_loops.h"

namespace quarot {

namespace {

// Goto and van de Geijn (2008): a block of `a`, kChain deep, stays in the L2 cache, a panel of `b`
// in the L1 cache, a tile of y in registers.
constexpr int64_t kBlockRows = 252;  // a multiple of 12 and of 6
constexpr int64_t kBlockCols = 512;
constexpr int64_t kFewRows = 4;

struct Scalar {
  using Type = float;
  static constexpr int kLanes = 1;
  static float load(const float* p) { return *p; }
  static void store(float* p, float v) { *p = v; }
  static float broadcast(float x) { return x; }
  static float fma(float x, float y, float z) { return std::fma(x, y, z); }
  static Quad fma(Quad x, Quad y, Quad z) {
    for (int i = 0; i < 4; ++i) z[i] = std::fma(x[i], y[i], z[i]);
    return z;
  }
};

// rows [up to width, inner] → [inner, width], the rows that are missing 0.
void interleave(ConstMatrixRef rows, int64_t width, float* out) {
  const int64_t whole_rows = rows.rows() / 4 * 4;
  const int64_t whole_cols = rows.cols() / 4 * 4;
  for (int64_t r = 0; r < whole_rows; r += 4) {
    for (int64_t k = 0; k < whole_cols; k += 4) {
      Quad v[4];
      for (int i = 0; i < 4; ++i) v[i] = load_quad(rows.row_data(r + i) + k);
      transpose(v);
      for (int i = 0; i < 4; ++i) std::memcpy(out + (k + i) * width + r, &v[i], sizeof(Quad));
    }
  }
  for (int64_t k = 0; k < rows.cols(); ++k) {
    float* column = out + k * width;
    for (int64_t r = k < whole_cols ? whole_rows : 0; r < rows.rows(); ++r) column[r] = rows(r, k);
    std::fill(column + rows.rows(), column + width, 0.0F);
  }
}

// The same of rows [inner, up to width].
void pad(ConstMatrixRef rows, int64_t width, float* out) {
  for (int64_t k = 0; k < rows.rows(); ++k, out += width) {
    std::fill(std::ranges::copy(rows.row(k), out).out, out + width, 0.0F);
  }
}

// y = sums, or y += sums.
void put(const float* sums, bool add, std::span<float> y) {
  for (size_t i = 0; i < y.size(); ++i) y[i] = add ? y[i] + sums[i] : sums[i];
}

struct Product {
  ConstMatrixRef a;  // [m, inner]
  ConstMatrixRef b;  // [inner, n], or [n, inner]
  bool transposed;
  MatrixRef y;
  bool accumulate;
  GemmKernel kernel;

  // Rows first … of y, and columns, on one thread.
  void block(int64_t first_row, int64_t rows, int64_t first_col, int64_t cols) const {
    thread_local AlignedVector<float> packed;
    thread_local AlignedVector<float> panel;
    thread_local AlignedVector<float> tile;
    packed.resize((kBlockRows + kernel.rows) * kChain);
    panel.resize(kernel.cols * kChain);
    tile.resize(kernel.rows * kernel.cols);
    const int64_t inner = a.cols();
    for (int64_t k = 0; k == 0 || k < inner; k += kChain) {
      const int64_t depth = std::min(kChain, inner - k);
      for (int64_t r = 0; r < rows; r += kernel.rows) {
        interleave(a.rows(first_row + r, std::min(kernel.rows, rows - r)).cols(k, depth),
                   kernel.rows, packed.data() + r * depth);
      }
      for (int64_t c = 0; c < cols; c += kernel.cols) {
        const int64_t width = std::min(kernel.cols, cols - c);
        if (transposed) {
          interleave(b.rows(first_col + c, width).cols(k, depth), kernel.cols, panel.data());
        } else {
          pad(b.rows(k, depth).cols(first_col + c, width), kernel.cols, panel.data());
        }
        for (int64_t r = 0; r < rows; r += kernel.rows) {
          const int64_t height = std::min(kernel.rows, rows - r);
          const MatrixRef out = y.rows(first_row + r, height).cols(first_col + c, width);
          kernel.run(depth, packed.data() + r * depth, panel.data(), tile.data());
          for (int64_t i = 0; i < height; ++i)
            put(tile.data() + i * kernel.cols, accumulate || k > 0, out.row(i));
        }
      }
    }
  }

  void dots(int64_t row, int64_t col) const {
    float sums[kDots];
    for (int64_t k = 0; k == 0 || k < a.cols(); k += kChain) {
      kernel.dots(std::min(kChain, a.cols() - k), a.row_data(row) + k, b.row_data(col) + k,
                  b.stride(), sums);
      put(sums, accumulate || k > 0, y.row(row).subspan(static_cast<size_t>(col), kDots));
    }
  }

  // Few rows do not repay packing: every column of y, up to the last whole kDots of them.
  void run_rows() const {
    parallel_for(y.cols() / kDots, std::max<int64_t>(1, 4096 / (a.cols() + 1)),
                 [&](int64_t first, int64_t last) {
                   for (int64_t i = first * kDots; i < last * kDots; i += kDots) {
                     for (int64_t r = 0; r < y.rows(); ++r) dots(r, i);
                   }
                 });
  }

  void run() const {
    const int64_t across = (y.cols() + kBlockCols - 1) / kBlockCols;
    const int64_t down = (y.rows() + kBlockRows - 1) / kBlockRows;
    parallel_for(across * down, 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const int64_t row = i / across * kBlockRows;
        const int64_t col = i % across * kBlockCols;
        block(row, std::min(kBlockRows, y.rows() - row), col, std::min(kBlockCols, y.cols() - col));
      }
    });
  }
};

}  // namespace

GemmKernel gemm_kernel([[maybe_unused]] VectorWidth width) {
#if defined(__x86_64__)
  if (width == VectorWidth::kAvx512) return avx512::gemm_kernel();
  if (width == VectorWidth::kAvx2) return avx2::gemm_kernel();
#endif
  return kernel_of<Scalar, 4, 16>();
}

void matmul_transposed(ConstMatrixRef x, ConstMatrixRef w, MatrixRef y, bool accumulate) {
  assert(x.cols() == w.cols() && x.rows() == y.rows() && w.rows() == y.cols());
  Product product{x, w, true, y, accumulate, gemm_kernel(vector_width())};
  if (y.rows() <= kFewRows) {
    product.run_rows();
    const int64_t done = y.cols() / kDots * kDots;
    product.b = w.rows(done, w.rows() - done);
    product.y = y.cols(done, y.cols() - done);
  }
  product.run();
}

void matmul(ConstMatrixRef a, ConstMatrixRef b, MatrixRef y, bool accumulate) {
  assert(a.cols() == b.rows() && a.rows() == y.rows() && b.cols() == y.cols());
  Product{a, b, false, y, accumulate, gemm_kernel(vector_width())}.run();
}

}  // namespace quarot
