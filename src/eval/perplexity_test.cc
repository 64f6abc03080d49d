#include "eval/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "support/synthetic.h"

namespace quarot {
namespace {

using testing::value_of;

constexpr Token kBos = 99;

std::vector<Token> text_of(int64_t size) {
  std::vector<Token> text(static_cast<size_t>(size));
  std::iota(text.begin(), text.end(), 0);
  return text;
}

PerplexityOptions options_of(Protocol protocol, int64_t window, int64_t stride = 0) {
  PerplexityOptions options;
  options.protocol = protocol;
  options.window = window;
  options.stride = stride;
  return options;
}

// The tokens a window scores: its last ones.
std::vector<Token> scored(const EvalWindow& window) {
  return {window.tokens.end() - window.scored, window.tokens.end()};
}

std::vector<EvalWindow> cut(int64_t size, const PerplexityOptions& options) {
  return value_of(cut_windows(text_of(size), options, kBos));
}

TEST(CutWindows, PaperDropsTheTail) {
  const auto windows = cut(11, options_of(Protocol::kPaper, 4));
  ASSERT_EQ(windows.size(), 2U);
  EXPECT_EQ(windows[0].tokens, (std::vector<Token>{0, 1, 2, 3}));
  EXPECT_EQ(windows[1].tokens, (std::vector<Token>{4, 5, 6, 7}));
  EXPECT_EQ(windows[1].scored, 3);
  EXPECT_EQ(cut(12, options_of(Protocol::kPaper, 4)).size(), 3U);
}

TEST(CutWindows, PaperWithBosScoresEveryTokenOnce) {
  PerplexityOptions options = options_of(Protocol::kPaper, 4);
  options.bos_each_window = true;
  const auto windows = cut(11, options);
  ASSERT_EQ(windows.size(), 3U);
  EXPECT_EQ(windows[0].tokens, (std::vector<Token>{kBos, 0, 1, 2}));
  EXPECT_EQ(scored(windows[2]), (std::vector<Token>{6, 7, 8}));
}

TEST(CutWindows, StridedScoresWhatTheLastWindowDidNot) {
  for (const bool bos : {false, true}) {
    PerplexityOptions options = options_of(Protocol::kStrided, 8, 3);
    options.bos_each_window = bos;
    const auto windows = cut(40, options);
    std::vector<Token> all;
    for (const EvalWindow& window : windows) {
      EXPECT_EQ(window.tokens.size(), 8U);
      const auto ids = scored(window);
      all.insert(all.end(), ids.begin(), ids.end());
    }
    std::vector<Token> expected = text_of(static_cast<int64_t>(all.size()) + (bos ? 0 : 1));
    if (!bos) expected.erase(expected.begin());
    EXPECT_EQ(all, expected);  // each token once, in order, the first never without BOS
    EXPECT_GE(all.size(), 36U);
  }
}

// llama.cpp's perplexity: n_ctx 8 scores tokens 5, 6, 7 of each chunk, whose first is BOS.
TEST(CutWindows, LlamaCppScoresTheSecondHalf) {
  const auto windows = cut(20, options_of(Protocol::kLlamaCpp, 8));
  ASSERT_EQ(windows.size(), 2U);
  EXPECT_EQ(windows[1].tokens, (std::vector<Token>{kBos, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(scored(windows[1]), (std::vector<Token>{13, 14, 15}));
  EXPECT_NE(describe(options_of(Protocol::kLlamaCpp, 8)).find("last 3 losses"), std::string::npos);
  EXPECT_EQ(cut(20, options_of(Protocol::kLlamaCpp, 2))[0].scored, 1);
  EXPECT_NE(describe(options_of(Protocol::kLlamaCpp, 2)).find("last 1 losses"), std::string::npos);
}

TEST(CutWindows, AShortTextIsOneShortWindow) {
  for (const Protocol protocol : {Protocol::kPaper, Protocol::kStrided, Protocol::kLlamaCpp}) {
    for (const int64_t size : {2, 3, 9}) {
      const auto windows =
          cut(size, options_of(protocol, 10, protocol == Protocol::kStrided ? 4 : 0));
      ASSERT_EQ(windows.size(), 1U);
      EXPECT_EQ(static_cast<int64_t>(windows[0].tokens.size()), size);
      EXPECT_GE(windows[0].scored, 1);
      EXPECT_LT(windows[0].scored, size);
    }
  }
}

TEST(CutWindows, MaxWindowsStopsEarly) {
  PerplexityOptions options = options_of(Protocol::kPaper, 4);
  options.max_windows = 2;
  EXPECT_EQ(cut(100, options).size(), 2U);
  options.max_windows = 99;
  EXPECT_EQ(cut(100, options).size(), 25U);
}

TEST(CutWindows, RefusesWhatMakesNoSense) {
  const auto refused = [](const PerplexityOptions& options, int64_t size, std::optional<Token> bos,
                          const char* message) {
    const auto windows = cut_windows(text_of(size), options, bos);
    ASSERT_FALSE(windows.ok()) << message;
    EXPECT_EQ(windows.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(windows.error().message().find(message), std::string::npos)
        << windows.error().message();
  };
  refused(options_of(Protocol::kPaper, 4), 0, kBos, "0 tokens");
  refused(options_of(Protocol::kPaper, 4), 1, kBos, "1 tokens");
  refused(options_of(Protocol::kPaper, 1), 9, kBos, "window of 1");
  refused(options_of(Protocol::kPaper, -5), 9, kBos, "window of -5");
  refused(options_of(Protocol::kPaper, 4, -2), 9, kBos, "stride of -2");
  refused(options_of(Protocol::kStrided, 4, 0), 9, kBos, "stride of 0");
  refused(options_of(Protocol::kStrided, 4, 4), 9, kBos, "stride of 4");
  refused(options_of(Protocol::kLlamaCpp, 4), 9, std::nullopt, "BOS");
  PerplexityOptions options = options_of(Protocol::kPaper, 4);
  options.bos_each_window = true;
  refused(options, 9, std::nullopt, "BOS");
  options = options_of(Protocol::kPaper, 4);
  options.max_windows = -1;
  refused(options, 9, kBos, "at most -1 windows");
}

struct Measured {
  Model model = testing::random_model(testing::config_json(), 1);
  std::vector<EvalWindow> windows = value_of(cut_windows(
      testing::random_tokens(120, 96, 2), options_of(Protocol::kStrided, 40, 20), kBos));
};

// −log softmax(logits)[next token] in double precision.
double exact_loss(const Model& model, const EvalWindow& window) {
  const Matrix logits = testing::logits_of(model, window.tokens);
  double loss = 0;
  for (int64_t i = 0; i < window.scored; ++i) {
    const int64_t row = logits.rows() - 1 - window.scored + i;
    double sum = 0;
    for (const float logit : logits.row(row)) sum += std::exp(double{logit});
    loss += std::log(sum) - logits(row, window.tokens[static_cast<size_t>(row + 1)]);
  }
  return loss;
}

TEST(MeasurePerplexity, IsTheMeanLossOfTheScoredTokens) {
  const Measured m;
  ASSERT_EQ(m.windows.size(), 5U);
  SimulatedBackend backend(m.model, {});
  NoProgress progress;
  const auto result = value_of(measure_perplexity(backend, nullptr, m.windows, progress));
  double total = 0;
  std::vector<double> means;
  for (const EvalWindow& window : m.windows) {
    total += exact_loss(m.model, window);
    means.push_back(exact_loss(m.model, window) / static_cast<double>(window.scored));
    EXPECT_NEAR(result.nll[means.size() - 1], means.back(), 1e-5);
  }
  EXPECT_EQ(result.tokens, 39 + 4 * 20);
  EXPECT_NEAR(std::log(result.perplexity), total / 119, 1e-5);
  // The spread of the five means over √5, carried through exp.
  const double mean = (means[0] + means[1] + means[2] + means[3] + means[4]) / 5;
  double squares = 0;
  for (const double v : means) squares += (v - mean) * (v - mean);
  EXPECT_NEAR(result.standard_error, result.perplexity * std::sqrt(squares / 4 / 5),
              1e-4 * result.perplexity);
  EXPECT_FALSE(result.against.has_value());
  // Windows use the memory of those before them.
  const int64_t bytes = backend.cache_bytes();
  EXPECT_EQ(backend.add_sequence(), 0);
  (void)value_of(measure_perplexity(backend, nullptr, m.windows, progress));
  EXPECT_EQ(backend.cache_bytes(), bytes);
}

TEST(MeasurePerplexity, OneWindowHasNoStandardError) {
  const Measured m;
  SimulatedBackend backend(m.model, {});
  NoProgress progress;
  const auto result = value_of(measure_perplexity(backend, nullptr, {m.windows[0]}, progress));
  EXPECT_TRUE(std::isnan(result.standard_error));
  EXPECT_NEAR(result.perplexity, std::exp(result.nll[0]), 1e-9 * result.perplexity);
}

TEST(Divergence, OfAModelFromItselfIsNothing) {
  const Measured m;
  SimulatedBackend backend(m.model, {});
  SimulatedBackend reference(m.model, {});
  NoProgress progress;
  const auto result = value_of(measure_perplexity(backend, &reference, m.windows, progress));
  ASSERT_TRUE(result.against.has_value());
  EXPECT_EQ(result.against->kl, 0);
  EXPECT_EQ(result.against->kl_standard_error, 0);
  EXPECT_EQ(result.against->top1_agreement, 1);
}

TEST(Divergence, IsKullbackAndLeiblersFromTheReference) {
  const Measured m;
  const Model other = testing::random_model(testing::config_json(), 5);
  SimulatedBackend backend(other, {});
  SimulatedBackend reference(m.model, {});
  NoProgress progress;
  const EvalWindow& window = m.windows[0];
  const auto result = value_of(measure_perplexity(backend, &reference, {window}, progress));
  const Matrix p = testing::logits_of(m.model, window.tokens);
  const Matrix q = testing::logits_of(other, window.tokens);
  double kl = 0;
  double agree = 0;
  for (int64_t r = 0; r < window.scored; ++r) {
    double p_sum = 0;
    double q_sum = 0;
    for (int64_t i = 0; i < p.cols(); ++i) {
      p_sum += std::exp(double{p(r, i)});
      q_sum += std::exp(double{q(r, i)});
    }
    for (int64_t i = 0; i < p.cols(); ++i) {
      kl += std::exp(double{p(r, i)}) / p_sum *
            (double{p(r, i)} - std::log(p_sum) - q(r, i) + std::log(q_sum));
    }
    const auto first = [&](const Matrix& x) {
      return std::ranges::max_element(x.row(r)) - x.row(r).begin();
    };
    agree += first(p) == first(q) ? 1 : 0;
  }
  const auto count = static_cast<double>(window.scored);
  EXPECT_NEAR(result.against->kl, kl / count, 1e-4 * kl / count);
  EXPECT_NEAR(result.against->top1_agreement, agree / count, 1e-12);
}

TEST(MeasurePerplexity, RefusesForeignTokensAndCanBeInterrupted) {
  const Measured m;
  SimulatedBackend backend(m.model, {});
  NoProgress progress;
  const auto foreign = measure_perplexity(backend, nullptr, {EvalWindow{{1, 96}, 1}}, progress);
  ASSERT_FALSE(foreign.ok());
  EXPECT_NE(foreign.error().message().find("token 96"), std::string::npos);
  class Stop final : public Progress {
    void stage(std::string_view, int64_t) override {}
    void advance(int64_t) override {}
    bool cancelled() const override { return true; }
  } stop;
  const auto stopped = measure_perplexity(backend, nullptr, m.windows, stop);
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code(), ErrorCode::kCancelled);
}

TEST(MeasurePerplexity, RefusesPredictionsThatAreNoNumbers) {
  Measured m;
  m.model.final_norm[3] = std::numeric_limits<float>::quiet_NaN();
  SimulatedBackend backend(m.model, {});
  NoProgress progress;
  for (Backend* reference : {static_cast<Backend*>(nullptr), static_cast<Backend*>(&backend)}) {
    const auto result = measure_perplexity(backend, reference, m.windows, progress);
    ASSERT_FALSE(result.ok());
    EXPECT_NE(result.error().message().find("no finite numbers"), std::string::npos);
  }
}

}  // namespace
}  // namespace quarot
