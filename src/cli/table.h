// Tables: aligned for a terminal, a pipe and a Markdown code block; as Markdown; as CSV. Control
// characters of a name are shown, see one_line().
#pragma once

#include <string>
#include <vector>

namespace quarot::cli {

class Table {
 public:
  // Columns whose header begins with '<' are left-aligned (the sign is not printed); the others
  // right-aligned.
  explicit Table(std::vector<std::string> headers);

  void add(std::vector<std::string> cells);
  // All with a line for the headers, every line ending in a newline.
  std::string text() const;
  std::string markdown() const;
  std::string csv() const;  // RFC 4180 but for its line ends

 private:
  std::vector<bool> left_;
  std::vector<std::vector<std::string>> rows_;
};

// What stands after ±: "unknown" where it is NaN, as of one window.
std::string uncertainty(double standard_error, int digits);

}  // namespace quarot::cli
