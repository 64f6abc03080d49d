// What stream_kernel.cuh is launched with.
#include <algorithm>

#include "kernels/cuda/gemm/dispatch.cuh"
#include "kernels/cuda/gemm/launch.h"
#include "kernels/cuda/gemm/stream_kernel.cuh"

namespace quarot::cuda {
namespace {

using namespace stream;

struct Plan {
  int parts;   // along x
  int slices;  // along y
  int slice_blocks;
  int shared_bytes;
  bool whole_strips;
};

// Whether blocks of threads should take whole strips: they save meeting in the workspace, which
// takes about as long as reading this many bytes.
bool prefer_whole_strips(const Plan& plan, int strips) {
  constexpr int64_t kMeetingBytes = 8 << 20;
  if (plan.slices > 1) return false;
  const int most = (strips + plan.parts - 1) / plan.parts;
  const int64_t idle = static_cast<int64_t>(most) * plan.parts - strips;
  return idle * plan.slice_blocks * kBlockBytes < kMeetingBytes;
}

// Bytes of shared memory beside the activations and the sums.
struct Room {
  int rings;
  int scratch;  // what making the activations takes
};

Plan plan(const Gemm& p, const Device& device, const Room& room, int slices, int waves) {
  const int strips = static_cast<int>(row_blocks(p.n));
  const int blocks = static_cast<int>(column_blocks(p.k));
  const int m = static_cast<int>(p.m);
  Plan plan{};
  plan.slice_blocks = (blocks + slices - 1) / slices;
  plan.slices = (blocks + plan.slice_blocks - 1) / plan.slice_blocks;
  const int run = strips * plan.slice_blocks;
  plan.parts = std::min(std::max(waves * device.multiprocessors / plan.slices, 1),
                        (run + kWarps - 1) / kWarps);
  if (prefer_whole_strips(plan, strips)) {
    plan.whole_strips = true;
    plan.parts = std::min(plan.parts, strips);
  }
  const int last_slice = blocks - (plan.slices - 1) * plan.slice_blocks;
  const int part = (run + plan.parts - 1) / plan.parts;
  const int most_strips = std::min(part / last_slice + 2, strips);
  plan.shared_bytes = room.rings + kPad + room.scratch +
                      m * (plan.slice_blocks * kBlockColumns + kPad) +
                      most_strips * (m * kBlockRows + 1) * 4;
  return plan;
}

// One slice and one wave if shared memory holds all tokens' channels and the strips' sums; else the
// fewest more. A row quantised by each block is not sliced.
Result<Plan> plan(const Gemm& p, const Device& device, const Room& room) {
  const int64_t most_slices = p.rows != nullptr ? 1 : column_blocks(p.k);
  for (int slices = 1; slices <= most_slices; ++slices) {
    for (int waves = 1; waves <= 16; waves *= 2) {
      const Plan found = plan(p, device, room, slices, waves);
      if (found.shared_bytes <= device.shared_memory) return found;
    }
  }
  return error(ErrorCode::kUnsupported,
               "gemm (stream): {} tokens and {} channels do not fit a block's {} bytes of shared "
               "memory",
               p.m, p.n, device.shared_memory);
}

template <int kTiles, typename Out, typename Input>
Status launch(const Gemm& p, const Device& device, int scratch_bytes, cudaStream_t stream) {
  const Room room{ring_bytes(ring_depth(kTiles, device.capability)), scratch_bytes};
  QUAROT_ASSIGN_OR_RETURN(const Plan how, plan(p, device, room));
  auto* workspace = static_cast<int32_t*>(p.workspace);
  const Operands in{static_cast<const uint8_t*>(p.activations),
                    static_cast<const uint8_t*>(p.weight),
                    static_cast<int>(p.m),
                    static_cast<int>(p.k),
                    static_cast<int>(row_blocks(p.n)),
                    static_cast<int>(column_blocks(p.k)),
                    how.slice_blocks,
                    how.whole_strips,
                    scratch_bytes,
                    workspace,
                    workspace + row_blocks(p.n)};
  const auto kernel = gemm_stream<kTiles, Out, Input>;
  QUAROT_RETURN_IF_ERROR(check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, how.shared_bytes),
      "gemm (stream)"));
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(how.parts, how.slices);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = how.shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = device.capability >= 90 ? 1 : 0;
  return check(
      cudaLaunchKernelEx(&config, kernel, in, epilogue_of(p), p.rows != nullptr ? *p.rows : Rows()),
      "gemm (stream)");
}

template <int kTiles>
Status launch(const Gemm& p, const Device& device, cudaStream_t stream) {
  return with_output_type(p.output_type, [&]<typename Out>(std::type_identity<Out>) {
    return launch<kTiles, Out, ReadInput>(p, device, 0, stream);
  });
}

}  // namespace

int64_t gemm_workspace_bytes(int64_t m, int64_t n) {
  return (row_blocks(n) + std::min(m, kStreamRows) * n) * int64_t{sizeof(int32_t)};
}

bool gemm_quantizes(const Rows& rows) {
  const Result<Device> device = current_device();
  return device.ok() && has_room(device->capability) && rows.rows == 1 &&
         rows.element == Element::kFloat32 && !rows.quant.pack_int4 &&
         with_input(rows, [](auto) { return Status(); }).ok();
}

Status launch_stream(const Gemm& problem, const Device& device, cudaStream_t stream) {
  if (problem.rows != nullptr) {
    return with_input(*problem.rows, [&]<typename Input>(std::type_identity<Input>) {
      return launch<1, float, Input>(problem, device, Input::scratch_bytes(*problem.rows), stream);
    });
  }
  if (problem.m <= 8) return launch<1>(problem, device, stream);
  if (problem.m <= 16) return launch<2>(problem, device, stream);
  return launch<4>(problem, device, stream);
}

}  // namespace quarot::cuda
