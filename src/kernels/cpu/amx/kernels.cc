#include <immintrin.h>

#include "kernels/cpu/avx512vnni/gemm_isa.h"
#include "kernels/cpu/features.h"
#include "kernels/cpu/tables.h"

namespace quarot::cpu {
namespace {

// AMX multiplies a tile of 16 rows × 64 activations by a tile of 64 inputs × 16 outputs, whose row
// i holds inputs 4i…4i+3 of each output: the packed layout, once nibbles are spread to bytes. A
// group of weights may end inside a tile: it then has fewer rows.
//
// 8-bit weights are such tiles as they stand. Registers: sums 0…3 (two tiles of rows × two of
// outputs), activations 4 and 5, weights 6 and 7.
constexpr int64_t kTileRows = 16;
constexpr int64_t kPieceRows = 2 * kTileRows;
constexpr int64_t kMinRows = 8;  // below, the tiles are too empty: AVX512-VNNI is faster

// What is worked on at once: nibbles are spread for 2048 inputs and used by 256 rows.
constexpr int64_t kChunkInputs = 2048;
constexpr int64_t kSectionRows = 256;
struct alignas(64) Workspace {
  uint8_t bytes[kChunkInputs * kTileOutputs];
  int32_t sums[kSectionRows * kTileOutputs];
  float terms[kSectionRows * kTileOutputs];
};

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// GCC's intrinsics do not tell the compiler what they read (all of a configuration, all rows of a
// tile): what was written there must be in memory before them.
void settle(const void* written) { asm volatile("" : : "r"(written) : "memory"); }

// Tiles of `rows` activations (1 … 32), `quads` groups of four inputs deep.
void configure(int64_t rows, int64_t quads) {
  TileConfig c;
  const int64_t upper = rows < kTileRows ? rows : kTileRows;
  const int64_t lower = rows > kTileRows ? rows - kTileRows : upper;
  for (int i = 0; i < 8; ++i) c.row_bytes[i] = 64;
  c.rows[0] = c.rows[1] = c.rows[4] = static_cast<uint8_t>(upper);
  c.rows[2] = c.rows[3] = c.rows[5] = static_cast<uint8_t>(lower);
  c.row_bytes[4] = c.row_bytes[5] = static_cast<uint16_t>(quads * 4);
  c.rows[6] = c.rows[7] = static_cast<uint8_t>(quads);
  settle(&c);
  _tile_loadconfig(&c);
}

constexpr int64_t kSumsStride = kTileOutputs * 4;

// sums [rows][32] of one piece, = or += the products over `inputs` inputs.
void multiply(const int8_t* a, int64_t a_stride, int64_t rows, const uint8_t* w, int64_t inputs,
              int64_t step, bool first, int32_t* sums) {
  const bool two = rows > kTileRows;
  int32_t* lower = sums + kTileRows * kTileOutputs;
  settle(w);
  if (first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, sums, kSumsStride);
    _tile_loadd(1, sums + 16, kSumsStride);
    if (two) {
      _tile_loadd(2, lower, kSumsStride);
      _tile_loadd(3, lower + 16, kSumsStride);
    }
  }
  for (int64_t k = 0; k < inputs; k += step) {
    _tile_loadd(6, w + k * kTileOutputs, 128);
    _tile_loadd(7, w + k * kTileOutputs + 64, 128);
    _tile_loadd(4, a + k, a_stride);
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(1, 4, 7);
    if (two) {
      _tile_loadd(5, a + kTileRows * a_stride + k, a_stride);
      _tile_dpbsud(2, 5, 6);
      _tile_dpbsud(3, 5, 7);
    }
  }
  _tile_stored(0, sums, kSumsStride);
  _tile_stored(1, sums + 16, kSumsStride);
  if (two) {
    _tile_stored(2, lower, kSumsStride);
    _tile_stored(3, lower + 16, kSumsStride);
  }
}

// 4-bit weights as bytes that are rows of tiles: a quad of four inputs follows the other.
void spread_nibbles(const uint8_t* packed, int64_t blocks, uint8_t* bytes) {
  const __m512i mask = _mm512_set1_epi8(15);
  for (int64_t i = 0; i < blocks * 2; ++i) {
    const __m512i both = _mm512_loadu_si512(packed + i * 64);
    uint8_t* out = bytes + i / 2 * 256 + i % 2 * 64;
    _mm512_store_si512(out, _mm512_and_si512(both, mask));
    _mm512_store_si512(out + 128, _mm512_and_si512(_mm512_srli_epi16(both, 4), mask));
  }
}

// Rows first…last−1, at most a section, of one tile of weights.
void run_section(const GemmTask& task, int64_t tile, int64_t first, int64_t last, Workspace& ws) {
  const int64_t group = task.group_blocks * 8;
  const int64_t step = group % 64 == 0 ? 64 : 32;
  const uint8_t* w = task.w + tile * task.tile_bytes;
  const Outputs outputs = {tile, 0, kTileOutputs};
  for (int64_t g = 0; g < task.groups; ++g) {
    for (int64_t k = 0; k < group; k += kChunkInputs) {
      const int64_t inputs = group - k < kChunkInputs ? group - k : kChunkInputs;
      const uint8_t* bytes = w + (g * group + k) * kTileOutputs * task.bits / 8;
      if (task.bits == 4) {
        spread_nibbles(bytes, inputs / 8, ws.bytes);
        bytes = ws.bytes;
      }
      int64_t configured = 0;
      for (int64_t row = first; row < last; row += kPieceRows) {
        const int64_t rows = last - row < kPieceRows ? last - row : kPieceRows;
        if (rows != configured) configure(rows, step / 4);
        configured = rows;
        multiply(task.a.values + row * task.a.stride + g * group + k, task.a.stride, rows, bytes,
                 inputs, step, k == 0, ws.sums + (row - first) * kTileOutputs);
      }
    }
    for (int64_t row = first; row < last; ++row) {
      const int64_t at = (row - first) * kTileOutputs;
      scale_sums<Avx512Vnni>(task, outputs, row, g, ws.sums + at, ws.terms + at);
    }
  }
  for (int64_t row = first; row < last; ++row) {
    store_row<Avx512Vnni>(task, outputs, row, ws.terms + (row - first) * kTileOutputs);
  }
}

void amx_range(const GemmTask& task, const GemmRange& range) {
  if (range.last_row - range.first_row < kMinRows) return gemm_range<Avx512Vnni>(task, range);
  Workspace ws;
  for (int64_t tile = range.first_tile; tile < range.last_tile; ++tile) {
    for (int64_t row = range.first_row; row < range.last_row; row += kSectionRows) {
      const int64_t end = row + kSectionRows < range.last_row ? row + kSectionRows : range.last_row;
      run_section(task, tile, row, end, ws);
    }
  }
  _tile_release();
}

// Tile products from registers: a tile product is 16 × 16 × 64 multiply-adds.
int64_t amx_peak(int64_t rounds) {
  configure(kPieceRows, 16);
  for (int64_t round = 0; round < rounds; ++round) {
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(1, 4, 7);
    _tile_dpbsud(2, 5, 6);
    _tile_dpbsud(3, 5, 7);
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
};

}  // namespace quarot::cpu
