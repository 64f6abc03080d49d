// The phases of a layer that make a product's input: all of it, each block for itself.
#pragma once

#include "kernels/cuda/step/block_state.cuh"
#include "kernels/cuda/step/turn.cuh"

namespace quarot::cuda::step {

template <typename Source>
__device__ __forceinline__ float make_codes(Maker maker, const Rows& rows, const Source& source,
                                            uint8_t* scratch, uint8_t* codes) {
  auto* squares = reinterpret_cast<float*>(scratch + plane_bytes(rows.rotation));
  switch (maker) {
    case Maker::kQuantize:
      return Quantize::make(rows, source, scratch, codes);
    case Maker::kQuantizeWide:
      return QuantizeWide::make(rows, source, scratch, codes);
    case Maker::kWalsh:
      return rotate_walsh_row<float>(rows, source, scratch, codes);
    case Maker::kColumns:
      return rotate_columns(rows, source, scratch, codes);
    case Maker::kRotate:
      return rotate_by_factor<float, false, 1, 1>(rows, source, scratch, squares, codes);
    case Maker::kRotateWide:
      return rotate_by_factor<float, false, 1, 4>(rows, source, scratch, squares, codes);
    default:
      return 0;  // kAcross and kTurn have ways of their own
  }
}

// make(rows, scratch, codes) → scale, between two meetings of all threads: what comes before may
// read the codes and the scratch of before, what comes after reads these codes and their scale.
template <typename Make>
__device__ __forceinline__ void make_input(Product which, int room, Make&& make) {
  BlockState& state = block_state();
  const StepLayout& at = state.args.layout;
  __syncthreads();
  const float scale = make(state.own_layer().rows[which], block_memory() + at.scratch + room,
                           block_memory() + at.codes);
  if (threadIdx.x == 0) state.scale = scale;
  __syncthreads();
}

// What a thread will read in making an input beside the row, into L1, while it waits for the row.
__device__ __forceinline__ void touch_input(const Rows& rows) {
  if (rows.gain != nullptr) {
    for (int i = 0; element_of(i) < rows.n; ++i) touch(rows.gain + element_of(i));
  }
  if (rows.rotation.m == 0 || rows.rotation.log2 > 0 || suits_columns(rows)) return;
  constexpr int kSmall = 8 * 1024;
  const int at = static_cast<int>(threadIdx.x) * 32;
  if (factor_bytes(rows.rotation) <= kSmall && at < factor_bytes(rows.rotation)) {
    touch(static_cast<const uint8_t*>(rows.rotation.factor) + at);
  }
}

// The input of q, k, v or of gate and up, out of the residual stream, to which the last sums are
// added first: those of the layer before's down, or of o. Scratch begins at `room`.
inline __device__ __noinline__ void make_from_residual(Product which, int room) {
  const BlockState& state = block_state();
  auto* x = reinterpret_cast<float*>(block_memory() + state.args.layout.x);
  const int layer = state.own_work().layer;
  touch_input(state.own_layer().rows[which]);
  if (which == kGateUp) {
    add_sums(state.sums(layer, kOutput), state.args.hidden, x);
  } else if (layer > 0) {
    add_sums(state.sums(layer - 1, kDown), state.args.hidden, x);
  }
  make_input(which, room, [&](const Rows& rows, uint8_t* scratch, uint8_t* codes) {
    return make_codes(state.own_layer().makers[which], rows, SharedRow{x}, scratch, codes);
  });
}

// And those of o and of down, out of what attention, or gate and up, give.
inline __device__ __noinline__ void make_from_floats(Product which) {
  const BlockState& state = block_state();
  const StepLayout& at = state.args.layout;
  touch_input(state.own_layer().rows[which]);
  const FloatRow source{state.own_floats(which == kOutput ? at.attention : at.ffn)};
  make_input(which, 0, [&](const Rows& rows, uint8_t* scratch, uint8_t* codes) {
    return make_codes(state.own_layer().makers[which], rows, source, scratch, codes);
  });
}
inline __device__ __noinline__ void make_across_heads() {
  const BlockState& state = block_state();
  const FloatRow source{state.own_floats(state.args.layout.attention)};
  make_input(kOutput, 0, [&](const Rows& rows, uint8_t* /*scratch*/, uint8_t* codes) {
    return AcrossHeads::make(rows, source, codes);
  });
}
template <int kVectors>
__device__ __noinline__ void make_by_turning() {
  const BlockState& state = block_state();
  const StepArgs& args = state.args;
  const bool turns = static_cast<int>(blockIdx.x) < args.turning_blocks;
  if (turns) touch_input(state.own_layer().rows[kDown]);
  make_input(kDown, 0, [&](const Rows& rows, uint8_t* scratch, uint8_t* codes) {
    float* turned = state.own_floats(args.layout.turned);
    if (turns) {
      const FloatRow source{state.own_floats(args.layout.ffn)};
      turn_row<kVectors>(rows, source, scratch, args.turning_blocks, turned);
    }
    return quantize_turned<kVectors>(rows, turned, codes);
  });
}

inline __device__ __noinline__ void make_output_input() {
  if (block_state().own_layer().makers[kOutput] == Maker::kAcross) {
    make_across_heads();
  } else {
    make_from_floats(kOutput);
  }
}
inline __device__ __noinline__ void make_down_input() {
  const DeviceLayer& of = block_state().own_layer();
  if (of.makers[kDown] != Maker::kTurn) return make_from_floats(kDown);
  constexpr int kNarrow = kTurnVectors - 1;
  if (of.rows[kDown].n <= kNarrow * kVector * kThreads) {
    make_by_turning<kNarrow>();
  } else {
    make_by_turning<kTurnVectors>();
  }
}

}  // namespace quarot::cuda::step
