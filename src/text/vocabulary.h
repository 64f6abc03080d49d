// Token contents and their ids, as the file writes them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "quarot/status.h"
#include "text/tokenizer.h"

namespace quarot {

class Vocabulary {
 public:
  static constexpr int64_t kMaxTokens = int64_t{1} << 22;  // 16 times the largest known

  // Refuses an id out of range, an id given twice and a content given twice.
  Status add(int64_t id, std::string_view content);

  // An added token: like add(), but may name again what is there, or rename an id (the earlier
  // content keeps finding it). Refuses a content that already has another id.
  Status add_or_rename(int64_t id, std::string_view content);

  std::optional<Token> id(std::string_view content) const;
  std::string_view content(Token token) const;  // empty where no token has that id
  bool contains(Token token) const {
    return token >= 0 && token < size() && contents_[static_cast<size_t>(token)] != nullptr;
  }
  int64_t size() const { return static_cast<int64_t>(contents_.size()); }  // the largest id + 1

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  Status place(int64_t id);

  std::unordered_map<std::string, Token, Hash, std::equal_to<>> ids_;
  std::vector<const std::string*> contents_;  // the keys of ids_, which never move
};

}  // namespace quarot
