// How long work reports itself and can be interrupted: the library calls, a terminal or a server
// listens.
#pragma once

#include <cstdint>
#include <string_view>

#include "quarot/status.h"

namespace quarot {

class Progress {
 public:
  virtual ~Progress() = default;

  // A stage of `total` equal steps starts; it ends when the next one starts or the work returns.
  virtual void stage(std::string_view name, int64_t total) = 0;
  virtual void advance(int64_t steps) = 0;

  // True once the user wants to stop; long work asks between steps.
  virtual bool cancelled() const = 0;

  // kCancelled once the user wants to stop.
  Status check() const {
    if (cancelled()) return Error(ErrorCode::kCancelled, "interrupted");
    return {};
  }
};

// Nobody listens.
class NoProgress final : public Progress {
 public:
  void stage(std::string_view, int64_t) override {}
  void advance(int64_t) override {}
  bool cancelled() const override { return false; }
};

}  // namespace quarot
