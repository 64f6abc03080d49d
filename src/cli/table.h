// Plain aligned tables: good on a terminal, in a pipe and in a Markdown code block.
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
  std::string text() const;  // with a line for the headers, every line ending in a newline

 private:
  std::vector<bool> left_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace quarot::cli
