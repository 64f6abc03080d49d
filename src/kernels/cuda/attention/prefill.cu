#include "kernels/cuda/attention/prefill.cuh"

#include <numbers>

#include "kernels/cuda/attention/dispatch.h"
#include "kernels/cuda/check.h"

namespace quarot::cuda {

Status attention_prefill(const __half* q, const int32_t* query_starts, int max_queries,
                         const PagedCache& cache, const AttentionShape& shape, float* out,
                         cudaStream_t stream) {
  QUAROT_RETURN_IF_ERROR(check_attention(cache, shape));
  PrefillArgs args{};
  args.q = q;
  args.query_starts = query_starts;
  args.pool = static_cast<const uint8_t*>(cache.pool);
  args.page_table = cache.page_table;
  args.lengths = cache.lengths;
  args.table_stride = cache.table_stride;
  args.kv_heads = cache.kv_heads;
  args.group = shape.query_heads / cache.kv_heads;
  args.window = shape.window;
  args.scale_log2 = shape.scale * std::numbers::log2e_v<float>;
  args.out = out;
  QUAROT_ASSIGN_OR_RETURN(const Device device, current_device());
  if (device.capability == 90 && wgmma_prefills(cache.layout.head_dim)) {
    return prefill_wgmma(args, cache.layout, shape, max_queries, stream);
  }
  return with_layout(cache.layout, [&]<int kHeadDim, int kKeyBits, int kValueBits>() -> Status {
    using Traits = PrefillTraits<kHeadDim, kKeyBits, kValueBits>;
    const auto kernel = prefill_kernel<kHeadDim, kKeyBits, kValueBits>;
    QUAROT_RETURN_IF_ERROR(
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   Traits::kSharedBytes),
              "attention_prefill"));
    const dim3 grid((max_queries + Traits::kQueries - 1) / Traits::kQueries, shape.query_heads,
                    shape.sequences);
    kernel<<<grid, kAttentionThreads, Traits::kSharedBytes, stream>>>(args);
    return check_launch("attention_prefill");
  });
}

}  // namespace quarot::cuda
