#include "kernels/cuda/attention/decode.cuh"

#include <algorithm>
#include <numbers>

#include "kernels/cuda/attention/dispatch.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/early_launch.cuh"

namespace quarot::cuda {
namespace {

// The counters lie in the same place whatever the shape: a call leaves them zero, the rest not.
constexpr size_t kMaxTiles = 1 << 16;
constexpr size_t kCounterBytes = kMaxTiles * sizeof(unsigned);

struct Workspace {
  size_t sums_at;
  size_t bytes;
};

Workspace workspace_of(const DecodeParts& parts, int head_dim) {
  const size_t count = parts.count();
  Workspace w{};
  w.sums_at = kCounterBytes + (count * sizeof(float2) + 255) / 256 * 256;
  w.bytes = w.sums_at + count * head_dim * sizeof(float);
  return w;
}

}  // namespace

DecodeParts decode_parts(const AttentionShape& shape, const PagedCache& cache) {
  const int group = shape.query_heads / cache.kv_heads;
  const int query_tiles = (group + kQueryTile - 1) / kQueryTile;
  constexpr int kSplitTokens = kSplitPages * kPageTokens;
  DecodeParts parts{};
  parts.tiles = static_cast<size_t>(shape.sequences) * cache.kv_heads * query_tiles;
  parts.max_splits =
      std::clamp((shape.max_length + kSplitTokens - 1) / kSplitTokens, 1, kMaxSplits);
  parts.tile_queries = std::min(group, kQueryTile);
  return parts;
}

Result<DecodeArgs> decode_args(const PagedCache& cache, const AttentionShape& shape,
                               void* workspace, float* out) {
  QUAROT_RETURN_IF_ERROR(check_attention(cache, shape));
  const DecodeParts parts = decode_parts(shape, cache);
  if (parts.tiles > kMaxTiles) {
    return error(ErrorCode::kInvalidArgument,
                 "attention: {} sequences of {} heads at once; at most {}", shape.sequences,
                 shape.query_heads, kMaxTiles);
  }
  const Workspace w = workspace_of(parts, cache.layout.head_dim);
  auto* bytes = static_cast<uint8_t*>(workspace);
  DecodeArgs args{};
  args.pool = static_cast<const uint8_t*>(cache.pool);
  args.page_table = cache.page_table;
  args.lengths = cache.lengths;
  args.table_stride = cache.table_stride;
  args.kv_heads = cache.kv_heads;
  args.group = shape.query_heads / cache.kv_heads;
  args.query_tiles = (args.group + kQueryTile - 1) / kQueryTile;
  args.tile_queries = parts.tile_queries;
  args.window = shape.window;
  args.scale_log2 = shape.scale * std::numbers::log2e_v<float>;
  args.arrived = reinterpret_cast<unsigned*>(bytes);
  args.stats = reinterpret_cast<float2*>(bytes + kCounterBytes);
  args.sums = reinterpret_cast<float*>(bytes + w.sums_at);
  args.max_splits = parts.max_splits;
  args.out = out;
  return args;
}

namespace {

Status launch(const DecodeArgs& args, const PagedCache& cache, const AttentionShape& shape,
              cudaStream_t stream) {
  const dim3 grid(cache.kv_heads * args.query_tiles, args.max_splits, shape.sequences);
  return with_layout(cache.layout, [&]<int kHeadDim, int kKeyBits, int kValueBits>() -> Status {
    const auto kernel = decode_kernel<kHeadDim, kKeyBits, kValueBits>;
    using Traits = DecodeTraits<kHeadDim, kKeyBits, kValueBits>;
    const int shared = args.appends ? Traits::kAppendBytes : Traits::kSharedBytes;
    QUAROT_RETURN_IF_ERROR(
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
              "attention_decode"));
    return launch_early("attention_decode", kernel, grid, kAttentionThreads, shared, stream, args);
  });
}

}  // namespace

size_t decode_workspace_bytes(const AttentionShape& shape, const PagedCache& cache) {
  return workspace_of(decode_parts(shape, cache), cache.layout.head_dim).bytes;
}

Status attention_decode(const __half* q, const PagedCache& cache, const AttentionShape& shape,
                        void* workspace, float* out, cudaStream_t stream) {
  QUAROT_ASSIGN_OR_RETURN(DecodeArgs args, decode_args(cache, shape, workspace, out));
  args.q = q;
  return launch(args, cache, shape, stream);
}

Status append_and_decode(const HeadBatch& batch, const Rotary& rotary, const HeadRotation& rotation,
                         const CacheWriter& writer, const PagedCache& cache,
                         const AttentionShape& shape, void* workspace, float* out,
                         cudaStream_t stream) {
  QUAROT_RETURN_IF_ERROR(check_heads(batch, rotary, rotation, writer));
  if (batch.element != Element::kFloat32 || !decode_appends(rotation)) {
    return error(ErrorCode::kUnsupported,
                 "append_and_decode: expected float32 and a head rotation of 2^n");
  }
  QUAROT_ASSIGN_OR_RETURN(DecodeArgs args, decode_args(cache, shape, workspace, out));
  args.appends = true;
  args.heads = head_args(batch, rotary, rotation, writer, nullptr);
  return launch(args, cache, shape, stream);
}

}  // namespace quarot::cuda
