// A unit of attention by all of a block's warps, where a layer has no more units than there are
// blocks and the unit's tokens have room in the block's memory. Its sums are a team's, in a team's
// order: four sequences of tiles, that of a team's warp each, whose tiles go one after another
// through a running softmax. But their scores do not depend on that order, so that all warps make
// them first; and of a sequence's softmax four warps have each a part of the dims.
#pragma once

#include "kernels/cuda/step/block_state.cuh"

namespace quarot::cuda::step {

template <int kHeadDim, int kKeyBits, int kValueBits>
class WideUnit {
  using Traits = DecodeTraits<kHeadDim, kKeyBits, kValueBits>;
  using Pages = typename Traits::Pages;
  static constexpr int kSequences = kAttentionWarps;
  static constexpr int kParts = kWarps / kSequences;
  static constexpr int kMost = kTeams * Traits::kStages;  // slices of a sequence: in all rings
  static constexpr int kTiles = Traits::kSliceTokens / kTileTokens;  // of a slice
  static constexpr int kScoreBytes = 32 * sizeof(float4);            // of a tile
  using Softmax = WarpSoftmax<kHeadDim, kKeyBits, kValueBits, kParts>;

 public:
  // Scores take the place of the keys they were made of; a part of the dims is whole bytes.
  static constexpr bool kFits = kTileTokens * Traits::kLayout.key_row_bytes() >= kScoreBytes &&
                                kHeadDim / 8 * kValueBits / 8 % kParts == 0;

  __device__ explicit WideUnit(const UnitPlan& plan)
      : plan_(plan), args_(block_state().own_layer().attention) {}

  __device__ static bool fits(const UnitPlan& plan) {
    return kFits && plan.slices <= kMost * kSequences;
  }

  // Its slices, on their way before its queries are known, by the teams' warps.
  __device__ void begin() const {
    auto own = ring(team());
#pragma unroll
    for (int i = 0; i < Traits::kStages; ++i) {
      own.fill(own_work().slices + i,
               cuda::slice_of<Traits>(args_, plan_, slice(team() * Traits::kStages + i)));
    }
  }

  // The softmax of each sequence's tokens, into the first team's memory, by the whole block.
  __device__ void attend() const {
    const int before[kTeams] = {taken_before(0), taken_before(1)};
    const WarpQueries<kHeadDim, kKeyBits, kValueBits> queries(
        reinterpret_cast<const __half*>(memory(0) + Traits::kQueriesAt), plan_.queries,
        args_.scale_log2);
    Softmax softmax(part());
#pragma unroll 1
    for (int i = part(); i < kMost * kTiles && slice(i / kTiles) < plan_.slices; i += kParts) {
      score(queries, slice(i / kTiles), i % kTiles, stage(i / kTiles, before));
    }
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < kMost * kTiles && slice(i / kTiles) < plan_.slices; ++i) {
      add(softmax, slice(i / kTiles), i % kTiles, stage(i / kTiles, before));
    }
    __syncthreads();  // the rings' memory is free
    softmax.store(state().teams[0].stats[sequence()],
                  reinterpret_cast<float*>(memory(0)) + sequence() * kQueryTile * kHeadDim,
                  plan_.queries);
    if (team() < kTeams && threadIdx.x % 32 == 0) own_work().slices += taken();
    __syncthreads();
  }

 private:
  static __device__ TeamsState<kHeadDim, kKeyBits, kValueBits>& state() {
    return static_cast<TeamsState<kHeadDim, kKeyBits, kValueBits>&>(block_state());
  }
  static __device__ WarpWork& own_work() { return block_state().own_work(); }
  static __device__ int sequence() { return static_cast<int>(threadIdx.x) / 32 % kSequences; }
  static __device__ int part() { return static_cast<int>(threadIdx.x) / 32 / kSequences; }
  static __device__ int team() { return part(); }
  static __device__ uint8_t* memory(int team) {
    return block_memory() + block_state().args.layout.scratch + team * Traits::kAppendBytes;
  }
  // What this sequence's ring in a team's memory had taken in before this unit.
  static __device__ int taken_before(int team) {
    return block_state().work[team * kSequences + sequence()].slices;
  }
  // And of this unit takes in.
  __device__ int taken() const {
    return min(max(plan_.mine() - team() * Traits::kStages, 0), Traits::kStages);
  }
  static __device__ auto ring(int team) {
    const int at = sequence();
    return TeamRing<kHeadDim, kKeyBits, kValueBits>(
        memory(team) + at * Traits::kStages * Pages::kBytes, state().teams[team].barriers[at],
        static_cast<int>(threadIdx.x) % 32);
  }
  // The i-th slice of this sequence, among the unit's.
  static __device__ int slice(int i) { return i * kSequences + sequence(); }
  // Where it lies, once it has come.
  static __device__ uint8_t* stage(int i, const int (&before)[kTeams]) {
    const int team = i / Traits::kStages;
    return ring(team).wait((team == 0 ? before[0] : before[1]) + i % Traits::kStages);
  }

  __device__ int first_token(int slice, int tile) const {
    return plan_.start + slice * Traits::kSliceTokens + tile * kTileTokens;
  }
  __device__ bool counts(int first) const {
    return first + kTileTokens > plan_.begin && first < plan_.end;
  }
  __device__ LaneTokens tokens(int first) const {
    return LaneTokens(plan_.begin - first, plan_.end - first);
  }
  static __device__ float4& scores_of(uint8_t* tile) {
    return reinterpret_cast<float4*>(tile)[threadIdx.x % 32];
  }

  __device__ void score(const WarpQueries<kHeadDim, kKeyBits, kValueBits>& queries, int slice,
                        int i, uint8_t* memory) const {
    const int first = first_token(slice, i);
    if (!counts(first)) return;
    uint8_t* tile = memory + i * Pages::kTile;
    const int newest = plan_.length - 1 - first;
    if (newest < kTileTokens) {
      place_row<Pages>(WideUnit::memory(0) + Traits::kNewRowAt, tile, newest);
      __syncwarp();
    }
    const LaneTokens lane = tokens(first);
    float s[4];
    queries.scores(s, tile, lane);
    LaneValues<kHeadDim, kKeyBits, kValueBits>(tile, lane).join(lane, s);
    __syncwarp();  // all have read the keys
    scores_of(tile) = {s[0], s[1], s[2], s[3]};
  }
  __device__ void add(Softmax& softmax, int slice, int i, uint8_t* memory) const {
    const int first = first_token(slice, i);
    if (!counts(first)) return;
    uint8_t* tile = memory + i * Pages::kTile;
    const float4 v = scores_of(tile);
    const float s[4] = {v.x, v.y, v.z, v.w};
    softmax.add(s, LaneValues<kHeadDim, kKeyBits, kValueBits>(tile, tokens(first)), tile);
  }

  const UnitPlan& plan_;
  const DecodeArgs& args_;
};

}  // namespace quarot::cuda::step
