// Which of a set of strings a text starts with: a sorted array narrowed byte by byte.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"

namespace quarot {

class PrefixIndex {
 public:
  struct Entry {
    std::string key;  // not empty
    int32_t value;
  };

  PrefixIndex() = default;
  explicit PrefixIndex(std::vector<Entry> entries);

  // Calls visit(value, length) for each key that `text` starts with, shortest first.
  void for_each_prefix(std::string_view text,
                       FunctionRef<void(int32_t value, size_t length)> visit) const;

  bool may_start_with(unsigned char byte) const { return starts_[byte] != starts_[byte + 1U]; }

 private:
  std::vector<Entry> entries_;
  std::array<uint32_t, 257>
      starts_{};  // keys whose first byte is b: entries [starts[b], starts[b+1])
};

}  // namespace quarot
