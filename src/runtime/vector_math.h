// The elementwise float operations of the forward pass, on rows.
#pragma once

#include <span>

namespace quarot {

// x ← exp(x − max x), returns the sum: softmax but for the division. Empty: returns 0.
float exp_shifted(std::span<float> x);

// x ← x·factor.
void scale(std::span<float> x, float factor);

// y ← x·gain/√(mean x² + eps): RMSNorm (Zhang and Sennrich 2019). y may be x.
void rms_norm(std::span<const float> x, std::span<const float> gain, float eps, std::span<float> y);

// y ← silu(gate)·up: SwiGLU (Shazeer 2020). y may be either.
void swiglu(std::span<const float> gate, std::span<const float> up, std::span<float> y);

// log Σ exp(x), in float32 with the maximum taken out.
float log_sum_exp(std::span<const float> x);

void add(std::span<const float> x, std::span<float> y);  // y ← y + x
float sum_of_squares(std::span<const float> x);

}  // namespace quarot
