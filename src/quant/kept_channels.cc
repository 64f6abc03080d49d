#include "quant/kept_channels.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace quarot {

namespace {

constexpr int64_t kMostKept = 8;  // one channel of so many

std::vector<float> largest_magnitudes(ConstMatrixRef rows) {
  std::vector<float> largest(static_cast<size_t>(rows.cols()), 0.0F);
  for (int64_t r = 0; r < rows.rows(); ++r) {
    for (size_t c = 0; c < largest.size(); ++c)
      largest[c] = std::max(largest[c], std::abs(rows.row(r)[c]));
  }
  return largest;
}

}  // namespace

std::span<const int32_t> ChannelOrder::rest() const {
  return std::span(channels).first(channels.size() - static_cast<size_t>(kept));
}

std::span<const int32_t> ChannelOrder::last() const {
  return std::span(channels).last(static_cast<size_t>(kept));
}

int64_t kept_count(const KeptChannels& kept, int64_t width, int64_t group) {
  int64_t count = std::min(kept.count, width / kMostKept);
  while (count > 0 && (width - count) % group != 0) --count;
  return count;
}

ChannelOrder order_channels(const KeptChannels& kept, std::span<const double> largest,
                            int64_t group) {
  ChannelOrder order;
  if (kept.count == 0) return order;
  order.kept = kept_count(kept, static_cast<int64_t>(largest.size()), group);
  order.channels.resize(largest.size());
  std::iota(order.channels.begin(), order.channels.end(), 0);
  std::ranges::stable_sort(order.channels, [&](int32_t a, int32_t b) {
    return largest[static_cast<size_t>(a)] < largest[static_cast<size_t>(b)];
  });
  if (!kept.sorted) std::sort(order.channels.begin(), order.channels.end() - order.kept);
  return order;
}

ChannelOrder order_by_threshold(double threshold, std::span<const float> largest) {
  ChannelOrder order;
  order.channels.resize(largest.size());
  std::iota(order.channels.begin(), order.channels.end(), 0);
  const auto kept = std::stable_partition(
      order.channels.begin(), order.channels.end(),
      [&](int32_t c) { return largest[static_cast<size_t>(c)] <= threshold; });
  order.kept = order.channels.end() - kept;
  return order;
}

Matrix gather(ConstMatrixRef matrix, std::span<const int32_t> columns) {
  Matrix result(matrix.rows(), static_cast<int64_t>(columns.size()));
  for (int64_t r = 0; r < matrix.rows(); ++r) {
    for (size_t c = 0; c < columns.size(); ++c)
      result.row(r)[c] = matrix.row(r)[static_cast<size_t>(columns[c])];
  }
  return result;
}

void scatter(ConstMatrixRef from, std::span<const int32_t> columns, MatrixRef to) {
  for (int64_t r = 0; r < from.rows(); ++r) {
    for (size_t c = 0; c < columns.size(); ++c)
      to.row(r)[static_cast<size_t>(columns[c])] = from.row(r)[c];
  }
}

void simulate(const ActivationQuant& q, const KeptChannels& kept, const ChannelOrder& order,
              MatrixRef rows) {
  if (!q.enabled()) return;
  if (kept.threshold > 0) {
    return simulate(q, {.bits = kept.bits},
                    order_by_threshold(kept.threshold, largest_magnitudes(rows)), rows);
  }
  if (order.channels.empty()) return simulate(q, rows);
  ActivationQuant high = q;
  high.bits = kept.bits;
  high.group = 0;
  for (const auto& [quant, channels] : {std::pair(q, order.rest()), {high, order.last()}}) {
    if (channels.empty()) continue;
    Matrix part = gather(rows, channels);
    simulate(quant, part);
    scatter(part, channels, rows);
  }
}

Status check(const KeptChannels& kept, int64_t width, int64_t group) {
  if (kept.count < 0 || !(kept.threshold >= 0)) {
    return error(ErrorCode::kInvalidArgument,
                 "kept channels: {} by calibration and those above {}; choose 0 or more",
                 kept.count, kept.threshold);
  }
  if (!kept.enabled()) return {};
  QUAROT_RETURN_IF_ERROR(check(ActivationQuant{.bits = kept.bits}, width));
  if (kept.count > 0 && kept.threshold > 0) {
    return error(ErrorCode::kInvalidArgument,
                 "kept channels: {} by calibration and those above {}; choose one", kept.count,
                 kept.threshold);
  }
  if (kept.threshold > 0 && group > 1) {
    return error(ErrorCode::kInvalidArgument,
                 "kept channels: those above a threshold leave no width that groups divide; choose "
                 "groups of 0, one scale a row");
  }
  if (kept.count > 0 && kept_count(kept, width, group) == 0) {
    return error(ErrorCode::kInvalidArgument,
                 "kept channels: no number up to {} leaves of {} what groups of {} divide",
                 std::min(kept.count, width / kMostKept), width, group);
  }
  return {};
}

}  // namespace quarot
