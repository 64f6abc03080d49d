#include "recipe/calibration.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/parallel.h"
#include "base/random.h"
#include "runtime/simulated_backend.h"
#include "runtime/vector_math.h"

namespace quarot {

namespace {

class StatisticsObserver final : public SiteObserver {
 public:
  explicit StatisticsObserver(int64_t sample_every) : sample_every_(sample_every) {}

  void observe(int64_t, Space space, ConstMatrixRef rows) override {
    if (space == Space::kQuery) return;
    ChannelStatistics& channels = statistics_[space];
    int64_t& count = counts_[static_cast<size_t>(space)];
    add(rows, channels);
    if (sample_every_ > 0 && std::ranges::find(kSites, space) != kSites.end()) {
      const int64_t first = (sample_every_ - count % sample_every_) % sample_every_;
      for (int64_t r = first; r < rows.rows(); r += sample_every_)
        append(rows.row(r), samples_[static_cast<size_t>(space)]);
    }
    count += rows.rows();
  }

  LayerStatistics take() {
    for (size_t i = 0; i < kSpaces; ++i) {
      ChannelStatistics& channels = statistics_.spaces[i];
      const auto count = static_cast<double>(std::max<int64_t>(counts_[i], 1));
      for (auto* sums : {&channels.mean, &channels.mean_magnitude, &channels.mean_square}) {
        for (double& sum : *sums) sum /= count;
      }
      const auto width = static_cast<int64_t>(channels.mean.size());
      if (samples_[i].empty()) continue;
      channels.sample.resize(static_cast<int64_t>(samples_[i].size()) / width, width);
      std::ranges::copy(samples_[i], channels.sample.data());
    }
    return std::move(statistics_);
  }

 private:
  static void append(std::span<const float> row, std::vector<float>& rows) {
    rows.insert(rows.end(), row.begin(), row.end());
  }

  static void add(ConstMatrixRef rows, ChannelStatistics& channels) {
    const auto width = static_cast<size_t>(rows.cols());
    for (auto* values :
         {&channels.mean, &channels.mean_magnitude, &channels.mean_square, &channels.largest}) {
      values->resize(width, 0.0);
    }
    parallel_for(rows.cols(), 64, [&](int64_t first, int64_t last) {
      for (int64_t r = 0; r < rows.rows(); ++r) {
        const float* row = rows.row_data(r);
        for (auto c = static_cast<size_t>(first); c < static_cast<size_t>(last); ++c) {
          const double x = row[c];
          channels.mean[c] += x;
          channels.mean_magnitude[c] += std::abs(x);
          channels.mean_square[c] += x * x;
          channels.largest[c] = std::max(channels.largest[c], std::abs(x));
        }
      }
    });
  }

  int64_t sample_every_;
  LayerStatistics statistics_;
  std::array<int64_t, kSpaces> counts_{};
  std::array<std::vector<float>, kSpaces> samples_;
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

std::span<const std::vector<Token>> first_windows(std::span<const std::vector<Token>> windows,
                                                  int64_t tokens) {
  size_t count = 0;
  for (; count < windows.size() && tokens > 0; ++count) tokens -= std::ssize(windows[count]);
  return windows.first(count);
}

int64_t count_tokens(std::span<const std::vector<Token>> windows) {
  int64_t tokens = 0;
  for (const std::vector<Token>& window : windows) tokens += std::ssize(window);
  return tokens;
}

Result<std::vector<std::vector<Token>>> self_generated_windows(const Model& model,
                                                               std::optional<Token> bos,
                                                               int64_t tokens, uint64_t seed,
                                                               Progress& progress) {
  constexpr int64_t kMost = 32;     // longer ones are better, more of them faster
  constexpr int64_t kLength = 256;  // a sequence at least, of as many tokens
  const int64_t count = std::clamp<int64_t>(tokens / kLength, 1, kMost);
  const int64_t length = std::clamp<int64_t>(tokens / count, 1, model.config.max_positions);
  progress.stage("letting the model write a calibration text", length);
  Random random(seed, "self-generated text");
  SimulatedBackend backend(model, {});
  std::vector<std::vector<Token>> windows(static_cast<size_t>(count));
  std::vector<int> sequences;
  for (std::vector<Token>& window : windows) {
    sequences.push_back(backend.add_sequence());
    window.push_back(
        bos ? *bos : static_cast<Token>(random.below(static_cast<uint64_t>(model.config.vocab))));
  }
  Matrix logits(count, model.config.vocab);
  for (int64_t position = 0; position + 1 < length; ++position) {
    QUAROT_RETURN_IF_ERROR(progress.check());
    Batch batch;
    for (int64_t s = 0; s < count; ++s) {
      batch.tokens.push_back(windows[static_cast<size_t>(s)].back());
      batch.chunks.push_back({sequences[static_cast<size_t>(s)], s, 1, position});
    }
    forward(backend, batch);
    backend.logits(0, count, logits);
    for (int64_t s = 0; s < count; ++s)
      windows[static_cast<size_t>(s)].push_back(sample(logits.row(s), random));
    progress.advance(1);
  }
  return windows;
}

Result<LayerStatistics> collect_statistics(LayerStream& stream, int64_t sample_every) {
  StatisticsObserver observer(sample_every);
  QUAROT_RETURN_IF_ERROR(stream.run_layer(&observer));
  return observer.take();
}

}  // namespace quarot
