#include "kernels/cuda/attention/prefill_wgmma.cuh"

#include "kernels/cuda/attention/dispatch.h"
#include "kernels/cuda/check.h"

namespace quarot::cuda {

Status prefill_wgmma(const PrefillArgs& args, const PageLayout& layout, const AttentionShape& shape,
                     int max_queries, cudaStream_t stream) {
  return with_layout(layout, [&]<int kHeadDim, int kKeyBits, int kValueBits>() -> Status {
    if constexpr (wgmma_prefills(kHeadDim)) {
      constexpr int kSharedBytes =
          sizeof(typename WgmmaPrefill<kHeadDim, kKeyBits, kValueBits>::Shared);
      const auto kernel = prefill_wgmma_kernel<kHeadDim, kKeyBits, kValueBits>;
      QUAROT_RETURN_IF_ERROR(check(
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
          "attention_prefill"));
      const dim3 grid(shape.query_heads, (max_queries + kTileQueries - 1) / kTileQueries,
                      shape.sequences);
      kernel<<<grid, kPrefillThreads, kSharedBytes, stream>>>(args);
      return check_launch("attention_prefill");
    }
    return detail::unsupported(layout);
  });
}

}  // namespace quarot::cuda
