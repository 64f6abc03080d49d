#include "runtime/cuda/vocabulary.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "base/parallel.h"

namespace quarot::cuda {

namespace {

constexpr int64_t kLogitRows = 128;         // at a time
constexpr int64_t kCopiedFloats = 1 << 17;  // fewer are not worth waking a thread

// The power of two that brings the largest magnitude to [2¹³, 2¹⁴).
float half_factor(ConstMatrixRef weights) {
  float top = 0;
  for (int64_t r = 0; r < weights.rows(); ++r) {
    for (const float w : weights.row(r)) top = std::max(top, std::fabs(w));
  }
  return top > 0 && std::isfinite(top) ? std::ldexp(1.0F, 13 - std::ilogb(top)) : 1.0F;
}

}  // namespace

template <typename T>
Result<typename Vocabulary<T>::Table> Vocabulary<T>::upload_integers(const RowTable& rows,
                                                                     const char* what) {
  Table table;
  const auto words = static_cast<size_t>(rows.tiles() * rows.row_words() * RowTable::kTileRows);
  const auto scales = static_cast<size_t>(rows.tiles() * RowTable::kTileRows);
  QUAROT_ASSIGN_OR_RETURN(table.words, DeviceArray<uint32_t>::make(
                                           static_cast<int64_t>(words) + cuda::kTableSlack, what));
  QUAROT_RETURN_IF_ERROR(check(cudaMemcpy(table.words.data(), rows.words(),
                                          words * sizeof(uint32_t), cudaMemcpyHostToDevice),
                               what));
  QUAROT_ASSIGN_OR_RETURN(table.scales, DeviceArray<float>::upload({rows.scales(), scales}, what));
  table.integers = {table.words.data(), table.scales.data(), static_cast<int>(32 / rows.per_word()),
                    rows.rows(), rows.cols()};
  return table;
}

template <typename T>
Result<typename Vocabulary<T>::Table> Vocabulary<T>::upload(const RowTable& rows,
                                                            const char* what) {
  Table table;
  if (rows.empty()) return table;
  if (!std::is_same_v<T, float> && rows.is_integer() && rows.groups() == 1) {
    return upload_integers(rows, what);
  }
  const Matrix weights = rows.to_matrix();
  const std::span<const float> all = weights.elements();
  if constexpr (std::is_same_v<T, float>) {
    QUAROT_ASSIGN_OR_RETURN(table.weights, DeviceArray<float>::upload(all, what));
  } else {
    const float factor = half_factor(weights);
    std::vector<T> halves(all.size());
    parallel_for(std::ssize(all), 1 << 16, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        halves[static_cast<size_t>(i)] = __float2half_rn(factor * all[static_cast<size_t>(i)]);
      }
    });
    table.factor = 1 / factor;
    QUAROT_ASSIGN_OR_RETURN(table.weights, DeviceArray<T>::upload(halves, what));
  }
  return table;
}

template <typename T>
int64_t Vocabulary<T>::bytes(const ModelConfig& config, TableBits tables) {
  constexpr int64_t kBits = 8 * sizeof(T);
  const auto table = [&](int bits) {
    return config.vocab * config.hidden * (bits == kFloatBits ? kBits : bits) / 8;
  };
  const bool splits = tables.head == kFloatBits;
  const int64_t row = config.hidden * (splits ? 8 : 4) + config.vocab * (splits ? 12 : 4);
  return table(tables.embedding) + (config.tied_embeddings ? 0 : table(tables.head)) +
         kLogitRows * row;
}

template <typename T>
Result<Vocabulary<T>> Vocabulary<T>::upload(const Model& model) {
  Vocabulary vocabulary;
  vocabulary.hidden_ = model.config.hidden;
  vocabulary.vocab_ = model.config.vocab;
  vocabulary.eps_ = static_cast<float>(model.config.norm_eps);
  QUAROT_ASSIGN_OR_RETURN(vocabulary.embedding_, upload(model.embedding, "the embedding"));
  QUAROT_ASSIGN_OR_RETURN(vocabulary.lm_head_, upload(model.lm_head, "lm_head"));
  QUAROT_ASSIGN_OR_RETURN(vocabulary.final_norm_,
                          DeviceArray<float>::upload(model.final_norm, "the final norm"));
  QUAROT_ASSIGN_OR_RETURN(vocabulary.normed_,
                          DeviceArray<float>::make(kLogitRows * vocabulary.hidden_, "logits"));
  QUAROT_ASSIGN_OR_RETURN(vocabulary.logits_,
                          DeviceArray<float>::make(kLogitRows * vocabulary.vocab_, "logits"));
  if (!std::is_same_v<T, float> && !vocabulary.head().is_integer()) {
    QUAROT_ASSIGN_OR_RETURN(vocabulary.split_,
                            DeviceArray<T>::make(2 * kLogitRows * vocabulary.hidden_, "logits"));
    QUAROT_ASSIGN_OR_RETURN(vocabulary.products_,
                            DeviceArray<float>::make(2 * kLogitRows * vocabulary.vocab_, "logits"));
  }
  return vocabulary;
}

template <typename T>
Status Vocabulary<T>::embed(const int32_t* tokens, int64_t rows, float* x,
                            cudaStream_t stream) const {
  if (embedding_.is_integer()) return cuda::embed(embedding_.integers, tokens, x, rows, stream);
  return cuda::embed(embedding_.weights.data(), tokens, embedding_.factor, x, rows, hidden_,
                     stream);
}

// logits_ ← lm_head · normed_
template <typename T>
Status Vocabulary<T>::multiply(int64_t rows, const Context& context) {
  const Table& head = this->head();
  if (head.is_integer()) {
    return cuda::multiply(head.integers, normed_.data(), logits_.data(), rows, context.stream());
  }
  if constexpr (std::is_same_v<T, float>) {
    return context.multiply(normed_.data(), rows, head.weights.data(), vocab_, hidden_,
                            logits_.data());
  } else {
    QUAROT_RETURN_IF_ERROR(
        split_rows(normed_.data(), split_.data(), rows, hidden_, context.stream()));
    QUAROT_RETURN_IF_ERROR(context.blas().multiply_halves(
        {.m = vocab_, .n = 2 * rows, .k = hidden_, .alpha = head.factor}, CUDA_R_16F,
        {head.weights.data(), hidden_, CUBLAS_OP_T}, {split_.data(), hidden_}, CUDA_R_32F,
        {products_.data(), vocab_}, "lm_head"));
    return add_pairs(products_.data(), logits_.data(), rows, vocab_, context.stream());
  }
}

// logits_ ← lm_head · rms_norm(x), of at most kLogitRows.
template <typename T>
Status Vocabulary<T>::make_logits(const float* x, int64_t rows, const Context& context) {
  RowTask norm;
  norm.rows = rows;
  norm.width = norm.x_stride = norm.y_stride = hidden_;
  norm.source = RowSource::kRmsNorm;
  norm.x = x;
  norm.gain = final_norm_.data();
  norm.eps = eps_;
  norm.y = normed_.data();
  QUAROT_RETURN_IF_ERROR(cuda::rows(norm, context.stream()));
  return multiply(rows, context);
}

template <typename T>
Status Vocabulary<T>::logits(const float* x, MatrixRef out, const Context& context) {
  for (int64_t first = 0; first < out.rows(); first += kLogitRows) {
    const int64_t rows = std::min(kLogitRows, out.rows() - first);
    QUAROT_RETURN_IF_ERROR(make_logits(x + first * hidden_, rows, context));
    QUAROT_RETURN_IF_ERROR(host_logits_.grow(rows * vocab_, "logits"));
    QUAROT_RETURN_IF_ERROR(
        copy_floats(host_logits_.data(), logits_.data(), rows * vocab_, context.stream()));
    QUAROT_RETURN_IF_ERROR(context.wait());
    parallel_for(rows, kCopiedFloats / vocab_ + 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        std::copy_n(host_logits_.data() + row * vocab_, vocab_, out.row_data(first + row));
      }
    });
  }
  return {};
}

template <typename T>
Result<std::vector<TokenLikelihood>> Vocabulary<T>::likelihoods(const float* x,
                                                                std::span<const Token> targets,
                                                                const Context& context) {
  const int64_t count = std::ssize(targets);
  for (const Result<bool>& grown :
       {targets_.grow(count, "likelihoods"), scores_.grow(count, "likelihoods")}) {
    if (!grown.ok()) return grown.error();
  }
  QUAROT_RETURN_IF_ERROR(
      check(cudaMemcpyAsync(targets_.data(), targets.data(), targets.size_bytes(),
                            cudaMemcpyHostToDevice, context.stream()),
            "likelihoods"));
  for (int64_t first = 0; first < count; first += kLogitRows) {
    const int64_t rows = std::min(kLogitRows, count - first);
    QUAROT_RETURN_IF_ERROR(make_logits(x + first * hidden_, rows, context));
    QUAROT_RETURN_IF_ERROR(score_rows(logits_.data(), targets_.data() + first,
                                      scores_.data() + first, rows, vocab_, context.stream()));
  }
  std::vector<RowScore> scores(targets.size());
  QUAROT_RETURN_IF_ERROR(
      check(cudaMemcpyAsync(scores.data(), scores_.data(), scores.size() * sizeof(RowScore),
                            cudaMemcpyDeviceToHost, context.stream()),
            "likelihoods"));
  QUAROT_RETURN_IF_ERROR(context.wait());
  std::vector<TokenLikelihood> likelihoods;
  for (const RowScore& score : scores) {
    likelihoods.push_back({double{score.logit} - score.log_sum_exp, score.greedy != 0});
  }
  return likelihoods;
}

template class Vocabulary<float>;
template class Vocabulary<__half>;

}  // namespace quarot::cuda
