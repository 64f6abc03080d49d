// Caches quantised whole pages at a time, some while after their tokens came: KIVI (Liu et al.
// 2024: keys by channel, values by token, recent tokens in float) and KVQuant (Hooper et al. 2024,
// here with uniform levels: keys before RoPE, the outliers of each page apart). Simulated only.
#pragma once

#include <cstdint>

#include "quant/quantizer.h"

namespace quarot {

struct PageQuant {
  bool keys_by_channel = false;   // a scale a channel and page; else, as values, a token and group
  bool keys_before_rope = false;  // as they are before RoPE
  int64_t recent = 0;   // tokens before the page a query is in that are float yet, whole pages
  double outliers = 0;  // the part of a page that stays float: what lies furthest from the mean of
                        // its group, in standard deviations of it

  bool enabled() const { return keys_by_channel || keys_before_rope || recent > 0 || outliers > 0; }
  bool operator==(const PageQuant&) const = default;
};

// The page's rows in groups of `group` columns, each between its own extremes a ≤ b (0 need not lie
// there), with the clip ratio p:
//   scale = p·(b − a)/(2^bits − 1), lowest = (a + b)/2 − p·(b − a)/2
//   x ≈ lowest + scale·q, q = clamp(round((x − lowest)/scale), 0, 2^bits − 1)
// Outliers are taken out first: ⌊outliers · elements⌋ of them, and those as far out as the last.
void simulate_page(int bits, float clip, int64_t group, double outliers, MatrixRef rows);

// kInvalidArgument with what is wrong.
Status check(const PageQuant& q, int64_t page_tokens);

}  // namespace quarot
