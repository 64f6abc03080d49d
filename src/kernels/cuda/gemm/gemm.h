// The integer GEMM of the 4-bit model on a GPU:
//   sum[t, c] = Σ_k a[t, k] · w[c, k]                                  exactly, in int32
//   y[t, c] = ((float(sum) · sa[t]) · sw[c]) + bias[c] + residual[t, c]   each step rounded to
// float32 (no fused multiply-add), the result rounded to the output's type. Every path computes the
// same integers and the same roundings, so y does not depend, in any bit, on the path, the GPU or
// the other rows of the batch.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "kernels/cuda/fused/fused.h"
#include "quarot/status.h"

namespace quarot::cuda {

enum class GemmOutput {
  kFloat32,
  kBFloat16,
  kFloat16,
  kInt32,  // the sums; scales, bias and residual are not read
};

enum class GemmActivations {
  kInt8,  // row-major
  kInt4,  // packed.h; k a multiple of 32; compute capability 8.x's own format, for kInt4Mma
};

enum class GemmPath {
  kAutomatic,  // by compute capability, m and the activations' format
  kStream,     // sm_80: reads each weight byte once; m up to kStreamRows; takes a workspace
  kWgmma,      // sm_90a: weights unpacked in registers, int8 wgmma, bulk-copy pipeline
  kInt4Mma,    // sm_80: mma m16n8k64 in int4; emulated, slowly, from sm_90 on
  kInt8Mma,    // sm_80: mma m16n8k32
};

inline constexpr int64_t kStreamRows = 32;

// Device pointers, aligned to 16 bytes. Nothing of bias and residual is read where they are null.
struct Gemm {
  int64_t m = 0;  // tokens
  int64_t n = 0;  // output channels
  int64_t k = 0;  // input channels: a multiple of 16, below 131072
  GemmActivations activations_type = GemmActivations::kInt8;
  const void* activations = nullptr;         // [m, k]
  const float* activation_scales = nullptr;  // [m]
  // In place of both: a row that kStream quantises on the way, as gemm_quantizes allows (its own
  // quant.values and quant.scales are not written); m = 1, k its width.
  const Rows* rows = nullptr;
  // [n, k], as pack_weight of packed.h lays it out. Its first reads may come before the kernel just
  // before in the stream has finished: that one must not write it.
  const void* weight = nullptr;
  const float* weight_scales = nullptr;  // [n]
  const float* bias = nullptr;           // [n]
  const void* residual = nullptr;        // [m, n] of the output's type; may be the output
  GemmOutput output_type = GemmOutput::kFloat32;
  // SwiGLU on the way: channels from n / 2 on are the values that the others, in their order, gate,
  // and the output, [m, n / 2] of float32, is silu(y[t, c]) · y[t, n / 2 + c]. As gemm_gates
  // allows.
  bool gated = false;
  void* output = nullptr;  // [m, n]
  // For kStream: gemm_workspace_bytes(m, n) bytes, zero before the first use and left zero by every
  // use; not to be shared by launches that may run at the same time.
  void* workspace = nullptr;
};

// How 4-bit activations should be written for the current device's fastest path.
Result<GemmActivations> gemm_activations(int64_t m, int64_t k);

// Whether a product can make its activations of these rows itself: where the current device's
// blocks have room for it.
bool gemm_quantizes(const Rows& rows);

// Whether a product, but for its pointers as kAutomatic would take it, can be gated.
bool gemm_gates(const Gemm& problem);

// Enough for every launch of up to m tokens and up to n output channels.
int64_t gemm_workspace_bytes(int64_t m, int64_t n);

// Enqueues the GEMM: no allocation, no synchronisation. kInvalidArgument where shapes or pointers
// break the rules above, kUnsupported where this device or format lacks the path.
Status gemm(const Gemm& problem, cudaStream_t stream, GemmPath path = GemmPath::kAutomatic);

}  // namespace quarot::cuda
