#include "text/prefix_index.h"

#include <algorithm>
#include <utility>

namespace quarot {

PrefixIndex::PrefixIndex(std::vector<Entry> entries) : entries_(std::move(entries)) {
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.key < b.key; });
  for (const Entry& entry : entries_) ++starts_[static_cast<unsigned char>(entry.key[0]) + 1U];
  for (size_t byte = 0; byte < 256; ++byte) starts_[byte + 1] += starts_[byte];
}

void PrefixIndex::for_each_prefix(std::string_view text,
                                  FunctionRef<void(int32_t value, size_t length)> visit) const {
  if (text.empty()) return;
  const auto first = static_cast<unsigned char>(text[0]);
  auto begin = entries_.begin() + starts_[first];
  auto end = entries_.begin() + starts_[first + 1U];
  for (size_t length = 1; begin != end; ++length) {
    // Here the first `length` bytes of all that is left are those of the text.
    while (begin != end && begin->key.size() == length) visit((begin++)->value, length);
    if (length == text.size()) return;
    const auto next = static_cast<unsigned char>(text[length]);
    const auto byte = [&](const Entry& entry) {
      return static_cast<unsigned char>(entry.key[length]);
    };
    begin = std::partition_point(begin, end, [&](const Entry& e) { return byte(e) < next; });
    end = std::partition_point(begin, end, [&](const Entry& e) { return byte(e) == next; });
  }
}

}  // namespace quarot
