#include "runtime/simulated_backend.h"

#include <algorithm>
#include <numeric>

#include "base/parallel.h"
#include "kernels/cpu/cache.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/table.h"
#include "runtime/rope_tables.h"
#include "runtime/vector_math.h"
#include "tensor/dtype.h"
#include "tensor/gemm.h"

namespace quarot {

namespace {

constexpr int64_t kBlockRows = 512;  // of a weight, as floats at once

// QUAROT_ISA may name what this machine has not; make_backend() says so, and here the best serves.
const cpu::Kernels& chosen_kernels() {
  const Result<const cpu::Kernels*> chosen = cpu::kernels();
  return chosen.ok() ? **chosen : **cpu::find_kernels("");
}

bool holds_integers(const Linear& linear) { return linear.weight.empty() && linear.quantized; }

// The largest magnitude of q − zero.
int64_t largest_level(int bits, bool symmetric) {
  return int64_t{1} << (symmetric ? bits - 1 : bits);
}

// RoPE, on keys [head_dim, tokens]: (a, b) → (a·cos − b·sin, b·cos + a·sin).
void turn_on(MatrixRef keys, const Matrix& cos, const Matrix& sin) {
  const int64_t half = cos.cols();
  for (int64_t i = 0; i < half; ++i) {
    for (int64_t t = 0; t < keys.cols(); ++t) {
      const float a = keys(i, t);
      const float b = keys(i + half, t);
      keys(i, t) = a * cos(t, i) - b * sin(t, i);
      keys(i + half, t) = b * cos(t, i) + a * sin(t, i);
    }
  }
}

// Its inverse; some models' tables have a length other than 1.
void turn_back(MatrixRef keys, const Matrix& cos, const Matrix& sin) {
  const int64_t half = cos.cols();
  for (int64_t i = 0; i < half; ++i) {
    for (int64_t t = 0; t < keys.cols(); ++t) {
      const float a = keys(i, t);
      const float b = keys(i + half, t);
      const float length = cos(t, i) * cos(t, i) + sin(t, i) * sin(t, i);
      keys(i, t) = (a * cos(t, i) + b * sin(t, i)) / length;
      keys(i + half, t) = (b * cos(t, i) - a * sin(t, i)) / length;
    }
  }
}

void round_to_half(MatrixRef rows) {
  for (int64_t r = 0; r < rows.rows(); ++r) {
    for (float& x : rows.row(r)) x = f16_to_float(float_to_f16(x));
  }
}

void turn_in_half(const Orthogonal& transform, MatrixRef rows) {
  round_to_half(rows);
  transform.apply(rows);
  round_to_half(rows);
}

RowTable table_of(const QuantizedWeight& weight) {
  const bool packed = weight.quant.symmetric &&
                      (weight.quant.bits == 4 || weight.quant.bits == 8) &&
                      (weight.scales.cols() == 1 || weight.quant.group % 8 == 0);
  return packed ? RowTable(weight) : RowTable(weight.dequantize());
}

}  // namespace

SimulatedBackend::SimulatedBackend(const Model& model, const Precision& precision)
    : SimulatedBackend(std::shared_ptr<const Model>(std::shared_ptr<void>(), &model), precision) {}

SimulatedBackend::SimulatedBackend(std::shared_ptr<const Model> model, const Precision& precision)
    : CpuBackend(std::move(model), precision, chosen_kernels()),
      tables_(this->model().layers.size()) {}

void SimulatedBackend::exchange(State& state) {
  std::swap(batch_, state.batch);
  std::swap(x_, state.residual);
  std::swap(attention_, state.attention);
  fill_rope_tables(config().rope, batch_, cos_, sin_);
}

void SimulatedBackend::observe_heads(int64_t layer, Space space, HeadsTask task) {
  Matrix rows(task.tokens, task.heads * task.head_dim);
  task.y = rows.data();
  task.y_stride = rows.cols();
  cpu::heads(kernels(), task);
  observer_->observe(layer, space, rows);
}

const std::optional<Orthogonal>& SimulatedBackend::online_at(Space site) const {
  const OnlineTransforms& online = model().online;
  return site == Space::kAttentionOutput ? online.heads
         : site == Space::kFfnHidden     ? online.ffn
                                         : online.norm_output;
}

// q and k in place: normed, turned by RoPE in float, by R3 between half and half.
void SimulatedBackend::turn_heads_in_half(int64_t layer) {
  int64_t column = 0;
  for (HeadsTask task : {query_heads(layer), key_heads(layer)}) {
    Matrix heads(task.tokens * task.heads, task.head_dim);
    task.hadamard = nullptr;
    task.y = heads.data();
    task.y_stride = task.heads * task.head_dim;
    cpu::heads(kernels(), task);
    turn_in_half(*model().online.query_key, heads);
    for (int64_t t = 0; t < task.tokens; ++t) {
      std::ranges::copy(heads.elements().subspan(static_cast<size_t>(t * task.y_stride),
                                                 static_cast<size_t>(task.y_stride)),
                        qkv_.row(t).begin() + column);
    }
    column += task.y_stride;
  }
  heads_ready_ = true;
}

// A fork shares pages that are float yet: who quantises one must have it alone, or the other reads
// integers too early and quantises them again.
void SimulatedBackend::own_pages_to_quantize() {
  for (const SequenceChunk& chunk : batch_.chunks) {
    const int64_t end = chunk.position + chunk.count;
    const int64_t whole = (chunk.position + kPageTokens - 1) / kPageTokens * kPageTokens;
    if (whole >= end) continue;
    const int64_t first = whole - precision().pages.recent - kPageTokens;
    cache_.reserve(chunk.sequence, std::max<int64_t>(first, 0), end);
  }
}

void SimulatedBackend::append_cache(int64_t layer) {
  if (precision().pages.enabled()) own_pages_to_quantize();
  if (precision().half_online && model().online.query_key) turn_heads_in_half(layer);
  if (observer_ != nullptr) {
    observe_heads(layer, Space::kQuery, query_heads(layer));
    observe_heads(layer, Space::kKey, key_heads(layer));
    observe_heads(layer, Space::kValue, value_heads());
  }
  CpuBackend::append_cache(layer);
  heads_ready_ = false;
}

// A page is quantised when the first query comes that is a whole page, and what the recipe calls
// recent, after it: queries up to then saw its floats, those from then on will not.
void SimulatedBackend::attend(int64_t layer) {
  if (!precision().pages.enabled()) return CpuBackend::attend(layer);
  attention_.resize(x_.rows(), config().width(Space::kAttentionOutput));
  for (const SequenceChunk& chunk : batch_.chunks) {
    for (int64_t row = 0; row < chunk.count;) {
      const int64_t position = chunk.position + row;
      const int64_t into_page = position % kPageTokens;
      const int64_t page = (position - precision().pages.recent) / kPageTokens - 1;
      if (into_page == 0 && page >= 0) quantize_page(layer, chunk, page);
      const int64_t count = std::min(kPageTokens - into_page, chunk.count - row);
      attend_rows(layer, chunk.first_row + row, count);
      row += count;
    }
  }
}

void SimulatedBackend::quantize_page(int64_t layer, const SequenceChunk& chunk, int64_t page) {
  const CacheLayout& layout = cache_.layout();
  const CacheQuant& values = precision().values;
  Matrix cos, sin;
  fill_rope_tables(config().rope,
                   {std::vector<Token>(kPageTokens),
                    {{0, 0, kPageTokens, page * kPageTokens, chunk.known_length()}}},
                   cos, sin);
  std::byte* memory = places_[static_cast<size_t>(chunk.first_row)].pages[page] +
                      layer * config().kv_heads * layout.page_bytes();
  parallel_each(config().kv_heads, [&](int64_t head) {
    std::byte* own = memory + head * layout.page_bytes();
    const MatrixRef keys(reinterpret_cast<float*>(own), config().head_dim, kPageTokens);
    if (precision().keys.enabled()) quantize_keys(keys, cos, sin);
    const MatrixRef v(reinterpret_cast<float*>(own + layout.v_words()), kPageTokens,
                      config().head_dim, layout.head_dim);
    if (values.enabled()) {
      simulate_page(values.bits, values.clip, group_size(values, config().head_dim),
                    precision().pages.outliers, v);
    }
  });
}

// keys [head_dim, tokens], as they lie in a page.
void SimulatedBackend::quantize_keys(MatrixRef keys, const Matrix& cos, const Matrix& sin) const {
  const CacheQuant& quant = precision().keys;
  const PageQuant& pages = precision().pages;
  const bool before = pages.keys_before_rope;
  if (before) turn_back(keys, cos, sin);
  if (pages.keys_by_channel) {
    simulate_page(quant.bits, quant.clip, keys.cols(), pages.outliers, keys);
  } else {
    Matrix tokens = transposed(keys);
    simulate_page(quant.bits, quant.clip, group_size(quant, keys.rows()), pages.outliers, tokens);
    const Matrix back = transposed(tokens.view());
    for (int64_t r = 0; r < keys.rows(); ++r) std::ranges::copy(back.row(r), keys.row(r).begin());
  }
  if (before) turn_on(keys, cos, sin);
}

void SimulatedBackend::set_input(int64_t layer, Space site, const RowTask& task) {
  input_.resize(task.rows, task.width);
  RowTask rows = task;
  rows.y = input_.data();
  rows.y_stride = input_.cols();
  const bool in_half = precision().half_online && online_at(site);
  if (in_half) rows.hadamard = nullptr;
  cpu::rows(kernels(), rows);
  if (in_half) {
    if (task.hadamard != nullptr) turn_in_half(*online_at(site), input_);
    round_to_half(input_);  // a dense one has acted already
  }
  const ActivationQuant quant = this->layer(layer).at(site, precision().activations);
  const KeptChannels& kept = precision().kept;
  scales_ = Matrix();
  if (!quant.enabled() || kept.enabled() ||
      !holds_integers(this->layer(layer)[first_reader(site)])) {
    simulate(quant, kept, this->layer(layer).orders[site_index(site)], input_);
    if (observer_ != nullptr) observer_->observe(layer, site, input_);
    return;
  }
  if (observer_ != nullptr) {
    Matrix simulated(input_.view());
    simulate(quant, simulated);
    observer_->observe(layer, site, simulated);
  }
  scales_ = to_levels(quant, input_);
  most_ = largest_level(quant.bits, quant.symmetric);
}

void SimulatedBackend::project(int64_t layer, Space site, MatrixRef y, bool accumulate) {
  int64_t column = 0;
  for (const Role role : kRoles) {
    if (spaces_of(role).input != site) continue;
    const Linear& linear = this->layer(layer)[role];
    const int64_t outputs = config().width(spaces_of(role).output);
    const MatrixRef part = y.cols(column, outputs);
    column += outputs;
    if (!scales_.empty()) {
      multiply_levels(linear, part, accumulate);
    } else if (holds_integers(linear)) {
      RowTable& table = tables_[static_cast<size_t>(layer)][static_cast<size_t>(role)];
      if (table.empty()) table = table_of(*linear.quantized);
      cpu::multiply(kernels(), input_, table, part, linear.bias, accumulate);
    } else {
      matmul_transposed(input_, linear.weight, part, accumulate);
      for (int64_t r = 0; !linear.bias.empty() && r < part.rows(); ++r)
        add(linear.bias, part.row(r));
    }
  }
}

// As reference::gemm(): a group's term is (sum · scale of the activations) · scale of the weight.
void SimulatedBackend::multiply_levels(const Linear& linear, MatrixRef y, bool accumulate) {
  Matrix sums;
  for (int64_t first = 0; first < y.cols(); first += kBlockRows) {
    const int64_t count = std::min(kBlockRows, y.cols() - first);
    sums.resize(y.rows(), count);
    add_levels(*linear.quantized, first, sums);
    parallel_for(y.rows(), 8, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const std::span<float> row = sums.row(r);
        if (!linear.bias.empty())
          add(std::span(linear.bias).subspan(static_cast<size_t>(first), row.size()), row);
        const std::span<float> out = y.row(r).subspan(static_cast<size_t>(first), row.size());
        if (accumulate) {
          add(row, out);
        } else {
          std::ranges::copy(row, out.begin());
        }
      }
    });
  }
}

// sums ← the products with rows first, first + 1, … of the weight.
void SimulatedBackend::add_levels(const QuantizedWeight& weight, int64_t first, MatrixRef sums) {
  const int64_t width = weight.values.cols();
  const int64_t w_group = width / weight.scales.cols();
  const int64_t a_group = width / scales_.cols();
  const int64_t group = std::gcd(w_group, a_group);
  // Sums stay below 2^24, where float32 still holds every integer.
  const int64_t exact =
      (int64_t{1} << 24) / (most_ * largest_level(weight.quant.bits, weight.quant.symmetric));
  levels_.resize(sums.cols(), width);
  parallel_for(sums.cols(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t c = 0; c < width; c += w_group) {
        const int32_t zero = weight.zeros(first + n, c / w_group);
        to_float(weight.values.row(first + n).subspan(static_cast<size_t>(c),
                                                      static_cast<size_t>(w_group)),
                 zero, &levels_(n, c));
      }
    }
  });
  std::vector<float> w_scales(static_cast<size_t>(sums.cols()));
  for (int64_t c = 0; c < width; c += group) {
    multiply_exactly(c, group, exact);
    for (int64_t n = 0; n < sums.cols(); ++n)
      w_scales[static_cast<size_t>(n)] = weight.scales(first + n, c / w_group);
    parallel_for(sums.rows(), 8, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        scale_sums(product_.row(r), scales_(r, c / a_group), w_scales, c == 0, sums.row(r));
      }
    });
  }
}

// product_ ← columns first … of the levels, multiplied in pieces short enough to be exact.
void SimulatedBackend::multiply_exactly(int64_t first, int64_t count, int64_t piece) {
  const ConstMatrixRef x = input_;
  const ConstMatrixRef w = levels_;
  product_.resize(x.rows(), w.rows());
  if (count <= piece) {
    matmul_transposed(x.cols(first, count), w.cols(first, count), product_);
    return;
  }
  total_.resize(x.rows(), w.rows());
  std::ranges::fill(total_.elements(), 0.0);
  for (int64_t c = first; c < first + count; c += piece) {
    const int64_t width = std::min(piece, first + count - c);
    matmul_transposed(x.cols(c, width), w.cols(c, width), product_);
    for (int64_t i = 0; i < total_.size(); ++i) total_.data()[i] += product_.data()[i];
  }
  for (int64_t i = 0; i < total_.size(); ++i)
    product_.data()[i] = static_cast<float>(total_.data()[i]);
}

}  // namespace quarot
