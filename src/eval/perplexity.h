// Perplexity, and how far a quantised model's predictions are from the float model's. DESIGN.md,
// section 6.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/progress.h"
#include "runtime/backend.h"

namespace quarot {

enum class Protocol {
  kPaper,     // windows without overlap, every token but a window's first scored
  kStrided,   // windows overlap; each scores only the tokens the one before did not
  kLlamaCpp,  // the second half of each window is scored; BOS replaces its first token
};

struct PerplexityOptions {
  Protocol protocol = Protocol::kPaper;
  int64_t window = 2048;
  int64_t stride = 0;       // kStrided: tokens a window advances, 1 … window − 1
  int64_t max_windows = 0;  // 0: all
  bool bos_each_window = false;
};

// One forward pass over consecutive tokens of which the last `scored` are predicted and scored.
struct EvalWindow {
  std::vector<Token> tokens;
  int64_t scored = 0;

  bool operator==(const EvalWindow&) const = default;
};

// Cuts a tokenised text into windows; the tail that fills none is dropped. A text shorter than one
// window is one shorter window. `bos` is needed where the protocol or the options put it before
// each window. Errors: kInvalidArgument for a text of fewer than two tokens, or options out of
// range.
Result<std::vector<EvalWindow>> cut_windows(std::span<const Token> text,
                                            const PerplexityOptions& options,
                                            std::optional<Token> bos);

// "paper protocol: windows of 2048, no overlap, 2047 losses each"
std::string describe(const PerplexityOptions& options);

struct PerplexityResult {
  std::vector<double> nll;    // mean loss of each window, nats a token
  int64_t tokens = 0;         // losses in all
  double perplexity = 0;      // exp of the mean loss over all tokens
  double standard_error = 0;  // of it, from the spread of the windows' means; NaN for one window

  // Against a reference model, where one was given: means over all scored tokens.
  struct Divergence {
    double kl = 0;                 // KL(reference ‖ model), nats a token
    double kl_standard_error = 0;  // from the spread of the windows' means; NaN for one
    double top1_agreement = 0;     // share of tokens where both rank the same token first
  };
  std::optional<Divergence> against;
};

// Several models over the same windows, in their order. The reference runs once for all of them,
// and may be one of them.
Result<std::vector<PerplexityResult>> measure_perplexities(std::span<Backend* const> models,
                                                           Backend* reference,
                                                           const std::vector<EvalWindow>& windows,
                                                           Progress& progress);

Result<PerplexityResult> measure_perplexity(Backend& model, Backend* reference,
                                            const std::vector<EvalWindow>& windows,
                                            Progress& progress);

}  // namespace quarot
