// A multiprocessor has one block of several groups of warps. A group takes a row, [m][columns],
// through
//   1. operation and butterflies, each warp on a piece of 1024 elements, whole rows of [columns];
//   2. the factor's product by wgmma, from swizzled float16 planes in shared memory;
//   3. quantising.
// Meanwhile the copy engine brings the next rows, and other groups are elsewhere on this way.
#include "kernels/cuda/fused/factor_stream.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cuda/fused/factor_tiles.cuh"
#include "kernels/cuda/fused/walsh_piece.cuh"

namespace quarot::cuda {
namespace factor {
namespace {

// A warp's sums as codes, by way of its staging place.
template <typename Tile>
__device__ __forceinline__ void store_tile(const Plan& plan, const Tile& tile,
                                           const RowQuantizer& quantizer,
                                           const float (&y)[Tile::kSums], unsigned lane,
                                           uint8_t* staging, uint8_t* out) {
  constexpr int kPitch = Tile::kColumns + kPadding;
  const RowRotation& rotation = plan.rows.rotation;
  uint8_t* to = staging + lane / 4 * kPitch + lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < Tile::kSums / 4; ++j) {
    const uint32_t codes =
        quantizer.quantize_rounded(y[4 * j], y[4 * j + 1], y[4 * j + 2], y[4 * j + 3]);
    uint8_t* at = to + Tile::row(j) * kPitch + Tile::column(j);
    *reinterpret_cast<uint16_t*>(at) = static_cast<uint16_t>(codes);
    *reinterpret_cast<uint16_t*>(at + 8 * kPitch) = static_cast<uint16_t>(codes >> 16);
  }
  __syncwarp();
  const auto piece = [&](int row, int column) {
    return *reinterpret_cast<const uint4*>(staging + row * kPitch + column);
  };
  const auto put = [&]<bool kPacked>() {
    constexpr unsigned kWide = kPacked ? 32 : 16;  // columns that make 16 bytes
    constexpr unsigned kTurns = (Tile::kRows * Tile::kColumns / kWide + 31) / 32;
#pragma unroll
    for (unsigned i = 0; i < kTurns; ++i) {
      const unsigned at = (i * 32 + lane) * kWide;
      const unsigned column = at % Tile::kColumns;
      const int row = tile.row_of(at / Tile::kColumns);
      if (row >= rotation.m) break;
      uint4 v = piece(at / Tile::kColumns, column);
      if constexpr (kPacked) {
        const uint4 high = piece(at / Tile::kColumns, column + 16);
        v = {pack_nibbles(v.x, high.x), pack_nibbles(v.y, high.y), pack_nibbles(v.z, high.z),
             pack_nibbles(v.w, high.w)};
      }
      const unsigned element = row * rotation.columns + tile.column() + column;
      *reinterpret_cast<uint4*>(out + element / (kPacked ? 2 : 1)) = v;
    }
  };
  if (plan.rows.quant.pack_int4) {
    put.template operator()<true>();
  } else {
    put.template operator()<false>();
  }
}

template <RowOperation kOperation, int kBits, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1) factor_stream_kernel(const Plan plan) {
#if __CUDA_ARCH__ >= 900
  using Ring = PieceRing<kOperation>;
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ uint64_t full[kMostSlots];
  __shared__ int fills[kMostSlots];
  __shared__ float tops[kMostWarps];
  const Rows& args = plan.rows;
  const RowRotation& rotation = args.rotation;
  const Member at(plan);
  uint8_t* planes = shared + at.group * 2 * plan.plane_bytes();
  uint8_t* slots = shared + plan.groups * 2 * plan.plane_bytes();
  const Ring ring{args, slots, full, fills, plan.slots, plan.pieces};
  auto* squares = reinterpret_cast<float*>(slots + plan.slots * Ring::kSlotBytes +
                                           at.group * square_bytes(args));
  const void* factor = rotation.factor;
  if (plan.staged_factor > 0) {
    auto* staged = reinterpret_cast<uint4*>(shared + plan.shared - plan.staged_factor);
    for (int i = threadIdx.x; i < plan.staged_factor / 16; i += blockDim.x) {
      staged[i] = __ldg(static_cast<const uint4*>(rotation.factor) + i);
    }
    factor = staged;
  }
  begin_early();
  clear_padding(plan, shared);
  wgmma_proxy_fence();
  wait_early();
  ring.start();
  __syncthreads();

  PieceTurn<Ring> turn(ring, at.group * plan.pieces + at.warp, plan.groups * plan.pieces);
  const Tile tile(plan, at.warp);
  for (unsigned row = blockIdx.x + at.group * gridDim.x; row < static_cast<unsigned>(args.rows);
       row += plan.groups * gridDim.x) {
    const float range = fill_planes<Ring, kBits>(plan, ring, turn, at, row, planes, squares);
    at.sync();
    float y[Tile::kSums] = {};
    tile.multiply(plan, factor, planes, forgotten_lane(), y);
    const bool some = tile.has_rows(plan);
    float unit = plane_unit(rotation, range);
    if constexpr (kOperation == RowOperation::kNorm) unit *= norm_factor(args, squares);
    const float top = at.largest(tops, some ? largest_of(y) : 0);
    const RowQuantizer quantizer(args.quant, unit, top);
    if (at.warp == 0 && threadIdx.x % 32 == 0) args.quant.scales[row] = quantizer.scale();
    if (some) {
      store_tile(plan, tile, quantizer, y, forgotten_lane(), planes + tile.staging,
                 output_row(args, row));
    }
  }
#endif
}

// What a block has static, by and large, beside what is launched with it.
constexpr int kStaticBytes = 1024;
constexpr int kLeastRing = 48 * 1024;
// Narrower rows are faster by more and smaller blocks (factor_rows.cu).
constexpr int kLeastWidth = 10240;
// Of a factor: with fewer most of wgmma's 64 would be idle, and codes could not be staged without
// touching the rows of zeros.
constexpr int kLeastRows = 36;
constexpr int kLeastNarrowRows = 384;

Plan plan_of(const Rows& rows, const Device& device) {
  const RowRotation& r = rows.rotation;
  Plan plan{rows};
  plan.pieces = ceil_div(rows.n, kPiece);
  plan.steps = ceil_div(r.m, 16);
  plan.warps = r.columns == kNarrow ? 4 * ceil_div(r.m, 2 * kWgmmaRows)
                                    : 4 * ceil_div(r.m, kWgmmaRows) * plan.panels();
  if (r.terms == 2) plan.staged_factor = factor_bytes(r);
  const int slot = 4 * kPiece * (rows.operation == RowOperation::kSwiglu ? 2 : 1);
  const auto beside_ring = [&](int groups) {
    return groups * (2 * plan.plane_bytes() + square_bytes(rows)) + plan.staged_factor;
  };
  const auto ring = [&](int groups) {
    return device.shared_memory - kStaticBytes - beside_ring(groups);
  };
  plan.groups = std::min(kMostWarps / plan.warps, kMostGroups);
  while (plan.groups > 1 && ring(plan.groups) < kLeastRing) --plan.groups;
  plan.slots = std::min(kMostSlots, ring(plan.groups) / slot);
  plan.shared = beside_ring(plan.groups) + plan.slots * slot;
  return plan;
}

template <RowOperation kOperation, int kBits, typename Tile>
Status launch(const Plan& plan, const Device& device, cudaStream_t stream) {
  const auto kernel = factor_stream_kernel<kOperation, kBits, Tile>;
  QUAROT_RETURN_IF_ERROR(
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared),
            "fused"));
  return launch_early("fused", kernel,
                      dim3(static_cast<unsigned>(std::min(plan.rows.rows, device.multiprocessors))),
                      plan.threads(), plan.shared, stream, plan);
}

template <RowOperation kOperation, int kBits>
Status launch(const Plan& plan, const Device& device, cudaStream_t stream) {
  const auto wgmma = [&]<int kThreads>() {
    return plan.rows.rotation.terms == 1
               ? launch<kOperation, kBits, WgmmaTile<kThreads>>(plan, device, stream)
               : launch<kOperation, kBits, TermsTile<kThreads>>(plan, device, stream);
  };
  return plan.threads() <= kFewThreads ? wgmma.template operator()<kFewThreads>()
                                       : wgmma.template operator()<kMostThreads>();
}

template <RowOperation kOperation>
Status launch(const Plan& plan, const Device& device, cudaStream_t stream) {
  switch (plan.rows.rotation.columns) {
    case kNarrow:
      return launch<kOperation, 5, NarrowTile>(plan, device, stream);
    case 64:
      return launch<kOperation, 6>(plan, device, stream);
    case 128:
      return launch<kOperation, 7>(plan, device, stream);
    default:
      return launch<kOperation, 8>(plan, device, stream);
  }
}

}  // namespace
}  // namespace factor

bool suits_factor_stream(const Rows& rows, const Device& device) {
  const RowRotation& r = rows.rotation;
  const bool walsh = r.walsh_bits == 0 || 1 << r.walsh_bits == r.columns;
  const bool columns =
      r.columns == 64 || r.columns == 128 || r.columns == 256 ||
      (r.columns == factor::kNarrow && r.m >= factor::kLeastNarrowRows && r.terms == 1);
  if (device.capability != 90 || rows.element != Element::kFloat32 || rows.stride % 4 != 0 ||
      rows.n < factor::kLeastWidth || r.m < factor::kLeastRows || !walsh || !columns) {
    return false;
  }
  const factor::Plan plan = factor::plan_of(rows, device);
  return plan.groups > 0 && plan.slots > 0;
}

Status stream_factor_rows(const Rows& rows, cudaStream_t stream) {
  QUAROT_ASSIGN_OR_RETURN(const Device device, current_device());
  const factor::Plan plan = factor::plan_of(rows, device);
  switch (rows.operation) {
    case RowOperation::kNorm:
      return factor::launch<RowOperation::kNorm>(plan, device, stream);
    case RowOperation::kSwiglu:
      return factor::launch<RowOperation::kSwiglu>(plan, device, stream);
    default:
      return factor::launch<RowOperation::kPlain>(plan, device, stream);
  }
}

}  // namespace quarot::cuda
