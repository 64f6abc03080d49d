#include "probe/operators.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/function_ref.h"
#include "base/random.h"
#include "tensor/gemm.h"

namespace quarot {

namespace {

constexpr int64_t kBatch = 64;
constexpr int64_t kLargestDense = 4096;
constexpr int kRepetitions = 5;

// The least of a few runs: what the machine can do, not what else it was doing.
double seconds_a_row(FunctionRef<void()> run) {
  double least = 1e9;
  for (int i = 0; i < kRepetitions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    least = std::min(least, spent.count() / kBatch);
  }
  return least;
}

OperatorReport measure(std::string name, const Orthogonal& op) {
  OperatorReport report{.name = std::move(name), .size = op.size(), .made = op.description()};
  report.deviation = deviation_from_orthogonal(op);
  report.dense_operations = op.size() * op.size();
  report.fast_operations = report.dense_operations;
  if (const auto fast = op.fast()) {
    report.is_hadamard = fast->plan->is_hadamard;
    report.fast_operations = fast->plan->operations() * fast->inner * fast->blocks;
  }
  Random random(0, "operators");
  Matrix rows(kBatch, op.size());
  for (float& x : rows.elements()) x = static_cast<float>(random.normal());
  report.fast_seconds = seconds_a_row([&] { op.apply(rows.view()); });
  if (op.size() > kLargestDense) return report;
  const BasicMatrix<double> exact = op.matrix();
  Matrix dense(op.size(), op.size());
  std::ranges::transform(exact.elements(), dense.data(),
                         [](double x) { return static_cast<float>(x); });
  Matrix product(kBatch, op.size());
  report.dense_seconds = seconds_a_row([&] { matmul_transposed(rows, dense, product); });
  return report;
}

}  // namespace

double deviation_from_orthogonal(const Orthogonal& op) {
  double worst = 0;
  BasicMatrix<double> rows;
  for (int64_t first = 0; first < op.size(); first += kBatch) {
    rows = BasicMatrix<double>(std::min(kBatch, op.size() - first), op.size(), 0.0);
    for (int64_t r = 0; r < rows.rows(); ++r) rows(r, first + r) = 1;
    op.apply_transposed(rows.view());
    op.apply(rows.view());
    for (int64_t r = 0; r < rows.rows(); ++r) rows(r, first + r) -= 1;
    for (const double x : rows.elements()) worst = std::max(worst, std::abs(x));
  }
  return worst;
}

std::vector<OperatorReport> measure_operators(const ModelConfig& config) {
  return {measure("residual stream (R1)", Orthogonal::hadamard(config.hidden)),
          measure("head (R2, R3)", Orthogonal::hadamard(config.head_dim)),
          measure("across heads", cross_head_hadamard(config.heads, config.head_dim)),
          measure("FFN hidden (R4)", Orthogonal::hadamard(config.ffn))};
}

}  // namespace quarot
