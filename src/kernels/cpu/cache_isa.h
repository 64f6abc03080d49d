// The quantised KV cache, written once for every instruction set; see gemm_tile.h for how it is
// included, rows_isa.h for `V`, which here also gives keep_above (x where y > limit, else 0),
// Words with load_words, shr<n>, shl_or<n> (x | y << n), as_float and low_bits<b> (the low b bits
// as a float), load_bytes (16 uint8 as floats), and kQueries (1, 2, 4 or 8: how many queries' sums
// its registers hold while a page is read).
#pragma once

#include "kernels/cache_task.h"
#include "kernels/cpu/rows_isa.h"
#include "kernels/cpu/unroll.h"

namespace quarot::cpu {

inline constexpr int kAttendRows = 8;  // queries that share one reading of a page
inline constexpr int kMaxCacheGroups = 8;

// What queries make of one chunk: o [head_dim], then a tail of 16: l, o_zero [groups], …, m last.
inline constexpr int64_t kStateTail = 16;
inline constexpr int64_t kStateLargest = kStateTail - 1;
static_assert(1 + kMaxCacheGroups <= kStateLargest);

// Queries against the pages of one chunk of one KV head.
struct AttendTask {
  int rows = 0;
  const float* q[kAttendRows];
  int64_t begin[kAttendRows], end[kAttendRows];  // the positions that each sees
  std::byte* const* pages = nullptr;
  int64_t page_offset = 0;
  int64_t first_page = 0, last_page = 0;
  int64_t head_dim = 0, groups = 1;
  int k_bits = 4, v_bits = 4;
  int64_t k_scales = 0, k_zeros = 0, v_words = 0, v_scales = 0, v_zeros = 0;
  float* state[kAttendRows];  // out
};

template <class V>
struct Cache {
  using F = typename V::F;
  using Words = typename V::Words;
  using R = Rows<V>;
  static constexpr int64_t kLanes = 16;
  static constexpr float kNever = -__builtin_inff();

  // ---- Writing

  static void rope(float* x, const float* cos, const float* sin, int64_t half) {
    int64_t i = 0;
    for (; i + kLanes <= half; i += kLanes) {
      const F a = V::load(x + i);
      const F b = V::load(x + half + i);
      const F c = V::load(cos + i);
      const F s = V::load(sin + i);
      V::store(x + i, V::sub(V::mul(a, c), V::mul(b, s)));
      V::store(x + half + i, V::add(V::mul(b, c), V::mul(a, s)));
    }
    for (; i < half; ++i) {
      const float a = x[i];
      const float b = x[half + i];
      x[i] = a * cos[i] - b * sin[i];
      x[half + i] = b * cos[i] + a * sin[i];
    }
  }

  // Returns where in scratch [2][head_dim rounded up to 16] the vector is, zeros behind it.
  static float* head_vector(const HeadsTask& t, int64_t token, int64_t head, float* scratch) {
    RowTask row;
    row.width = t.head_dim;
    row.source = t.gain != nullptr ? RowSource::kRmsNorm : RowSource::kCopy;
    row.x = t.x + token * t.x_stride + head * t.head_dim;
    row.gain = t.gain;
    row.eps = t.eps;
    float* x = scratch;
    R::source(row, 0, x);
    const int64_t half = t.rotary / 2;
    if (t.cos != nullptr) rope(x, t.cos + token * half, t.sin + token * half, half);
    if (t.hadamard != nullptr) {
      float* other = scratch + (t.head_dim + kLanes - 1) / kLanes * kLanes;
      x = R::hadamard(*t.hadamard, x, other, t.head_dim);
    }
    const F scale = V::splat(t.scale);
    for (int64_t i = 0; i < t.head_dim; i += kLanes) {
      F v = V::load(x + i);
      if (t.centre != nullptr) {
        v = V::sub(v, R::load_some(t.centre + head * t.head_dim + i, t.head_dim - i));
      }
      V::store(x + i, V::mul(v, scale));
    }
    return x;
  }

  struct Grid {
    float scale, zero;
  };

  static Grid grid_of(const float* x, int64_t count, int bits, float clip) {
    F low = V::splat(0.0F);
    F high = low;
    for (int64_t i = 0; i < count; i += kLanes) {
      low = V::min(V::load(x + i), low);
      high = V::max(V::load(x + i), high);
    }
    constexpr float kLargest = 0x1.fffffep126F;  // FLT_MAX / 2
    const float lowest = -V::largest(V::negate(low));
    const float highest = V::largest(high);
    const float x_min = clip * (lowest > -kLargest ? lowest : -kLargest);
    const float x_max = clip * (highest < kLargest ? highest : kLargest);
    const float scale = (x_max - x_min) / static_cast<float>((1 << bits) - 1);
    const float usable = scale >= 0x1p-126F ? scale : 1.0F;      // FLT_MIN
    return {usable, (-x_min / usable + 0x1.8p23F) - 0x1.8p23F};  // rounds half to even
  }

  // q − 128, so that it is an int8.
  static void quantize(const float* x, int64_t count, const Grid& grid, int bits, int8_t* q) {
    const auto highest = static_cast<float>((1 << bits) - 1);
    const F scale = V::splat(grid.scale);
    const F lo = V::splat(-grid.zero);
    const F hi = V::splat(highest - grid.zero);
    const F shift = V::splat(grid.zero - 128.0F);
    for (int64_t i = 0; i < count; i += kLanes) {
      const F t = V::not_nan(V::div(V::load(x + i), scale));
      const F level = V::round(V::min(V::max(t, lo), hi));
      V::store_bytes(q + i, V::add(level, shift), V::no_sum());
    }
  }

  // One token's field of every channel's bit string, which other tokens share.
  static void put_values(uint32_t* words, int64_t head_dim, int64_t slot, int bits,
                         const uint32_t* q, int64_t count) {
    const auto shift = static_cast<int>(slot * bits % 32);
    const uint32_t mask = ~uint32_t{0} >> (32 - bits);
    words += slot * bits / 32 * head_dim;
    for (int64_t i = 0; i < count; ++i) words[i] = (words[i] & ~(mask << shift)) | q[i] << shift;
    if (shift + bits <= 32) return;
    const int rest = 32 - shift;
    words += head_dim;
    for (int64_t i = 0; i < count; ++i) words[i] = (words[i] & ~(mask >> rest)) | q[i] >> rest;
  }

  // A token's own bit string, whole words of it.
  static void put_keys(uint32_t* words, int bits, const uint32_t* q, int64_t count) {
    uint64_t string = 0;
    int held = 0;
    for (int64_t i = 0; i < count; ++i) {
      string |= uint64_t{q[i]} << held;
      held += bits;
      if (held < 32) continue;
      *words = static_cast<uint32_t>(string);
      words += kPageTokens;
      string >>= 32;
      held -= 32;
    }
    if (held > 0) *words = static_cast<uint32_t>(string);
  }

  static void store(const HeadsTask& t, const CacheToken& at, int64_t head, const float* x) {
    const CacheLayout& l = *t.layout;
    std::byte* page = at.pages[at.position / kPageTokens] + t.page_offset + head * l.page_bytes();
    const int64_t slot = at.position % kPageTokens;
    const int bits = t.values ? l.v_bits : l.k_bits;
    const int level_bits = t.bits != 0 ? t.bits : bits;
    auto* words = reinterpret_cast<uint32_t*>(page + (t.values ? l.v_words() : 0));
    auto* scales = reinterpret_cast<float*>(page + (t.values ? l.v_scales() : l.k_scales()));
    auto* zeros = reinterpret_cast<uint8_t*>(page + (t.values ? l.v_zeros() : l.k_zeros()));
    const int64_t group = l.head_dim / l.groups;
    for (int64_t g = 0; g < l.groups; ++g) {
      const float* part = x + g * group;
      const Grid grid = bits == 32 ? Grid{1, 0} : grid_of(part, group, level_bits, t.clip);
      scales[g * kPageTokens + slot] = grid.scale;
      zeros[g * kPageTokens + slot] = static_cast<uint8_t>(grid.zero);
      uint32_t q[kMaxGroup];
      if (bits == 32) {
        __builtin_memcpy(q, part, static_cast<uint64_t>(group) * sizeof(float));
      } else {
        int8_t levels[kMaxGroup];
        quantize(part, group, grid, level_bits, levels);
        for (int64_t i = 0; i < group; ++i) q[i] = static_cast<uint32_t>(levels[i] + 128);
      }
      if (t.values) {
        put_values(words + g * group, l.head_dim, slot, bits, q, group);
      } else {
        put_keys(words + slot + g * group * bits / 32 * kPageTokens, bits, q, group);
      }
    }
  }
  static constexpr int64_t kMaxGroup = 1024;

  // Tokens first…last−1; scratch as head_vector's.
  static void heads(const HeadsTask& t, int64_t first, int64_t last, float* scratch) {
    for (int64_t token = first; token < last; ++token) {
      for (int64_t head = 0; head < t.heads; ++head) {
        const float* x = head_vector(t, token, head, scratch);
        if (t.y != nullptr) {
          const int64_t y_head = t.y_head != 0 ? t.y_head : t.head_dim;
          float* y = t.y + token * t.y_stride + head * y_head;
          __builtin_memcpy(y, x, static_cast<uint64_t>(y_head) * sizeof(float));
        } else {
          store(t, t.cache[token], head, x);
        }
      }
    }
  }

  // ---- Reading

  // Fields are unpacked from whole words: one word, or three for 3 bits.
  template <int kBits>
  static constexpr int kUnit = kBits == 3 ? 3 : 1;
  template <int kBits>
  static constexpr int kFields = kUnit<kBits> * 32 / kBits;

  template <int kBits, int kField>
  static F field(const Words (&w)[kUnit<kBits>]) {
    constexpr int kBit = kField * kBits;
    constexpr int kWord = kBit / 32;
    constexpr int kShift = kBit % 32;
    if constexpr (kBits == 32) {
      return V::as_float(w[0]);
    } else if constexpr (kShift + kBits > 32) {
      return V::template low_bits<kBits>(
          V::template shl_or<32 - kShift>(V::template shr<kShift>(w[kWord]), w[kWord + 1]));
    } else {
      return V::template low_bits<kBits>(V::template shr<kShift>(w[kWord]));
    }
  }

  // Vectors of tokens or channels held at once: where registers allow, two, so that few queries
  // still make enough independent sums, and a query's element is loaded once for both.
  static constexpr int kVectors = V::kWide ? 2 : 1;

  // The queries' numbers over a chunk.
  struct Chunk {
    alignas(64) float scores[kAttendRows][kChunkTokens];   // then their exponentials
    alignas(64) float weights[kAttendRows][kChunkTokens];  // these times the scales of a group
    float q_sums[kMaxCacheGroups][kAttendRows];
  };

  static const std::byte* page_data(const AttendTask& t, int64_t page) {
    return t.pages[page] + t.page_offset;
  }

  // Pages lie apart, where no prefetcher of the processor expects them: while one is read, the next
  // is asked for. How far on it is.
  static int64_t next_page(const AttendTask& t, int64_t page) {
    return page + 1 < t.last_page ? page_data(t, page + 1) - page_data(t, page) : 0;
  }

  // scores[row…row+kRows−1] of tokens first…first+16·kVectors−1 of a page.
  template <int kBits, int kRows>
  static void score(const AttendTask& t, int64_t page, int row, int64_t first, Chunk& chunk) {
    constexpr int kV = kVectors;
    const std::byte* data = page_data(t, page);
    const int64_t next = next_page(t, page);
    const auto* words = reinterpret_cast<const uint32_t*>(data) + first;
    const auto* scales = reinterpret_cast<const float*>(data + t.k_scales) + first;
    const auto* zeros = reinterpret_cast<const uint8_t*>(data + t.k_zeros) + first;
    const int64_t group = t.head_dim / t.groups;
    const float* q[kRows];
    unroll<kRows>([&](auto r) { q[r] = t.q[row + r]; });
    F total[kRows * kV];
    unroll<kRows * kV>([&](auto i) { total[i] = V::splat(0.0F); });
    for (int64_t g = 0; g < t.groups; ++g) {
      F dot[kRows * kV];
      unroll<kRows * kV>([&](auto i) { dot[i] = V::splat(0.0F); });
      for (int64_t d = g * group; d < (g + 1) * group; d += kFields<kBits>) {
        Words w[kV][kUnit<kBits>];
        unroll<kV * kUnit<kBits>>([&](auto i) {
          const uint32_t* p = words + i % kUnit<kBits> * kPageTokens + i / kUnit<kBits> * kLanes;
          __builtin_prefetch(reinterpret_cast<const std::byte*>(p) + next);
          w[i / kUnit<kBits>][i % kUnit<kBits>] = V::load_words(p);
        });
        words += kUnit<kBits> * kPageTokens;
        unroll<kFields<kBits>>([&](auto j) {
          unroll<kV>([&](auto v) {
            const F k = field<kBits, j>(w[v]);
            unroll<kRows>([&](auto r) {
              dot[r * kV + v] = V::fma(V::splat(q[r][d + j]), k, dot[r * kV + v]);
            });
          });
        });
      }
      unroll<kRows * kV>([&](auto i) {
        constexpr int r = i / kV;
        constexpr int v = i % kV;
        const int64_t at = g * kPageTokens + v * kLanes;
        const F zero = V::mul(V::load_bytes(zeros + at), V::splat(chunk.q_sums[g][row + r]));
        total[i] = V::add(total[i], V::mul(V::load(scales + at), V::sub(dot[i], zero)));
      });
    }
    const int64_t token = (page - t.first_page) * kPageTokens + first;
    unroll<kRows * kV>(
        [&](auto i) { V::store(chunk.scores[row + i / kV] + token + i % kV * kLanes, total[i]); });
  }

  template <int kBits, int kRows>
  static void score_pages(const AttendTask& t, int row, Chunk& chunk) {
    for (int64_t page = t.first_page; page < t.last_page; ++page) {
      for (int64_t i = 0; i < kPageTokens; i += kVectors * kLanes) {
        score<kBits, kRows>(t, page, row, i, chunk);
      }
    }
  }

  // The softmax of one query, but for the division: its scores become exponentials.
  static void exponentiate(const AttendTask& t, int row, Chunk& chunk) {
    float* s = chunk.scores[row];
    const int64_t first = t.first_page * kPageTokens;
    const int64_t count = t.last_page * kPageTokens - first;
    for (int64_t i = 0; i < count && first + i < t.begin[row]; ++i) s[i] = kNever;
    for (int64_t i = count - 1; i >= 0 && first + i >= t.end[row]; --i) s[i] = kNever;
    F largest = V::splat(kNever);
    for (int64_t i = 0; i < count; i += kLanes) largest = V::max(V::load(s + i), largest);
    const float m = V::largest(largest);
    const F base = V::splat(m == kNever ? 0.0F : m);
    F sum = V::splat(0.0F);
    for (int64_t i = 0; i < count; i += kLanes) {
      const F x = V::load(s + i);
      const F p = V::keep_above(R::exp(V::sub(x, base)), x, kNever);
      V::store(s + i, p);
      sum = V::add(sum, p);
    }
    float* tail = t.state[row] + t.head_dim;
    V::store(tail, V::splat(0.0F));
    tail[0] = V::sum(sum);
    tail[kStateLargest] = m;
  }

  // weights[row] and o_zero of group g.
  static void weigh(const AttendTask& t, int row, int64_t g, Chunk& chunk) {
    const float* p = chunk.scores[row];
    float* w = chunk.weights[row];
    F sum = V::splat(0.0F);
    for (int64_t page = t.first_page; page < t.last_page; ++page) {
      const std::byte* data = page_data(t, page);
      const auto* scales = reinterpret_cast<const float*>(data + t.v_scales) + g * kPageTokens;
      const auto* zeros = reinterpret_cast<const uint8_t*>(data + t.v_zeros) + g * kPageTokens;
      for (int64_t i = 0; i < kPageTokens; i += kLanes, p += kLanes, w += kLanes) {
        const F weight = V::mul(V::load(p), V::load(scales + i));
        V::store(w, weight);
        sum = V::add(sum, V::mul(weight, V::load_bytes(zeros + i)));
      }
    }
    t.state[row][t.head_dim + 1 + g] = V::sum(sum);
  }

  // o[row…row+kRows−1] of channels first…first+16·kV−1, all of the group that was weighed.
  template <int kBits, int kRows, int kV>
  static void output(const AttendTask& t, int row, int64_t first, const Chunk& chunk) {
    F o[kRows * kV];
    unroll<kRows * kV>([&](auto i) { o[i] = V::splat(0.0F); });
    for (int64_t page = t.first_page; page < t.last_page; ++page) {
      const auto* words = reinterpret_cast<const uint32_t*>(page_data(t, page) + t.v_words) + first;
      const int64_t next = next_page(t, page);
      const int64_t begin = (page - t.first_page) * kPageTokens;
      for (int64_t token = begin; token < begin + kPageTokens; token += kFields<kBits>) {
        Words w[kV][kUnit<kBits>];
        unroll<kV * kUnit<kBits>>([&](auto i) {
          const uint32_t* p = words + i % kUnit<kBits> * t.head_dim + i / kUnit<kBits> * kLanes;
          __builtin_prefetch(reinterpret_cast<const std::byte*>(p) + next);
          w[i / kUnit<kBits>][i % kUnit<kBits>] = V::load_words(p);
        });
        words += kUnit<kBits> * t.head_dim;
        unroll<kFields<kBits>>([&](auto j) {
          unroll<kV>([&](auto v) {
            const F value = field<kBits, j>(w[v]);
            unroll<kRows>([&](auto r) {
              const F weight = V::splat(chunk.weights[row + r][token + j]);
              o[r * kV + v] = V::fma(weight, value, o[r * kV + v]);
            });
          });
        });
      }
    }
    unroll<kRows * kV>(
        [&](auto i) { V::store(t.state[row + i / kV] + first + i % kV * kLanes, o[i]); });
  }

  template <int kBits, int kRows>
  static void output_group(const AttendTask& t, int row, int64_t g, const Chunk& chunk) {
    constexpr int64_t kStep = kVectors * kLanes;
    const int64_t group = t.head_dim / t.groups;
    int64_t d = g * group;
    for (; d + kStep <= (g + 1) * group; d += kStep) {
      output<kBits, kRows, kVectors>(t, row, d, chunk);
    }
    // What is left of a head_dim that is an odd multiple of 16, one query at a time.
    for (; d < (g + 1) * group; d += kLanes) {
      for (int r = 0; r < kRows; ++r) output<kBits, 1, 1>(t, row + r, d, chunk);
    }
  }

  // work(bits, rows, first row) for all rows, in few and even parts.
  template <int kBits, typename Work>
  static void in_parts(int rows, const Work& work) {
    constexpr int kMost = V::kQueries;
    int part = 0;
    for (int row = 0; row < rows; row += part) {
      const int left = rows - row;
      part = left >= kMost ? kMost : left == 6 || left <= 4 ? left : (left + 1) / 2;
      const auto run_if = [&](auto size) {
        if constexpr (size <= kMost) {
          if (size == part) work(Index<kBits>(), size, row);
        }
      };
      run_if(Index<1>());
      run_if(Index<2>());
      run_if(Index<3>());
      run_if(Index<4>());
      run_if(Index<6>());
      run_if(Index<8>());
    }
  }

  template <typename Work>
  static void with_bits(int bits, int rows, const Work& work) {
    switch (bits) {
      case 2:
        return in_parts<2>(rows, work);
      case 3:
        return in_parts<3>(rows, work);
      case 4:
        return in_parts<4>(rows, work);
      case 8:
        return in_parts<8>(rows, work);
      default:
        return in_parts<32>(rows, work);
    }
  }

  static void attend(const AttendTask& t) {
    Chunk chunk;
    const int64_t group = t.head_dim / t.groups;
    for (int r = 0; r < t.rows; ++r) {
      for (int64_t g = 0; g < t.groups; ++g) {
        F sum = V::splat(0.0F);
        for (int64_t d = 0; d < group; d += kLanes) {
          sum = V::add(sum, V::load(t.q[r] + g * group + d));
        }
        chunk.q_sums[g][r] = V::sum(sum);
      }
    }
    with_bits(t.k_bits, t.rows,
              [&](auto bits, auto rows, int row) { score_pages<bits, rows>(t, row, chunk); });
    for (int r = 0; r < t.rows; ++r) exponentiate(t, r, chunk);
    for (int64_t g = 0; g < t.groups; ++g) {
      for (int r = 0; r < t.rows; ++r) weigh(t, r, g, chunk);
      with_bits(t.v_bits, t.rows,
                [&](auto bits, auto rows, int row) { output_group<bits, rows>(t, row, g, chunk); });
    }
  }

  // y = the outputs of `chunks` states, `stride` floats apart, of one query; `sum` is one more.
  static void merge(const float* states, int64_t chunks, int64_t stride, int64_t groups,
                    int64_t head_dim, float* sum, float* y) {
    const int64_t size = head_dim + kStateTail;
    const float* largest = states + head_dim + kStateLargest;
    float m = kNever;
    for (int64_t c = 0; c < chunks; ++c) m = largest[c * stride] > m ? largest[c * stride] : m;
    for (int64_t i = 0; i < size; i += kLanes) V::store(sum + i, V::splat(0.0F));
    for (int64_t c = 0; c < chunks; ++c) {
      const F a = R::exp(V::splat(largest[c * stride] - m));
      for (int64_t i = 0; i < size; i += kLanes) {
        V::store(sum + i, V::fma(V::load(states + c * stride + i), a, V::load(sum + i)));
      }
    }
    const float* tail = sum + head_dim;
    const F l = V::splat(tail[0]);
    const int64_t group = head_dim / groups;
    for (int64_t d = 0; d < head_dim; d += kLanes) {
      const F zero = V::splat(tail[1 + d / group]);
      V::store(y + d, V::div(V::sub(V::load(sum + d), zero), l));
    }
  }

  // Enough independent sums to hide the latency of a multiply-add, and few enough for registers.
  static int64_t float_peak(int64_t rounds) {
    constexpr int kCount = V::kWide ? 12 : 6;
    F sums[kCount];
    unroll<kCount>([&](auto i) { sums[i] = V::splat(static_cast<float>(i)); });
    const F x = V::splat(0.999F);
    for (int64_t round = 0; round < rounds; ++round) {
      unroll<kCount>([&](auto i) { sums[i] = V::fma(sums[i], x, x); });
    }
    alignas(64) float kept[kLanes];
    unroll<kCount>([&](auto i) {
      V::store(kept, sums[i]);
      asm volatile("" : : "m"(kept));  // the sums are needed
    });
    return rounds * kCount * kLanes;
  }
};

}  // namespace quarot::cpu
