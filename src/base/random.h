// Seeded random numbers that are the same on every machine and with every standard library: the
// generator is xoshiro256** (Blackman and Vigna 2018), seeded through splitmix64; the distributions
// are ours, since those of <random> are not specified bit for bit.
#pragma once

#include <cstdint>
#include <string_view>

namespace quarot {

class Random {
 public:
  explicit Random(uint64_t seed);

  // An independent stream for a named purpose: Random(seed, "R1").
  Random(uint64_t seed, std::string_view purpose);

  uint64_t next();                 // 64 random bits
  uint64_t below(uint64_t bound);  // uniform in [0, bound), bound > 0, without bias
  double uniform();                // uniform in [0, 1)
  double normal();                 // mean 0, variance 1 (polar method, Marsaglia 1964)
  int sign() { return (next() >> 63) != 0U ? -1 : 1; }

 private:
  uint64_t state_[4];
  double spare_ = 0;
  bool has_spare_ = false;
};

}  // namespace quarot
