// What every weight-file fuzzer does with a table that its parser accepted.
#pragma once

#include <cstdlib>

#include "formats/tensor_table.h"

namespace quarot {

// Whatever is listed can be read, unless its type is no number; a parser that lets anything else
// through is at fault.
inline void read_all(const TensorTable& table) {
  for (const TensorInfo& info : table.infos()) {
    const auto values = table.read(info.name);
    if (!values.ok() && values.error().code() != ErrorCode::kUnsupported) std::abort();
    if (values.ok() && values->rows() != info.rows()) std::abort();
  }
}

}  // namespace quarot
