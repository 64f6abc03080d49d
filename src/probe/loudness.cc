#include "probe/loudness.h"

#include <algorithm>
#include <cmath>

#include "rotation/orthogonal.h"

namespace quarot {

namespace {

constexpr int64_t kSurfaceTokens = 24;  // of the first window
constexpr int64_t kSurfaceBins = 144;
constexpr size_t kLoudPlaces = 8;

Matrix in_bins(ConstMatrixRef rows, int64_t tokens) {
  const int64_t size = std::max<int64_t>((rows.cols() + kSurfaceBins - 1) / kSurfaceBins, 1);
  Matrix bins(std::min(tokens, rows.rows()), (rows.cols() + size - 1) / size, 0.0F);
  for (int64_t r = 0; r < bins.rows(); ++r) {
    for (int64_t c = 0; c < rows.cols(); ++c)
      bins(r, c / size) = std::max(bins(r, c / size), std::abs(rows(r, c)));
  }
  return bins;
}

}  // namespace

void Loudness::see_site(int64_t layer, size_t site, const SiteStatistics& statistics,
                        const Matrix& rows) {
  if (statistics.peak_over_rms <= tallest_) return;
  tallest_ = statistics.peak_over_rms;
  surface_ = {.layer = layer, .site = site, .channels = rows.cols()};
  const auto tokens = std::min<int64_t>(kSurfaceTokens, std::ssize(windows_[0]));
  surface_.before = in_bins(rows, tokens);
  for (int64_t t = 0; t < tokens; ++t)
    surface_.tokens.push_back(text_of(windows_[0][static_cast<size_t>(t)]));
  const std::vector<LoudElement> loudest = loudest_of_rows(ConstMatrixRef(rows).rows(0, tokens));
  const LoudElement& loud = *std::ranges::max_element(
      loudest, {}, [](const LoudElement& e) { return std::abs(e.value); });
  const std::span<const float> row = rows.row(loud.row);
  surface_.loud_row.assign(row.begin(), row.end());
  Matrix alone(1, rows.cols(), 0.0F);
  alone(0, loud.channel) = rows(loud.row, loud.channel);
  Orthogonal::hadamard(rows.cols()).apply(alone.view());
  surface_.spread.assign(alone.elements().begin(), alone.elements().end());
}

void Loudness::see_rotated(int64_t layer, size_t site, const Matrix& rows) {
  if (surface_.layer == layer && surface_.site == site)
    surface_.after = in_bins(rows, surface_.before.rows());
}

LoudPlace& Loudness::place_of(int64_t row, int64_t channel) {
  size_t window = 0;
  while (row >= std::ssize(windows_[window])) row -= std::ssize(windows_[window++]);
  const auto place = std::ranges::find_if(places_, [&](const LoudPlace& p) {
    return p.window == static_cast<int64_t>(window) && p.position == row && p.channel == channel;
  });
  if (place != places_.end()) return *place;
  return places_.emplace_back(
      LoudPlace{.window = static_cast<int64_t>(window),
                .position = row,
                .channel = channel,
                .token = text_of(windows_[window][static_cast<size_t>(row)])});
}

void Loudness::see_stream(int64_t layer, ConstMatrixRef stream) {
  for (const LoudElement& element : loudest_of_rows(stream)) {
    LoudPlace& place = place_of(element.row, element.channel);
    if (element.massive()) ++place.layers;
    if (std::abs(element.value) <= std::abs(place.loudest.value)) continue;
    place.loudest = element;
    place.loudest_layer = layer;
  }
}

std::vector<LoudPlace> Loudness::loudest_places() const {
  std::vector<LoudPlace> places = places_;
  std::ranges::stable_sort(places, std::greater<>(),
                           [](const LoudPlace& p) { return std::abs(p.loudest.value); });
  places.resize(std::min(places.size(), kLoudPlaces));
  return places;
}

}  // namespace quarot
