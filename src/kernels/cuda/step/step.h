// Decoding one sequence: all layers of a token in one launch. Its blocks stay, one to a
// multiprocessor, and bring in weights without a pause, through every layer; a row that one product
// makes and the next one reads passes between them through cells (cells.cuh) that say themselves
// when they are complete. Results are those of the kernels it stands for, to the bit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/fused/fused.h"
#include "kernels/cuda/fused/heads.h"
#include "quarot/status.h"

namespace quarot::cuda {

// As Gemm has them: y = ((float(sum) · sa) · scales) + bias.
struct StepProduct {
  int64_t outputs = 0;
  int64_t inputs = 0;
  const void* weight = nullptr;
  const float* scales = nullptr;
  const float* bias = nullptr;  // or null
};

// Device pointers; those of x, second, quant.values, quant.scales, of batch.q, k, v are not read.
struct StepLayer {
  StepProduct qkv;  // outputs: queries, keys, values
  StepProduct output;
  StepProduct gate_up;  // outputs: gate, up
  StepProduct down;
  Rows attention_norm;  // what makes the input of qkv out of the residual stream,
  Rows heads;           // of output, out of what attention gives,
  Rows ffn_norm;        // of gate_up,
  Rows ffn;             // and of down, out of silu(gate) · up: operation kPlain
  HeadBatch batch;      // one token
  Rotary rotary;
  HeadRotation rotation;
  CacheWriter writer;
  PagedCache cache;
  AttentionShape shape;  // one sequence
};

inline constexpr int kRowSets = 2;  // of even and of odd layers

// Where things lie in a set of rows in the workspace, in bytes, and in shared memory.
struct StepLayout {
  int64_t qkv = 0;  // cells
  int64_t output = 0;
  int64_t pairs = 0;
  int64_t down = 0;
  int64_t split_stats = 0;  // floats
  int64_t split_sums = 0;
  int64_t attention = 0;
  int64_t ffn = 0;
  int64_t turned = 0;
  int64_t set_bytes = 0;
  int ring = 0;  // in shared memory, behind the block's state
  int codes = 0;
  int x = 0;
  int weights = 0;
  int scratch = 0;
  int shared_bytes = 0;
};
struct StepArgs {
  const void* layers = nullptr;  // the plan's image, on the device: to be filled in
  uint8_t* workspace = nullptr;
  float* x = nullptr;  // [hidden], in place: to be filled in
  StepLayout layout;
  int layer_count = 0;
  int hidden = 0;
  int ffn = 0;
  int pair_distance = 0;  // bytes from a block of gate to that of up
  int teams = 0;          // of a block, that attend
  int turning_blocks = 0;
  bool early = false;  // whether the cache's tokens are fetched before the queries are known
};

// What a step launches, for as long as nothing in the layers changes.
struct StepPlan {
  StepArgs args;
  PageLayout cache;
  int blocks = 0;
  int64_t most_tokens = 0;  // of longer sequences the kernels it stands for are faster
  std::vector<uint8_t> image;
};

// Bytes of workspace a step needs. Needs no device.
int64_t step_workspace_bytes(const StepLayer& layer);

// kUnsupported where the current device or these layers, which are alike in all but pointers,
// windows, clips and bits of rows, are not what the kernel was built for.
Result<StepPlan> plan_step(std::span<const StepLayer> layers, void* workspace);

// x ← what the layers make of it.
Status run_step(const StepPlan& plan, cudaStream_t stream);

}  // namespace quarot::cuda
