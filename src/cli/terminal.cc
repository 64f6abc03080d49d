#include "cli/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace quarot::cli {

namespace {

volatile std::sig_atomic_t g_interrupted = 0;

extern "C" void on_interrupt(int signal) {
  g_interrupted = 1;
  std::signal(signal, SIG_DFL);  // the second one kills
}

std::string styled(std::string_view text, std::string_view code) {
  static const bool colours = is_terminal(STDOUT_FILENO) && std::getenv("NO_COLOR") == nullptr;
  return colours ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : std::string(text);
}

int terminal_width() {
  struct winsize size {};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

constexpr auto kRedraw = std::chrono::milliseconds(100);

}  // namespace

bool is_terminal(int descriptor) { return ::isatty(descriptor) == 1; }

std::string bold(std::string_view text) { return styled(text, "1"); }
std::string dim(std::string_view text) { return styled(text, "2"); }

void catch_interrupt() { std::signal(SIGINT, on_interrupt); }
bool interrupted() { return g_interrupted != 0; }
void clear_interrupt() {
  g_interrupted = 0;
  catch_interrupt();
}

bool output_failed() { return std::ferror(stdout) != 0; }

TerminalProgress::TerminalProgress(bool quiet) : visible_(!quiet && is_terminal(STDERR_FILENO)) {}

TerminalProgress::~TerminalProgress() { clear(); }

void TerminalProgress::stage(std::string_view name, int64_t total) {
  name_ = name;
  total_ = std::max<int64_t>(total, 1);
  done_ = 0;
  start_ = std::chrono::steady_clock::now();
  draw(true);
}

void TerminalProgress::advance(int64_t steps) {
  done_ = std::min(done_ + steps, total_);
  draw(done_ == total_);
}

void TerminalProgress::draw(bool force) {
  if (!visible_) return;
  const auto now = std::chrono::steady_clock::now();
  if (!force && now - drawn_ < kRedraw) return;
  drawn_ = now;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double share = static_cast<double>(done_) / static_cast<double>(total_);
  std::string right = fmt::format(" {:3.0f} %", 100 * share);
  if (done_ > 0 && done_ < total_)
    right += fmt::format("  {} left", format_seconds(elapsed / share * (1 - share)));
  const int room =
      std::clamp(terminal_width() - static_cast<int>(name_.size() + right.size()) - 3, 0, 40);
  const auto filled = static_cast<size_t>(share * room);
  std::string bar;
  for (size_t i = 0; i < static_cast<size_t>(room); ++i) bar += i < filled ? "━" : "┄";
  std::fputs(fmt::format("\r\x1b[K{} {}{}", name_, bar, right).c_str(), stderr);
  std::fflush(stderr);
  on_screen_ = true;
}

void TerminalProgress::clear() {
  if (!on_screen_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  on_screen_ = false;
}

std::string format_seconds(double seconds) {
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  const int64_t whole = std::llround(seconds);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

std::string format_bytes(double bytes) {
  constexpr std::string_view kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < std::size(kUnits)) {
    bytes /= 1000;
    ++unit;
  }
  return fmt::format("{:.4g} {}", bytes, kUnits[unit]);
}

}  // namespace quarot::cli
