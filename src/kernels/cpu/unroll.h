// Loops over registers: an array becomes registers only where every index is a constant before the
// optimiser looks at it, which a loop it unrolls later does not give.
#pragma once

namespace quarot::cpu {

template <int kIndex>
struct Index {
  [[gnu::always_inline]] constexpr operator int() const {
    return kIndex;
  }  // NOLINT: an index is an int
};

// f(Index<0>()), …, f(Index<kCount − 1>()).
template <int kCount, int kFirst = 0, typename F>
[[gnu::always_inline]] inline void unroll(const F& f) {
  if constexpr (kFirst < kCount) {
    f(Index<kFirst>());
    unroll<kCount, kFirst + 1>(f);
  }
}

}  // namespace quarot::cpu
