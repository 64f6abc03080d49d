// The register-blocked loop of the integer product, written once for every instruction set that has
// a dot product of bytes. Include it only from a file compiled for one instruction set, with an
// `Isa` of internal linkage: the instantiations then stay in that file. For the same reason nothing
// here calls an inline function of another header.
//
// An Isa says how many lanes its vectors have and gives:
//   Int, Float           vectors of kLanes int32 (or 2·kLanes int16 for partial sums) and floats
//   kVectors, kRows      vectors of outputs × rows of activations that its registers hold at once
//   planes<bits>         1, or 2 where 8-bit weights are multiplied one nibble at a time
//   exact_blocks(bits)   blocks of 8 inputs whose partial sums stay exact for activations of `bits`
//   load<bits>(p, plane, lo, hi)   the weights of inputs 0…3 and 4…7 of a block
//   broadcast(p)         four activations in every lane
//   dot(sum, w, a)       sum + Σ of four (or, for int16 sums, of two and two) products u8 × s8
//   widen(total, sum, plane)       total + the partial sums, as int32; the plane's weight is 16^p
//   keep(x)              x, of which the compiler no longer knows more than its register
//   load_sums, store_sums          kLanes int32 in memory
//   zero, sub, to_float, mul, add, load_float, store, splat      arithmetic of ints and floats
// One whose instruction takes several rows at once gives, in place of dot and what feeds it,
//   multiply_rows<bits>(panel, rows)         sums = the products of 1 to kRows rows
#pragma once

#include "kernels/cpu/gemm_task.h"
#include "kernels/cpu/unroll.h"

namespace quarot::cpu {

// With few rows each weight is used once, straight from memory: its lines are asked for early
// enough that the arithmetic of the lines before hides the wait.
inline constexpr int kStreamRows = 8;
inline constexpr int64_t kStreamAhead = 4096;  // bytes

// What one pass over the inputs multiplies: kRows rows with kVectors vectors of a tile's outputs.
struct Panel {
  const int8_t* a;
  int64_t a_stride;
  const uint8_t* w;
  int64_t blocks;
  int32_t* sums;  // [kRows][32]
};

// The partial sums of one plane over `blocks` blocks, few enough to stay exact, become (first) or
// are added to p.sums.
//
// Few rows leave most registers free: two sums an output then halve the wait of each for its
// predecessor, which is what would hold a weight stream of one row below memory speed.
template <class Isa, int kBits, int kRows>
[[gnu::always_inline]] inline void multiply_plane(const Panel& p, const int8_t* a, const uint8_t* w,
                                                  int64_t blocks, int plane, bool first) {
  using Int = typename Isa::Int;
  constexpr int kVectors = Isa::kVectors;
  constexpr int kSums = kRows * kVectors;
  constexpr int kSecond = kRows <= 2 ? kSums : 0;
  const int64_t a_stride = p.a_stride;
  Int sum[kSums + kSecond];
  // The first products are the sums: nothing is added.
  const auto add_block = [&](auto fresh) __attribute__((always_inline)) {
    if constexpr (kRows <= kStreamRows) {
      unroll<kBits / 2>([&](auto i) { __builtin_prefetch(w + kStreamAhead + i * 64); });
    }
    Int lo[kVectors];
    Int hi[kVectors];
    unroll<kVectors>(
        [&](auto v) { Isa::template load<kBits>(w + v * Isa::kLanes * 4, plane, lo[v], hi[v]); });
    unroll<kSums>([&](auto i) {
      const Int x = Isa::broadcast(a + i / kVectors * a_stride);
      sum[i] = Isa::dot(fresh ? Isa::zero() : sum[i], lo[i % kVectors], x);
    });
    unroll<kSums>([&](auto i) {
      const Int x = Isa::broadcast(a + i / kVectors * a_stride + 4);
      const bool none = fresh && kSecond > 0;
      sum[i + kSecond] = Isa::dot(none ? Isa::zero() : sum[i + kSecond], hi[i % kVectors], x);
    });
    // Without this GCC also keeps a copy of each sum in memory.
    unroll<kSums + kSecond>([&](auto i) { sum[i] = Isa::keep(sum[i]); });
    a += 8;
    w += 32 * kBits;
  };
  add_block(Index<1>());
  for (int64_t b = 1; b < blocks; ++b) add_block(Index<0>());
  unroll<kSums>([&](auto i) {
    int32_t* out = p.sums + i / kVectors * kTileOutputs + i % kVectors * Isa::kLanes;
    Int total = Isa::widen(first ? Isa::zero() : Isa::load_sums(out), sum[i], plane);
    if constexpr (kSecond > 0) total = Isa::widen(total, sum[i + kSecond], plane);
    Isa::store_sums(out, total);
  });
}

// p.sums = the products, widened wherever partial sums would no longer be exact. A function of its
// own because the registers suffice for exactly what it holds.
template <class Isa, int kBits, int kRows>
__attribute__((noinline)) void multiply(const Panel& p, int64_t exact) {
  const int8_t* a = p.a;
  const uint8_t* w = p.w;
  bool first = true;
  for (int64_t left = p.blocks; left > 0; left -= exact) {
    const int64_t blocks = left < exact ? left : exact;
    unroll<Isa::template kPlanes<kBits>>([&](auto plane) {
      multiply_plane<Isa, kBits, kRows>(p, a, w, blocks, plane, first && plane == 0);
    });
    first = false;
    a += blocks * 8;
    w += blocks * 32 * kBits;
  }
}

// multiply for a number of rows known only at run time.
template <class Isa, int kBits, int kRows = Isa::kRows>
void multiply_rows(const Panel& p, int64_t rows, int a_bits) {
  if (rows == kRows) return multiply<Isa, kBits, kRows>(p, Isa::exact_blocks(a_bits));
  if constexpr (kRows > 1) multiply_rows<Isa, kBits, kRows - 1>(p, rows, a_bits);
}

// Outputs first…last−1 of a tile, all within y or beyond its last column.
struct Outputs {
  int64_t tile, first, last;
};

// terms [32] of one row = or += ((sums − offset·Σa)·sa)·sw for group g.
template <class Isa>
void scale_sums(const GemmTask& task, const Outputs& o, int64_t row, int64_t g, const int32_t* sums,
                float* terms) {
  // Modulo 2^32, as the sums themselves: only the difference must fit.
  const auto sum_a = static_cast<uint32_t>(task.a.sums[row * task.groups + g]);
  const auto correction = Isa::splat(static_cast<int32_t>(sum_a << (task.bits - 1)));
  const bool one_scale = task.a.scale_groups == 1;
  const auto scale = Isa::splat(task.a.scales[one_scale ? row : row * task.groups + g]);
  const float* sw = task.w_scales + (o.tile * task.groups + g) * kTileOutputs;
  for (int64_t n = o.first; n < o.last; n += Isa::kLanes) {
    const auto sum = Isa::to_float(Isa::sub(Isa::load_sums(sums + n), correction));
    const auto term = Isa::mul(Isa::mul(sum, scale), Isa::load_float(sw + n));
    const auto before = g == 0 ? Isa::splat(0.0F) : Isa::load_float(terms + n);
    Isa::store(terms + n, Isa::add(before, term));
  }
}

// y = or += terms + bias for one row.
template <class Isa>
void store_row(const GemmTask& task, const Outputs& o, int64_t row, float* terms) {
  const int64_t column = o.tile * kTileOutputs;
  float* y = task.y + row * task.y_stride + column;
  const float* bias = task.bias == nullptr ? nullptr : task.bias + column;
  int64_t n = o.first;
  for (; n < o.last && column + n + Isa::kLanes <= task.outputs; n += Isa::kLanes) {
    auto v = Isa::load_float(terms + n);
    if (bias != nullptr) v = Isa::add(v, Isa::load_float(bias + n));
    if (task.accumulate) v = Isa::add(Isa::load_float(y + n), v);
    Isa::store(y + n, v);
  }
  // NOLINTBEGIN(clang-analyzer-core.*): scale_sums() has written every term of these columns.
  for (; n < o.last && column + n < task.outputs; ++n) {
    const float v = bias != nullptr ? terms[n] + bias[n] : terms[n];
    y[n] = task.accumulate ? y[n] + v : v;
  }
  // NOLINTEND(clang-analyzer-core.*)
}

// `rows` rows, at most Isa::kRows, against the outputs of one tile that are held at once.
template <class Isa, int kBits>
void run_block(const GemmTask& task, const Outputs& o, int64_t row, int64_t rows) {
  alignas(64) int32_t sums[Isa::kRows * kTileOutputs];
  alignas(64) float terms[Isa::kRows * kTileOutputs];
  for (int64_t r = 0; r < rows; ++r) {  // on its way while the sums are made
    __builtin_prefetch(task.y + (row + r) * task.y_stride + o.tile * kTileOutputs + o.first, 1);
    __builtin_prefetch(task.y + (row + r) * task.y_stride + o.tile * kTileOutputs + o.last - 1, 1);
  }
  for (int64_t g = 0; g < task.groups; ++g) {
    const int64_t block = g * task.group_blocks;
    const Panel panel = {task.a.values + row * task.a.stride + block * 8, task.a.stride,
                         task.w + o.tile * task.tile_bytes + block * 32 * kBits + o.first * 4,
                         task.group_blocks, sums + o.first};
    if constexpr (requires { Isa::template multiply_rows<kBits>(panel, rows); }) {
      Isa::template multiply_rows<kBits>(panel, rows);
    } else {
      multiply_rows<Isa, kBits>(panel, rows, task.a.bits);
    }
    for (int64_t r = 0; r < rows; ++r) {
      scale_sums<Isa>(task, o, row + r, g, sums + r * kTileOutputs, terms + r * kTileOutputs);
    }
  }
  for (int64_t r = 0; r < rows; ++r) store_row<Isa>(task, o, row + r, terms + r * kTileOutputs);
}

template <class Isa, int kBits>
void run_range(const GemmTask& task, const GemmRange& range) {
  constexpr int64_t kOutputs = Isa::kVectors * Isa::kLanes;
  const int64_t rows = range.last_row - range.first_row;
  const int64_t pieces = (rows + Isa::kRows - 1) / Isa::kRows;
  for (int64_t tile = range.first_tile; tile < range.last_tile; ++tile) {
    for (int64_t first = 0; first < kTileOutputs; first += kOutputs) {
      for (int64_t i = 0; i < pieces; ++i) {  // as even as can be: 16 rows are 8 + 8, not 12 + 4
        const int64_t row = rows * i / pieces;
        run_block<Isa, kBits>(task, {tile, first, first + kOutputs}, range.first_row + row,
                              rows * (i + 1) / pieces - row);
      }
    }
  }
}

template <class Isa>
void gemm_range(const GemmTask& task, const GemmRange& range) {
  if (task.bits == 4) {
    run_range<Isa, 4>(task, range);
  } else {
    run_range<Isa, 8>(task, range);
  }
}

// Enough independent sums to hide the latency of an instruction, and nothing else in the loop.
template <class Isa>
int64_t dot_peak(int64_t rounds) {
  constexpr int kCount = 12;
  typename Isa::Int sums[kCount];
  unroll<kCount>([&](auto i) { sums[i] = Isa::zero(); });
  const typename Isa::Int w = Isa::splat(0x01020304);
  typename Isa::Int a = Isa::splat(0x7f817f81);
  for (int64_t round = 0; round < rounds; ++round) {
    unroll<kCount>([&](auto i) {
      sums[i] = Isa::dot(sums[i], w, a);
      sums[i] = Isa::keep(sums[i]);
      a = Isa::keep(
          a);  // or the product would leave the loop where it is an instruction of its own
    });
  }
  return rounds * kCount * Isa::kLanes * 4;
}

}  // namespace quarot::cpu
