// The elementwise float operations that no kernel covers, on rows.
#pragma once

#include <cstdint>
#include <span>

namespace quarot {

// log Σ exp(x), in float32 with the maximum taken out.
float log_sum_exp(std::span<const float> x);

void add(std::span<const float> x, std::span<float> y);       // y ← y + x
void subtract(std::span<const float> x, std::span<float> y);  // y ← y − x

// y ← (sums·a)·w, or y += that unless `first`: a group's term of an integer product.
void scale_sums(std::span<const float> sums, float a, std::span<const float> w, bool first,
                std::span<float> y);

// y ← values − zero.
void to_float(std::span<const int8_t> values, int32_t zero, float* y);

}  // namespace quarot
