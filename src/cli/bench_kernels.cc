#include "cli/bench_kernels.h"

#include <chrono>
#include <ctime>

#include "base/error.h"
#include "base/parallel.h"
#include "base/random.h"
#include "cli/bench_speed.h"
#include "kernels/cpu/cache.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/peaks.h"
#include "kernels/cpu/rows.h"
#include "rotation/orthogonal.h"
#include "tensor/gemm.h"

namespace quarot::cli {

namespace {

constexpr int64_t kPrompt = 512;
constexpr int64_t kDepth = 6000;
constexpr int64_t kBeyondCaches = 96 << 20;  // bytes

// One thread is timed by the processor time it gets, whatever else runs; several only by the clock.
double now() {
  timespec t{};
  ::clock_gettime(thread_count() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <typename Work>
double seconds(const Work& work) {
  const double start = now();
  work();
  return now() - start;
}

struct Product {
  int64_t rows, inputs, outputs;
};

std::vector<Product> products_of(const ModelConfig& c, int64_t rows) {
  const int64_t attention = c.width(Space::kAttentionOutput);
  return {{rows, c.hidden, attention + 2 * c.width(Space::kKey)},
          {rows, attention, c.hidden},
          {rows, c.hidden, 2 * c.ffn},
          {rows, c.ffn, c.hidden}};
}

class KernelMeter {
 public:
  KernelMeter(const cpu::Kernels& kernels, Progress& progress)
      : kernels_(kernels), progress_(progress) {}

  // `work` does `amount` of what the limit counts.
  template <typename Work>
  Status measure(std::string name, Limit limit, double amount, const Work& work) {
    constexpr double kTurn = 1e-3;  // seconds
    constexpr double kAll = 1;
    constexpr size_t kTurns = 101;
    constexpr size_t kLeastTurns = 3;
    QUAROT_RETURN_IF_ERROR(progress_.check());
    work();
    const auto repeats = static_cast<int>(kTurn / seconds(work)) + 1;
    std::vector<double> rates;
    std::vector<double> shares;
    double spent = 0;
    while (rates.size() < kLeastTurns || (rates.size() < kTurns && spent < kAll)) {
      const double elapsed = seconds([&] {
        for (int i = 0; i < repeats; ++i) work();
      });
      int64_t done = 0;
      const double elapsed_peak = seconds([&] { done = run_peak(limit); });
      spent += elapsed + elapsed_peak;
      rates.push_back(amount * repeats / elapsed);
      shares.push_back(rates.back() * elapsed_peak / static_cast<double>(done));
    }
    speeds_.push_back({std::move(name), limit, median(rates), median(shares)});
    progress_.advance(1);
    return {};
  }

  Status integer_product(const Product& p, int w_bits, int a_bits);
  Status float_product(const Product& p);
  Status rows(const std::string& name, RowSource source, int64_t width, const Orthogonal& rotation);
  Status attention(const ModelConfig& config, int64_t tokens, int64_t depth);

  std::vector<KernelSpeed> take() { return std::move(speeds_); }

 private:
  int64_t run_peak(Limit limit) const {
    switch (limit) {
      case Limit::kDotProducts:
        return cpu::run_dot_peak(kernels_);
      case Limit::kFloatProducts:
        return cpu::run_float_peak(kernels_);
      case Limit::kMemory:
        return cpu::run_read_peak();
    }
    return 0;
  }

  const cpu::Kernels& kernels_;
  Progress& progress_;
  Random random_{1};
  std::vector<KernelSpeed> speeds_;
};

Status KernelMeter::integer_product(const Product& p, int w_bits, int a_bits) {
  BasicMatrix<int8_t> values(p.outputs, p.inputs);
  for (int8_t& v : values.elements()) {
    v = static_cast<int8_t>(static_cast<int>(random_.below(uint64_t{1} << w_bits)) -
                            (1 << (w_bits - 1)));
  }
  QUAROT_ASSIGN_OR_RETURN(cpu::PackedWeight packed,
                          cpu::pack_weight(w_bits, values.view(), Matrix(p.outputs, 1, 0.01F)));
  // A single row is bound by reading the weights: enough copies that each comes from memory.
  const bool streams = p.rows == 1;
  const auto bytes = static_cast<int64_t>(packed.data.size());
  const std::vector<cpu::PackedWeight> weights(
      static_cast<size_t>(streams ? kBeyondCaches / bytes + 1 : 1), packed);
  BasicMatrix<int8_t> a(p.rows, cpu::activation_stride(p.inputs), int8_t{0});
  for (int8_t& v : a.elements()) v = static_cast<int8_t>(static_cast<int>(random_.below(15)) - 7);
  const Matrix scales(p.rows, 1, 0.01F);
  const BasicMatrix<int32_t> sums(p.rows, 1, 1);
  Matrix y(p.rows, p.outputs);
  const cpu::Activations activations = {.rows = p.rows,
                                        .bits = a_bits,
                                        .values = a.data(),
                                        .stride = a.cols(),
                                        .scales = scales.data(),
                                        .sums = sums.data()};
  size_t next = 0;
  const auto amount = static_cast<double>(streams ? bytes : p.rows * p.inputs * p.outputs);
  return measure(
      fmt::format("W{}A{} product {} × {} × {}", w_bits, a_bits, p.rows, p.inputs, p.outputs),
      streams ? Limit::kMemory : Limit::kDotProducts, amount, [&] {
        cpu::gemm(kernels_, activations, weights[next], y);
        next = (next + 1) % weights.size();
      });
}

Status KernelMeter::float_product(const Product& p) {
  const Matrix x(p.rows, p.inputs, 0.5F);
  const Matrix w(p.outputs, p.inputs, 0.5F);
  Matrix y(p.rows, p.outputs);
  return measure(fmt::format("float product {} × {} × {}", p.rows, p.inputs, p.outputs),
                 Limit::kFloatProducts, static_cast<double>(p.rows * p.inputs * p.outputs),
                 [&] { matmul_transposed(x, w, y); });
}

// Bytes of float read, over a prompt's tokens.
Status KernelMeter::rows(const std::string& name, RowSource source, int64_t width,
                         const Orthogonal& rotation) {
  const Matrix x(kPrompt, width, 0.5F);
  BasicMatrix<int8_t> values(kPrompt, cpu::activation_stride(width));
  Matrix scales(kPrompt, 1);
  BasicMatrix<int32_t> sums(kPrompt, 1);
  const std::optional<Orthogonal::Fast> fast = rotation.fast();
  std::vector<float> factor;
  HadamardTask hadamard;
  if (fast) {
    factor.assign(fast->plan->factor.begin(), fast->plan->factor.end());
    hadamard = {fast->plan->m, fast->plan->log2, fast->inner, factor.data(), 1.0F};
  }
  const RowTask task = {.rows = kPrompt,
                        .width = width,
                        .source = source,
                        .x = x.data(),
                        .x_stride = width,
                        .up = x.data(),
                        .up_stride = width,
                        .eps = 1e-5F,
                        .hadamard = fast ? &hadamard : nullptr,
                        .bits = 4,
                        .values = values.data(),
                        .values_stride = values.cols(),
                        .scales = scales.data(),
                        .sums = sums.data()};
  const int64_t bytes = kPrompt * width * (source == RowSource::kSwiGlu ? 8 : 4);
  return measure(fmt::format("{}, {} rows of {}", name, kPrompt, width), Limit::kMemory,
                 static_cast<double>(bytes), [&] { cpu::rows(kernels_, task); });
}

// The last `tokens` of a sequence of `depth` against its 4-bit cache of one layer: its bytes.
Status KernelMeter::attention(const ModelConfig& config, int64_t tokens, int64_t depth) {
  const CacheLayout layout = {.head_dim = config.head_dim};
  const int64_t page_bytes = layout.page_bytes() * config.kv_heads;
  const int64_t pages = (depth + kPageTokens - 1) / kPageTokens;
  AlignedVector<std::byte> memory(static_cast<size_t>(pages * page_bytes), std::byte{0});
  std::vector<std::byte*> table;
  for (int64_t i = 0; i < pages; ++i) table.push_back(memory.data() + i * page_bytes);
  std::vector<CacheToken> at;
  for (int64_t i = 0; i < tokens; ++i) at.push_back({table.data(), depth - tokens + i});
  const Matrix q(tokens, config.width(Space::kQuery), 0.1F);
  Matrix y(tokens, config.width(Space::kAttentionOutput));
  const AttentionTask task = {.tokens = tokens,
                              .heads = config.heads,
                              .kv_heads = config.kv_heads,
                              .q = q.data(),
                              .q_stride = q.cols(),
                              .cache = at.data(),
                              .layout = &layout,
                              .y = y.data(),
                              .y_stride = y.cols()};
  if (tokens == 1) {
    return measure(fmt::format("attention of a token at {}", depth), Limit::kMemory,
                   static_cast<double>(memory.size()), [&] { cpu::attention(kernels_, task); });
  }
  const int64_t seen = tokens * (2 * depth - tokens + 1) / 2;
  const auto products = static_cast<double>(seen * 2 * config.heads * config.head_dim);
  return measure(fmt::format("attention of {} tokens at {}", tokens, depth), Limit::kFloatProducts,
                 products, [&] { cpu::attention(kernels_, task); });
}

}  // namespace

Result<std::vector<KernelSpeed>> measure_kernels(const cpu::Kernels& kernels,
                                                 const ModelConfig& config, Progress& progress) {
  std::vector<Product> products = products_of(config, kPrompt);
  products.insert(products.end(), {{2048, 576, 1536}, {512, 4096, 4096}});
  const std::vector<Product> single = products_of(config, 1);
  KernelMeter meter(kernels, progress);
  progress.stage("kernels", static_cast<int64_t>(3 * products.size() + 2 * single.size()) + 5);
  for (const int a_bits : {4, 8}) {
    for (const Product& p : products) QUAROT_RETURN_IF_ERROR(meter.integer_product(p, 4, a_bits));
    for (const Product& p : single) QUAROT_RETURN_IF_ERROR(meter.integer_product(p, 4, a_bits));
  }
  for (const Product& p : products) QUAROT_RETURN_IF_ERROR(meter.float_product(p));
  const int64_t attention = config.width(Space::kAttentionOutput);
  QUAROT_RETURN_IF_ERROR(meter.rows("norm, Hadamard, quantise", RowSource::kRmsNorm, config.hidden,
                                    Orthogonal::hadamard(config.hidden)));
  QUAROT_RETURN_IF_ERROR(meter.rows("across heads, quantise", RowSource::kCopy, attention,
                                    cross_head_hadamard(config.heads, config.head_dim)));
  QUAROT_RETURN_IF_ERROR(meter.rows("SwiGLU, Hadamard, quantise", RowSource::kSwiGlu, config.ffn,
                                    Orthogonal::hadamard(config.ffn)));
  QUAROT_RETURN_IF_ERROR(meter.attention(config, 1, kDepth));
  QUAROT_RETURN_IF_ERROR(meter.attention(config, kPrompt, kPrompt));
  return meter.take();
}

double float_products_seconds(const ModelConfig& config, int64_t rows) {
  std::vector<Product> products;
  for (const Role role : kRoles) {
    products.push_back(
        {rows, config.width(spaces_of(role).input), config.width(spaces_of(role).output)});
  }
  // A layer's own weights come from memory each time, as in the model.
  std::vector<Matrix> weights;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (const Product& p : products) weights.emplace_back(p.outputs, p.inputs, 0.5F);
  }
  const Matrix head(config.vocab, config.hidden, 0.5F);
  const Matrix x(rows, std::max(config.hidden, config.ffn), 0.5F);
  Matrix y(rows, std::max(config.hidden, config.ffn));
  Matrix logits(1, config.vocab);
  const auto start = std::chrono::steady_clock::now();
  for (size_t i = 0; i < weights.size(); ++i) {
    const Product& p = products[i % products.size()];
    matmul_transposed(x.view().cols(0, p.inputs), weights[i], y.view().cols(0, p.outputs));
  }
  matmul_transposed(x.view().rows(0, 1).cols(0, config.hidden), head, logits);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace quarot::cli
