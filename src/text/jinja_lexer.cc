#include "text/jinja_lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "base/error.h"
#include "text/jinja_text.h"

namespace quarot::jinja {

namespace {

bool is_decimal(char c) { return c >= '0' && c <= '9'; }

// ASCII as Python has it; beyond ASCII any letter or mark will do.
bool in_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_decimal(c) ||
         static_cast<unsigned char>(c) >= 0x80;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  Result<std::vector<Token>> run() {
    while (at_ < source_.size()) QUAROT_RETURN_IF_ERROR(text_and_tag());
    push(Token::Kind::kEnd, {}, at_);
    return std::move(tokens_);
  }

 private:
  bool starts(std::string_view what, size_t at) const {
    return source_.substr(at).starts_with(what);
  }
  bool starts(std::string_view what) const { return starts(what, at_); }

  Error fail(size_t at, std::string_view message) const {
    return error_at(source_, static_cast<uint32_t>(at), ErrorCode::kInvalidArgument, message);
  }

  Token& push(Token::Kind kind, std::string text, size_t at) {
    Token token;
    token.kind = kind;
    token.text = std::move(text);
    token.offset = static_cast<uint32_t>(at);
    return tokens_.emplace_back(std::move(token));
  }

  size_t skip_spaces(size_t at) const {
    const std::string_view rest = source_.substr(at);
    return at + rest.size() - strip(rest, Side::kLeft).size();
  }

  // Text in front of a tag that opens with `control` (-, + or nothing).
  void push_text(std::string_view text, size_t at, char control, bool block) {
    if (control == '-') {
      text = strip(text, Side::kRight);
    } else if (control != '+' && block) {
      const size_t newline = text.rfind('\n');
      const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
      const bool whole_line = line > 0 || line_starts_;
      if (whole_line && strip(text.substr(line), Side::kLeft).empty()) text = text.substr(0, line);
    }
    if (!text.empty()) push(Token::Kind::kText, std::string(text), at);
  }

  // Past the end of a block or comment whose closing characters start at `end`.
  void close(size_t end, char control, bool block) {
    at_ = end + 2;
    if (control == '-') {
      at_ = skip_spaces(at_);
    } else if (block && control != '+' && starts("\n")) {
      ++at_;
    }
    line_starts_ = source_[at_ - 1] == '\n';
  }

  char control_at(size_t at) const {
    const char c = at < source_.size() ? source_[at] : '\0';
    return c == '-' || c == '+' ? c : '\0';
  }

  Status text_and_tag() {
    const size_t begin = at_;
    size_t tag = begin;
    do {
      tag = source_.find('{', tag);
      if (tag == std::string_view::npos || tag + 1 >= source_.size()) {
        push(Token::Kind::kText, std::string(source_.substr(begin)), begin);
        at_ = source_.size();
        return {};
      }
      ++tag;
    } while (std::string_view("{%#").find(source_[tag]) == std::string_view::npos);
    const char opening = source_[tag--];
    const char control = control_at(tag + 2);
    push_text(source_.substr(begin, tag - begin), begin, control, opening != '{');
    at_ = tag + 2 + (control != '\0' ? 1 : 0);
    if (opening == '#') return comment(tag);
    if (opening == '{') return inside(Token::Kind::kPrintBegin, tag);
    if (const size_t end = raw_begin(); end != 0) return raw(tag, end);
    return inside(Token::Kind::kBlockBegin, tag);
  }

  Status comment(size_t tag) {
    const size_t end = source_.find("#}", at_);
    if (end == std::string_view::npos)
      return fail(tag, "this comment is not closed: '#}' expected");
    close(end, end > at_ ? control_at(end - 1) : '\0', true);
    return {};
  }

  // Where "raw %}" ends, if that is what follows; else 0. Jinja does not trim the newline after it.
  size_t raw_begin() const {
    const size_t end = keyword_tag("raw", at_);
    return end != 0 && source_[end - 3] == '+' ? 0 : end;
  }

  size_t keyword_tag(std::string_view keyword, size_t at) const {
    at = skip_spaces(at);
    if (!starts(keyword, at)) return 0;
    at = skip_spaces(at + keyword.size());
    if (starts("%}", at)) return at + 2;
    return starts("-%}", at) || starts("+%}", at) ? at + 3 : 0;
  }

  Status raw(size_t tag, size_t end) {
    at_ = source_[end - 3] == '-' ? skip_spaces(end) : end;
    line_starts_ = source_[at_ - 1] == '\n';
    const size_t begin = at_;
    for (size_t open = begin;; ++open) {
      open = source_.find("{%", open);
      if (open == std::string_view::npos) break;
      const char control = control_at(open + 2);
      const size_t closed = keyword_tag("endraw", open + 2 + (control != '\0' ? 1 : 0));
      if (closed == 0) continue;
      push_text(source_.substr(begin, open - begin), begin, control, true);
      close(closed - 2, control_at(closed - 3), true);
      return {};
    }
    return fail(tag, "this raw block is not closed: '{% endraw %}' expected");
  }

  // The tokens of a tag up to its end.
  Status inside(Token::Kind begin, size_t tag) {
    const bool block = begin == Token::Kind::kBlockBegin;
    const std::string_view end = block ? "%}" : "}}";
    push(begin, {}, tag);
    std::string open;  // brackets waiting to be closed: inside them }} ends two dicts, not the tag
    while (true) {
      at_ = skip_spaces(at_);
      if (at_ == source_.size()) {
        return fail(tag, fmt::format("this tag is not closed: '{}' expected", end));
      }
      const char control = control_at(at_);
      const size_t end_at = at_ + (control == '-' || (control == '+' && block) ? 1 : 0);
      if (open.empty() && starts(end, end_at)) {
        push(block ? Token::Kind::kBlockEnd : Token::Kind::kPrintEnd, {}, at_);
        close(end_at, control, block);
        return {};
      }
      QUAROT_RETURN_IF_ERROR(token(open));
    }
  }

  Status token(std::string& open) {
    const char c = source_[at_];
    if (c == '"' || c == '\'') return string();
    if (is_decimal(c)) return number();
    if (in_name(c)) {
      const size_t begin = at_;
      while (at_ < source_.size() && in_name(source_[at_])) ++at_;
      push(Token::Kind::kName, std::string(source_.substr(begin, at_ - begin)), begin);
      return {};
    }
    return symbol(open);
  }

  Status symbol(std::string& open) {
    static constexpr std::string_view kPairs[] = {"//", "**", "==", "!=", ">=", "<="};
    const bool pair = std::any_of(std::begin(kPairs), std::end(kPairs),
                                  [&](std::string_view two) { return starts(two); });
    const char c = source_[at_];
    if (!pair && std::string_view("+-/*%~[](){}><=.:|,").find(c) == std::string_view::npos) {
      std::string_view rest = source_.substr(at_);
      return fail(at_, fmt::format("unexpected character '{}'", take_character(rest)));
    }
    if (c == '(') open += ')';
    if (c == '[') open += ']';
    if (c == '{') open += '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) return fail(at_, fmt::format("'{}' closes nothing", c));
      if (open.back() != c) {
        return fail(at_, fmt::format("'{}' expected, found '{}'", open.back(), c));
      }
      open.pop_back();
    }
    const size_t size = pair ? 2 : 1;
    push(Token::Kind::kOperator, std::string(source_.substr(at_, size)), at_);
    at_ += size;
    return {};
  }

  // Digits with single underscores between them, from `at` on.
  size_t skip_digits(size_t at) const {
    while (at < source_.size() &&
           (is_decimal(source_[at]) || (source_[at] == '_' && is_decimal_at(at + 1)))) {
      ++at;
    }
    return at;
  }
  bool is_decimal_at(size_t at) const { return at < source_.size() && is_decimal(source_[at]); }

  Status number() {
    const size_t begin = at_;
    at_ = skip_digits(at_);
    bool real = false;
    const bool after_dot = begin > 0 && source_[begin - 1] == '.';  // items.0.1: two integers
    if (!after_dot && starts(".") && is_decimal_at(at_ + 1)) {
      at_ = skip_digits(at_ + 1);
      real = true;
    }
    if (!after_dot && (starts("e") || starts("E"))) {
      const size_t sign = at_ + 1 < source_.size() && control_at(at_ + 1) != '\0' ? 1 : 0;
      if (is_decimal_at(at_ + 1 + sign)) {
        at_ = skip_digits(at_ + 1 + sign);
        real = true;
      }
    }
    std::string digits(source_.substr(begin, at_ - begin));
    std::erase(digits, '_');
    Token& token = push(real ? Token::Kind::kFloat : Token::Kind::kInteger, digits, begin);
    if (real) {
      token.real = std::strtod(digits.c_str(), nullptr);
      return {};
    }
    const char* last = digits.data() + digits.size();
    if (std::from_chars(digits.data(), last, token.integer).ec != std::errc()) {
      return fail(begin, fmt::format("the integer {} does not fit 64 bits", digits));
    }
    return {};
  }

  Status string() {
    const size_t begin = at_;
    const char quote = source_[at_++];
    std::string text;
    while (at_ < source_.size() && source_[at_] != quote) {
      if (source_[at_] == '\\' && at_ + 1 < source_.size()) {
        QUAROT_RETURN_IF_ERROR(escape(text));
      } else {
        text += source_[at_++];
      }
    }
    if (at_ == source_.size()) return fail(begin, "this string is not closed");
    ++at_;
    push(Token::Kind::kString, std::move(text), begin);
    return {};
  }

  // One escape sequence, as in a Python string; an unknown one stands for itself.
  Status escape(std::string& text) {
    static constexpr std::string_view kFrom = "\\'\"nrtabfv";
    static constexpr std::string_view kTo = "\\'\"\n\r\t\a\b\f\v";
    const char c = source_[at_ + 1];
    if (const size_t i = kFrom.find(c); i != std::string_view::npos) {
      text += kTo[i];
    } else if (c == 'x' || c == 'u' || c == 'U') {
      return code_point_escape(text, c == 'x' ? 2 : c == 'u' ? 4 : 8);
    } else if (c >= '0' && c <= '7') {
      size_t size = 1;
      while (size < 3 && at_ + 1 + size < source_.size() && source_[at_ + 1 + size] >= '0' &&
             source_[at_ + 1 + size] <= '7') {
        ++size;
      }
      append_code_point(text, parse_digits(at_ + 1, size, 8));
      at_ += 1 + size;
      return {};
    } else if (c != '\n') {
      text += '\\';
      text += c;
    }
    at_ += 2;
    return {};
  }

  uint32_t parse_digits(size_t at, size_t size, int base) const {
    uint32_t value = 0;
    const char* first = source_.data() + at;
    return std::from_chars(first, first + size, value, base).ptr == first + size ? value
                                                                                 : kNotANumber;
  }

  Status code_point_escape(std::string& text, size_t size) {
    const bool fits = at_ + 2 + size <= source_.size();
    uint32_t point = fits ? parse_digits(at_ + 2, size, 16) : kNotANumber;
    if (point == kNotANumber) {
      return fail(at_, fmt::format("{} hexadecimal digits expected after this escape", size));
    }
    at_ += 2 + size;
    const bool high = point >= 0xD800 && point < 0xDC00;
    if (high && starts("\\u") && at_ + 6 <= source_.size()) {
      const uint32_t low = parse_digits(at_ + 2, 4, 16);
      if (low >= 0xDC00 && low < 0xE000) {
        point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
        at_ += 6;
      }
    }
    append_code_point(text, point);
    return {};
  }

  static constexpr uint32_t kNotANumber = 0xFFFFFFFF;

  std::string_view source_;
  size_t at_ = 0;
  bool line_starts_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::string normalize_newlines(std::string_view source) {
  std::string normalized;
  normalized.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      normalized += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      normalized += '\n';
    }
  }
  if (normalized.ends_with('\n')) normalized.pop_back();
  return normalized;
}

Result<std::vector<Token>> tokenize(std::string_view normalized) { return Lexer(normalized).run(); }

Error error_at(std::string_view source, uint32_t offset, ErrorCode code, std::string_view message) {
  const std::string_view before = source.substr(0, offset);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const size_t start = newline == std::string_view::npos ? 0 : newline + 1;
  return error(code, "line {}, column {}: {}", line, 1 + character_count(before.substr(start)),
               message);
}

}  // namespace quarot::jinja
