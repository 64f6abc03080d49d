#include "text/merge_list.h"

#include "base/error.h"

namespace quarot {

Status MergeList::add(std::string_view left, std::string_view right) {
  const std::string joint = std::string(left) + std::string(right);
  for (const std::string_view content : {left, right, std::string_view(joint)}) {
    if (!vocabulary_->id(content)) {
      return error(ErrorCode::kCorrupt,
                   "merge {} ('{}' + '{}') needs the token '{}', which is not "
                   "in the vocabulary",
                   merges_.size(), left, right, content);
    }
  }
  merges_.push_back({*vocabulary_->id(left), *vocabulary_->id(right), *vocabulary_->id(joint),
                     static_cast<uint32_t>(merges_.size())});
  return {};
}

Status MergeList::add(std::string_view line) {
  // A token may itself begin with a space, but GPT-2's lists have none inside.
  const size_t space = line.find(' ', 1);
  if (space == std::string_view::npos) {
    return error(ErrorCode::kCorrupt, "merge {} ('{}') is not two tokens with a space between",
                 merges_.size(), line);
  }
  return add(line.substr(0, space), line.substr(space + 1));
}

}  // namespace quarot
