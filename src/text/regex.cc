#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "base/error.h"

namespace quarot {
namespace {

constexpr size_t kMaxPattern = 1 << 16;
constexpr uint32_t kMaxNesting = 100;
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kHeapLimitKib = 64 * 1024;
constexpr size_t kJitStackSmall = 32 * 1024;
constexpr size_t kJitStackLarge = 8 * 1024 * 1024;

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};
template <typename T, auto Free>
using Owned = std::unique_ptr<T, Freed<Free>>;

using CompileContext = Owned<pcre2_compile_context, pcre2_compile_context_free>;
using MatchContext = Owned<pcre2_match_context, pcre2_match_context_free>;
using MatchData = Owned<pcre2_match_data, pcre2_match_data_free>;
using JitStack = Owned<pcre2_jit_stack, pcre2_jit_stack_free>;

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

// PCRE2's \s is Perl's, which has U+180E too; the tokenizers' is Unicode's White_Space.
std::string with_unicode_spaces(std::string_view pattern) {
  std::string result;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const bool escape = pattern[i] == '\\' && i + 1 < pattern.size();
    if (!escape) {
      result += pattern[i];
      continue;
    }
    ++i;
    if (pattern[i] == 's') {
      result += "\\p{White_Space}";
    } else if (pattern[i] == 'S') {
      result += "\\P{White_Space}";
    } else {
      result += {'\\', pattern[i]};
    }
  }
  return result;
}

PCRE2_SPTR code_units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

Result<Regex> Regex::compile(std::string_view pattern) {
  if (pattern.size() > kMaxPattern) {
    return error(ErrorCode::kUnsupported,
                 "a regular expression of {} bytes, more than the {} allowed", pattern.size(),
                 kMaxPattern);
  }
  if (pattern.find("&&[") != std::string_view::npos) {
    return error(ErrorCode::kUnsupported, "the regular expression '{}' intersects classes with &&",
                 pattern);
  }
  const std::string translated = with_unicode_spaces(pattern);
  const CompileContext context(pcre2_compile_context_create(nullptr));
  if (!context) return error(ErrorCode::kOutOfMemory, "no memory to compile a regular expression");
  pcre2_set_parens_nest_limit(context.get(), kMaxNesting);
  int code = 0;
  size_t position = 0;
  std::shared_ptr<pcre2_code> compiled(
      pcre2_compile(code_units(translated), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &position,
                    context.get()),
      pcre2_code_free);
  if (!compiled) {
    return error(ErrorCode::kCorrupt, "the regular expression '{}' is wrong at byte {}: {}",
                 translated.substr(0, 200), position, message_of(code));
  }
  // Where the machine refuses executable memory, matching is interpreted: slower, not otherwise.
  pcre2_jit_compile(compiled.get(), PCRE2_JIT_COMPLETE);
  Regex regex;
  regex.code_ = std::move(compiled);
  return regex;
}

Regex Regex::literal(std::string_view text) {
  Regex regex;
  regex.literal_ = text;
  return regex;
}

void Regex::for_each_match(std::string_view text, FunctionRef<void(size_t, size_t)> visit) const {
  if (!code_) {
    for (size_t at = text.find(literal_); at != std::string_view::npos && !literal_.empty();
         at = text.find(literal_, at + literal_.size()))
      visit(at, at + literal_.size());
    return;
  }
  const MatchData data(pcre2_match_data_create(1, nullptr));
  const MatchContext context(pcre2_match_context_create(nullptr));
  if (!data || !context) return;
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  JitStack stack;
  for (size_t at = 0; at < text.size();) {
    int found = pcre2_match(code_.get(), code_units(text), text.size(), at,
                            PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, data.get(), context.get());
    if (found == PCRE2_ERROR_JIT_STACKLIMIT && !stack) {
      stack.reset(pcre2_jit_stack_create(kJitStackSmall, kJitStackLarge, nullptr));
      pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
      continue;
    }
    if (found < 0) return;
    const size_t* bounds = pcre2_get_ovector_pointer(data.get());
    // \K in a lookahead can put the start of a match after its end or before the last one's.
    if (bounds[0] < at || bounds[1] <= bounds[0]) return;
    visit(bounds[0], bounds[1]);
    at = bounds[1];
  }
}

}  // namespace quarot
