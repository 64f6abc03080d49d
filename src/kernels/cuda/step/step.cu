// Which layers the step kernel takes, and how it is launched.
#include "kernels/cuda/step/step.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "base/error.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/gemm/packed.h"
#include "kernels/cuda/step/step_kernel.cuh"

namespace quarot::cuda {
namespace {

using namespace step;

Error no_step(const char* what) {
  return error(ErrorCode::kUnsupported, "step: {}; such a model runs kernel by kernel", what);
}

// Whether `blocks` blocks turn it together.
bool turns(const Rows& rows, int blocks) {
  const RowRotation& r = rows.rotation;
  return r.m > 0 && r.log2 == 0 && rows.n <= kTurnVectors * kVector * kThreads &&
         turned_tiles(r) <= kWarps * turning_blocks(r, blocks);
}
std::optional<Maker> maker_of(Product which, const Rows& rows, int blocks) {
  if (Quantize::fits(rows)) return Maker::kQuantize;
  if (which == kOutput && AcrossHeads::fits(rows)) return Maker::kAcross;
  if (rows.rotation.log2 > 0 && walsh_threads(rows.rotation.log2) <= kThreads) {
    return Maker::kWalsh;
  }
  if (suits_columns(rows)) return Maker::kColumns;
  if (which == kDown && turns(rows, blocks)) return Maker::kTurn;
  if (Rotate::fits(rows)) return Maker::kRotate;
  if (QuantizeWide::fits(rows)) return Maker::kQuantizeWide;
  if (RotateWide::fits(rows)) return Maker::kRotateWide;
  return std::nullopt;
}
int scratch_bytes(const Rows& rows) {
  return rows.rotation.m > 0 ? Rotate::scratch_bytes(rows) : Quantize::scratch_bytes(rows);
}

// body.operator()<head_dim, key_bits, value_bits>() → Result of a layout the kernel is built for.
template <int kHeadDim, typename Body>
auto with_step_bits(const PageLayout& layout, Body&& body)
    -> decltype(body.template operator()<kHeadDim, 4, 4>()) {
  if (layout.key_bits == layout.value_bits) {
    if (layout.key_bits == 2) return body.template operator()<kHeadDim, 2, 2>();
    if (layout.key_bits == 4) return body.template operator()<kHeadDim, 4, 4>();
    if (layout.key_bits == 8) return body.template operator()<kHeadDim, 8, 8>();
  }
  return no_step("expected keys and values of 2, 4 or 8 stored bits, both alike");
}
template <typename Body>
auto with_step_layout(const PageLayout& layout, Body&& body)
    -> decltype(body.template operator()<128, 4, 4>()) {
  if (layout.head_dim == 64) return with_step_bits<64>(layout, body);
  if (layout.head_dim == 128) return with_step_bits<128>(layout, body);
  return no_step("expected heads of 64 or 128 channels");
}

Result<int> attention_bytes(const PageLayout& layout) {
  return with_step_layout(layout, [&]<int kHeadDim, int kKeyBits, int kValueBits>() -> Result<int> {
    return DecodeTraits<kHeadDim, kKeyBits, kValueBits>::kAppendBytes;
  });
}
Result<int> state_bytes(const PageLayout& layout) {
  return with_step_layout(layout, [&]<int kHeadDim, int kKeyBits, int kValueBits>() -> Result<int> {
    return static_cast<int>(sizeof(TeamsState<kHeadDim, kKeyBits, kValueBits>));
  });
}

DeviceProduct device_product(const StepProduct& p, int64_t outputs) {
  return {static_cast<const uint8_t*>(p.weight), p.scales, p.bias,
          static_cast<int>(row_blocks(outputs)), static_cast<int>(column_blocks(p.inputs))};
}

// `set`: of rows in the workspace, the layer's.
Result<DeviceLayer> device_layer(const StepLayer& layer, int blocks, uint8_t* set,
                                 const StepLayout& at) {
  DeviceLayer made{};
  made.products[kQkv] = device_product(layer.qkv, layer.qkv.outputs);
  made.products[kOutput] = device_product(layer.output, layer.output.outputs);
  made.products[kGateUp] = device_product(layer.gate_up, layer.gate_up.outputs / 2);
  made.products[kDown] = device_product(layer.down, layer.down.outputs);
  made.rows[kQkv] = layer.attention_norm;
  made.rows[kOutput] = layer.heads;
  made.rows[kGateUp] = layer.ffn_norm;
  made.rows[kDown] = layer.ffn;
  for (int i = 0; i < kProducts; ++i) {
    const Rows& rows = made.rows[i];
    const std::optional<Maker> maker = maker_of(static_cast<Product>(i), rows, blocks);
    if (!maker || rows.rows != 1 || rows.element != Element::kFloat32 || rows.quant.pack_int4 ||
        rows.n % 16 != 0) {
      return no_step("a row is too wide, or not a multiple of 16 float32");
    }
    made.makers[i] = *maker;
  }
  QUAROT_RETURN_IF_ERROR(check_heads(layer.batch, layer.rotary, layer.rotation, layer.writer));
  if (layer.batch.tokens != 1 || layer.shape.sequences != 1 || !decode_appends(layer.rotation)) {
    return no_step("expected one token and a rotation of heads of 2^n");
  }
  const auto floats = [&](int64_t offset) { return reinterpret_cast<float*>(set + offset); };
  QUAROT_ASSIGN_OR_RETURN(made.attention,
                          decode_args(layer.cache, layer.shape, nullptr, floats(at.attention)));
  made.attention.stats = reinterpret_cast<float2*>(floats(at.split_stats));
  made.attention.sums = floats(at.split_sums);
  made.attention.appends = true;
  made.attention.heads =
      head_args(layer.batch, layer.rotary, layer.rotation, layer.writer, nullptr);
  return made;
}

StepLayout workspace_layout(const StepLayer& layer) {
  constexpr int64_t kAlignment = 256;
  StepLayout at;
  const auto place = [&](int64_t& offset, int64_t bytes) {
    offset = at.set_bytes;
    at.set_bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  constexpr auto kCell = static_cast<int64_t>(sizeof(uint64_t));
  place(at.qkv, row_blocks(layer.qkv.outputs) * kBlockRows * kCell);
  place(at.output, row_blocks(layer.output.outputs) * kBlockRows * kCell);
  place(at.pairs, row_blocks(layer.gate_up.outputs / 2) * kBlockRows * kCell);
  place(at.down, row_blocks(layer.down.outputs) * kBlockRows * kCell);
  const auto splits = static_cast<int64_t>(decode_parts(layer.shape, layer.cache).count());
  place(at.split_stats, splits * static_cast<int64_t>(sizeof(float2)));
  place(at.split_sums, splits * layer.cache.layout.head_dim * 4);
  place(at.attention, layer.output.inputs * 4);
  place(at.ffn, layer.down.inputs * 4);
  place(at.turned, turned_floats(layer.down.inputs) * 4);
  return at;
}

// Whether the row's squares fit behind a team's ring, so that this may be filled meanwhile.
Result<bool> comes_early(const DeviceLayer& made, const PageLayout& layout) {
  return with_step_layout(
      layout, [&]<int kHeadDim, int kKeyBits, int kValueBits>() -> Result<bool> {
        using Traits = DecodeTraits<kHeadDim, kKeyBits, kValueBits>;
        return made.rows[kQkv].rotation.m == 0 &&
               square_bytes(made.rows[kQkv]) <= Traits::kAppendBytes - Traits::kQueriesAt;
      });
}

Result<int> static_shared_bytes(const PageLayout& layout) {
  return with_step_layout(layout, [&]<int kHeadDim, int kKeyBits, int kValueBits>() -> Result<int> {
    cudaFuncAttributes attributes{};
    QUAROT_RETURN_IF_ERROR(check(
        cudaFuncGetAttributes(&attributes, step_kernel<kHeadDim, kKeyBits, kValueBits>), "step"));
    return static_cast<int>(attributes.sharedSizeBytes);
  });
}

// With as many teams as there is room for.
Status place_shared(StepArgs& args, const StepLayer& layer, const DeviceLayer& made,
                    const Device& device) {
  QUAROT_ASSIGN_OR_RETURN(const int team_bytes, attention_bytes(layer.cache.layout));
  QUAROT_ASSIGN_OR_RETURN(const int state, state_bytes(layer.cache.layout));
  QUAROT_ASSIGN_OR_RETURN(const int static_bytes, static_shared_bytes(layer.cache.layout));
  QUAROT_ASSIGN_OR_RETURN(args.early, comes_early(made, layer.cache.layout));
  int inputs = 0;
  int codes = 0;
  for (int i = 0; i < kProducts; ++i) {
    inputs = std::max(inputs, scratch_bytes(made.rows[i]));
    codes = std::max(codes, made.products[i].blocks * kBlockColumns);
  }
  StepLayout& at = args.layout;
  for (args.teams = kTeams; args.teams > 0; --args.teams) {
    constexpr int kAlignment = 128;
    at.shared_bytes = 0;
    const auto place = [&](int& offset, int size) {
      offset = at.shared_bytes;
      at.shared_bytes += (size + kAlignment - 1) / kAlignment * kAlignment;
    };
    int first = 0;
    place(first, state);
    place(at.ring, kRingBytes);
    place(at.codes, codes);
    place(at.x, args.hidden * 4);
    place(at.weights, args.layer_count * kProducts * 8);
    place(at.scratch, std::max(inputs, args.teams * team_bytes));
    if (at.shared_bytes + static_bytes <= device.shared_memory) return {};
  }
  return no_step("its rows do not fit a block's shared memory");
}

// One to a multiprocessor, and as many as each product has a part for.
int blocks_of(const StepLayer& layer, const Device& device) {
  int64_t blocks = device.multiprocessors;
  for (const StepProduct* p : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down}) {
    const int64_t outputs = p == &layer.gate_up ? p->outputs / 2 : p->outputs;
    blocks = std::min(blocks, row_blocks(outputs) * column_blocks(p->inputs));
  }
  return static_cast<int>(blocks);
}
Status check_residence(const StepPlan& plan) {
  return with_step_layout(plan.cache, [&]<int kHeadDim, int kKeyBits, int kValueBits>() -> Status {
    const auto kernel = step_kernel<kHeadDim, kKeyBits, kValueBits>;
    const int shared = plan.args.layout.shared_bytes;
    int each = 0;
    QUAROT_RETURN_IF_ERROR(check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), "step"));
    QUAROT_RETURN_IF_ERROR(check(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, kThreads, shared), "step"));
    return each > 0 ? Status() : no_step("its blocks do not fit this device");
  });
}

// A multiprocessor has two teams here, and five blocks of attention's own kernel, which is worth
// its launch once there are more units than this for every four teams (on an H200, llama-2-7b takes
// 2.14 ms here and 2.40 there at 4096 tokens, 2.53 and 2.44 at 6144).
constexpr int kMostUnitsOfFour = 5;

int64_t most_tokens(const StepPlan& plan, const StepLayer& layer) {
  constexpr int64_t kSplitTokens = kSplitPages * kPageTokens;
  const int64_t units = int64_t{kMostUnitsOfFour} * plan.blocks * plan.args.teams / 4;
  const auto tiles = static_cast<int64_t>(decode_parts(layer.shape, layer.cache).tiles);
  const int64_t splits = units / tiles;
  const int window = layer.shape.window;
  const bool any = splits >= kMaxSplits || (window > 0 && window / kSplitTokens + 2 <= splits);
  return any ? std::numeric_limits<int64_t>::max() : splits * kSplitTokens;
}

Status check_shapes(const StepLayer& layer) {
  const int64_t hidden = layer.output.outputs;
  const int64_t ffn = layer.gate_up.outputs / 2;
  const bool fits = hidden == layer.down.outputs && hidden == layer.attention_norm.n &&
                    hidden == layer.ffn_norm.n && ffn == layer.ffn.n && ffn % kBlockRows == 0 &&
                    layer.gate_up.inputs < kMaxPairColumns &&
                    layer.ffn.operation == RowOperation::kPlain;
  return fits ? Status() : no_step("expected a gated FFN of a multiple of 16 channels");
}

}  // namespace

int64_t step_workspace_bytes(const StepLayer& layer) {
  return kRowSets * workspace_layout(layer).set_bytes;
}

Result<StepPlan> plan_step(std::span<const StepLayer> layers, void* workspace) {
  QUAROT_ASSIGN_OR_RETURN(const Device device, current_device());
  if (!stream::has_room(device.capability) || layers.empty()) {
    return no_step("expected compute capability 9 or 10");
  }
  const StepLayer& first = layers.front();
  StepPlan plan;
  plan.cache = first.cache.layout;
  StepArgs& args = plan.args;
  args.layout = workspace_layout(first);
  args.workspace = static_cast<uint8_t*>(workspace);
  args.layer_count = static_cast<int>(layers.size());
  args.hidden = static_cast<int>(first.output.outputs);
  args.ffn = first.ffn.n;
  plan.most_tokens = std::numeric_limits<int64_t>::max();
  plan.image.resize(layers.size() * sizeof(DeviceLayer));
  plan.blocks = blocks_of(first, device);
  args.turning_blocks = turning_blocks(first.ffn.rotation, plan.blocks);
  for (size_t i = 0; i < layers.size(); ++i) {
    QUAROT_RETURN_IF_ERROR(check_shapes(layers[i]));
    uint8_t* set = args.workspace + static_cast<int64_t>(i % kRowSets) * args.layout.set_bytes;
    QUAROT_ASSIGN_OR_RETURN(const DeviceLayer made,
                            device_layer(layers[i], plan.blocks, set, args.layout));
    std::memcpy(plan.image.data() + i * sizeof(DeviceLayer), &made, sizeof(DeviceLayer));
    if (i == 0) {
      const DeviceProduct& pairs = made.products[kGateUp];
      args.pair_distance = pairs.strips * pairs.blocks * kBlockBytes;
      QUAROT_RETURN_IF_ERROR(place_shared(args, first, made, device));
      QUAROT_RETURN_IF_ERROR(check_residence(plan));
    }
    plan.most_tokens = std::min(plan.most_tokens, most_tokens(plan, layers[i]));
  }
  return plan;
}

Status run_step(const StepPlan& plan, cudaStream_t stream) {
  const StepArgs& args = plan.args;
  QUAROT_RETURN_IF_ERROR(
      check(cudaMemsetAsync(args.workspace, 0,
                            static_cast<size_t>(kRowSets * args.layout.set_bytes), stream),
            "step"));
  return with_step_layout(plan.cache, [&]<int kHeadDim, int kKeyBits, int kValueBits>() -> Status {
    const auto kernel = step_kernel<kHeadDim, kKeyBits, kValueBits>;
    cudaLaunchAttribute together{};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(plan.blocks);
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = static_cast<size_t>(args.layout.shared_bytes);
    config.stream = stream;
    config.attrs = &together;
    config.numAttrs = 1;
    return check(cudaLaunchKernelEx(&config, kernel, args), "step");
  });
}

}  // namespace quarot::cuda
