#include "cli/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/common.h"
#include "cli/terminal.h"

namespace quarot::cli {

namespace {

// Characters, not bytes: continuation bytes of UTF-8 take no room.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
}

// A bar would end the cell.
std::string markdown_cell(const std::string& cell) {
  std::string text;
  for (const char c : cell) text += c == '|' ? "\\|" : std::string(1, c);
  return text;
}

std::string quoted(const std::string& cell) {
  std::string text = "\"";
  for (const char c : cell) text += c == '"' ? "\"\"" : std::string(1, c);
  return text + "\"";
}

}  // namespace

Table::Table(std::vector<std::string> headers) {
  for (std::string& header : headers) {
    left_.push_back(header.starts_with('<'));
    if (left_.back()) header.erase(0, 1);
    header = one_line(header);
  }
  rows_.push_back(std::move(headers));
}

void Table::add(std::vector<std::string> cells) {
  cells.resize(left_.size());
  for (std::string& cell : cells) cell = one_line(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::markdown() const {
  std::string text;
  for (size_t r = 0; r < rows_.size(); ++r) {
    for (const std::string& cell : rows_[r]) text += "| " + markdown_cell(cell) + " ";
    text += "|\n";
    if (r > 0) continue;
    for (const bool left : left_) text += left ? "|---" : "|---:";
    text += "|\n";
  }
  return text;
}

std::string Table::csv() const {
  std::string text;
  for (const auto& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c) {
      const bool plain = row[c].find_first_of("\",") == std::string::npos;
      text += (c > 0 ? "," : "") + (plain ? row[c] : quoted(row[c]));
    }
    text += "\n";
  }
  return text;
}

std::string Table::text() const {
  std::vector<size_t> widths(left_.size(), 0);
  for (const auto& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width_of(row[c]));
  }
  std::string text;
  for (size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    for (size_t c = 0; c < rows_[r].size(); ++c) {
      const std::string space(widths[c] - width_of(rows_[r][c]), ' ');
      if (c > 0) line += "  ";
      line += left_[c] ? rows_[r][c] + space : space + rows_[r][c];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += (r == 0 ? bold(line) : line) + "\n";
  }
  return text;
}

std::string uncertainty(double standard_error, int digits) {
  return std::isnan(standard_error) ? "unknown" : fmt::format("{:.{}f}", standard_error, digits);
}

}  // namespace quarot::cli
