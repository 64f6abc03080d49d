#include "recipe/calibration.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/parallel.h"
#include "base/random.h"
#include "runtime/vector_math.h"

namespace quarot {

namespace {

// Sums x (order 1) or x² (order 2) a column, over rows that come in pieces.
class ColumnMoments {
 public:
  void add(ConstMatrixRef rows, int order) {
    sums_.resize(static_cast<size_t>(rows.cols()), 0.0);
    parallel_for(rows.cols(), 64, [&](int64_t first, int64_t last) {
      for (int64_t r = 0; r < rows.rows(); ++r) {
        const float* row = rows.row_data(r);
        for (int64_t c = first; c < last; ++c) {
          const double x = row[c];
          sums_[static_cast<size_t>(c)] += order == 2 ? x * x : x;
        }
      }
    });
    count_ += rows.rows();
  }
  std::vector<double> mean() const {
    std::vector<double> result = sums_;
    for (double& value : result) value /= static_cast<double>(std::max<int64_t>(count_, 1));
    return result;
  }

 private:
  std::vector<double> sums_;
  int64_t count_ = 0;
};

class StatisticsObserver final : public SiteObserver {
 public:
  void observe(int64_t, Space space, ConstMatrixRef rows) override {
    const bool mean = space == Space::kKey || space == Space::kValue;
    if (space == Space::kQuery) return;
    moments(space).add(rows, mean ? 1 : 2);
  }

  LayerStatistics statistics() {
    return {moments(Space::kAttentionInput).mean(),
            moments(Space::kAttentionOutput).mean(),
            moments(Space::kFfnInput).mean(),
            moments(Space::kFfnHidden).mean(),
            moments(Space::kKey).mean(),
            moments(Space::kValue).mean()};
  }

 private:
  ColumnMoments& moments(Space space) { return spaces_[static_cast<size_t>(space)]; }
  std::array<ColumnMoments, static_cast<size_t>(Space::kVocabulary) + 1> spaces_;
};

// Draws from the softmax of the logits.
Token sample(std::span<const float> logits, Random& random) {
  const float shift = log_sum_exp(logits);
  double target = random.uniform();
  for (size_t i = 0; i < logits.size(); ++i) {
    target -= double{std::exp(logits[i] - shift)};
    if (target < 0) return static_cast<Token>(i);
  }
  return static_cast<Token>(logits.size() - 1);
}

}  // namespace

std::vector<std::vector<Token>> sample_windows(std::span<const Token> text, int64_t tokens,
                                               int64_t window, std::optional<Token> bos,
                                               uint64_t seed) {
  const int64_t body = std::max<int64_t>(std::min(window, tokens) - (bos ? 1 : 0), 1);
  const auto size = static_cast<int64_t>(text.size());
  const bool all = size <= tokens;  // then the last, shorter piece counts too
  const int64_t available = std::max<int64_t>((size + (all ? body - 1 : 0)) / body, 1);
  const int64_t wanted =
      all ? available : std::clamp<int64_t>((tokens + window - 1) / window, 1, available);
  std::vector<int64_t> places(static_cast<size_t>(available));
  std::iota(places.begin(), places.end(), 0);
  Random random(seed, "calibration windows");
  for (size_t i = 0; !all && i < static_cast<size_t>(wanted); ++i) {  // a partial Fisher–Yates
    std::swap(places[i], places[i + random.below(places.size() - i)]);
  }
  std::vector<std::vector<Token>> windows;
  for (size_t i = 0; i < static_cast<size_t>(wanted); ++i) {
    std::vector<Token> ids;
    if (bos) ids.push_back(*bos);
    const auto begin = static_cast<size_t>(places[i] * body);
    const auto piece =
        text.subspan(begin, std::min(static_cast<size_t>(body), text.size() - begin));
    ids.insert(ids.end(), piece.begin(), piece.end());
    windows.push_back(std::move(ids));
  }
  return windows;
}

Result<std::vector<std::vector<Token>>> self_generated_windows(const Model& model,
                                                               std::optional<Token> bos,
                                                               int64_t tokens, uint64_t seed,
                                                               Progress& progress) {
  constexpr int64_t kSequences = 32;  // longer ones are better, more of them faster
  const int64_t length = std::clamp<int64_t>(tokens / kSequences, 1, model.config.max_positions);
  progress.stage("letting the model write a calibration text", length);
  Random random(seed, "self-generated text");
  SimulatedBackend backend(model, {});
  std::vector<std::vector<Token>> windows(kSequences);
  std::vector<int> sequences;
  for (std::vector<Token>& window : windows) {
    sequences.push_back(backend.add_sequence());
    window.push_back(
        bos ? *bos : static_cast<Token>(random.below(static_cast<uint64_t>(model.config.vocab))));
  }
  Matrix logits(kSequences, model.config.vocab);
  for (int64_t position = 0; position + 1 < length; ++position) {
    QUAROT_RETURN_IF_ERROR(progress.check());
    Batch batch;
    for (int64_t s = 0; s < kSequences; ++s) {
      batch.tokens.push_back(windows[static_cast<size_t>(s)].back());
      batch.chunks.push_back({sequences[static_cast<size_t>(s)], s, 1, position});
    }
    forward(backend, batch);
    backend.logits(0, kSequences, logits);
    for (int64_t s = 0; s < kSequences; ++s)
      windows[static_cast<size_t>(s)].push_back(sample(logits.row(s), random));
    progress.advance(1);
  }
  return windows;
}

Result<LayerStatistics> collect_statistics(LayerStream& stream) {
  StatisticsObserver observer;
  QUAROT_RETURN_IF_ERROR(stream.run_layer(&observer));
  return observer.statistics();
}

}  // namespace quarot
