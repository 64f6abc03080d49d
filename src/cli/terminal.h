// The terminal: colours only where there is one, a progress line with the time left, Ctrl-C.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "base/progress.h"

namespace quarot::cli {

bool is_terminal(
    int descriptor);  // 1: standard output, 2: standard error; false with NO_COLOR for colours only

// The text in bold, or dimmed, where standard output is a terminal that wants colours.
std::string bold(std::string_view text);
std::string dim(std::string_view text);

// After this the first Ctrl-C only sets a flag that Progress::cancelled() reports; a second one
// kills.
void catch_interrupt();
bool interrupted();
void clear_interrupt();

// Whether something printed did not arrive: the reader went away, the disk is full.
bool output_failed();

// Draws on standard error, where that is a terminal and `quiet` is not set.
class TerminalProgress final : public Progress {
 public:
  explicit TerminalProgress(bool quiet);
  ~TerminalProgress() override;

  void stage(std::string_view name, int64_t total) override;
  void advance(int64_t steps) override;
  bool cancelled() const override { return interrupted() || output_failed(); }

  // Removes the line, so that other output can be printed.
  void clear();

 private:
  void draw(bool force);

  bool visible_;
  std::string name_;
  int64_t total_ = 0;
  int64_t done_ = 0;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point drawn_;
  bool on_screen_ = false;
};

// "3.2 s", "1 min 20 s", "2 h 5 min".
std::string format_seconds(double seconds);
// "98.4 MB".
std::string format_bytes(double bytes);

}  // namespace quarot::cli
