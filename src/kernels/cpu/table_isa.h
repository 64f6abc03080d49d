// The product of float rows with a RowTable, written once for every instruction set; see
// gemm_tile.h for how it is included, rows_isa.h and cache_isa.h for `V`, which here also gives
// bits<mask> and flip<mask> (of words), top_byte<k> (byte k of each word at its top, zeros below)
// and to_float (of words as signed integers).
//
// An output is Σ x[c]·w[c] by fma from zero in ascending c, then + bias, then the old y + that:
// the same for one row and for many, which only differ in where a decoded w comes from.
#pragma once

#include "kernels/cpu/table_task.h"
#include "kernels/cpu/unroll.h"

namespace quarot::cpu {

template <class V>
struct Table {
  using F = typename V::F;
  using Words = typename V::Words;

  template <Storage kStorage>
  static constexpr int kPerWord = kStorage == Storage::kF32    ? 1
                                  : kStorage == Storage::kInt8 ? 4
                                  : kStorage == Storage::kInt4 ? 8
                                                               : 2;

  // Field kField of 16 rows.
  template <Storage kStorage, int kField>
  static F element(Words w, F scale) {
    if constexpr (kStorage == Storage::kF32) {
      return V::as_float(w);
    } else if constexpr (kStorage == Storage::kBF16) {
      return V::as_float(kField == 0 ? V::template shl_or<16>(V::no_words(), w)
                                     : V::template bits<0xffff0000U>(w));
    } else if constexpr (kStorage == Storage::kF16) {
      // As f16_to_float(), but for infinities and NaN, of which a table has none.
      const Words half = V::template shr<kField * 16>(w);
      const Words sign = V::template bits<0x8000U>(half);
      const Words magnitude =
          V::template shl_or<13>(V::no_words(), V::template bits<0x7fffU>(half));
      return V::mul(V::as_float(V::template shl_or<16>(magnitude, sign)), V::splat(0x1p112F));
    } else if constexpr (kStorage == Storage::kInt8) {
      return top_level<kField>(V::template flip<0x80808080U>(w), scale);
    } else {
      constexpr uint32_t kHigh = 0xf0f0f0f0U;
      const Words signs = V::template flip<0x88888888U>(w);
      const Words high = kField % 2 == 1 ? signs : V::template shl_or<4>(V::no_words(), signs);
      return top_level<kField / 2>(V::template bits<kHigh>(high), scale);
    }
  }

  // An integer q stands at the top of its word as q·2^24 or, of 4 bits, q·2^28: converted as it is,
  // exactly, it needs no shift down, for unit_scale() holds the power of two.
  template <int kByte>
  static F top_level(Words w, F scale) {
    return V::mul(V::to_float(V::template top_byte<kByte>(w)), scale);
  }
  static F unit_scale(Storage storage, F scale) {
    return V::mul(scale, V::splat(storage == Storage::kInt8 ? 0x1p-24F : 0x1p-28F));
  }

  // visit(word, scale of every tile) over words first…last−1 of kTiles neighbouring tiles.
  template <int kTiles, typename Visit>
  static void for_each_word(const TableTask& t, int64_t tile, int64_t first, int64_t last,
                            const Visit& visit) {
    while (first < last) {
      const int64_t group = first / t.group_words;
      const int64_t end = (group + 1) * t.group_words < last ? (group + 1) * t.group_words : last;
      F scale[kTiles];
      unroll<kTiles>([&](auto i) {
        const int64_t at = ((tile + i) * t.groups + group) * kTableTile;
        scale[i] =
            t.scales != nullptr ? unit_scale(t.storage, V::load(t.scales + at)) : V::splat(1.0F);
      });
      for (; first < end; ++first) visit(first, scale);
    }
  }

  static void store(const TableTask& t, int64_t row, int64_t tile, F sum) {
    const int64_t n = tile * kTableTile;
    float* y = t.y + row * t.y_stride + n;
    if (n + kTableTile <= t.outputs) {
      if (t.bias != nullptr) sum = V::add(sum, V::load(t.bias + n));
      V::store(y, t.accumulate ? V::add(V::load(y), sum) : sum);
      return;
    }
    alignas(64) float sums[kTableTile];
    V::store(sums, sum);
    for (int64_t i = 0; n + i < t.outputs; ++i) {
      const float v = t.bias != nullptr ? sums[i] + t.bias[n + i] : sums[i];
      y[i] = t.accumulate ? y[i] + v : v;
    }
  }

  // ---- Few rows: decoded in registers, for kRows rows of x at once.

  static constexpr int kFewRows = V::kWide ? 4 : 2;
  static constexpr int kFewTiles = V::kWide ? 4 : 2;

  template <Storage kStorage, int kRows, int kTiles>
  static void few(const TableTask& t, int64_t tile) {
    F sum[kRows * kTiles];
    unroll<kRows * kTiles>([&](auto i) { sum[i] = V::splat(0.0F); });
    for_each_word<kTiles>(t, tile, 0, t.row_words, [&](int64_t i, const F(&scale)[kTiles]) {
      Words w[kTiles];
      unroll<kTiles>([&](auto j) {
        w[j] = V::load_words(t.words + ((tile + j) * t.row_words + i) * kTableTile);
      });
      const float* x = t.x + i * kPerWord<kStorage>;
      unroll<kPerWord<kStorage>>([&](auto field) {
        unroll<kTiles>([&](auto j) {
          const F e = element<kStorage, field>(w[j], scale[j]);
          unroll<kRows>([&](auto r) {
            F& s = sum[r * kTiles + j];
            s = V::fma(V::splat(x[r * t.x_stride + field]), e, s);
          });
        });
      });
    });
    unroll<kRows * kTiles>([&](auto i) { store(t, i / kTiles, tile + i % kTiles, sum[i]); });
  }

  template <Storage kStorage, int kRows>
  static void few_rows(const TableTask& t, int64_t first, int64_t last) {
    for (; first + kFewTiles <= last; first += kFewTiles) few<kStorage, kRows, kFewTiles>(t, first);
    for (; first < last; ++first) few<kStorage, kRows, 1>(t, first);
  }

  // ---- Many: a panel of kTiles tiles and kColumns columns is decoded once for kBlockRows rows.

  static constexpr int kTiles = V::kWide ? 2 : 1;
  static constexpr int kRows = V::kWide ? 12 : 6;  // of the sums in registers
  static constexpr int64_t kBlockRows = 96;
  static constexpr int64_t kColumns = 512;
  static constexpr int64_t kWidth = kTiles * kTableTile;
  static_assert(kWidth * (kColumns + kBlockRows) <= kTableScratch);

  template <Storage kStorage>
  static void decode(const TableTask& t, int64_t tile, int64_t last_tile, int64_t first,
                     int64_t last, float* panel) {
    for (int64_t j = 0; j < kTiles && tile < last_tile; ++j, ++tile, panel += kTableTile) {
      float* out = panel;
      for_each_word<1>(t, tile, first, last, [&](int64_t i, const F(&scale)[1]) {
        const Words w = V::load_words(t.words + (tile * t.row_words + i) * kTableTile);
        unroll<kPerWord<kStorage>>([&](auto field) {
          V::store(out + field * kWidth, element<kStorage, field>(w, scale[0]));
        });
        out += kPerWord<kStorage> * kWidth;
      });
    }
  }

  // sums [rows][kWidth] += x·panel, kCount rows.
  template <int kCount>
  static void add(const float* x, int64_t x_stride, int64_t columns, const float* panel,
                  float* sums) {
    F sum[kCount * kTiles];
    unroll<kCount * kTiles>([&](auto i) { sum[i] = V::load(sums + i * kTableTile); });
    for (int64_t c = 0; c < columns; ++c, panel += kWidth) {
      F w[kTiles];
      unroll<kTiles>([&](auto j) { w[j] = V::load(panel + j * kTableTile); });
      unroll<kCount>([&](auto r) {
        const F v = V::splat(x[r * x_stride + c]);
        unroll<kTiles>([&](auto j) { sum[r * kTiles + j] = V::fma(v, w[j], sum[r * kTiles + j]); });
      });
    }
    unroll<kCount * kTiles>([&](auto i) { V::store(sums + i * kTableTile, sum[i]); });
  }

  template <Storage kStorage>
  static void many_rows(const TableTask& t, int64_t first_tile, int64_t last_tile, float* scratch) {
    constexpr int64_t kWords = kColumns / kPerWord<kStorage>;
    float* panel = scratch;
    float* sums = scratch + kWidth * kColumns;
    for (int64_t row = 0; row < t.rows; row += kBlockRows) {
      const int64_t count = t.rows - row < kBlockRows ? t.rows - row : kBlockRows;
      for (int64_t tile = first_tile; tile < last_tile; tile += kTiles) {
        for (int64_t i = 0; i < count * kWidth; ++i) sums[i] = 0;
        for (int64_t i = 0; i < t.row_words; i += kWords) {
          const int64_t end = i + kWords < t.row_words ? i + kWords : t.row_words;
          decode<kStorage>(t, tile, last_tile, i, end, panel);
          const int64_t columns = (end - i) * kPerWord<kStorage>;
          const float* x = t.x + row * t.x_stride + i * kPerWord<kStorage>;
          int64_t r = 0;
          for (; r + kRows <= count; r += kRows) {
            add<kRows>(x + r * t.x_stride, t.x_stride, columns, panel, sums + r * kWidth);
          }
          for (; r + kRows / 3 <= count; r += kRows / 3) {
            add<kRows / 3>(x + r * t.x_stride, t.x_stride, columns, panel, sums + r * kWidth);
          }
          for (; r < count; ++r) {
            add<1>(x + r * t.x_stride, t.x_stride, columns, panel, sums + r * kWidth);
          }
        }
        for (int64_t i = 0; i < count * kTiles; ++i) {
          const int64_t at = tile + i % kTiles;
          if (at < last_tile) store(t, row + i / kTiles, at, V::load(sums + i * kTableTile));
        }
      }
    }
  }

  template <Storage kStorage>
  static void run_as(const TableTask& t, int64_t first_tile, int64_t last_tile, float* scratch) {
    if (t.rows == 1) return few_rows<kStorage, 1>(t, first_tile, last_tile);
    if (t.rows == 2) return few_rows<kStorage, 2>(t, first_tile, last_tile);
    if constexpr (kFewRows == 4) {
      if (t.rows == 3) return few_rows<kStorage, 3>(t, first_tile, last_tile);
      if (t.rows == 4) return few_rows<kStorage, 4>(t, first_tile, last_tile);
    }
    many_rows<kStorage>(t, first_tile, last_tile, scratch);
  }

  // Tiles first_tile…last_tile−1 of all rows.
  static void run(const TableTask& t, int64_t first_tile, int64_t last_tile, float* scratch) {
    switch (t.storage) {
      case Storage::kF32:
        return run_as<Storage::kF32>(t, first_tile, last_tile, scratch);
      case Storage::kF16:
        return run_as<Storage::kF16>(t, first_tile, last_tile, scratch);
      case Storage::kBF16:
        return run_as<Storage::kBF16>(t, first_tile, last_tile, scratch);
      case Storage::kInt8:
        return run_as<Storage::kInt8>(t, first_tile, last_tile, scratch);
      case Storage::kInt4:
        return run_as<Storage::kInt4>(t, first_tile, last_tile, scratch);
    }
  }
};

}  // namespace quarot::cpu
