// Rows on their way into a block that takes every gridDim.x-th of them: pieces of kPiece elements,
// one after another in a ring of slots in shared memory, each read by one warp, which has the slot
// filled again. sm_90.
#pragma once

#include "kernels/cuda/fused/fused.h"
#include "kernels/cuda/ptx.cuh"

namespace quarot::cuda {

inline constexpr int kPiece = 1024;
inline constexpr int kMostSlots = 48;

template <RowOperation kOperation_>
struct PieceRing {
  static constexpr RowOperation kOperation = kOperation_;
  static constexpr int kInputs = kOperation == RowOperation::kSwiglu ? 2 : 1;
  static constexpr int kInputBytes = kPiece * static_cast<int>(sizeof(float));
  static constexpr int kSlotBytes = kInputs * kInputBytes;

  const Rows& rows;
  uint8_t* slots;
  uint64_t* full;  // a barrier a slot
  // How often a slot has been filled: two warps whose pieces follow each other in it do not meet,
  // and a barrier says no more than whether it is at an even or an odd time.
  int* fills;
  int count;   // of slots
  int pieces;  // of a row

  // By the whole block, before it waits for one another; the first pieces are under way then.
  __device__ void start() const {
    const int i = threadIdx.x;
    if (i < count) mbarrier_init(shared_address(full + i), 1);
    mbarrier_init_fence();
    if (i < count) fills[i] = 0;
    if (i < count) copy(blockIdx.x + i / pieces * gridDim.x, i % pieces, i, 0);
  }
  // Piece `piece` of row `row` into a slot that was filled `before` times, if there is such a row.
  __device__ void copy(unsigned row, int piece, int slot, int before) const {
    if (row >= static_cast<unsigned>(rows.rows)) return;
    const int first = piece * kPiece;
    const uint32_t bytes = min(kPiece, rows.n - first) * static_cast<int>(sizeof(float));
    const int64_t from = row * rows.stride + first;
    const uint32_t to = shared_address(slots + slot * kSlotBytes);
    const uint32_t barrier = shared_address(full + slot);
    mbarrier_expect(barrier, kInputs * bytes);
    copy_bulk(to, static_cast<const float*>(rows.x) + from, bytes, barrier);
    if constexpr (kInputs == 2) {
      copy_bulk(to + kInputBytes, static_cast<const float*>(rows.second) + from, bytes, barrier);
    }
    store_release(shared_address(fills + slot), before + 1);
  }
};

// A warp's pieces: number `first` of all, and every `apart`-th from there.
template <typename Ring>
class PieceTurn {
 public:
  __device__ PieceTurn(const Ring& ring, int first, int apart)
      : slot_(first % ring.count),
        before_(first / ring.count),
        slots_apart_(apart % ring.count),
        fills_apart_(apart / ring.count),
        next_piece_((first + ring.count) % ring.pieces),
        next_row_((first % ring.pieces + ring.count) / ring.pieces * gridDim.x) {}

  __device__ uint8_t* wait(const Ring& ring) const {
    while (load_acquire(shared_address(ring.fills + slot_)) <= before_) {
    }
    mbarrier_wait(shared_address(ring.full + slot_), before_ & 1);
    return ring.slots + slot_ * Ring::kSlotBytes;
  }
  // By one lane, once the warp has read its piece of row `row`.
  __device__ void refill(const Ring& ring, unsigned row) const {
    ring.copy(row + next_row_, next_piece_, slot_, before_ + 1);
  }
  __device__ void advance(const Ring& ring) {
    slot_ += slots_apart_;
    before_ += fills_apart_;
    if (slot_ >= ring.count) {
      slot_ -= ring.count;
      ++before_;
    }
  }

 private:
  int slot_;
  int before_;  // how often the slot was filled before
  int slots_apart_;
  int fills_apart_;
  int next_piece_;  // what comes into the slot next, in which row after this one
  unsigned next_row_;
};

}  // namespace quarot::cuda
