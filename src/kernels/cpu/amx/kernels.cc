#include <immintrin.h>

#include "kernels/cpu/amx/scaling.h"
#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/avx512vnni/gemm_isa.h"
#include "kernels/cpu/features.h"
#include "kernels/cpu/tables.h"

namespace quarot::cpu {
namespace {

constexpr int64_t kMinRows = 8;  // below, the tiles are too empty: AVX512-VNNI is faster

// What is worked on at once: a panel of weights, spread to bytes, stays in the second-level cache
// while all rows pass by it, and 32 of these in the first, as far as they fit, while the panel's
// tiles, one after the other in memory, pass by them. Sums stay in registers over all inputs that a
// panel has: to cut the inputs into chunks for the first-level cache was slower, for the sums then
// go to memory and back.
constexpr int64_t kPanelBytes = 512 << 10;
constexpr int64_t kPanelInputs = kPanelBytes / kTileOutputs;
constexpr int64_t kBlocks = 16;
struct alignas(64) Workspace {
  int8_t panel[kPanelBytes];
  int32_t sums[kBlocks * kBlockSums];
  float terms[kBlocks * kBlockSums];
};

// Sums reach memory some time after the last tile product: a block begins to scale those of the one
// before after this many steps of its own.
constexpr int64_t kWaitSteps = 2;

int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }

// 32 rows × a tile of outputs × the inputs of a group, or of a panel.
struct Block {
  const int8_t* a;
  int64_t rows;
  const int8_t* w;
  int64_t inputs;
  int32_t* sums;  // [rows][32]
};

class Product {
 public:
  Product(const GemmTask& task, Workspace& workspace)
      : task_(task),
        ws_(workspace),
        group_(task.group_blocks * 8),
        depth_(group_ % 64 == 0 ? 64 : 32),
        inputs_(task.groups * group_) {}

  void run(const GemmRange& range) {
    // Longer inputs than a panel has take several of one tile, for fewer rows at a time.
    const bool whole = inputs_ <= kPanelInputs;
    const int64_t tiles = whole ? least(kPanelInputs / inputs_, kBlocks) : 1;
    const int64_t rows = whole ? range.last_row - range.first_row : kBlocks * kBlockRows;
    for (int64_t row = range.first_row; row < range.last_row; row += rows) {
      for (int64_t tile = range.first_tile; tile < range.last_tile; tile += tiles) {
        for (int64_t k = 0; k < inputs_; k += kPanelInputs) {
          run_panel({row, least(row + rows, range.last_row), tile,
                     least(tile + tiles, range.last_tile), k, least(k + kPanelInputs, inputs_)});
        }
      }
    }
    advance(task_, scaling_, kBlockRows);
    _tile_release();
  }

 private:
  struct Panel {
    int64_t first_row, last_row, first_tile, last_tile, first_input, last_input;
    int64_t inputs() const { return last_input - first_input; }
  };

  void run_panel(const Panel& p) {
    const auto spread_tile = task_.bits == 4 ? spread<4> : spread<8>;
    for (int64_t tile = p.first_tile; tile < p.last_tile; ++tile) {
      spread_tile(task_.w + tile * task_.tile_bytes + p.first_input * kTileOutputs * task_.bits / 8,
                  p.inputs(), depth_, tiles(p, tile, p.first_input));
    }
    for (int64_t row = p.first_row; row < p.last_row; row += kBlockRows) run_rows(p, row);
  }

  int8_t* tiles(const Panel& p, int64_t tile, int64_t input) {
    return ws_.panel + ((tile - p.first_tile) * p.inputs() + input - p.first_input) * kTileOutputs;
  }

  // 32 rows against a panel.
  void run_rows(const Panel& p, int64_t row) {
    const int64_t rows = least(p.last_row - row, kBlockRows);
    if (rows != configured_rows_) configure(rows, depth_);
    configured_rows_ = rows;
    int64_t inputs = 0;
    for (int64_t k = p.first_input; k < p.last_input; k += inputs) {
      const int64_t group = k / group_;
      const int64_t group_end = (group + 1) * group_;
      inputs = least(group_end, p.last_input) - k;
      for (int64_t tile = p.first_tile; tile < p.last_tile; ++tile) {
        const int64_t at = place(p, row, tile) * kBlockSums;
        const Block block = {task_.a.values + row * task_.a.stride + k, rows, tiles(p, tile, k),
                             inputs, ws_.sums + at};
        multiply(block, k == group * group_);
        if (k + inputs == group_end) {
          scaling_ = {row, rows, tile, group, ws_.sums + at, ws_.terms + at};
        }
      }
    }
  }

  // Where a block's sums wait for the next panel, or its terms for the next group.
  int64_t place(const Panel& p, int64_t row, int64_t tile) const {
    if (inputs_ > kPanelInputs) return (row - p.first_row) / kBlockRows;
    return task_.groups > 1 ? tile - p.first_tile : 0;
  }

  // The block's sums = or += its products; on the way the block before is scaled.
  void multiply(const Block& b, bool first) {
    const int64_t a_stride = task_.a.stride;
    const bool two = b.rows > kTileRows;
    load_sums(b, two, first);
    const int64_t steps = b.inputs / depth_;
    const int64_t wait = steps > kWaitSteps ? kWaitSteps : 0;
    const int64_t share = (scaling_.rows + steps - wait - 1) / (steps - wait);
    const int8_t* a = b.a;
    const int8_t* w = b.w;
    for (int64_t step = 0; step < steps; ++step, a += depth_, w += depth_ * kTileOutputs) {
      _tile_loadd(6, w, 64);
      _tile_loadd(4, a, a_stride);
      _tile_loadd(7, w + depth_ * kTileRows, 64);
      _tile_dpbssd(0, 4, 6);
      _tile_dpbssd(1, 4, 7);
      if (two) {
        _tile_loadd(5, a + kTileRows * a_stride, a_stride);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
      }
      if (step >= wait) advance(task_, scaling_, share);
    }
    store_sums(b, two);
  }

  static constexpr int64_t kSumsStride = kTileOutputs * 4;

  static void load_sums(const Block& b, bool two, bool first) {
    settle(b.w);
    if (first) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      return;
    }
    _tile_loadd(0, b.sums, kSumsStride);
    _tile_loadd(1, b.sums + 16, kSumsStride);
    if (two) {
      _tile_loadd(2, b.sums + kBlockSums / 2, kSumsStride);
      _tile_loadd(3, b.sums + kBlockSums / 2 + 16, kSumsStride);
    }
  }

  static void store_sums(const Block& b, bool two) {
    _tile_stored(0, b.sums, kSumsStride);
    _tile_stored(1, b.sums + 16, kSumsStride);
    if (two) {
      _tile_stored(2, b.sums + kBlockSums / 2, kSumsStride);
      _tile_stored(3, b.sums + kBlockSums / 2 + 16, kSumsStride);
    }
    settle(b.sums);
  }

  const GemmTask& task_;
  Workspace& ws_;
  const int64_t group_, depth_, inputs_;
  int64_t configured_rows_ = 0;
  Scaling scaling_;
};

void amx_range(const GemmTask& task, const GemmRange& range) {
  if (range.last_row - range.first_row < kMinRows) return gemm_range<Avx512Vnni>(task, range);
  Product(task, *reinterpret_cast<Workspace*>(range.workspace)).run(range);
}

// Tile products from registers: a tile product is 16 × 16 × 64 multiply-adds.
int64_t amx_peak(int64_t rounds) {
  configure(kBlockRows, 64);
  for (int64_t round = 0; round < rounds; ++round) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_release();
  return rounds * 4 * 16 * 16 * 64;
}

}  // namespace

const Kernels kAmx = {
    .name = "amx",
    .available = has_amx_int8,
    .gemm = amx_range,
    .floats = &kAvx512Floats,
    .dot_peak = amx_peak,
    .block_bytes = 1 << 20,
    .workspace_bytes = sizeof(Workspace),
};

}  // namespace quarot::cpu
