// Step 2 of factor_stream.cu: what a warpgroup has of the factor's product, and how it is
// multiplied. wgmma sums to the same bits as mma.sync does.
#pragma once

#include "kernels/cuda/attention/wgmma_f16.cuh"
#include "kernels/cuda/fused/factor_plan.cuh"

namespace quarot::cuda::factor {

// By a warpgroup: 64 of the factor's rows × a panel. Fragments are made from bits, of four steps in
// a word; with fewer threads a warp has registers to make some while others are read.
template <int kThreads_>
struct WgmmaTile {
  static constexpr int kThreads = kThreads_;
  static constexpr int kFragments = kThreads <= kFewThreads ? 2 : 1;
  static constexpr int kSums = 32;
  static constexpr int kRows = 16;  // of a warp
  static constexpr int kColumns = kPanelColumns;
  int panel;
  int first;    // row of the warp's first
  int staging;  // where its codes may lie in the planes when those are of no use: not in zeros

  __device__ WgmmaTile(const Plan& plan, int warp)
      : panel(warp / 4 % plan.panels()), first(warp / 4 / plan.panels() * 64 + warp % 4 * 16) {
    const int share = plan.warps / (2 * plan.panels());  // of a panel of either plane
    staging = warp / share * plan.panel_bytes() + warp % share * kRows * (kColumns + kPadding);
  }
  __device__ bool has_rows(const Plan& plan) const { return first < plan.rows.rotation.m; }
  __device__ int row_of(int staged) const { return first + staged; }
  __device__ int column() const { return panel * kPanelColumns; }
  // Of y[4j…4j+3], by fours: rows lane / 4 and that + 8, columns lane % 4 · 2 and the next.
  __device__ static int row(int) { return 0; }
  __device__ static int column(int j) { return 8 * j; }
  __device__ int tile(const Plan& plan) const { return min(first / 16, plan.steps - 1); }
  // Of the high terms; the upper half is the same for all.
  __device__ uint32_t operand(const Plan& plan, const uint8_t* planes) const {
    return static_cast<uint32_t>(
        transposed_descriptor(shared_address(planes) + panel * plan.panel_bytes(), 0));
  }
  __device__ static uint64_t descriptor(uint32_t low) { return transposed_descriptor(0, 0) | low; }

  __device__ __forceinline__ void multiply(const Plan& plan, const void* factor,
                                           const uint8_t* planes, unsigned lane,
                                           float (&y)[kSums]) const {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    const int groups = (plan.steps + kSignSteps - 1) / kSignSteps;
    const auto* signs = static_cast<const uint32_t*>(factor) + tile(plan) * groups * 32 + lane;
    uint32_t b = operand(plan, planes);
    const int low = plan.plane_bytes() / 16;
    const auto step = [&](uint32_t(&a)[4], uint32_t& word) {
#pragma unroll
      for (int r = 0; r < 4; ++r) a[r] = (word << r & 0x80008000U) | plan.ones;
      word <<= 4;
      wgmma_pin(a);
      wgmma_fence();
      wgmma_f16<true>(y, a, descriptor(b), 1);
      wgmma_f16<true>(y, a, descriptor(b + low), 1);
      wgmma_commit();
      wgmma_wait<kFragments - 1>();
      b += kStepDescriptor;
    };
    uint32_t word = 0;
    uint32_t a[kFragments][4];
    wgmma_pin(y);
#pragma unroll 1
    for (int i = 0; i < plan.steps; i += 2) {
      if (i % kSignSteps == 0) word = __ldg(signs + i / kSignSteps * 32);
      step(a[0], word);
      if (i + 1 < plan.steps) step(a[kFragments - 1], word);
    }
    wgmma_wait<0>();
    wgmma_pin(y);
#endif
  }
};

// The same of numbers that are sums of two; the second's products with low terms are too small to
// count. Fragments are in shared memory.
template <int kThreads_>
struct TermsTile : WgmmaTile<kThreads_> {
  using Base = WgmmaTile<kThreads_>;
  using Base::Base;
  using Base::kFragments;

  __device__ __forceinline__ void multiply(const Plan& plan, const void* factor,
                                           const uint8_t* planes, unsigned lane,
                                           float (&y)[Base::kSums]) const {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    const auto* fragments =
        static_cast<const uint4*>(factor) + this->tile(plan) * plan.steps * 32 + lane;
    const int second = plan.steps * plan.steps * 32;
    uint32_t b = this->operand(plan, planes);
    const int low = plan.plane_bytes() / 16;
    const auto load = [](const uint4* from, uint32_t(&a)[4]) {
      const uint4 v = *from;
      a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
      wgmma_pin(a);
      wgmma_fence();
    };
    uint32_t a[kFragments][4];
    wgmma_pin(y);
#pragma unroll 1
    for (int i = 0; i < plan.steps; ++i, fragments += 32, b += kStepDescriptor) {
      load(fragments, a[0]);
      wgmma_f16<true>(y, a[0], Base::descriptor(b), 1);
      wgmma_f16<true>(y, a[0], Base::descriptor(b + low), 1);
      wgmma_commit();
      wgmma_wait<kFragments - 1>();
      load(fragments + second, a[kFragments - 1]);
      wgmma_f16<true>(y, a[kFragments - 1], Base::descriptor(b), 1);
      wgmma_commit();
      wgmma_wait<kFragments - 1>();
    }
    wgmma_wait<0>();
    wgmma_pin(y);
#endif
  }
};

// By a warpgroup, of a factor so large that a row has but 32 columns: twice 64 rows × 32.
struct NarrowTile {
  static constexpr int kThreads = kMostThreads;
  static constexpr int kSums = 32;
  static constexpr int kRows = 32;
  static constexpr int kColumns = 32;
  int first;  // of the warp's first 16 rows
  int apart;  // how far from there the others are
  int staging;

  __device__ NarrowTile(const Plan& plan, int warp)
      : first(warp * 16), apart(plan.warps * 16), staging(warp * kRows * (kColumns + kPadding)) {}
  __device__ bool has_rows(const Plan&) const { return true; }
  __device__ static int column() { return 0; }
  __device__ int row_of(int staged) const { return first + staged / 16 * apart + staged % 16; }
  __device__ static int row(int j) { return j / 4 * 16; }
  __device__ static int column(int j) { return j % 4 * 8; }

  __device__ __forceinline__ void multiply(const Plan& plan, const void* factor,
                                           const uint8_t* planes, unsigned lane,
                                           float (&y)[kSums]) const {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    const int groups = (plan.steps + kSignSteps - 1) / kSignSteps;
    const auto* signs = static_cast<const uint32_t*>(factor) + lane;
    const uint32_t* tiles[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      tiles[i] = signs + min((first + i * apart) / 16, plan.steps - 1) * groups * 32;
    }
    const auto descriptor = [](uint32_t low) { return narrow_descriptor(0) | low; };
    auto b = static_cast<uint32_t>(narrow_descriptor(shared_address(planes)));
    const int low = plan.plane_bytes() / 16;
    uint32_t a[4];
    wgmma_pin(y);
#pragma unroll 1
    for (int group = 0; group < groups; ++group) {
      uint32_t word[2] = {__ldg(tiles[0] + group * 32), __ldg(tiles[1] + group * 32)};
#pragma unroll 1
      for (int step = group * kSignSteps; step < min(plan.steps, (group + 1) * kSignSteps);
           ++step) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          auto& sums = reinterpret_cast<float(&)[16]>(y[16 * i]);
#pragma unroll
          for (int r = 0; r < 4; ++r) a[r] = (word[i] << r & 0x80008000U) | plan.ones;
          word[i] <<= 4;
          wgmma_pin(a);
          wgmma_fence();
          wgmma_f16<true>(sums, a, descriptor(b), 1);
          wgmma_f16<true>(sums, a, descriptor(b + low), 1);
          wgmma_commit();
          wgmma_wait<0>();
        }
        b += kStepDescriptor / 2;
      }
    }
    wgmma_pin(y);
#endif
  }
};

}  // namespace quarot::cuda::factor
