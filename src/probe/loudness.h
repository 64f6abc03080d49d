// Where the loudest activations of a model sit, noted while its layers run.
#pragma once

#include <string>
#include <vector>

#include "probe/site_statistics.h"
#include "text/tokenizer.h"

namespace quarot {

// The loudest elements of the residual stream, one entry for each place where they sit.
struct LoudPlace {
  int64_t window = 0;
  int64_t position = 0;
  int64_t channel = 0;
  std::string token;   // its text
  int64_t layers = 0;  // behind how many layers it is the loudest of its token and massive
  LoudElement loudest{};
  int64_t loudest_layer = 0;
};

// |x| of some tokens at one site, channels in bins of which the largest counts.
struct Surface {
  int64_t layer = 0;
  size_t site = 0;  // of kSites
  std::vector<std::string> tokens{};
  int64_t channels = 0;
  Matrix before{}, after{};       // [tokens, bins]
  std::vector<float> loud_row{};  // of the token with the loudest element, all channels …
  std::vector<float> spread{};    // … and its loudest coordinate alone, rotated
};

class Loudness {
 public:
  // Both must outlive it.
  Loudness(const Tokenizer& tokenizer, const std::vector<std::vector<Token>>& windows)
      : tokenizer_(tokenizer), windows_(windows) {}

  // Site `site` of kSites; its surface is kept where its peaks are the tallest so far.
  void see_site(int64_t layer, size_t site, const SiteStatistics& statistics, const Matrix& rows);
  // The same rows in the other basis.
  void see_rotated(int64_t layer, size_t site, const Matrix& rows);
  void see_stream(int64_t layer, ConstMatrixRef stream);

  std::vector<LoudPlace> loudest_places() const;  // the loudest first
  Surface take_surface() { return std::move(surface_); }

 private:
  std::string text_of(Token token) const { return tokenizer_.decode(std::span(&token, 1)); }
  LoudPlace& place_of(int64_t row, int64_t channel);

  const Tokenizer& tokenizer_;
  const std::vector<std::vector<Token>>& windows_;
  std::vector<LoudPlace> places_;
  Surface surface_;
  double tallest_ = 0;  // of peak_over_rms
};

}  // namespace quarot
