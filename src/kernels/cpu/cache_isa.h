// The quantised KV cache, written once for every instruction set; see gemm_tile.h for how it is
// included, rows_isa.h for `V`, which here also gives fma, keep_above (x where y > limit, else 0),
// Words with load_words, shr<n>, shl_or<n> (x | y << n), as_float and low_bits<b> (the low b bits
// as a float), load_bytes (16 uint8 as floats), and kWide (one register holds 16 floats).
#pragma once

#include "kernels/cache_task.h"
#include "kernels/cpu/rows_isa.h"
#include "kernels/cpu/unroll.h"

namespace quarot::cpu {

inline constexpr int kAttendRows = 8;  // queries that share one reading of a page
inline constexpr int kMaxCacheGroups = 8;

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
  float* state[kAttendRows];  // out: m, l, o_zero [groups], o [head_dim]
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

  // Returns where in scratch [2][head_dim] the vector is.
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
    if (t.hadamard != nullptr) x = R::hadamard(*t.hadamard, x, scratch + t.head_dim, t.head_dim);
    const F scale = V::splat(t.scale);
    for (int64_t i = 0; i < t.head_dim; i += kLanes) {
      F v = V::load(x + i);
      if (t.centre != nullptr) v = V::sub(v, V::load(t.centre + head * t.head_dim + i));
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

  static void put_field(uint32_t* words, int64_t stride, int64_t index, int bits, uint32_t value) {
    const int64_t bit = index * bits;
    const auto shift = static_cast<int>(bit % 32);
    const uint32_t mask = ~uint32_t{0} >> (32 - bits);
    uint32_t* word = words + bit / 32 * stride;
    *word = (*word & ~(mask << shift)) | value << shift;
    if (shift + bits > 32) {
      word += stride;
      *word = (*word & ~(mask >> (32 - shift))) | value >> (32 - shift);
    }
  }

  static void store(const HeadsTask& t, const CacheToken& at, int64_t head, const float* x) {
    const CacheLayout& l = *t.layout;
    std::byte* page = at.pages[at.position / kPageTokens] + t.page_offset + head * l.page_bytes();
    const int64_t slot = at.position % kPageTokens;
    const int bits = t.values ? l.v_bits : l.k_bits;
    auto* words = reinterpret_cast<uint32_t*>(page + (t.values ? l.v_words() : 0));
    auto* scales = reinterpret_cast<float*>(page + (t.values ? l.v_scales() : l.k_scales()));
    auto* zeros = reinterpret_cast<uint8_t*>(page + (t.values ? l.v_zeros() : l.k_zeros()));
    words += t.values ? 0 : slot;
    const int64_t stride = t.values ? l.head_dim : kPageTokens;
    const int64_t group = l.head_dim / l.groups;
    for (int64_t g = 0; g < l.groups; ++g) {
      const float* part = x + g * group;
      const Grid grid = bits == 32 ? Grid{1, 0} : grid_of(part, group, bits, t.clip);
      scales[g * kPageTokens + slot] = grid.scale;
      zeros[g * kPageTokens + slot] = static_cast<uint8_t>(grid.zero);
      int8_t levels[kMaxGroup];
      if (bits < 32) quantize(part, group, grid, bits, levels);
      for (int64_t i = 0; i < group; ++i) {
        uint32_t q;
        if (bits == 32) {
          __builtin_memcpy(&q, part + i, sizeof q);
        } else {
          q = static_cast<uint32_t>(levels[i] + 128);
        }
        const int64_t d = g * group + i;
        put_field(words + (t.values ? d : 0), stride, t.values ? slot : d, bits, q);
      }
    }
  }
  static constexpr int64_t kMaxGroup = 1024;

  // Tokens first…last−1; scratch [2][head_dim].
  static void heads(const HeadsTask& t, int64_t first, int64_t last, float* scratch) {
    for (int64_t token = first; token < last; ++token) {
      for (int64_t head = 0; head < t.heads; ++head) {
        const float* x = head_vector(t, token, head, scratch);
        if (t.y != nullptr) {
          float* y = t.y + token * t.y_stride + head * t.head_dim;
          __builtin_memcpy(y, x, static_cast<uint64_t>(t.head_dim) * sizeof(float));
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

  // Per-page arrays of the queries.
  struct Page {
    alignas(64) float scores[kAttendRows][kPageTokens];
    alignas(64) float weights[kMaxCacheGroups][kAttendRows][kPageTokens];
    float q_sums[kMaxCacheGroups][kAttendRows];
    float decay[kAttendRows];
  };

  // scores[row…row+kRows−1] of tokens first…first+16·kVectors−1.
  template <int kBits, int kRows>
  static void score(const AttendTask& t, const std::byte* data, int row, int64_t first,
                    Page& page) {
    constexpr int kV = kVectors;
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
          w[i / kUnit<kBits>][i % kUnit<kBits>] =
              V::load_words(words + i % kUnit<kBits> * kPageTokens + i / kUnit<kBits> * kLanes);
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
        const F zero = V::mul(V::load_bytes(zeros + at), V::splat(page.q_sums[g][row + r]));
        total[i] = V::add(total[i], V::mul(V::load(scales + at), V::sub(dot[i], zero)));
      });
    }
    unroll<kRows * kV>(
        [&](auto i) { V::store(page.scores[row + i / kV] + first + i % kV * kLanes, total[i]); });
  }

  // o[row…] of channels first…first+16·kVectors−1, all of group g: decays, then takes the page in.
  template <int kBits, int kRows>
  static void output(const AttendTask& t, const std::byte* data, int row, int64_t first, int64_t g,
                     const Page& page) {
    constexpr int kV = kVectors;
    const auto* words = reinterpret_cast<const uint32_t*>(data + t.v_words) + first;
    F o[kRows * kV];
    unroll<kRows * kV>([&](auto i) {
      const float* old = t.state[row + i / kV] + 2 + t.groups + first + i % kV * kLanes;
      o[i] = V::mul(V::load(old), V::splat(page.decay[row + i / kV]));
    });
    for (int64_t token = 0; token < kPageTokens; token += kFields<kBits>) {
      Words w[kV][kUnit<kBits>];
      unroll<kV * kUnit<kBits>>([&](auto i) {
        w[i / kUnit<kBits>][i % kUnit<kBits>] =
            V::load_words(words + i % kUnit<kBits> * t.head_dim + i / kUnit<kBits> * kLanes);
      });
      words += kUnit<kBits> * t.head_dim;
      unroll<kFields<kBits>>([&](auto j) {
        unroll<kV>([&](auto v) {
          const F value = field<kBits, j>(w[v]);
          unroll<kRows>([&](auto r) {
            const F weight = V::splat(page.weights[g][row + r][token + j]);
            o[r * kV + v] = V::fma(weight, value, o[r * kV + v]);
          });
        });
      });
    }
    unroll<kRows * kV>([&](auto i) {
      V::store(t.state[row + i / kV] + 2 + t.groups + first + i % kV * kLanes, o[i]);
    });
  }

  // The online softmax of one query over one page: its scores become weights.
  static void weigh(const AttendTask& t, const std::byte* data, int row, int64_t token,
                    Page& page) {
    float* s = page.scores[row];
    for (int64_t i = 0; i < kPageTokens; ++i) {
      if (token + i < t.begin[row] || token + i >= t.end[row]) s[i] = kNever;
    }
    float* state = t.state[row];
    const F s0 = V::load(s);
    const F s1 = V::load(s + kLanes);
    const float found = V::largest(V::max(s0, s1));
    const float m = found > state[0] ? found : state[0];
    const F base = V::splat(m == kNever ? 0.0F : m);
    const float decay = V::first(R::exp(V::sub(V::splat(state[0]), base)));
    const F p0 = V::keep_above(R::exp(V::sub(s0, base)), s0, kNever);
    const F p1 = V::keep_above(R::exp(V::sub(s1, base)), s1, kNever);
    state[0] = m;
    state[1] = fma1(state[1], decay, V::sum(V::add(p0, p1)));
    page.decay[row] = decay;
    const auto* scales = reinterpret_cast<const float*>(data + t.v_scales);
    const auto* zeros = reinterpret_cast<const uint8_t*>(data + t.v_zeros);
    for (int64_t g = 0; g < t.groups; ++g, scales += kPageTokens, zeros += kPageTokens) {
      const F w0 = V::mul(p0, V::load(scales));
      const F w1 = V::mul(p1, V::load(scales + kLanes));
      V::store(page.weights[g][row], w0);
      V::store(page.weights[g][row] + kLanes, w1);
      const F z =
          V::add(V::mul(w0, V::load_bytes(zeros)), V::mul(w1, V::load_bytes(zeros + kLanes)));
      state[2 + g] = fma1(state[2 + g], decay, V::sum(z));
    }
  }

  static float fma1(float x, float y, float z) {
    return V::first(V::fma(V::splat(x), V::splat(y), V::splat(z)));
  }

  template <int kBits, int kRows>
  static void score_page(const AttendTask& t, const std::byte* data, int row, Page& page) {
    for (int64_t i = 0; i < kPageTokens; i += kVectors * kLanes) {
      score<kBits, kRows>(t, data, row, i, page);
    }
  }

  template <int kBits, int kRows>
  static void output_page(const AttendTask& t, const std::byte* data, int row, Page& page) {
    constexpr int64_t kStep = kVectors * kLanes;
    const int64_t group = t.head_dim / t.groups;
    for (int64_t g = 0; g < t.groups; ++g) {
      int64_t d = g * group;
      for (; d + kStep <= (g + 1) * group; d += kStep) {
        output<kBits, kRows>(t, data, row, d, g, page);
      }
      // What is left of a head_dim that is an odd multiple of 16, one query at a time at the width
      // of one vector.
      for (; d < (g + 1) * group; d += kLanes) {
        for (int r = 0; r < kRows; ++r) narrow_output<kBits>(t, data, row + r, d, g, page);
      }
    }
  }

  template <int kBits>
  static void narrow_output(const AttendTask& t, const std::byte* data, int row, int64_t first,
                            int64_t g, const Page& page) {
    float* out = t.state[row] + 2 + t.groups + first;
    const auto* words = reinterpret_cast<const uint32_t*>(data + t.v_words) + first;
    F o = V::mul(V::load(out), V::splat(page.decay[row]));
    for (int64_t token = 0; token < kPageTokens; token += kFields<kBits>) {
      Words w[kUnit<kBits>];
      for (auto& word : w) {
        word = V::load_words(words);
        words += t.head_dim;
      }
      unroll<kFields<kBits>>([&](auto j) {
        o = V::fma(V::splat(page.weights[g][row][token + j]), field<kBits, j>(w), o);
      });
    }
    V::store(out, o);
  }

  // work(bits, rows, first row) for all rows, in few and even parts.
  template <int kBits, typename Work>
  static void in_parts(int rows, const Work& work) {
    int row = 0;
    while (row < rows) {
      const int left = rows - row;
      const int part = left >= 8 ? 8 : left == 6 || left <= 4 ? left : (left + 1) / 2;
      switch (part) {
        case 1:
          work(Index<kBits>(), Index<1>(), row);
          break;
        case 2:
          work(Index<kBits>(), Index<2>(), row);
          break;
        case 3:
          work(Index<kBits>(), Index<3>(), row);
          break;
        case 4:
          work(Index<kBits>(), Index<4>(), row);
          break;
        case 6:
          work(Index<kBits>(), Index<6>(), row);
          break;
        default:
          work(Index<kBits>(), Index<8>(), row);
      }
      row += part;
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
    Page page;
    const int64_t group = t.head_dim / t.groups;
    for (int r = 0; r < t.rows; ++r) {
      for (int64_t g = 0; g < t.groups; ++g) {
        F sum = V::splat(0.0F);
        for (int64_t d = 0; d < group; d += kLanes) {
          sum = V::add(sum, V::load(t.q[r] + g * group + d));
        }
        page.q_sums[g][r] = V::sum(sum);
      }
      t.state[r][0] = kNever;
      for (int64_t i = 1; i < 2 + t.groups + t.head_dim; ++i) t.state[r][i] = 0;
    }
    for (int64_t i = t.first_page; i < t.last_page; ++i) {
      const std::byte* data = t.pages[i] + t.page_offset;
      with_bits(t.k_bits, t.rows,
                [&](auto bits, auto rows, int row) { score_page<bits, rows>(t, data, row, page); });
      for (int r = 0; r < t.rows; ++r) weigh(t, data, r, i * kPageTokens, page);
      with_bits(t.v_bits, t.rows, [&](auto bits, auto rows, int row) {
        output_page<bits, rows>(t, data, row, page);
      });
    }
  }

  // y = the outputs of `chunks` states, `stride` floats apart, of one query.
  static void merge(const float* states, int64_t chunks, int64_t stride, int64_t groups,
                    int64_t head_dim, float* sum, float* y) {
    float m = kNever;
    for (int64_t c = 0; c < chunks; ++c) m = states[c * stride] > m ? states[c * stride] : m;
    const int64_t count = 1 + groups + head_dim;  // l, o_zero, o
    for (int64_t i = 0; i < count; ++i) sum[i] = 0;
    for (int64_t c = 0; c < chunks; ++c) {
      const float* state = states + c * stride;
      const float a = V::first(R::exp(V::splat(state[0] - m)));
      for (int64_t i = 0; i < count; ++i) sum[i] = fma1(state[1 + i], a, sum[i]);
    }
    const int64_t group = head_dim / groups;
    const float* o = sum + 1 + groups;
    for (int64_t d = 0; d < head_dim; ++d) y[d] = (o[d] - sum[1 + d / group]) / sum[0];
  }
};

}  // namespace quarot::cpu
