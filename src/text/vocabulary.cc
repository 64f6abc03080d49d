#include "text/vocabulary.h"

#include "base/error.h"

namespace quarot {

Status Vocabulary::place(int64_t id) {
  if (id < 0 || id >= kMaxTokens)
    return error(ErrorCode::kCorrupt, "token id {} is outside 0…{}", id, kMaxTokens - 1);
  if (id >= size()) contents_.resize(static_cast<size_t>(id) + 1, nullptr);
  return {};
}

Status Vocabulary::add(int64_t id, std::string_view content) {
  QUAROT_RETURN_IF_ERROR(place(id));
  const std::string*& slot = contents_[static_cast<size_t>(id)];
  if (slot != nullptr) {
    return error(ErrorCode::kCorrupt, "token id {} is given to both '{}' and '{}'", id, *slot,
                 content);
  }
  const auto [entry, is_new] = ids_.try_emplace(std::string(content), static_cast<Token>(id));
  if (!is_new) {
    return error(ErrorCode::kCorrupt, "the token '{}' is given two ids, {} and {}", content,
                 entry->second, id);
  }
  slot = &entry->first;
  return {};
}

Status Vocabulary::add_or_rename(int64_t id, std::string_view content) {
  QUAROT_RETURN_IF_ERROR(place(id));
  const auto entry = ids_.try_emplace(std::string(content), static_cast<Token>(id)).first;
  if (entry->second != id) {
    return error(ErrorCode::kCorrupt, "the added token '{}' has id {}, but the vocabulary says {}",
                 content, id, entry->second);
  }
  contents_[static_cast<size_t>(id)] = &entry->first;
  return {};
}

std::optional<Token> Vocabulary::id(std::string_view content) const {
  const auto found = ids_.find(content);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

std::string_view Vocabulary::content(Token token) const {
  return contains(token) ? *contents_[static_cast<size_t>(token)] : std::string_view();
}

}  // namespace quarot
