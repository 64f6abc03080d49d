// Channels of a linear's input that stay in higher precision than the rest: mixed decomposition
// (LLM.int8(), Dettmers et al. 2022, section 3.2), outlier columns (QUIK, Ashkboos et al. 2023;
// Atom, Zhao et al. 2024). Simulated only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quant/quantizer.h"

namespace quarot {

struct KeptChannels {
  int64_t count = 0;     // a site, of those that calibration saw largest; see kept_count()
  double threshold = 0;  // instead: each in which a token of the batch exceeds it; activations only
  int bits = kFloatBits;  // of their activations and weights, a scale a row
  bool sorted = false;    // the rest by magnitude, so that groups hold their like

  bool enabled() const { return count > 0 || threshold > 0; }
  bool operator==(const KeptChannels&) const = default;
};

// How many are kept of a width: at most `count` and an eighth of it, and so that `group` ≥ 1
// divides the rest. 0: no number does, or a threshold decides.
int64_t kept_count(const KeptChannels& kept, int64_t width, int64_t group);

// The channels of one site as they are quantised: the rest, group after group, and last those kept.
struct ChannelOrder {
  std::vector<int32_t> channels;  // a permutation; empty: none is kept
  int64_t kept = 0;

  std::span<const int32_t> rest() const;
  std::span<const int32_t> last() const;  // the kept ones
};

// By the largest magnitudes that calibration saw; ties go to the lower channel.
ChannelOrder order_channels(const KeptChannels& kept, std::span<const double> largest,
                            int64_t group);

// By a threshold and the largest magnitudes of a batch's rows: what exceeds it is kept.
ChannelOrder order_by_threshold(double threshold, std::span<const float> largest);

// Columns of a matrix, in an order; and back.
Matrix gather(ConstMatrixRef matrix, std::span<const int32_t> columns);
void scatter(ConstMatrixRef from, std::span<const int32_t> columns, MatrixRef to);

// The rest as the quantiser says, the kept channels with bits of their own.
void simulate(const ActivationQuant& q, const KeptChannels& kept, const ChannelOrder& order,
              MatrixRef rows);

// kInvalidArgument with what is wrong.
Status check(const KeptChannels& kept, int64_t width, int64_t group);

}  // namespace quarot
