// Any bytes as a task file; what is accepted keeps its promises.
#include <cstdint>
#include <cstdlib>

#include "formats/task_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto items = quarot::parse_task_file({reinterpret_cast<const char*>(data), size}, "input");
  if (!items.ok()) return 0;
  if (items->empty()) std::abort();
  for (const quarot::TaskItem& item : *items) {
    const bool choices =
        item.gold && *item.gold < item.pairs.size() && item.norm.size() == item.pairs.size();
    const bool word = !item.gold && item.pairs.size() == 1 && item.norm.empty();
    if (!choices && !word) std::abort();
  }
  return 0;
}
